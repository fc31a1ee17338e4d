"""Bytes and shares that the counters of an NVIDIA GPU give for the operations of a step, by Nsight Compute (`ncu`)."""
