"""EXPLORE: calculators in a browser, one small file each in `calculators/`; may import all but `__main__`."""
