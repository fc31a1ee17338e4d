"""The profiler: every operation of any torch model or function, on the roofline.

A profile is made in this order: `target` builds what is profiled, `step` runs it, `account` counts the work of each
call by the rules of `counts`, `recording` reads what torch.profiler saw, `join` gives each call its time, `report` sums
and judges, `show` prints, `profiling` goes through all of it for the command and for `bench.profile`.

It stands above `cli` and below `commands`, and may import whatever stands to the left of it.
"""
