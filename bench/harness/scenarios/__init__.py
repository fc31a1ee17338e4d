"""Scenarios of several steps, such as training or a transfer, timed by the host's clock; and the layers of decoding."""
