"""One case over many runs, and where its time changed.

`changes` finds the change points, `segments` the points of each provider. May import all that `results.compare` may,
and that.
"""
