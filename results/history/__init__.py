"""One case over many runs, and where its time changed."""
