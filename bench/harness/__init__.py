"""The machinery behind every bench command; an op file needs only `op.py` and `cli.main`."""
