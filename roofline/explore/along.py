"""Pictures of an answer along one of its options: the command's own sweep, with the line to type for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from roofline.commands.estimate.sweep import memory_marks
from roofline.explore import pictures
from roofline.explore.ask import Asked, command_line, sweep


def draw(
    asked: Asked,
    over: str,
    panels: Mapping[str, Mapping[str, str]],
    marks: Mapping[str, float] | None = None,
) -> None:
    """Draw values of an answer along an option.

    Args:
        asked: the answer at one place.
        over: the option and its values, as `--over` takes them, such as `batch=1:64:x2`.
        panels: by the name of what a panel shows: the keys of its lines, and what they are called.
        marks: by name, where along the option something turns.

    Raises:
        ConfigError: no place has an answer.
    """
    option = over.partition("=")[0]
    words, rows = sweep(asked, over)
    marks = {**(marks or {}), **memory_marks(rows, option)}
    st.code(command_line(words), language=None, wrap_lines=True)
    for unit, keys in panels.items():
        lines: dict[str, Sequence[tuple[float, float]]] = {
            name: [(row[option], row[key]) for row in rows if row.get(key) is not None] for key, name in keys.items()
        }
        if found := {name: points for name, points in lines.items() if points}:
            pictures.lines(option, unit, found, marks)
