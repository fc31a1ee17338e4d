"""A page: the fields of a calculator, and beside them its answer, step by step, with the command that gives it."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import streamlit as st

from results.show.grid import csv_text
from results.show.spelling import words_of
from results.show.terminal import OutputError
from results.store.runs import StoreError
from roofline import estimate
from roofline.accounting.config.config import ConfigError
from roofline.estimate.answer import Answer, in_words
from roofline.estimate.question import parameters
from roofline.estimate.show import cell, folded
from roofline.estimate.sweep import Over, memory_marks, swept
from roofline.explore import parallel, pictures
from roofline.explore.form import Form, Options
from roofline.explore.pictures import plain
from roofline.gpu_table import UnknownGpuError
from roofline.machine import CeilingError

DATA = tomllib.loads(Path(__file__).with_name("calculators.toml").read_text(encoding="utf-8"))
PAGES: dict[str, dict[str, Any]] = DATA["pages"]
"""By name: title, question in words, and fields of each calculator."""

REFUSALS = (ConfigError, CeilingError, OutputError, OverflowError, StoreError, UnknownGpuError)
"""What is answered in words: as of the command."""


class Asked(NamedTuple):
    """An answer, and the command that gives it."""

    answer: Answer
    question: str
    options: Options
    """Those that are not at their default."""

    @property
    def command(self) -> str:
        """The line to type."""
        return command_line([self.question, *words_of(self.options)])


def command_line(words: Sequence[str]) -> str:
    """Return the line to type for some words after `estimate`."""
    return shlex.join(["python", "-m", "roofline", "estimate", *words])


def ask(form: Form, options: Options) -> Asked:
    """Return the answer of a form's estimate to what is typed.

    Raises:
        ConfigError: a value is none that the option takes, or the question has no answer.
        CeilingError, OverflowError, StoreError, UnknownGpuError: as of the command.
    """
    function: Callable[..., Answer] = getattr(estimate, form.question)
    answer, known = function(**form.values(options)), parameters(function)
    kept: Options = {name: value for name, value in options.items() if value and not _is_default(known, name, value)}
    return Asked(answer, form.question, kept)


def _is_default(known: Mapping[str, Any], name: str, value: str | bool) -> bool:
    parameter = known[name.replace("-", "_")]
    return bool(parameter.value_of(value) == parameter.default)


def draw(page: str) -> None:
    """Draw the page of a calculator."""
    about = PAGES[page]
    st.title(about["title"], anchor=False)
    st.write(about["asks"])
    head = st.container()
    left, right = st.columns((2, 3), gap="large")
    form = Form(page, about.get("estimate", page), DATA["ranges"])
    try:
        with left:
            options = form.fields(about["fields"])
            if "one_of" in about:
                options |= form.fields(about["one_of"][form.choice("way", *_ways(about["one_of"]), "by")])
            plans = parallel.plans(form, options) if page == "parallel" else []
        asked = ask(form, options | (plans[0]["options"] if plans else {}))
        with head:
            _say(asked, parallel.in_words(plans[0]) if plans else "")
        with right:
            if plans:
                parallel.show(plans, table)
            elif "along" in about:
                _along(asked, form, about["along"], about["panels"])
            else:
                _picture(page, asked.answer)
            _show(asked.answer)
    except REFUSALS as refusal:
        head.error(plain(str(refusal)), icon=":material/error:")


def _ways(groups: Mapping[str, Any]) -> tuple[list[str], str]:
    return list(groups), next(iter(groups))


def _say(asked: Asked, first: str) -> None:
    answer = asked.answer
    for warning in answer.warnings:
        st.warning(plain(warning), icon=":material/warning:")
    texts = [*([first] if first else []), *answer.said()]
    st.header(plain(texts[0] if texts else answer.title), anchor=False)
    if texts:
        st.markdown(plain("; ".join([answer.title, *texts[1:]])))
    st.code(asked.command, language=None, wrap_lines=True)


def _picture(page: str, answer: Answer) -> None:
    """Draw the picture of a page, or the curve or the parts of its answer."""
    if page in pictures.OF_PAGES:
        pictures.OF_PAGES[page](answer, table)
    elif answer.curve:
        pictures.lines(*answer.curve)
    elif parts := [(step.label, step.amount, step.result) for step in folded(answer) if step.amount]:
        pictures.parts(in_words(answer.main[0], answer.values[answer.main[0]]), parts)


def _along(asked: Asked, form: Form, places: Mapping[str, str], panels: Mapping[str, Mapping[str, str]]) -> None:
    """Draw values of an answer along a field, with the command of the sweep."""
    option = form.choice("against", *_ways(places), "drawn against") if len(places) > 1 else next(iter(places))
    if option not in asked.options and option not in ("batch", "prompt"):
        return  # without tokens there are no days
    given: Options = {name: value for name, value in asked.options.items() if name != option}
    over = f"{option}={places[option]}"
    rows = swept(asked.question, form.values(given), [Over.read(over)]).rows
    turn = asked.answer.rows[0].get("critical_batch")
    marks = memory_marks(rows, option)
    if option == "batch" and turn and turn <= max(row[option] for row in rows):
        marks[f"critical batch {turn:,}"] = turn
    st.code(command_line(["sweep", asked.question, *words_of(given), "--over", over]), language=None, wrap_lines=True)
    for unit, keys in panels.items():
        lines = {
            name: [(row[option], row[key]) for row in rows if row.get(key) is not None] for key, name in keys.items()
        }
        if found := {name: points for name, points in lines.items() if points}:
            pictures.lines(option, unit, found, marks)


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[tuple[str, str]]) -> None:
    """Show rows as a table, each value in the unit that fits it."""
    titles = [title for _, title in columns]
    apart = [title + " " * titles[:place].count(title) for place, title in enumerate(titles)]
    cells = [[plain(cell(key, row.get(key))) for key, _ in columns] for row in rows]
    st.table([dict(zip(apart, line, strict=True)) for line in cells], hide_index=True)


def _show(answer: Answer) -> None:
    """Show the rows, the steps, what the answer stands on, and the numbers as CSV."""
    if len(answer.rows) > 1 or (answer.rows and not answer.worked):
        table(answer.rows, answer.columns)
    if answer.steps:
        st.subheader(f"Step by step{', for ' + answer.worked if answer.worked else ''}", anchor=False)
        steps = [
            {"step": plain(s.label), "arithmetic": plain(s.arithmetic), "result": plain(s.result)}
            for s in folded(answer)
        ]
        st.table(steps, hide_index=True)
    st.markdown(f"**Formula:** {plain(answer.formula)}")
    st.markdown(f"**Source:** {plain(answer.source)}")
    with st.expander("What it takes for granted, and what it leaves out"):
        st.markdown("\n".join(f"- {plain(note)}" for note in answer.assumptions))
    rows = [dict(row) for row in answer.rows] or [step._asdict() for step in answer.steps]
    st.download_button("numbers as CSV", csv_text(rows, ()), "estimate.csv", "text/csv", on_click="ignore")
