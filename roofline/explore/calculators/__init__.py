"""The calculators, one file each: TITLE, COMMAND, PLACE and `fields`; the first line says what is asked."""
