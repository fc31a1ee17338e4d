"""Scripts that check the measurements themselves; README.md says how to run them."""
