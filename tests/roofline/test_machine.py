"""Ceilings: which one counts, and what a file may not claim."""

import json
import math

import pytest
from msgspec import ValidationError

from roofline.machine import MEASURED_FIRST, Ceiling, Machine


def peak(value, kind="datasheet", dtype="bf16"):
    return Ceiling("flops", dtype, value, kind, "a test")


def bandwidth(value, kind="datasheet", name="memory"):
    return Ceiling("bandwidth", name, value, kind, "a test")


def test_records_use_published_peaks_and_estimates_use_measured_ones():
    known = Machine(
        "g", "G", (peak(800e12, "measured"), peak(1070e12, "clock-limited"), peak(989e12))
    )
    assert known.peak("bf16") == peak(989e12)
    assert known.peak("bf16", MEASURED_FIRST) == peak(800e12, "measured")
    assert known.peak("fp16") is None
    assert (
        Machine("g", "G", (peak(1070e12, "clock-limited"),)).peak("bf16") is None
    )  # no base of MFU


ALL_MIXES = {"read": 4502e9, "write": 4284e9, "triad": 4045e9, "copy": 3928e9}
"""Bytes/s of an H200 SXM, as TileOPs publishes them."""


def measured(*names):
    return Machine("g", "G", tuple(bandwidth(ALL_MIXES[name], "measured", name) for name in names))


@pytest.mark.parametrize(
    ("read", "written", "nearest"),
    [
        (1, 0, "read"),
        (4097, 1, "read"),  # a matrix times a vector
        (7, 5, "triad"),  # halfway, 7/12: triad is faster than copy
        (7 * 10**30, 5 * 10**30, "triad"),
    ],
)
def test_the_nearest_mix_is_that_of_the_nearest_share_of_reads(read, written, nearest):
    found = measured(*ALL_MIXES).mix(read, written)
    assert found == bandwidth(ALL_MIXES[nearest], "measured", nearest)
    assert measured(*reversed(ALL_MIXES)).mix(read, written) == found


def test_where_nothing_moves_or_no_mix_was_measured_none_is_near():
    assert measured(*ALL_MIXES).mix(0, 0) is None
    assert measured(*ALL_MIXES).bandwidth_for(0, 0) == bandwidth(4502e9, "measured", "read")
    envelope = Machine("g", "G", (bandwidth(46e9, "measured", "stream"),))  # a name of no mix
    assert envelope.mix(1, 1) is None
    assert (
        envelope.bandwidth_for(1, 1)
        == envelope.bandwidth()
        == bandwidth(46e9, "measured", "stream")
    )
    assert Machine("g", "G").bandwidth_for(1, 1) is None


def test_mixes_are_the_fastest_measured_bandwidths_of_memory():
    slow, fast = bandwidth(3.9e12, "measured", "copy"), bandwidth(4e12, "measured", "copy")
    known = measured("read").with_entries(
        [peak(9e12, "measured", "copy"), bandwidth(4.8e12, name="copy"), fast]
    )
    assert known.mixes == [bandwidth(ALL_MIXES["read"], "measured", "read"), fast]
    assert known.bandwidth(["measured"]) == known.mixes[0]
    assert Machine("g", "G", (slow, fast)).mixes == [fast]


def test_ceilings_survive_a_file():
    launch = Ceiling("launch", "launch", 2.4e-6, "measured", "a test")
    known = Machine("g", "G", (peak(989e12), bandwidth(3e12, "derived"), launch), note="a guess")
    assert Machine.from_dict(json.loads(json.dumps(known.to_dict()))) == known
    assert known.fastest("launch") == launch


@pytest.mark.parametrize("quantity", ["zeros", "knee"])
def test_what_other_versions_measured_is_ignored_in_their_files(quantity):
    entry = {"quantity": quantity, "name": "copy", "value": 1.0, "kind": "measured", "source": "a"}
    assert Machine.from_dict({"entries": [entry, GOOD]}).entries == (peak(1e12),)


def test_an_added_entry_replaces_only_its_own_kind():
    known = Machine("g", "G", (peak(989e12), peak(700e12, "measured")), "note")
    merged = known.with_entries([peak(795e12, "measured"), peak(60e12, "measured", "fp32")])
    assert set(merged.entries) == {
        peak(989e12),
        peak(795e12, "measured"),
        peak(60e12, "measured", "fp32"),
    }
    assert (merged.slug, merged.note) == ("g", "note")
    assert known.entries == (peak(989e12), peak(700e12, "measured"))


GOOD = {"quantity": "flops", "name": "bf16", "value": 1e12, "kind": "datasheet", "source": "a test"}


@pytest.mark.parametrize(
    "change",
    [
        *(
            {"value": value}
            for value in (0, -1.0, math.nan, math.inf, 10**400, "1e12", True, None, [1e12])
        ),
        {"quantity": ["flops"]},
        {"kind": "hearsay"},
        {"kind": None},
        {"name": 7},
        {"source": None},
    ],
)
def test_a_hostile_entry_is_refused(change):
    with pytest.raises((ValidationError, UnicodeError)):
        Machine.from_dict({"entries": [GOOD | change]})


def test_a_key_of_a_later_version_is_left_alone():
    known = Machine.from_dict({"entries": [GOOD | {"p95": 1.1e12}], "of_a_later_version": 1})
    assert known.entries == (peak(1e12),)
