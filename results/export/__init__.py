"""Runs in the formats of tools that track benchmarks in CI, one file per format."""
