"""Compiles kernels for GPUs that need not be present, and reads the machine code."""


class AuditError(Exception):
    """One line for the user, from any part of an audit: what is wrong, which value, what is allowed."""
