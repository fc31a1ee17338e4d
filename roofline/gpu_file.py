"""One file of the GPU table, also one of a user: what its keys may hold."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from results.show.facts import facts_beside, facts_of
from results.show.spelling import did_you_mean
from roofline.machine import Machine

KEYS_TABLE = facts_beside(__file__, "gpu_keys.toml")
PROVENANCE: dict[str, str] = KEYS_TABLE["provenance"]
"""The words that open each source, so that a reader sees how far to trust a value."""

NEEDED = ("name", "vendor", "memory_bandwidth_bytes_per_s", "peaks_flops_per_s", "sources")

RANGES: dict[str, tuple[float, float]] = KEYS_TABLE["ranges"]
"""Of each number: wide, but narrow enough to catch a wrong unit."""
PEAK = (1e9, 1e18)

NOT_IN_FILES = {"slug", "entries", "note", "source", "run", "mfu", "stated_peaks_flops_per_s"}
KEYS = {each.name for each in fields(Machine)} - NOT_IN_FILES | {"peaks_flops_per_s"}


class UnknownGpuError(ValueError):
    """No GPU of the table has this slug, or its file is not that of a GPU."""


class GpuFileError(UnknownGpuError):
    """A file is not that of a GPU; the message has the file and the key."""


def read_gpu_file(path: Path, peaks: set[str], classes: set[str]) -> dict[str, Any]:
    """Return the values of a file; `peaks` are the keys that peaks may have, `classes` the rate
    classes.

    Raises:
        GpuFileError: a key is missing or unknown, or a value is of another type or unit.
    """
    try:
        data = facts_of(path)
    except (OSError, ValueError) as error:
        raise GpuFileError(f"{path}: {error}") from None
    problem = _problem(data, peaks, classes)
    if problem:
        raise GpuFileError(f"{path}: {problem}")
    return data


def _problem(data: dict[str, Any], peaks: set[str], classes: set[str]) -> str | None:
    for key in data.keys() - KEYS:
        return f"unknown key {key}; {did_you_mean(key, KEYS) or 'see roofline/README.md'}"
    missing = [key for key in NEEDED if not data.get(key)]
    if missing:
        return f"{missing[0]} is missing"
    stated = data["peaks_flops_per_s"]
    if not isinstance(stated, dict):
        return "peaks_flops_per_s is not a table"
    try:
        msgspec.convert(
            {key: value for key, value in data.items() if key != "peaks_flops_per_s"}, Machine
        )
    except msgspec.ValidationError as error:
        return str(error)
    named = [*stated, *data.get("unsupported", ()), *data.get("capped", ())]
    unknown = [key for key in named if key not in peaks]
    if unknown:
        return f"unknown peak {unknown[0]}; known: {', '.join(sorted(peaks))}"
    numbers = [(key, data[key], RANGES[key]) for key in RANGES.keys() & data.keys()]
    numbers += [(f"the peak {key}", value, PEAK) for key, value in stated.items()]
    for what, value, (low, high) in numbers:
        if not isinstance(value, int | float) or not low <= value <= high:
            return f"{what} is {value!r:.40}, not from {low:g} to {high:g}"
    rate_class = data.get("rate_class")
    if rate_class not in (None, *classes):
        return f"unknown rate_class {rate_class!r:.40}; known: {', '.join(sorted(classes))}"
    for source in data["sources"]:
        kind, _, text = source.partition(":")
        if kind not in PROVENANCE or not text.strip():
            return f"source {source!r}: write one of {', '.join(PROVENANCE)}, a colon and where"
    return None
