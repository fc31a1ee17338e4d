"""`python -m bench compare`: providers of one case measured in turns."""
