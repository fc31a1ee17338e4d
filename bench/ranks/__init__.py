"""The fleet benchmark: each rank measures its own device, alone and together with the others."""
