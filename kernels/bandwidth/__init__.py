"""Kernels that only move data, to find the bandwidth of memory."""
