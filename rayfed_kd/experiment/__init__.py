"""One run: prepared, run, resumed, exported."""
