"""The profiler: every operation of any torch model or function, on the roofline.

`target` builds what is profiled, `step` runs it and counts its operations by the rules of `counts`,
`tracing` gives each its time, and `records` makes records of them, which `results.show.profile`
sums and prints. `trace_file` takes operations and times from a trace of torch.profiler instead,
`projection` least times from the roofs of other machines.
"""
