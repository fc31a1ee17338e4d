"""The fields of a page: each draws itself, keeps its value in the address, and returns the options that it types."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import streamlit as st

from results.store.runs import StoreError, list_runs
from roofline.accounting.config.config import ConfigError, ModelConfig
from roofline.accounting.config.file import config_of_bytes, preset_names
from roofline.accounting.state import OPTIMIZERS, RECIPES
from roofline.commands.estimate.arguments import DIMENSIONS, NEEDED, STYLES, positive, whole
from roofline.hardware.gpu import load_gpus
from roofline.work import DTYPES

MOST_RUNS = 10
"""Saved runs to choose from, the newest first."""

PARAMS, PRESET, FILE, SIZES = "parameters", "preset", "config.json", "dimensions"
"""How a model is named."""

LLAMA_1B = {"layers": "16", "width": "2048", "heads": "32", "kv-heads": "8", "ffn": "8192", "vocab": "128256"}
"""Where dimensions begin: those of Llama 3.2 1B."""

LONGEST = 500
"""Of what is typed, characters."""

TYPED = 116
"""Width of a number to type, pixels."""

NOT_GIVEN = 0
"""Where the slider of a number stands that may be left out, and is."""

MANTISSAS = (1, 1.5, 2, 3, 4, 5, 7)
"""Stops of a slider in each power of ten."""


class Form:
    """The fields of one page."""

    def __init__(self, page: str) -> None:
        self.page = page
        self.config: ModelConfig | None = None
        """Of a file that was sent."""
        self.said = ""
        """What they work out that is said first, in place of what the command says."""
        self.kept: Any = None
        """What the fields of a calculator work out for its picture."""

    def number(
        self, name: str, default: str, label: str, low: float, high: float, *, is_binary: bool = False, help: str = ""
    ) -> dict[str, str]:
        """Draw a number to type, such as 70B, and a slider for it.

        Args:
            name: of the option.
            default: what stands there first; nothing where it may be left out.
            label: what it is.
            low: where the slider begins; what is typed may be smaller.
            high: where it ends.
            is_binary: whether its stops are powers of two.
            help: more about it.
        """
        stops = _stops(low, high, is_binary)
        stops = sorted({*stops, positive(default)}) if default else [NOT_GIVEN, *stops]
        key = self._key(f"{name} slider")
        try:
            value = positive(self._typed(name, default))
        except argparse.ArgumentTypeError:
            value = positive(default) if default else NOT_GIVEN
        st.session_state[key] = min(stops, key=lambda stop: abs(stop - value))
        with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
            st.select_slider(
                label, stops, key=key, format_func=spelled, help=help or None, on_change=self._take, args=(name,)
            )
            return {name: self._text(name, default, f"{label}, typed", label_visibility="collapsed", width=TYPED)}

    def count(self, name: str, default: str, label: str, low: int, high: int) -> int:
        """Draw a whole number that is no option, and return it.

        Raises:
            ConfigError: what is typed is none.
        """
        try:
            return whole(self.number(name, default, label, low, high, is_binary=True)[name])
        except argparse.ArgumentTypeError as error:
            raise ConfigError(f"{label}: {error}") from None

    def text(self, name: str, default: str, label: str, help: str = "") -> str:
        """Draw something to type, and return it."""
        return self._text(name, default, label, help=help or None)

    def _text(self, name: str, default: str, label: str, **looks: Any) -> str:
        self._typed(name, default)
        text: str = st.text_input(label, key=self._key(name), max_chars=LONGEST, **looks)
        self._remember(name, text, default)
        return text

    def _typed(self, name: str, default: str) -> str:
        text: str = st.session_state.setdefault(self._key(name), st.query_params.get(name, default)[:LONGEST])
        return text

    def choice(self, name: str, known: Sequence[str], default: str, label: str, help: str = "") -> str:
        """Draw a choice, and return what is chosen."""
        key = self._key(name)
        if st.session_state.get(key) not in known:
            st.session_state[key] = self._asked(name, [st.query_params.get(name, default)], known, default)[0]
        chosen: str = st.selectbox(label, known, key=key, help=help or None)
        self._remember(name, chosen, default)
        return chosen

    def choices(self, name: str, known: Sequence[str], default: str, label: str) -> str:
        """Draw a choice of several, and return them with commas between."""
        key = self._key(name)
        if key not in st.session_state:
            asked = [word for word in st.query_params.get(name, default).split(",") if word]
            st.session_state[key] = self._asked(name, asked, known, default)
        chosen = ",".join(st.multiselect(label, known, key=key))
        self._remember(name, chosen, default)
        return chosen

    def switch(self, name: str, label: str) -> dict[str, bool]:
        """Draw a switch, off at first."""
        key = self._key(name)
        if key not in st.session_state:
            st.session_state[key] = st.query_params.get(name) == "on"
        is_on = st.toggle(label, key=key)
        self._remember(name, "on" if is_on else "", "")
        return {name: is_on}

    def model(self, default: str = "llama-3-8b", params: str = "", is_preset: bool = False) -> dict[str, str | bool]:
        """Draw the ways to name a model: a preset, a `config.json`, dimensions, and where it may be, its parameters.

        Args:
            default: a preset.
            params: how many at first, where a number of parameters is enough.
            is_preset: whether the preset comes first all the same.
        """
        ways = [*([PARAMS] if params else []), PRESET, FILE, SIZES]
        way = self.choice("by", ways, PRESET if is_preset else ways[0], "model by")
        if way == PARAMS:
            return dict(self.number("params", params, "parameters", 1e6, 1e13, help="such as 70e9 or 70B"))
        if way == PRESET:
            return {"model": self.choice("model", preset_names(), default, "model")}
        return self._sent() if way == FILE else self._dimensions()

    def _sent(self) -> dict[str, str | bool]:
        sent = st.file_uploader(
            "config.json of Hugging Face transformers", type="json", key=self._key("config"), max_upload_size=1
        )
        if sent is None:
            st.info("Choose a config.json. It stays in the memory of this machine, and its name in no address.")
            st.stop()
        self.config = config_of_bytes(sent.getvalue(), sent.name)
        return {"config": sent.name}

    def _dimensions(self) -> dict[str, str | bool]:
        style = self.choice("style", list(STYLES), "llama", "style")
        ranges = {"layers": (1, 128), "width": (64, 32768), "vocab": (256, 262144), "ffn": (64, 131072)}
        options: dict[str, str | bool] = {}
        for name, what in DIMENSIONS.items():
            if name in STYLES[style]:
                first = LLAMA_1B.get(name, "") if style == "llama" or name in NEEDED else ""
                options |= self.number(name, first, what, *ranges.get(name, (1, 4096)), is_binary=True)
        return {**options, **self.switch("tied", "the head uses the embedding's weights"), "style": style}

    def gpu(self, default: str = "h100-sxm", label: str = "GPU") -> dict[str, str]:
        """Draw the GPUs of the table and the saved runs, of which one is chosen."""
        return _machines([self.choice("gpu", known_machines(), default, label)])

    def gpus(self, default: str) -> dict[str, str]:
        """Draw the GPUs of the table and the saved runs, of which some are chosen."""
        return _machines(self.choices("gpu", known_machines(), default, "GPUs").split(","))

    def dtype(self, default: str = "bf16") -> dict[str, str]:
        """Draw the dtypes, of which one is chosen."""
        return {"dtype": self.choice("dtype", list(DTYPES), default, "computing dtype")}

    def state(self) -> dict[str, str]:
        """Draw in what the state of training is kept."""
        recipe = self.choice("recipe", list(RECIPES), "bf16-master", "precision: recipe")
        st.caption(RECIPES[recipe].source)
        return {"recipe": recipe, "optimizer": self.choice("optimizer", list(OPTIMIZERS), "adamw", "optimizer")}

    def _key(self, name: str) -> str:
        return f"{self.page} {name}"

    def _take(self, name: str) -> None:
        stop = st.session_state[self._key(f"{name} slider")]
        st.session_state[self._key(name)] = "" if stop == NOT_GIVEN else spelled(stop)

    def _remember(self, name: str, value: str, default: str) -> None:
        """Keep a value in the address, but for the one that is there without."""
        if value != default:
            st.query_params[name] = value
        elif name in st.query_params:
            del st.query_params[name]

    def _asked(self, name: str, words: Sequence[str], known: Sequence[str], default: str) -> list[str]:
        """Return what an address asks for as far as it is known, and say what is not."""
        found = [word for word in dict.fromkeys(words) if word in known]
        unknown = [word for word in words if word not in known]
        if unknown:
            st.warning(f"{name} in the address: what it names is not known; {default} in its place")
        return found or [word for word in default.split(",") if word in known] or [known[0]]


def known_machines() -> list[str]:
    """Return the GPUs of the table, and the newest runs whose measured roofs can be taken in their place."""
    try:
        runs = [run.run_id for run in list_runs(counts_records=False) if run.error is None]
    except StoreError:
        runs = []
    return [*load_gpus(), *(f"{RUN}{name}" for name in runs[:MOST_RUNS])]


RUN = "measured: run "
"""How a saved run is named among machines."""


def _machines(chosen: Sequence[str]) -> dict[str, str]:
    runs = [name.removeprefix(RUN) for name in chosen if name.startswith(RUN)]
    slugs = [name for name in chosen if name and not name.startswith(RUN)]
    return {"gpu": ",".join(slugs), "measured": runs[0] if runs else ""}


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
