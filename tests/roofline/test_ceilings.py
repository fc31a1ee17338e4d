"""Ceilings: which one counts, and what a file may not claim."""

from __future__ import annotations

import json
from typing import Any

import pytest

from roofline.ceilings import Ceiling, CeilingError, Ceilings, gpu_ceilings
from roofline.hardware import find_gpu
from roofline.model import ridge_intensity


def peak(value: float, kind: str = "datasheet", dtype: str = "bf16") -> Ceiling:
    return Ceiling("flops", dtype, value, kind, "a test")


def bandwidth(value: float, kind: str = "datasheet", name: str = "memory") -> Ceiling:
    return Ceiling("bandwidth", name, value, kind, "a test")


def test_a_published_peak_comes_before_a_measured_one() -> None:
    known = Ceilings("g", "G", (peak(800e12, "measured"), peak(1070e12, "clock-limited"), peak(989e12)))
    assert known.peak("bf16") == peak(989e12)
    assert known.peak("fp16") is None


def test_a_clock_limited_peak_is_no_base_of_mfu() -> None:
    assert Ceilings("g", "G", (peak(1070e12, "clock-limited"),)).peak("bf16") is None


def test_of_measured_mixes_the_fastest_is_the_roof() -> None:
    known = Ceilings("g", "G", (bandwidth(36e9, "measured", "copy"), bandwidth(46e9, "measured", "triad")))
    assert known.bandwidth() == bandwidth(46e9, "measured", "triad")


def test_a_machine_of_which_nothing_is_known() -> None:
    known = Ceilings.from_dict({})
    assert (known.peak("bf16"), known.bandwidth(), known.launch_floor()) == (None, None, None)
    assert (known.slug, known.name) == ("unknown", "unknown")


def test_ceilings_survive_a_file() -> None:
    launch = Ceiling("launch", "launch", 2.4e-6, "measured", "a test")
    known = Ceilings("g", "G", (peak(989e12), bandwidth(3e12, "derived"), launch), note="a guess")
    assert Ceilings.from_dict(json.loads(json.dumps(known.to_dict()))) == known
    assert known.launch_floor() == launch


def test_an_added_entry_replaces_only_its_own_kind() -> None:
    known = Ceilings("g", "G", (peak(989e12), peak(700e12, "measured")), "note")
    merged = known.with_entries([peak(795e12, "measured"), peak(60e12, "measured", "fp32")])
    assert set(merged.entries) == {peak(989e12), peak(795e12, "measured"), peak(60e12, "measured", "fp32")}
    assert (merged.slug, merged.note) == ("g", "note")
    assert known.entries == (peak(989e12), peak(700e12, "measured"))


GOOD = {"quantity": "flops", "name": "bf16", "value": 1e12, "kind": "datasheet", "source": "a test"}


@pytest.mark.parametrize(
    "change",
    [
        {"value": 0},
        {"value": -1.0},
        {"value": float("nan")},
        {"value": float("inf")},
        {"value": 10**400},
        {"value": "1e12"},
        {"value": True},
        {"value": None},
        {"value": [1e12]},
        {"quantity": "speed"},
        {"quantity": ["flops"]},
        {"kind": "hearsay"},
        {"kind": None},
        {"name": 7},
        {"source": None},
    ],
)
def test_a_hostile_entry_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CeilingError):
        Ceilings.from_dict({"entries": [GOOD | change]})


@pytest.mark.parametrize(
    "hardware",
    [
        {"entries": {}},
        {"entries": None},
        {"entries": [None]},
        {"entries": [[]]},
        {"entries": [{}]},
        {"entries": [{key: value for key, value in GOOD.items() if key != "source"}]},
        {"slug": 1},
        {"name": None},
        {"note": 5},
    ],
)
def test_a_hostile_object_is_refused(hardware: dict[str, Any]) -> None:
    with pytest.raises(CeilingError):
        Ceilings.from_dict(hardware)


def test_a_key_of_a_later_version_is_left_alone() -> None:
    known = Ceilings.from_dict({"entries": [GOOD | {"p95": 1.1e12}], "of_a_later_version": 1})
    assert known.entries == (peak(1e12),)


@pytest.mark.parametrize(
    ("slug", "published"), [("h100-sxm", 295), ("a100-sxm-80gb", 153), ("a100-sxm-40gb", 201), ("h200-sxm", 206)]
)
def test_the_ceilings_of_the_table_have_the_published_ridge(slug: str, published: int) -> None:
    known = gpu_ceilings(find_gpu(slug))
    top, slope = known.peak("bf16"), known.bandwidth()
    assert top is not None
    assert slope is not None
    assert round(ridge_intensity(top.value, slope.value)) == published
    assert (top.kind, slope.kind) == ("datasheet", "datasheet")
    assert slug in top.source
