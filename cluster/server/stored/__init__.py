"""A checkpoint's files: what they hold, how they are read, and whether they are whole."""
