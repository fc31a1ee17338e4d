"""The Streamlit script: the pages of `calculators.toml` with fields, answer and command."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st

from results.show.grid import csv_text
from results.show.spelling import words_of
from results.show.terminal import OutputError
from results.store.runfile import StoreError
from roofline import estimate
from roofline.accounting.config import ConfigError
from roofline.estimate.answer import Answer, folded
from roofline.estimate.question import parameters
from roofline.estimate.sweep import Over, swept
from roofline.explore import pictures
from roofline.explore.form import Form, Options, choice
from roofline.explore.pictures import plain, table
from roofline.gpu_table import UnknownGpuError
from roofline.machine import CeilingError
from roofline.picture.charts import draw_answer, draw_sweep

DATA = tomllib.loads(Path(__file__).with_name("calculators.toml").read_text(encoding="utf-8"))
# Title, question and fields of each calculator; a comment, because Streamlit shows docstrings on
# the page.
PAGES: dict[str, dict[str, Any]] = DATA["pages"]
FIRST = "train"

ERRORS = (ConfigError, CeilingError, OutputError, OverflowError, StoreError, UnknownGpuError)


def command_line(*words: str) -> str:
    return shlex.join(["python", "-m", "roofline", "estimate", *words])


def ask(form: Form, options: Options) -> tuple[Answer, Options]:
    function: Callable[..., Answer] = getattr(estimate, form.question)
    answer = function(**form.values(options))
    known = parameters(function)
    return answer, {
        name: value
        for name, value in options.items()
        if value and not _is_default(known, name, value)
    }


def _is_default(known: Mapping[str, Any], name: str, value: str | bool) -> bool:
    parameter = known[name.replace("-", "_")]
    if parameter.default is None:
        return False
    return bool(parameter.value_of(value) == parameter.value_of(parameter.default))


def draw(page: str) -> None:
    about = PAGES[page]
    st.title(about["title"], anchor=False)
    st.write(about["asks"])
    head = st.container()
    left, right = st.columns((2, 3), gap="large")
    form = Form(about.get("estimate", page))
    try:
        with left:
            options = form.fields(about["fields"])
            if "one_of" in about:
                ways = list(about["one_of"])
                options |= form.fields(about["one_of"][choice("way", ways, ways[0], "by")])
        answer, given = ask(form, options)
        with head:
            _show_result(answer)
            st.code(command_line(form.question, *words_of(given)), language=None, wrap_lines=True)
        with right:
            if "along" in about:
                _along(answer, given, form, about)
            else:
                _picture(page, answer, form.values(given))
            _show_steps(answer)
    except ERRORS as error:
        head.error(plain(str(error)), icon=":material/error:")


def _show_result(answer: Answer) -> None:
    for warning in answer.warnings:
        st.warning(plain(warning), icon=":material/warning:")
    texts = answer.main_texts()
    st.header(plain(texts[0] if texts else answer.title), anchor=False)
    if texts:
        st.markdown(plain("; ".join([answer.title, *texts[1:]])))


def _picture(page: str, answer: Answer, given: Mapping[str, Any]) -> None:
    if page == "matmul":
        pictures.show_roofs(answer, given)
    elif page in pictures.OF_PAGES:
        pictures.OF_PAGES[page](answer)
    elif answer.curve or any(step.amount for step in answer.steps):
        pictures.show(draw_answer, answer)


def _along(answer: Answer, given: Options, form: Form, about: Mapping[str, Any]) -> None:
    option, *others = about["along"]
    if others:
        option = choice("against", list(about["along"]), option, "plotted against")
    if option not in given and option not in ("batch", "prompt"):
        return  # no tokens, no days
    others_given: Options = {name: value for name, value in given.items() if name != option}
    over = f"{option}={about['along'][option]}"
    sweep = swept(form.question, form.values(others_given), [Over.read(over)])
    command = command_line("sweep", form.question, *words_of(others_given), "--over", over)
    st.code(command, language=None, wrap_lines=True)
    for key in about["panels"]:
        if any(row.get(key) is not None for row in sweep.rows):
            pictures.show(draw_sweep, sweep, answer.title, key)


def _show_steps(answer: Answer) -> None:
    if len(answer.rows) > 1 or (answer.rows and not answer.worked):
        table(answer.rows, list(answer.columns.items()))
    if answer.steps:
        st.subheader(
            f"Step by step{', for ' + answer.worked if answer.worked else ''}", anchor=False
        )
        steps = [
            {"step": plain(s.label), "arithmetic": plain(s.arithmetic), "result": plain(s.result)}
            for s in folded(answer)
        ]
        st.table(steps, hide_index=True)
    st.markdown(f"**Formula:** {plain(answer.formula)}")
    st.markdown(f"**Source:** {plain(answer.source)}")
    with st.expander("Assumptions"):
        st.markdown("\n".join(f"- {plain(note)}" for note in answer.assumptions))
    rows = [dict(row) for row in answer.rows] or [step._asdict() for step in answer.steps]
    st.download_button(
        "download CSV", csv_text(rows, ()), "estimate.csv", "text/csv", on_click="ignore"
    )


def main() -> None:
    pages = {
        name: st.Page(
            partial(draw, name), title=about["title"], url_path=name, default=name == FIRST
        )
        for name, about in PAGES.items()
    }
    groups = {group: [pages[name] for name in names] for group, names in DATA["groups"].items()}
    page = st.navigation(groups, expanded=True)
    st.set_page_config(page_title=f"{page.title} - Roofmark", layout="wide")
    st.sidebar.caption("Each answer shows its command. Nothing leaves this machine.")
    page.run()


if __name__ == "__main__":
    main()
