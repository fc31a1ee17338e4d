"""Triton kernels by operation, one file per version. No kernel has run on a GPU yet, and no
configuration is tuned.

Importing this package imports nothing else.
"""
