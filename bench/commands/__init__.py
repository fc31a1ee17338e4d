"""Commands over all families: list, suite, doctor, calibrate."""
