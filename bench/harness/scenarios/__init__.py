"""What takes the host's clock: scenarios of several steps, such as decoding."""
