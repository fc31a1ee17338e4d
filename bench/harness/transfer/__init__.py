"""Copies between host and device, and the loading of tokens."""
