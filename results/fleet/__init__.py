"""Report on a fleet: which device is slower than its peers, by how much, why, and what to do."""
