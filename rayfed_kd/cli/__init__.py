"""The command line: one module per group of commands, and what some of them print."""
