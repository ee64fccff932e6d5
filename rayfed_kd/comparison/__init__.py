"""Studies: several runs, their table, and the papers' numbers beside it.

`studies` reads a study file, and `study_selection` takes what a command line asks of it. `planning` and
`checking` make runs of it, `compare` runs what is missing, `comparison` has the numbers, and `writers`
writes the files.
"""
