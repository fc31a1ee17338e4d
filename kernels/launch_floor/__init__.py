"""Kernels that do nothing, to find what a launch costs by itself."""
