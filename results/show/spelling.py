"""Spellings, suggestions, and options from Python calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from results.show.facts import facts_beside


def known_as(word: str, known: Iterable[str]) -> str:
    """Return the known name that equals `word` except for case, `-`, `_` and blanks; else
    `word`.
    """
    names = list(known)
    same = [name for name in names if plain(name) == plain(word)]
    return same[0] if len(same) == 1 and word not in names else word


def plain(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "").replace(" ", "")


def did_you_mean(word: str, known: Iterable[str], count: int = 3, cutoff: float = 0.7) -> str:
    """Return a suggestion such as `did you mean gelu or relu?`; empty if no known name is near."""
    names = {plain(name): name for name in known}
    typed = plain(word)[:80]
    synonyms = facts_beside(__file__, "synonyms.toml")  # terms that users try
    close = [name for name in map(plain, synonyms.get(typed, ())) if name in names]
    close = close or [name for name in names if len(typed) > 2 and name.startswith(typed)][:count]
    close = close or get_close_matches(typed, list(names), n=count, cutoff=cutoff)
    if not close:
        return ""
    *others, last = [names[name] for name in close]
    text = f"{', '.join(others)} or {last}" if others else last
    return f"did you mean {text}?"


def words_of(options: Mapping[str, object]) -> list[str]:
    """Return the keyword arguments of a call as arguments of a command.

    A tuple is a shape, `(4096, 1024)` is `4096x1024`; a list has several values; True switches on;
    None, False and an empty text are omitted. `=` keeps a value that starts with a dash from being
    an option.

    Raises:
        ValueError: a value has no text form.
    """
    words = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            text = _text(name, value).strip()
            if text:
                words += [f"{option}={text}"] if text.startswith("-") else [option, text]
    return words


def _text(name: str, value: object) -> str:
    if isinstance(value, list | set | frozenset | range):
        return ",".join(_text(name, item) for item in value)
    if isinstance(value, tuple):
        return "x".join(_text(name, item) for item in value)
    if callable(value) or isinstance(value, Mapping | bytes):
        raise ValueError(
            f"{name}= expected a number, a text or a list of these, got {type(value).__name__}"
        )
    return str(value)
