"""Reductions of vectors to one number: sum and dot."""
