"""The machine that is measured: its device, what each system tells of it, and what it did meanwhile.

Imports nothing else of `bench`.
"""
