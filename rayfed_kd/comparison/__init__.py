"""Studies: several runs, their table, and the papers' numbers beside it."""
