"""The script that Streamlit runs: each page of `calculators.toml` with its fields, its answer and its command."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
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
from roofline.estimate.question import parameters, whole
from roofline.estimate.sweep import Over, swept
from roofline.explore import pictures
from roofline.explore.form import Form, Options, choice
from roofline.explore.pictures import plain, table
from roofline.gpu_table import UnknownGpuError
from roofline.machine import CeilingError
from roofline.picture.charts import draw_answer, draw_sweep

DATA = tomllib.loads(Path(__file__).with_name("calculators.toml").read_text(encoding="utf-8"))
# By name: title, question in words, and fields of each calculator. Streamlit would show a docstring here on the page.
PAGES: dict[str, dict[str, Any]] = DATA["pages"]

REFUSALS = (ConfigError, CeilingError, OutputError, OverflowError, StoreError, UnknownGpuError)


def command_line(*words: str) -> str:
    return shlex.join(["python", "-m", "roofline", "estimate", *words])


def ask(form: Form, options: Options) -> tuple[Answer, Options]:
    """Return an answer, and the options of its command."""
    function: Callable[..., Answer] = getattr(estimate, form.question)
    answer, known = function(**form.values(options)), parameters(function)
    return answer, {name: value for name, value in options.items() if value and not _is_default(known, name, value)}


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
    form = Form(about.get("estimate", page), DATA["ranges"])
    try:
        with left:
            options = form.fields(about["fields"])
            if "one_of" in about:
                ways = list(about["one_of"])
                options |= form.fields(about["one_of"][choice("way", ways, ways[0], "by")])
            plans = _plans(form, options) if page == "parallel" else []
        answer, given = ask(form, options | (plans[0]["options"] if plans else {}))
        with head:
            _say(answer, [_plan_in_words(plans[0])] if plans else [])
            st.code(command_line(form.question, *words_of(given)), language=None, wrap_lines=True)
        with right:
            if plans:
                _show_plans(plans)
            elif "along" in about:
                _along(answer, given, form, about)
            else:
                _picture(page, answer, form.values(given))
            _show(answer)
    except REFUSALS as refusal:
        head.error(plain(str(refusal)), icon=":material/error:")


def _say(answer: Answer, first: Sequence[str]) -> None:
    for warning in answer.warnings:
        st.warning(plain(warning), icon=":material/warning:")
    texts = [*first, *answer.said()]
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
    """Draw values of an answer along a field, with the command of the sweep."""
    option, *others = about["along"]
    if others:
        option = choice("against", list(about["along"]), option, "drawn against")
    if option not in given and option not in ("batch", "prompt"):
        return  # without tokens there are no days
    others_given: Options = {name: value for name, value in given.items() if name != option}
    over = f"{option}={about['along'][option]}"
    sweep = swept(form.question, form.values(others_given), [Over.read(over)])
    command = command_line("sweep", form.question, *words_of(others_given), "--over", over)
    st.code(command, language=None, wrap_lines=True)
    for key in about["panels"]:
        if any(row.get(key) is not None for row in sweep.rows):
            pictures.show(draw_sweep, sweep, answer.title, key)


def _show(answer: Answer) -> None:
    if len(answer.rows) > 1 or (answer.rows and not answer.worked):
        table(answer.rows, list(answer.columns.items()))
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


TENSOR, PIPELINE, EXPERT, MOST_SHOWN = (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 4, 8, 16, 64), 24
ORDER = (
    "First what fits, with the least of pipeline, then of tensor, then of expert parallelism, then the lowest stage of "
    "ZeRO: each of them costs communication that is not counted here. The steps are those of the first row. Experts "
    "are shared among data-parallel GPUs."
)


def _plans(form: Form, options: Options) -> list[dict[str, Any]]:
    """Draw how many GPUs and sequences there are, and return all ways to share the model among them, by `ORDER`."""
    count = whole(form.number("devices", "64", "GPUs"))
    sequences = whole(form.number("step", "512", "sequences of a step on all GPUs"))
    found, refused = [], None
    for zero, tensor, pipeline, expert in product(range(4), TENSOR, PIPELINE, EXPERT):
        data = count // (tensor * pipeline)
        if data * tensor * pipeline != count or (zero and data == 1) or data % expert:
            continue
        plan = {"zero": zero, "data-parallel": data, "tensor-parallel": tensor, "pipeline-parallel": pipeline}
        plan["expert-parallel"] = expert
        typed = {name: str(value) for name, value in plan.items() if value != (0 if name == "zero" else 1)}
        if pipeline > 1:
            typed["accumulate"] = str(max(1, sequences // (whole(options["batch"] or 1) * data)))
        try:
            row = estimate.memory(**form.values({**options, **typed})).rows[0]
        except ConfigError as refusal:
            refused = refusal
            continue
        total = row["memory_bytes"] - row["headroom_bytes"]
        found.append({**plan, "total_bytes": total, "used": row["used"], "fits": row["fits"], "options": typed})
    if not found:
        raise refused or ConfigError(f"{count} GPUs cannot be shared out")
    keys = ("pipeline-parallel", "tensor-parallel", "expert-parallel", "zero")
    return sorted(found, key=lambda row: (not row["fits"], *(row[key] if row["fits"] else row["used"] for key in keys)))


def _plan_in_words(plan: Mapping[str, Any]) -> str:
    ways = f"{plan['data-parallel']} data x {plan['tensor-parallel']} tensor x {plan['pipeline-parallel']} pipeline"
    experts = f", experts among {plan['expert-parallel']}" if plan["expert-parallel"] > 1 else ""
    return f"{ways}{experts}, ZeRO {plan['zero']}" if plan["fits"] else "none fits"


def _show_plans(found: Sequence[Mapping[str, Any]]) -> None:
    st.write(f"**{sum(row['fits'] for row in found)} of {len(found)} ways fit.** {ORDER}")
    columns = [("data-parallel", "data"), ("tensor-parallel", "tensor"), ("pipeline-parallel", "pipeline")]
    if any(row["expert-parallel"] > 1 for row in found):
        columns.append(("expert-parallel", "experts"))
    columns += [("zero", "ZeRO"), ("total_bytes", "one GPU"), ("used", "used"), ("fits", "fits")]
    table(found[:MOST_SHOWN], columns)


def main() -> None:
    pages = [st.Page(partial(draw, name), title=about["title"], url_path=name) for name, about in PAGES.items()]
    page = st.navigation(pages, expanded=True)
    st.set_page_config(page_title=f"{page.title} - Ridgepoint", layout="wide")
    st.sidebar.caption("Each answer is that of the command beside it. Nothing leaves this machine.")
    page.run()


if __name__ == "__main__":
    main()
