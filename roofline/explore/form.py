"""The fields of a page, one per parameter; their values are stored in the URL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from results.store.runfile import StoreError
from results.store.runs import list_runs
from roofline import estimate
from roofline.accounting.config import ModelConfig
from roofline.accounting.presets import config_of_bytes, preset_names
from roofline.accounting.state import RECIPES
from roofline.estimate.options import REQUIRED, STYLES
from roofline.estimate.question import HELP, OneOf, Parameter, parameters
from roofline.gpu_table import load_gpus

Options = dict[str, str | bool]
"""Typed text or state of a switch by name with dashes; an empty text counts as omitted."""

PARAMS = "parameters"
PRESET = "preset"
FILE = "config.json"
SIZES = "dimensions"
LLAMA_1B = {
    "layers": "16",
    "width": "2048",
    "heads": "32",
    "kv_heads": "8",
    "ffn": "8192",
    "vocab": "128256",
}
BY_DEFAULT = "by default"
RUN = "measured: run "
MAX_RUNS = 10
"""Number of listed runs."""
MAX_LETTERS = 500
"""Letters of a text."""
URL = "query-params"


class Form:
    """The fields of one page."""

    def __init__(self, question: str) -> None:
        self.question = question
        self.config: ModelConfig | None = None
        self._known = parameters(getattr(estimate, question))

    def fields(self, first: Mapping[str, Any]) -> Options:
        options: Options = {}
        for name, value in first.items():
            if name == "model":
                options |= self._model(value)
            elif name == "gpu":
                options |= self._machines(value)
            else:
                options |= self._field(self._known[name.replace("-", "_")], value)
        return options

    def values(self, options: Options) -> dict[str, Any]:
        """Return options by Python name, with the model of an uploaded file."""
        sent = {} if self.config is None else {"model": self.config, "config": None}
        return {name.replace("-", "_"): value for name, value in options.items()} | sent

    def _field(self, parameter: Parameter, first: Any) -> Options:
        name = parameter.name
        read = parameter.read
        if read is bool:
            return {name: st.toggle(_label(name), key=name, bind=URL)}
        if isinstance(first, list) and isinstance(read, OneOf):
            return {name: ",".join(_choices(name, read.known, first))}
        if isinstance(read, OneOf):
            known = read.known if first else (BY_DEFAULT, *read.known)
            chosen = choice(name, known, first or BY_DEFAULT)
            if name == "recipe":
                st.caption(RECIPES[chosen].source)
            return {name: "" if chosen == BY_DEFAULT else chosen}
        return {
            name: st.text_input(
                _label(name), first, key=name, max_chars=MAX_LETTERS, help=HELP[name], bind=URL
            )
        }

    def _model(self, first: str) -> Options:
        params = next((word for word in first.split() if word[0].isdigit()), "")
        preset = next((word for word in first.split() if not word[0].isdigit()), "")
        ways = [PRESET, FILE, SIZES]
        if params:
            ways.insert(0, PARAMS)
        way = choice("by", ways, PRESET if preset else PARAMS, "model by")
        if way == PARAMS:
            return self._field(self._known["params"], params)
        if way == PRESET:
            return {"model": choice("model", preset_names(), preset or "llama-3-8b")}
        return self._uploaded() if way == FILE else self._dimensions()

    def _uploaded(self) -> Options:
        upload = st.file_uploader(
            "config.json of Hugging Face transformers", type="json", max_upload_size=1
        )
        if upload is None:
            st.info("Choose a config.json. It stays on this machine.")
            st.stop()
        self.config = config_of_bytes(upload.getvalue(), upload.name)
        return {"config": upload.name}

    def _dimensions(self) -> Options:
        style = choice("style", list(STYLES), "llama")
        is_llama = style == "llama"
        first = {
            name: LLAMA_1B.get(name, "") if is_llama or name in REQUIRED else ""
            for name in STYLES[style]
        }
        return {**self.fields(first), **self.fields({"tied": False}), "style": style}

    def _machines(self, first: str | list[str]) -> Options:
        machines = known_machines()
        if isinstance(first, list):
            chosen = _choices("gpu", machines, first)
        else:
            chosen = [choice("gpu", machines, first)]
        runs = [name.removeprefix(RUN) for name in chosen if name.startswith(RUN)]
        slugs = [name for name in chosen if not name.startswith(RUN)]
        return {"gpu": ",".join(slugs), "measured": runs[0] if runs else ""}


def choice(name: str, known: Sequence[str], default: str, label: str = "") -> str:
    index = list(known).index(default)
    return str(
        st.selectbox(label or _label(name), known, index, key=name, help=HELP.get(name), bind=URL)
    )


def _choices(name: str, known: Sequence[str], default: Sequence[str]) -> list[str]:
    return list(st.multiselect(_label(name), known, default, key=name, bind=URL))


def _label(name: str) -> str:
    return f"{name}: {HELP[name].partition(';')[0]}"


def known_machines() -> list[str]:
    try:
        runs = [run.run_id for run in list_runs(counts_records=False) if run.error is None]
    except StoreError:
        runs = []
    return [*load_gpus(), *(f"{RUN}{name}" for name in runs[:MAX_RUNS])]
