"""Searches: which coefficients of a recipe do best, tried by Ray Tune.

`tune` is the entry. `space` says what is searched, `metric` what for. `search_setup` refuses a bad search,
`search_folder` keeps it on disk, `ray_tune` and `trial` run the trials, `search_result` reads what they
reached.
"""
