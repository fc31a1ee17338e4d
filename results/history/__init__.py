"""One case over many runs: `segments` has the points of each provider. May import all that `results.compare` may."""
