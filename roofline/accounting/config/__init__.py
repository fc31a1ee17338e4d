"""The configuration of a model: its keys, its files, its families."""
