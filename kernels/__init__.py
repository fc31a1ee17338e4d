"""Triton kernels by operation, one file per version; importing this package imports nothing else."""

DISTRIBUTION = "ridgepoint"  # tells this package from the one of the same name on PyPI
