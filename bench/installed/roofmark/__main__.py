"""`python -m roofmark`: the same as the command `roofmark`."""

from roofmark.command import main

if __name__ == "__main__":
    raise SystemExit(main())
