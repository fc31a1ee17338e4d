"""What is typed, and what a Python call gives in its place: other spellings, near and removed names, words."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

REMOVED: dict[str, str] = tomllib.loads(Path(__file__).with_name("removed.toml").read_text(encoding="utf-8"))
"""Removed commands, options and values, each with its replacement."""


SYNONYMS: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("synonyms.toml").read_text(encoding="utf-8"))
"""Words that users try, with the names that they may mean."""


def known_as(word: str, known: Iterable[str]) -> str:
    """Return the known name that `word` spells but for case, `-`, `_` and blanks; `word` itself where there is none."""
    names = list(known)
    same = [name for name in names if plain(name) == plain(word)]
    return same[0] if len(same) == 1 and word not in names else word


def plain(word: str) -> str:
    """Return a word as it is compared: small letters, without what joins its parts."""
    return word.lower().replace("-", "").replace("_", "").replace(" ", "")


def did_you_mean(word: str, known: Iterable[str], count: int = 3, cutoff: float = 0.7) -> str:
    """Return a question that names the nearest known words, `did you mean gelu or relu?`; empty if none is near."""
    names, typed = {plain(name): name for name in known}, plain(word)[:80]
    close = [name for name in map(plain, SYNONYMS.get(typed, ())) if name in names]
    close = close or [name for name in names if len(typed) > 2 and name.startswith(typed)][:count]
    close = close or get_close_matches(typed, list(names), n=count, cutoff=cutoff)
    *others, last = [names[name] for name in close] or [""]
    return f"did you mean {', '.join(others)}{' or ' * bool(others)}{last}?" if close else ""


def as_typed(options: Mapping[str, object]) -> dict[str, str | bool]:
    """Return the options of a call by the names that the command line has, as the words that would be typed.

    Names have underscores for dashes. A tuple is a shape, `(4096, 1024)` is `4096x1024`; a list holds several values;
    True switches on; None and False are as left out; any other value that cannot be typed raises ValueError.
    """
    typed: dict[str, str | bool] = {}
    for name, value in options.items():
        if value is None or value is False:
            continue
        typed[name.replace("_", "-")] = True if value is True else _text(name, value)
    return typed


def words_of(typed: Mapping[str, str | bool]) -> list[str]:
    """Return options as they are typed; a value that begins with a dash would be taken for an option of its own."""
    words: list[str] = []
    for name, value in typed.items():
        text = "" if isinstance(value, bool) else value.strip()
        if value is True:
            words.append(f"--{name}")
        elif text:
            words += [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]
    return words


def _text(name: str, value: object) -> str:
    if isinstance(value, list | set | frozenset | range):
        return ",".join(_text(name, one) for one in value)
    if isinstance(value, tuple):
        return "x".join(_text(name, one) for one in value)
    if callable(value) or isinstance(value, Mapping | bytes):
        raise ValueError(f"{name}= takes no {type(value).__name__}; give a number, a text or a list of these")
    return str(value)
