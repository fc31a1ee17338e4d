"""A page: the fields of a calculator, and beside them its answer, step by step, with the command that gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import streamlit as st

from results.show.export import csv_text
from roofline.accounting.answers.answer import Answer, in_words
from roofline.commands.estimate.text import cell, folded
from roofline.explore import pictures
from roofline.explore.ask import REFUSALS, Asked, Options, ask
from roofline.explore.form import Form
from roofline.explore.pictures import plain


class Calculator(Protocol):
    """A file of `calculators/`."""

    __name__: str
    __doc__: str
    TITLE: str
    COMMAND: str
    """Of `roofline estimate`."""
    PLACE: int
    """Among the others."""

    def fields(self, form: Form) -> Options:
        """Draw the fields, and return the options that they type."""


def draw(calculator: Calculator) -> None:
    """Draw the page of a calculator.

    Where it has a function `more(asked, form)`, that draws in place of the picture of the answer's parts.
    """
    st.title(calculator.TITLE, anchor=False)
    st.write(str(calculator.__doc__).strip().partition("\n\n")[0])
    head = st.container()
    left, right = st.columns((2, 3), gap="large")
    form = Form(calculator.__name__.rpartition(".")[2])
    try:
        with left:
            options = calculator.fields(form)
        asked = ask(calculator.COMMAND, options, form.config)
        with head:
            _say(asked, form.said)
        with right:
            _show(asked, form, getattr(calculator, "more", None))
    except REFUSALS as refusal:
        head.error(plain(str(refusal)), icon=":material/error:")


def _say(asked: Asked, first: str) -> None:
    answer = asked.answer
    for warning in answer.warnings:
        st.warning(plain(warning), icon=":material/warning:")
    main = [in_words(key, value) for key in answer.main if (value := answer.values.get(key)) is not None]
    texts = [*([first] if first else []), *main]
    st.header(plain(texts[0] if texts else answer.title), anchor=False)
    if texts:
        st.markdown(plain("; ".join([answer.title, *texts[1:]])))
    st.code(asked.command, language=None, wrap_lines=True)


def _show(asked: Asked, form: Form, more: Callable[[Asked, Form], None] | None) -> None:
    answer = asked.answer
    if more:
        more(asked, form)
    elif answer.curve:
        pictures.lines(*answer.curve)
    elif parts := [(step.label, step.amount, step.result) for step in folded(answer) if step.amount]:
        whole = in_words(answer.main[0], answer.values[answer.main[0]])
        pictures.parts(whole, parts)
    if len(answer.rows) > 1 or (answer.rows and not answer.worked):
        table(answer.rows, answer.columns)
    _steps(answer)
    _take_away(answer)


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[tuple[str, str]]) -> None:
    """Show rows as a table, each value in the unit that fits it."""
    titles = _apart([title for _, title in columns])
    cells = [[plain(cell(key, row.get(key))) for key, _ in columns] for row in rows]
    st.table([dict(zip(titles, line, strict=True)) for line in cells], hide_index=True)


def _apart(titles: Sequence[str]) -> list[str]:
    return [title + " " * titles[:place].count(title) for place, title in enumerate(titles)]


def _steps(answer: Answer) -> None:
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


def _take_away(answer: Answer) -> None:
    """Offer the numbers as CSV: the rows where there are any, else the steps."""
    rows = [dict(row) for row in answer.rows] or [step._asdict() for step in answer.steps]
    st.download_button("numbers as CSV", csv_text(rows, ()), "estimate.csv", "text/csv", on_click="ignore")
