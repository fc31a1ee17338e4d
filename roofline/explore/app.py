"""The Streamlit script: a page for each estimate with a field for each of its parameters, the
answer and the command. A page starts with an example of `estimate --help`.
"""

from __future__ import annotations

import io
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

import streamlit as st

from results.show.grid import csv_text
from results.show.options import Parameter
from results.show.spelling import words_of
from results.show.terminal import ADVANCED, OutputError
from results.store.runfile import StoreError
from roofline import estimate
from roofline.accounting.config import ConfigError
from roofline.accounting.presets import preset_names
from roofline.commands.estimate import example_of
from roofline.estimate import QUESTIONS
from roofline.estimate.answer import Answer, Row, cell, folded
from roofline.estimate.question import (
    HELP,
    Estimate,
    is_of_all,
    parameters,
    positive,
    share,
    values_of,
    whole,
)
from roofline.estimate.sweep import Over, swept
from roofline.gpu_table import UnknownGpuError, load_gpus
from roofline.picture.charts import draw_answer, draw_sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Given = dict[str, Any]
# Typed texts and switched on flags by Python name. These texts are comments, because Streamlit
# shows docstrings on the page.

OVER = {"infer": "batch=1:4096:x2", "generate": "batch=1:1024:x2", "gpus": "days=5,10,20,50,100"}
# Parameters that a page varies at first.
MAX_LETTERS = 500
# Letters of a text.
URL = "query-params"
STYLE = """<style>
[data-testid="stMainBlockContainer"] { padding-inline: clamp(1rem, 2vw, 3rem); }
[data-testid="stImageContainer"] { overflow-x: auto; }
[data-testid="stImageContainer"] img { min-width: 642px; }
code { font-size: max(0.75em, 12px) !important; }
</style>"""
# All text has at least 12 pixels: a picture does not shrink below it, a narrow window scrolls.

POWERS = {str(2**power) for power in range(21)}
DIGITS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
# Stops of sliders: of integers, and within a factor of 1,000.

DRAWING = Lock()
# Matplotlib's styles are global, and each browser window has a thread.

ERRORS = (ConfigError, OutputError, OverflowError, StoreError, UnknownGpuError)


def draw(question: str) -> None:
    function: Estimate = getattr(estimate, question)
    if st.session_state.get("page", question) != question:
        st.query_params.clear()  # those of fields of the same name on the page before
        st.session_state.clear()
    st.session_state["page"] = question
    st.title(QUESTIONS[question][1].capitalize(), anchor=False)
    head = st.container()
    left, right = st.columns((1, 2))
    with left:
        given = fields(question, parameters(function))
        over = st.text_input(
            "over: values of one option to plot, such as batch=1:1024:x2",
            OVER.get(question, ""),
            key="over",
            max_chars=MAX_LETTERS,
            bind=URL,
        )
    try:
        answer = function(**given)
        with head:
            show_result(answer)
            show_command([question], given)
        with right:
            if is_of_all(values_of(function, given)):
                pass  # a ranking, which has no picture and no sweep
            elif over:
                show_sweep(question, answer, given, over)
            elif answer.curve or any(step.amount for step in answer.steps):
                show(draw_answer, answer)
            show_steps(answer)
    except ERRORS as error:
        head.error(plain(str(error)), icon=":material/error:")


def fields(question: str, known: Mapping[str, Parameter]) -> Given:
    """Return the values of the fields that are not empty."""
    example = example_of(question)
    usual = st.container()
    others = st.expander("more options")
    given: Given = {}
    for key, parameter in known.items():
        with others if parameter.group == ADVANCED else usual:
            value = field(parameter, example[key])
            if value:
                given[key] = value
    return given


def field(parameter: Parameter, first: Any) -> Any:
    """Return the value of the field of a parameter, `first` at first; an empty one shows the
    default.
    """
    name = parameter.name
    words = HELP[name].partition(";")[0]
    label = words[:1].upper() + words[1:]
    own: dict[str, Any] = {"key": name, "help": f"--{name}: {parameter.help}", "bind": URL}
    if parameter.is_flag:
        return st.toggle(label, bool(first), **own)
    if parameter.read is share and first:
        return f"{st.slider(label, 0.01, 1.0, float(first), 0.01, **own):g}"
    default = "" if parameter.default is None else str(parameter.default)
    listed = {"gpu": [*load_gpus(), "all"], "model": preset_names()}
    known = listed.get(name) or (parameter.read if isinstance(parameter.read, tuple) else ())
    if not parameter.is_list and known:
        omitted = f"{default} (default)" if default else "-"
        offered = [omitted, *known]
        chosen = st.selectbox(label, offered, offered.index(first or omitted), **own)
        return "" if chosen == omitted else chosen
    text = ",".join(first or ()) if parameter.is_list else first or ""
    if known:
        return ",".join(st.multiselect(label, known, text.split(",") if text else None, **own))
    text = st.text_input(label, text, placeholder=default, max_chars=MAX_LETTERS, **own)
    if parameter.read in (positive, whole):
        show_slider(parameter, text)
    return text


