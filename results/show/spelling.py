"""Words that a user may have meant: other spellings of one name, and the known names nearest to an unknown one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def known_as(word: str, known: Iterable[str]) -> str:
    """Return the known name that `word` spells but for case, `-`, `_` and blanks; `word` itself where there is none."""
    names = list(known)
    same = [name for name in names if plain(name) == plain(word)]
    return same[0] if len(same) == 1 and word not in names else word


def plain(word: str) -> str:
    """Return a word as it is compared: small letters, without what joins its parts."""
    return word.lower().replace("-", "").replace("_", "").replace(" ", "")


def did_you_mean(word: str, known: Iterable[str], count: int = 3, cutoff: float = 0.6) -> str:
    """Return a question that names the nearest known words, `did you mean gelu or relu?`; empty where none is near."""
    names = {plain(name): name for name in known}
    close = get_close_matches(plain(word)[:80], list(names), n=count, cutoff=cutoff)
    *others, last = [names[name] for name in close] or [""]
    return f"did you mean {', '.join(others)}{' or ' * bool(others)}{last}?" if close else ""
