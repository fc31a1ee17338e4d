"""The rows of `python -m kernels list`, kept in a file beside this module, because importing the versions takes
seconds.

Importing them imports torch and Triton. The file holds for the text of the kernels that it was made from.
"""

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernels import versions

KEPT = Path(__file__).with_name("listing.json")


def rows() -> list[dict[str, Any]]:
    """Return a row for each operation of each version: what `python -m kernels list` gives to programs."""
    text_sha256 = _text_sha256()
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(KEPT.read_text(encoding="utf-8"))
        if found["text_sha256"] == text_sha256:
            return found["rows"]
    from kernels.audit import catalog

    listed = catalog.listing()
    with suppress(OSError):  # where this folder cannot be written it takes seconds again
        KEPT.write_text(json.dumps({"text_sha256": text_sha256, "rows": listed}), encoding="utf-8")
    return listed


def _text_sha256() -> str:
    digests = [path.as_posix().encode() + path.read_bytes() for path in sorted(versions.PACKAGE.rglob("*.py"))]
    return hashlib.sha256(b"".join(digests)).hexdigest()


def by_version() -> list[dict[str, Any]]:
    """Return a row for each version of each family: what `python -m kernels list` shows to people."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows():
        empty = {"family": row["family"], "version": row["version"], "ops": [], "dtypes": [], "change": row["change"]}
        version = found.setdefault((row["family"], row["version"]), empty)
        version["ops"] = [*version["ops"], row["op"]]
        version["dtypes"] = list(dict.fromkeys([*version["dtypes"], *row["dtypes"]]))
    return list(found.values())
