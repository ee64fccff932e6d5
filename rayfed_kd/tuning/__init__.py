"""Searches: which coefficients of a recipe do best, tried by Ray Tune.

`tune` is the entry. `space` and `distributions` say what is searched, `metric` what for, `proposers` which
coefficients come next. `search_setup` refuses a bad search, `search_folder` keeps it on disk, `ray_tune` and
`trial_run` run the trials, `search_result` reads what they reached.
"""
