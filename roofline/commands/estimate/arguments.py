"""What can be typed after `python -m roofline estimate`: numbers, lists, models and machines, each checked."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any

from results.compare.selection import latest_of
from results.show.spelling import did_you_mean, known_as
from results.show.terminal import one_line
from results.store.runs import Run
from roofline.accounting.config.config import MOST, ConfigError, ModelConfig
from roofline.accounting.config.file import load_config, load_preset, read_config
from roofline.accounting.machines import Machine, gpu_machine, run_machine
from roofline.hardware.gpu import find_gpu
from roofline.work import DTYPES, dtype_named

SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
NUMBER = re.compile(r"(\d{1,30}(?:_\d{1,30})*(?:\.\d{1,30})?(?:[eE][+-]?\d{1,3})?)([kKmMbBgGtT]?)")
LARGEST = 10**30
"""As in run files: no count is larger."""


DIMENSIONS = {
    "layers": "decoder layers",
    "width": "hidden size",
    "heads": "query heads",
    "kv-heads": "key and value heads; default: as --heads",
    "head-dim": "width of a head; default: --width / --heads",
    "ffn": "width of the MLP; with --style gpt2 by default 4 x --width",
    "vocab": "tokens of the vocabulary",
    "context": "longest sequence; with --style gpt2 the learned positions, by default 1024",
}
"""Options of a model's dimensions, and what each is."""

NEEDED = ("layers", "width", "heads", "vocab")

STYLES = {
    "llama": {
        "layers": "num_hidden_layers",
        "width": "hidden_size",
        "heads": "num_attention_heads",
        "kv-heads": "num_key_value_heads",
        "head-dim": "head_dim",
        "ffn": "intermediate_size",
        "vocab": "vocab_size",
        "context": "max_position_embeddings",
    },
    "gpt2": {
        "layers": "n_layer",
        "width": "n_embd",
        "heads": "n_head",
        "ffn": "n_inner",
        "vocab": "vocab_size",
        "context": "n_positions",
    },
}
"""By style: the key of `config.json` that each dimension is."""


def _value(text: str) -> Fraction | None:
    match = NUMBER.fullmatch(text.strip())
    return Fraction(match[1]) * SUFFIXES[match[2].lower()] if match else None


def positive(text: str) -> float:
    """Return a number above 0, such as 70e9, 70B or 0.5; a whole one as an integer, exact.

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    value = _value(text)
    if value is None or not Fraction(1, LARGEST) <= value <= LARGEST:
        raise argparse.ArgumentTypeError(
            f"{_shown(text)} must be a number above 0 and at most 10^30, such as 70e9, 70B or 0.5"
        )
    return int(value) if value.denominator == 1 else float(value)


def whole(text: str) -> int:
    """Return a whole number from 1, such as 8, 4096 or 15T.

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    value = _value(text)
    if value is None or value.denominator != 1 or not 1 <= value <= MOST:
        raise argparse.ArgumentTypeError(f"{_shown(text)} must be a whole number from 1 to 10^12")
    return int(value)


def share(text: str) -> float:
    """Return a fraction above 0, at most 1, such as 0.5 or 50%.

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    value = _value(text.strip().removesuffix("%"))
    if value is not None and text.strip().endswith("%"):
        value /= 100
    if value is None or not Fraction(1, LARGEST) <= value <= 1:
        hint = "; 40 % is 0.4" if value and value > 1 else ""
        raise argparse.ArgumentTypeError(f"{_shown(text)} must be a fraction above 0 and at most 1{hint}")
    return float(value)


def exact(text: str) -> Fraction:
    """Return a number as it is written, of either sign.

    Raises:
        argparse.ArgumentTypeError: it is no number, or one of more than 300 digits.
    """
    stripped = text.strip()
    value = _value(stripped.removeprefix("-"))
    if value is None or value > 10**300 or (value and value < Fraction(1, 10**330)):
        raise argparse.ArgumentTypeError(f"{_shown(text)} must be a number, such as 1e-8")
    return -value if stripped.startswith("-") else value


def extents(text: str) -> list[int]:
    """Return the extents of a shape such as 49152x12288.

    Raises:
        argparse.ArgumentTypeError: it is no shape.
    """
    words = text.replace("×", "x").replace(",", "x").split("x")
    if len(words) > 32:
        raise argparse.ArgumentTypeError(f"{_shown(text)} has {len(words)} dimensions; at most 32")
    try:
        found = [whole(word) for word in words]
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{_shown(text)} must be a shape such as 4096x4096") from None
    if prod(found) > LARGEST:
        raise argparse.ArgumentTypeError(f"{_shown(text)} has more than 10^30 elements")
    return found


def product_shape(text: str) -> tuple[int, int, int]:
    """Return M, N and K of a shape MxNxK; one number stands for all three.

    Raises:
        argparse.ArgumentTypeError: it is no such shape.
    """
    found = extents(text)
    if len(found) not in (1, 3):
        raise argparse.ArgumentTypeError(f"{_shown(text)} must be MxNxK, such as 4096x4096x1024, or one number")
    m, n, k = found * 3 if len(found) == 1 else found
    return m, n, k


def words_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a reader of lists with commas whose words are all known."""

    def read(text: str) -> list[str]:
        found = [known_as(dtype_named(word.strip()), known) for word in text.split(",") if word.strip()]
        unknown = [word for word in found if word not in known]
        if unknown or not found:
            what = _shown(unknown[0]) if unknown else "an empty list"
            hint = did_you_mean(unknown[0], known) if unknown else ""
            raise argparse.ArgumentTypeError(f"{what} is not known; {hint}{' ' * bool(hint)}known: {', '.join(known)}")
        return list(dict.fromkeys(found))

    return read


