"""`python -m bench compare`: providers of one case measured in turns.

Rows, statistics, table and picture are those of `results.compare`. May import every other folder of the harness.
"""
