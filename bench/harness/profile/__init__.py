"""The profiler: every operation of any torch model or function, on the roofline.

`target` builds what is profiled, `step` runs it and counts its operations by the rules of `counts`,
`tracing` gives each its time, `report` makes records of them, sums and prints them. `trace_file`
takes operations and times from a trace of torch.profiler instead.
"""
