"""Softmax along the rows of a matrix."""