dtype_list = words_of(DTYPES)


def names(text: str) -> list[str]:
    """Return the words of a list with commas.

    Raises:
        argparse.ArgumentTypeError: there is none.
    """
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise argparse.ArgumentTypeError("names nothing; write names with commas between")
    return list(dict.fromkeys(found))


def _shown(text: str) -> str:
    return f"'{one_line(text)}'"


def joined(lists: Sequence[Sequence[str]] | None) -> list[str]:
    """Return the words of an option that may repeat, each once."""
    return list(dict.fromkeys(word for words in lists or () for word in words))


def model_of(args: argparse.Namespace) -> ModelConfig:
    """Return the model asked for.

    Raises:
        ConfigError: none or two are asked for, or it cannot be read.
    """
    sizes = {name: value for name in DIMENSIONS if (value := getattr(args, name.replace("-", "_"))) is not None}
    if [args.model is not None, args.config is not None, bool(sizes)].count(True) != 1:
        raise ConfigError(
            "give one model: --model PRESET, such as llama-3-8b, --config path/to/config.json, or its dimensions, "
            "such as --layers 16 --width 2048 --heads 32 --ffn 8192 --vocab 128256"
        )
    if sizes:
        return _by_dimensions(sizes, args.style, args.tied)
    if isinstance(args.config, ModelConfig):  # of a file that was sent, not one of this machine's
        return args.config
    return load_preset(args.model) if args.model is not None else load_config(Path(args.config))


def refuse_model(args: argparse.Namespace) -> None:
    """Refuse a model beside a number of parameters.

    Raises:
        ConfigError: there is one.
    """
    sizes = [f"--{name}" for name in DIMENSIONS if getattr(args, name.replace("-", "_")) is not None]
    if args.model is not None or args.config is not None or sizes:
        raise ConfigError("--params is in place of a model: leave --model, --config and dimensions out")


def _by_dimensions(sizes: Mapping[str, int], style: str, is_tied: bool) -> ModelConfig:
    """Return the model of given dimensions.

    Raises:
        ConfigError: one is missing, or heads cannot share the width.
    """
    missing = [f"--{name}" for name in NEEDED if name not in sizes]
    if style == "llama" and "ffn" not in sizes:
        missing.append("--ffn")
    if missing:
        raise ConfigError(f"a model by its dimensions needs {', '.join(missing)}, too")
    values: dict[str, Any] = {"model_type": style, "tie_word_embeddings": is_tied}
    values |= {key: sizes[name] for name, key in STYLES[style].items() if name in sizes}
    if style == "gpt2":
        values.setdefault("n_positions", 1024)
    config = read_config(values, "the model of these dimensions")
    return replace(config, source=f"a decoder of {style} style with the dimensions given", assumptions=())


def run_of(args: argparse.Namespace) -> Run:
    """Return the run that `--measured` names.

    Raises:
        StoreError: there is none, or it cannot be read.
    """
    return latest_of(args).load(args.measured)


GIVEN = ("peak", "bandwidth", "memory")
"""Options with figures of a machine; they replace those of `--gpu`, or describe a machine without it."""


def machines_of(args: argparse.Namespace) -> list[Machine]:
    """Return the requested machines: GPUs of the table, the machine of a measured run, or one with the given figures.

    Raises:
        ConfigError: none is asked for.
        UnknownGpuError: a GPU is not in the table.
        StoreError: there is no such run, or it cannot be read.
        CeilingError: the ceilings of the run cannot be used.
    """
    machines = [gpu_machine(find_gpu(slug)) for slug in joined(args.gpu)]
    if args.measured is not None:
        run = run_of(args)
        machines.append(run_machine(run, f"run {run.environment.run_id}"))
    if not machines and any(getattr(args, name, None) is not None for name in GIVEN):
        machines.append(Machine(slug="given", peaks_flops_per_s={}, source=""))
    if not machines:
        options = " or ".join(f"--{name}" for name in GIVEN if hasattr(args, name))
        raise ConfigError(
            f"give a machine: --gpu SLUG, such as h100-sxm, --measured RUN, such as latest, or its own {options}"
        )
    return [_as_given(machine, args) for machine in machines]


def _as_given(machine: Machine, args: argparse.Namespace) -> Machine:
    given = {name: getattr(args, name, None) for name in GIVEN}
    changes: dict[str, Any] = {}
    if given["peak"] is not None:
        changes["peaks_flops_per_s"] = dict.fromkeys(joined(args.dtype) or ["bf16"], float(given["peak"]))
    if given["bandwidth"] is not None:
        changes["bandwidth_bytes_per_s"] = float(given["bandwidth"])
    if given["memory"] is not None:
        changes |= {"memory_bytes": max(1, int(given["memory"])), "sold_bytes": None}
    names = " and ".join(name for name, value in given.items() if value is not None)
    sources = [f"{names} as given" if names else "", machine.source]
    return replace(machine, **changes, source="; ".join(filter(None, sources)))
