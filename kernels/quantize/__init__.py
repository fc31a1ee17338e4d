"""Quantization of matrices to fp8 codes and fp32 scales."""
