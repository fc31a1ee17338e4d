"""Keeps the times of a kernel's configurations on a GPU, and the fastest of them: one file for each GPU.

`python -m bench tune` writes the files; a version that is `AUTOTUNED` reads them. They lie in the folder `tuned` beside
this module, or in the one that `RIDGEPOINT_TUNED` names, and hold for one release of Triton and one text of the kernel:
what another has compiled is timed anew.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import triton

from kernels.launch import Gpu

SCHEMA = 1


class TunedFileError(RuntimeError):
    """The file of a GPU cannot be read or written; the message names it."""


def path_of(gpu: Gpu) -> Path:
    """Return the file of a GPU. Two of one name differ where one of them has only a part of its multiprocessors."""
    folder = os.environ.get("RIDGEPOINT_TUNED")
    name = re.sub(r"[^a-z0-9]+", "-", gpu.name.lower()).strip("-") or f"sm-{gpu.arch}"
    return (Path(folder) if folder else Path(__file__).with_name("tuned")) / f"{name}-{gpu.processors}-sm.json"


def load(gpu: Gpu) -> dict[str, Any]:
    """Return all that is kept for a GPU, by the key of a product; nothing where there is no file.

    Raises:
        TunedFileError: The file cannot be read, or is of another schema.
    """
    path = path_of(gpu)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TunedFileError(f"cannot read {path}: {' '.join(str(error).split())}; delete it, and tune again") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or not isinstance(found.get("kept"), dict):
        raise TunedFileError(f"cannot read {path}: it is of no known schema; delete it, and tune again")
    return found["kept"]


def keep(gpu: Gpu, key: str, table: Sequence[Mapping[str, Any]], source_sha256: str) -> Path:
    """Keep what was timed of one product, and return the file; what it has of others stays.

    Args:
        gpu: Where it was timed.
        key: What the product is found by.
        table: A row for each candidate, the fastest first: `config`, `median_s` and what else is known of it.
        source_sha256: Of the text of the kernel.

    Raises:
        TunedFileError: The file cannot be read or written.
    """
    path, kept = path_of(gpu), load(gpu)
    kept[key] = {"triton": triton.__version__, "source_sha256": source_sha256, "table": list(table)}
    document = {"schema": SCHEMA, "gpu": gpu.name, "kept": kept}
    beside = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        beside.replace(path)  # a reader meets the old file or the new one, never a half of one
    except OSError as error:
        raise TunedFileError(f"cannot write {path}: {error.strerror}") from None
    _kept.cache_clear()
    return path


def winner(gpu: Gpu, key: str, source_sha256: str) -> dict[str, Any] | None:
    """Return the fastest configuration kept for a product; None where there is none that still holds."""
    found = _kept(gpu).get(key)
    holds = found and (found["triton"], found["source_sha256"]) == (triton.__version__, source_sha256)
    return found["table"][0]["config"] if holds else None


@cache
def _kept(gpu: Gpu) -> dict[str, Any]:
    return load(gpu)
