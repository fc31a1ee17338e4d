"""Reads lines of schema 1, which had the keys of all kinds of rows side by side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from msgspec import ValidationError, convert

from results.record import (
    SCHEMA,
    Copy,
    Environment,
    Loop,
    Object,
    ProfileOp,
    Record,
    RecordError,
    Step,
    StepTotals,
)

MARKS = {
    "waits_s": Loop,
    "phases_s": Step,
    "memory_bytes": Step,
    "copy_s": Copy,
    "host_launch_s": Copy,
    "module": ProfileOp,
}
"""A key of each kind of row."""

ROUNDS = "interleaved"
TOTALS = "step"
"""Key of the totals of a profile, in its longest row."""


def record_of(data: Object) -> Record:
    """Return a record from a line of schema 1.

    Raises:
        RecordError: a required key is missing, or a value has the wrong type or is out of range.
    """
    values = dict(data)
    kind = next((kind for key, kind in MARKS.items() if key in values), None)
    rounds = values.pop(ROUNDS, None)
    if isinstance(rounds, dict) and rounds:
        values["details"] = rounds | {"kind": "rounds"}
    elif rounds:
        raise RecordError(f"'{ROUNDS}' is not an object")
    elif kind:
        own = {key: values.pop(key) for key in kind.__struct_encode_fields__ if key in values}
        known = {key: value for key, value in own.items() if value is not None}
        values["details"] = {"kind": kind.__struct_config__.tag} | known
    return Record.from_dict(values)


def environment_of(environment: Environment, records: Iterable[Record]) -> Environment:
    """Return the environment of a run of schema 1, with the totals that one of its rows has."""
    totals = next((row.extra[TOTALS] for row in records if TOTALS in row.extra), None)
    try:
        profile = convert(totals, StepTotals | None)
    except ValidationError as error:
        raise RecordError(str(error)) from None
    return replace(environment, schema=SCHEMA, profile=profile)
