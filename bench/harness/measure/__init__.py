"""One measurement of one row: prepared, verified, timed, and finished as a record."""
