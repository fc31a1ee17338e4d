"""Triton kernels by operation, one file per version; importing this package imports nothing else."""
