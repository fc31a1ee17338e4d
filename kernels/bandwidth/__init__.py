"""Kernels that only move data, to find the bandwidth of memory and of the L2 cache."""
