"""Elementwise operations: every output element depends on the inputs at its own position."""
