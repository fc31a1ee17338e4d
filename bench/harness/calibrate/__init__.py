"""The measured ceilings of a machine: bandwidths, peaks of the dtypes, launch cost."""
