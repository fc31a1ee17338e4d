"""Run files on disk and the directory of saved runs."""
