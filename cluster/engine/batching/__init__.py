"""Many clients trained as one program."""
