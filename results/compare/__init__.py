"""Two versions side by side, case by case, with a verdict: from kept runs, or from records just measured.

In the order of a comparison: load, match, sides, turns, row, comparison (of kept runs) and live, output, plot, command.
May import the record, the store, `results.stats` and `results.show`.
"""
