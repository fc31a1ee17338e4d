"""Who computes a case: torch, `torch-compile`, the Triton versions, or a function in a user's file."""
