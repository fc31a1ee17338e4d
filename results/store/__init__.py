"""Run files on disk: one file read and written, and the folder of all of them."""
