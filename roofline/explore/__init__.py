"""EXPLORE: the estimates in a browser, generated from their parameters; may import everything
except `__main__`.
"""
