"""What a recipe may say: its schema, how it is read, the messages about its faults, the registry of names."""
