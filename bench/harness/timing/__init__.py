"""How long one launch takes: the protocol (when to stop, which statistic), the samplers, and
settling beforehand.
"""
