"""EXPLORE: calculators in a browser, described in `calculators.toml`; may import all but `__main__`."""
