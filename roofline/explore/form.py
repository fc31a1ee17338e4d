"""The fields of a page, one for each parameter: each draws itself, keeps its value in the address, and returns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import streamlit as st

from results.store.runs import StoreError, list_runs
from roofline import estimate
from roofline.accounting.config import ConfigError, ModelConfig
from roofline.accounting.presets import config_of_bytes, preset_names
from roofline.accounting.state import RECIPES
from roofline.estimate.options import NEEDED, STYLES
from roofline.estimate.question import (
    HELP,
    OneOf,
    Parameter,
    exact,
    extents,
    parameters,
    positive,
    product_shape,
    whole,
)
from roofline.gpu_table import load_gpus

Options = dict[str, str | bool]
"""By name, with dashes: what is typed, or whether a switch is on. An empty text is left out."""

MOST_RUNS = 10

PARAMS, PRESET, FILE, SIZES = "parameters", "preset", "config.json", "dimensions"

LLAMA_1B = {"layers": "16", "width": "2048", "heads": "32", "kv_heads": "8", "ffn": "8192", "vocab": "128256"}

CHECKPOINTS = ("none", "selective", "full", "sqrt")

LONGEST = 500

TYPED = 116

NOT_GIVEN = 0

BY_DEFAULT = "by default"

MANTISSAS = (1, 1.5, 2, 3, 4, 5, 7)

RUN = "measured: run "


class Form:
    """The fields of one page."""

    def __init__(self, page: str, question: str, ranges: Mapping[str, tuple[float, float]]) -> None:
        self.page = page
        self.question = question
        self.config: ModelConfig | None = None
        self._ranges = ranges
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
        """Return options by their names in Python; the model of a file that was sent is that model itself."""
        sent = {} if self.config is None else {"model": self.config, "config": None}
        return {name.replace("-", "_"): value for name, value in options.items()} | sent

    def _field(self, parameter: Parameter, first: Any) -> Options:
        name, read = parameter.name, parameter.read
        if read is bool:
            return {name: self._switch(name)}
        if isinstance(first, list) and isinstance(read, OneOf):
            return {name: self._choices(name, read.known, ",".join(first))}
        if read is product_shape:
            return {name: self._product(first.split("x"))}
        if name == "checkpoint":
            return {name: self.choice(name, CHECKPOINTS, first)}
        if isinstance(read, OneOf):
            known = read.known if first else (BY_DEFAULT, *read.known)
            chosen = self.choice(name, known, first or BY_DEFAULT)
            if name == "recipe":
                st.caption(RECIPES[chosen].source)
            return {name: "" if chosen == BY_DEFAULT else chosen}
        if read in (extents, exact):
            return {name: self._text(name, first, _label(name), help=HELP[name])}
        return {name: self.number(name, first, is_binary=read is whole)}

    def number(self, name: str, default: str, *, is_binary: bool, label: str = "") -> str:
        """Draw a number to type, such as 70B, and a slider for it whose stops may be powers of two."""
        label = label or _label(name)
        stops = _stops(*self._ranges[name], is_binary=is_binary)
        stops = sorted({*stops, positive(default)}) if default else [NOT_GIVEN, *stops]
        key = self._key(f"{name} slider")
        try:
            value = positive(self._typed(name, default))
        except ConfigError:
            value = positive(default) if default else NOT_GIVEN
        st.session_state[key] = min(stops, key=lambda stop: abs(stop - value))
        with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
            st.select_slider(
                label, stops, key=key, format_func=spelled, help=HELP.get(name), on_change=self._take, args=(name,)
            )
            return self._text(name, default, f"{label}, typed", label_visibility="collapsed", width=TYPED)

    def count(self, name: str, default: str, label: str) -> int:
        try:
            return whole(self.number(name, default, is_binary=True, label=label))
        except ConfigError as error:
            raise ConfigError(f"{label}: {error}") from None

    def choice(self, name: str, known: Sequence[str], default: str, label: str = "") -> str:
        key = self._key(name)
        if st.session_state.get(key) not in known:
            st.session_state[key] = self._asked(name, [st.query_params.get(name, default)], known, default)[0]
        chosen: str = st.selectbox(label or _label(name), known, key=key, help=HELP.get(name))
        self._remember(name, chosen, default)
        return chosen

    def _choices(self, name: str, known: Sequence[str], default: str) -> str:
        key = self._key(name)
        if key not in st.session_state:
            asked = [word for word in st.query_params.get(name, default).split(",") if word]
            st.session_state[key] = self._asked(name, asked, known, default)
        chosen = ",".join(st.multiselect(_label(name), known, key=key))
        self._remember(name, chosen, default)
        return chosen

    def _switch(self, name: str) -> bool:
        key = self._key(name)
        if key not in st.session_state:
            st.session_state[key] = st.query_params.get(name) == "on"
        is_on: bool = st.toggle(_label(name), key=key)
        self._remember(name, "on" if is_on else "", "")
        return is_on

    def _product(self, first: Sequence[str]) -> str:
        extents = {"m": "rows of A", "n": "columns of B", "k": "columns of A, rows of B"}
        typed = [
            self.number(name, default, is_binary=True, label=f"{name}: {what}")
            for (name, what), default in zip(extents.items(), first, strict=True)
        ]
        return "x".join(typed)

    def _model(self, first: str) -> Options:
        """Draw the ways to name a model; a number among the first words allows its parameters alone."""
        params = next((word for word in first.split() if word[0].isdigit()), "")
        preset = next((word for word in first.split() if not word[0].isdigit()), "")
        ways = [*([PARAMS] if params else []), PRESET, FILE, SIZES]
        way = self.choice("by", ways, PRESET if preset else PARAMS, "model by")
        if way == PARAMS:
            return self._field(self._known["params"], params)
        if way == PRESET:
            return {"model": self.choice("model", preset_names(), preset or "llama-3-8b")}
        return self._sent() if way == FILE else self._dimensions()

    def _sent(self) -> Options:
        sent = st.file_uploader(
            "config.json of Hugging Face transformers", type="json", key=self._key("config"), max_upload_size=1
        )
        if sent is None:
            st.info("Choose a config.json. It stays in the memory of this machine, and its name in no address.")
            st.stop()
        self.config = config_of_bytes(sent.getvalue(), sent.name)
        return {"config": sent.name}

    def _dimensions(self) -> Options:
        style = self.choice("style", list(STYLES), "llama")
        is_llama = style == "llama"
        first = {name: LLAMA_1B.get(name, "") if is_llama or name in NEEDED else "" for name in STYLES[style]}
        return {**self.fields(first), **self.fields({"tied": False}), "style": style}

    def _machines(self, first: str | list[str]) -> Options:
        if isinstance(first, list):
            chosen = self._choices("gpu", known_machines(), ",".join(first)).split(",")
        else:
            chosen = [self.choice("gpu", known_machines(), first)]
        runs = [name.removeprefix(RUN) for name in chosen if name.startswith(RUN)]
        slugs = [name for name in chosen if name and not name.startswith(RUN)]
        return {"gpu": ",".join(slugs), "measured": runs[0] if runs else ""}

    def _text(self, name: str, default: str, label: str, **looks: Any) -> str:
        self._typed(name, default)
        text: str = st.text_input(label, key=self._key(name), max_chars=LONGEST, **looks)
        self._remember(name, text, default)
        return text

    def _typed(self, name: str, default: str) -> str:
        text: str = st.session_state.setdefault(self._key(name), st.query_params.get(name, default)[:LONGEST])
        return text

    def _key(self, name: str) -> str:
        return f"{self.page} {name}"

    def _take(self, name: str) -> None:
        stop = st.session_state[self._key(f"{name} slider")]
        st.session_state[self._key(name)] = "" if stop == NOT_GIVEN else spelled(stop)

    def _remember(self, name: str, value: str, default: str) -> None:
        if value != default:
            st.query_params[name] = value
        elif name in st.query_params:
            del st.query_params[name]

    def _asked(self, name: str, words: Sequence[str], known: Sequence[str], default: str) -> list[str]:
        found = [word for word in dict.fromkeys(words) if word in known]
        if any(word not in known for word in words):
            st.warning(f"{name} in the address: what it names is not known; {default} in its place")
        return found or [word for word in default.split(",") if word in known] or [known[0]]


def _label(name: str) -> str:
    return f"{name}: {HELP[name].partition(';')[0]}"


def known_machines() -> list[str]:
    try:
        runs = [run.run_id for run in list_runs(counts_records=False) if run.error is None]
    except StoreError:
        runs = []
    return [*load_gpus(), *(f"{RUN}{name}" for name in runs[:MOST_RUNS])]


def _stops(low: float, high: float, is_binary: bool) -> list[float]:
    if is_binary:
        return list(takewhile(lambda stop: stop <= high, (low * 2**power for power in range(60))))
    powers = (10.0**power for power in range(-3, 31))
    scaled = (round(power * mantissa, 9) for power in powers for mantissa in MANTISSAS)
    found = [stop for stop in scaled if low <= stop <= high]
    return [int(stop) if stop == int(stop) else stop for stop in found]


def spelled(value: float) -> str:
    """Return a number as it is typed, with the letter of its size where that says all of it: 70B, 2048, 0.5."""
    if value == NOT_GIVEN:
        return "not given"
    for letter, factor in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if value >= factor and 10 * value % factor == 0:
            return f"{value / factor:g}{letter}"
    return str(int(value)) if value == int(value) else f"{value:g}"
