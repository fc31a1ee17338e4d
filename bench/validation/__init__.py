"""Tools that check the measurements themselves: against other clocks, profilers, published figures, and in repetition.

`publish` runs all of them for the published record of a machine. They may import everything of Ridgepoint, and nothing
imports them but tests.
"""
