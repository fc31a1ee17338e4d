"""Plain data checked by msgspec against the annotations of a class, and what is wrong with it in plain words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from msgspec import Meta, ValidationError, convert

T = TypeVar("T")


def one_of(words: Iterable[str]) -> Meta:
    """Return what allows these words alone."""
    return Meta(pattern=rf"^({'|'.join(map(re.escape, words))})\Z", description=f"one of {', '.join(words)}")


Text = Annotated[str, Meta(description="text")]


class WrongValueError(ValueError):
    """A value is not what its place asks for."""

    def __init__(self, place: str, allowed: str, found: Any) -> None:
        self.place, self.allowed, self.found = place, allowed, found
        super().__init__(f"'{place}' must be {allowed}, found {shortened(found)}")


class KeyMismatchError(ValueError):
    """A key is missing, or is not known."""

    def __init__(self, place: str, is_missing: bool) -> None:
        self.place, self.is_missing = place, is_missing
        super().__init__(f"'{place}' is missing" if is_missing else f"unknown key '{place}'")


def converted(values: Any, kind: type[T]) -> T:
    """Return plain data as a class, whose annotations say in the `description` of a `Meta` what a value must be.

    Raises:
        WrongValueError: a value is something else.
        KeyMismatchError: a key is missing, or the class refuses unknown ones and has no such field.
    """
    try:
        return convert(values, kind)
    except ValidationError as error:
        problem = str(error)
    place = match[1] if (match := re.search(r"`\$\.?(.*?)`$", problem)) else ""
    if key := re.search(r"(missing required|unknown) field `(\w+)`", problem):
        raise KeyMismatchError(f"{place}.{key[2]}".lstrip("."), key[1] != "unknown")
    hint: Any = kind
    allowed = problem.partition(" - at ")[0]
    for step in re.findall(r"\w+|\[[^]]*]", place):
        hint = next((part for part in (hint, *get_args(hint)) if hasattr(part, "__metadata__")), hint)
        hint = getattr(hint, "__origin__", hint) if hasattr(hint, "__metadata__") else hint
        if step.startswith("["):
            hint = next(part for part in reversed(get_args(hint)) if part is not Ellipsis)
            values = values[int(step[1:-1])] if step[1:-1].isdigit() else values
        else:
            classes = (hint, *get_args(hint))
            hint = get_type_hints(next(c for c in classes if hasattr(c, "__annotations__")), include_extras=True)[step]
            values = values[step]
        for part in (hint, *get_args(hint)):
            for meta in getattr(part, "__metadata__", ()):
                allowed = meta.description or allowed
    raise WrongValueError(place.removesuffix("[...]"), allowed, values)


def shortened(value: Any) -> str:
    """Return a value as a message shows it, at most 60 characters long."""
    try:
        shown = repr(value)
    except ValueError:  # a whole number of thousands of digits
        shown = "a huge number"
    return shown if len(shown) <= 60 else shown[:57] + "..."
