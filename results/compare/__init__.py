"""Two versions side by side, case by case, with a verdict: from saved runs, or from records just
measured.
"""