def show_slider(parameter: Parameter, text: str) -> None:
    """Show the number of a field, if it has one, on a log scale; moving it changes the field."""
    name = f"{parameter.name} slider"
    with suppress(ConfigError):
        value = positive(text)
        # The first number is the middle; all stay when the slider moves on.
        typed = st.session_state.setdefault(f"{parameter.name} typed", {text: value})
        typed[text] = value
        stops = POWERS
        if parameter.read is positive:
            thousands = math.floor(math.log10(next(iter(typed.values()))) / 3) * 3
            stops = {f"{d}e{thousands + shift}" for shift in (-3, 0, 3) for d in DIGITS}
        values = sorted({*stops, *typed}, key=positive)
        st.session_state[name] = text
        st.select_slider(
            name, values, key=name, on_change=take, args=(name,), label_visibility="collapsed"
        )


def take(slider: str) -> None:
    st.session_state[slider.removesuffix(" slider")] = st.session_state[slider]


def show_command(words: Sequence[str], given: Given, *more: str) -> None:
    options = words_of({key.replace("_", "-"): value for key, value in given.items()})
    command = shlex.join(["python", "-m", "roofline", "estimate", *words, *options, *more])
    st.code(command, language=None, wrap_lines=True)


def show_result(answer: Answer) -> None:
    for warning in answer.warnings:
        st.warning(plain(warning), icon=":material/warning:")
    texts = answer.main_texts()
    st.header(plain(texts[0] if texts else answer.title), anchor=False)
    if texts:
        st.markdown(plain("; ".join([answer.title, *texts[1:]])))


def show_sweep(question: str, answer: Answer, given: Given, text: str) -> None:
    over = Over.read(text)
    others = {key: value for key, value in given.items() if key.replace("_", "-") != over.option}
    sweep = swept(question, others, [over])
    show_command(["sweep", question], others, "--over", text)
    for key in sweep.main:
        if any(isinstance(row.get(key), int | float) for row in sweep.rows):
            show(draw_sweep, sweep, answer.title, key)


def show_steps(answer: Answer) -> None:
    if len(answer.rows) > 1 or (answer.rows and not answer.worked):
        table(answer.rows, list(answer.columns.items()))
    if answer.steps:
        worked = f", for {answer.worked}" if answer.worked else ""
        st.subheader(f"Step by step{worked}", anchor=False)
        steps = [
            {"step": plain(s.label), "arithmetic": plain(s.arithmetic), "result": plain(s.result)}
            for s in folded(answer)
        ]
        st.table(steps, hide_index=True)
    st.markdown(f"**Formula:** {plain(answer.formula)}")
    st.markdown(f"**Source:** {plain(answer.source)}")
    with st.expander("Assumptions"):
        st.markdown("\n".join(f"- {plain(note)}" for note in answer.assumptions))
    text = csv_text(answer.table_rows(), ())
    st.download_button("download CSV", text, "estimate.csv", "text/csv", on_click="ignore")


def show(draw: Callable[..., Figure], *words: Any) -> None:
    """Show a picture within the page; the URL of a separate file would expire when a value
    changes.
    """
    svg = io.StringIO()
    with DRAWING:
        draw(*words, st.context.theme.type or "light").savefig(svg, format="svg")
    st.image(svg.getvalue(), width="stretch")


def plain(text: str) -> str:
    """Escape text for Markdown."""
    return re.sub(r"([\\`*_{}\[\]()<>#+!|~$:&])", r"\\\1", text)


def table(rows: Sequence[Row], columns: Sequence[tuple[str, str]]) -> None:
    titles = [title for _, title in columns]
    unique = [title + " " * titles[:index].count(title) for index, title in enumerate(titles)]
    cells = [[plain(cell(key, row.get(key))) for key, _ in columns] for row in rows]
    st.table([dict(zip(unique, line, strict=True)) for line in cells], hide_index=True)


def main() -> None:
    pages = [st.Page(partial(draw, name), title=name, url_path=name) for name in QUESTIONS]
    page = st.navigation(pages, expanded=True)
    st.set_page_config(page_title=f"{page.title} - Roofmark", layout="wide")
    st.sidebar.caption("Each answer shows its command. Nothing leaves this machine.")
    st.html(STYLE)
    page.run()


if __name__ == "__main__":
    main()
