"""EXPLORE: calculators in a browser, defined in `calculators.toml`; may import everything except
`__main__`.
"""
