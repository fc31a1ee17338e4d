"""The profiler: every operation of any torch model or function, on the roofline.

`target` builds what is profiled, `step` runs it and holds its operations, `account` counts their work by the rules of
`counts` and tags them, `tracing` gives each its time, `compiled` and `replay` are for two options, `report` sums and
judges, `show` prints, `profiling` goes through all of it for the command and for `bench.profile`.
"""
