"""Pictures of a run, a partition, a comparison, a search and a report: a function for each kind of chart.

`draw_...` draws on axes that it is given, `..._figure` makes a figure. They use matplotlib's objects, and
never pyplot: no global state, no display, safe in a thread. `figure` has what all share, `lines` curves by
round or cost, `bars` histograms and bars, `images` images, `partition` clients by classes, `coefficients` a
search's.
"""
