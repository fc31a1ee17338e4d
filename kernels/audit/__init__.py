"""Compile kernels for GPUs that need not be present, and analyze the machine code."""


class AuditError(Exception):
    """An error of one line for the user."""
