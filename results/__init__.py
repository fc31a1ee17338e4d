"""KEEP: the record of one measurement, the store, statistics, comparison. Ground floor: imports nothing of ours."""
