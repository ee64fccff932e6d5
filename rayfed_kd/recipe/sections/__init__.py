"""The sections of a recipe, one file each, with what they stand on."""
