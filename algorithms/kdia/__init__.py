"""KDIA: the method, and how its teacher weighs participation."""
