"""The providers that compute a case: torch, `torch-compile`, the Triton versions, and functions of
users.
"""
