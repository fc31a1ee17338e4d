"""Kernels of nothing but fused multiply-adds, to find the arithmetic rate without tensor cores."""
