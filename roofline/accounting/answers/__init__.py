"""The answers of `python -m roofline estimate`."""
