"""Scripts that check the measurements; see README.md."""
