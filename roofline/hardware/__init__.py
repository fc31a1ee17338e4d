"""The GPU table: files of GPUs, their peaks and bandwidths, links between host and device."""
