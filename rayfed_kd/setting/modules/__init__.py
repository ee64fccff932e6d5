"""The modules that a setting names: architectures, what builds them, their shapes and vectors."""
