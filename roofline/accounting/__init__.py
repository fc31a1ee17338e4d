"""Resource accounting: parameters, FLOPs, memory, time and cost of language models, from plain
numbers.
"""
