"""The commands of `python -m roofline`."""
