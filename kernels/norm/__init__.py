"""Normalization of the rows of a matrix: RMSNorm, LayerNorm, and RMSNorm of a residual sum."""
