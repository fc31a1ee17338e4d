"""What tests ask about processes that they have started."""

import time
from pathlib import Path


def is_running(pid):
    """Return whether a process is there and is more than the memory of one that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def soon(condition, seconds=120):
    """Return whether a condition comes to hold."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def descendants(pid):
    """Return the processes that a process, or one of those, has started, and that are still below it."""
    children = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        left += (own := children.get(left.pop(), []))
        found += own
    return found
