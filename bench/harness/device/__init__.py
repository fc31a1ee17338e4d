"""The machine that is measured: its device, the facts that each system reports, and telemetry.

Imports nothing else of `bench`.
"""
