"""Where a result is wrong: which elements, by how much, and what the pattern of their places suggests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

MOST_PLACES = 2**22
"""Wrong elements whose places are kept to look for a pattern; with more, only their number is told."""

SAME_FACTOR = 0.02
"""Elements that are all off by one factor, within so much, look like a wrong scale."""


@dataclass(frozen=True)
class WrongPlaces:
    """The wrong elements of a result."""

    count: int
    checked: int
    index: tuple[int, ...]
    """Index of the element with the largest error, in the shape of the result."""
    expected: float
    """There, by the fp64 reference."""
    got: float
    """There; may be NaN or infinite."""
    ulp: float | None
    """Its error in units in the last place of the expected value; None where the two are not finite."""
    where: str | None
    """Which elements they are; None where no pattern shows."""
    hint: str | None
    """The usual cause of such a pattern."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object; JSON has no NaN and no infinity, so these are text."""
        got = self.got if math.isfinite(self.got) else str(self.got)
        return asdict(self) | {"index": list(self.index), "got": got}

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        place = f"[{', '.join(map(str, self.index))}]"
        off = "" if self.ulp is None else f", {self.ulp:,.3g} units in the last place off"
        share = f"{self.count:,} of {self.checked:,} elements {'is' if self.count == 1 else 'are'} wrong"
        pattern = "".join(f"{sign}{text}" for sign, text in ((", ", self.where), (": ", self.hint)) if text)
        return f"at {place} {self.expected:.6g} is expected, {self.got:.6g} found{off}; {share}{pattern}"


class Search:
    """Gathers the wrong elements of a result part by part."""

    def __init__(self, result: Tensor) -> None:
        """Prepare; `places` numbers the elements of the result, so that parts of it can be taken as of the result."""
        import torch

        self._shape, self._dtype = tuple(result.shape), result.dtype
        self.places = torch.arange(result.numel(), device=result.device).view(result.shape)
        self._count = self._checked = 0
        self._kept: list[Tensor] = []
        self._worst: tuple[float, int, float, float] = (-1.0, 0, math.nan, math.nan)
        self._least_factor, self._largest_factor = math.inf, -math.inf
        self._are_all_nan = True

    def add(self, places: Tensor, ratio: Tensor, truth: Tensor, found: Tensor) -> None:
        """Take one part.

        Args:
            places: numbers of its elements.
            ratio: error of each over its bound; above 1, or NaN, is wrong.
            truth: the reference, fp64.
            found: what was computed, fp64.
        """
        is_wrong = ~(ratio <= 1)
        self._checked += is_wrong.numel()
        count = int(is_wrong.sum())
        if not count:
            return
        wrong, truth, found = places[is_wrong], truth[is_wrong], found[is_wrong]
        off = ratio[is_wrong].nan_to_num(math.inf, math.inf)
        at = int(off.argmax())
        if float(off[at]) > self._worst[0]:
            self._worst = float(off[at]), int(wrong[at]), float(truth[at]), float(found[at])
        if self._count + count <= MOST_PLACES:
            self._kept.append(wrong.cpu())
        self._count += count
        factors = found / truth
        self._least_factor = min(self._least_factor, float(factors.min()))
        self._largest_factor = max(self._largest_factor, float(factors.max()))
        self._are_all_nan = self._are_all_nan and bool(found.isnan().all())

    def found(self) -> WrongPlaces | None:
        """Return what was gathered, None where nothing is wrong."""
        import torch

        if not self._count:
            return None
        _, place, expected, got = self._worst
        index = tuple(int(at) for at in torch.unravel_index(torch.tensor(place), self._shape))
        where, hint = None, None
        if self._count == self._checked:
            where = "which is all of them"
        elif self._count <= MOST_PLACES and self._checked == math.prod(self._shape):
            where, hint = pattern(torch.cat(self._kept).sort().values, self._shape)
        return WrongPlaces(
            count=self._count,
            checked=self._checked,
            index=index,
            expected=expected,
            got=got,
            ulp=units_in_the_last_place(expected, got, self._dtype),
            where=where,
            hint=self._hint_of_values() or hint,
        )

    def _hint_of_values(self) -> str | None:
        if self._are_all_nan:
            return "never written, or NaN on the way?"
        low, high = self._least_factor, self._largest_factor
        if self._count < 2 or not math.isfinite(low) or high - low > SAME_FACTOR * abs(high):
            return None
        if low == high == 0:
            return "all of them 0: never computed?"
        return f"each is {(low + high) / 2:.4g} times what is expected: a scale, or a part added twice or not at all?"


def units_in_the_last_place(expected: float, got: float, dtype: Any) -> float | None:
    """Return an error in units in the last place of the expected value; None where one of the two is not finite.

    Source: the unit of a binary floating-point number x is eps 2^floor(log2 |x|); Muller et al., Handbook of
        Floating-Point Arithmetic (2018), section 2.3.2.
    """
    import torch

    if not (math.isfinite(expected) and math.isfinite(got)):
        return None
    if not dtype.is_floating_point:
        return abs(got - expected)
    kind = torch.finfo(dtype)
    exponent = math.floor(math.log2(max(abs(expected), kind.tiny)))
    return abs(got - expected) / (kind.eps * 2.0**exponent)


def pattern(places: Tensor, shape: Sequence[int]) -> tuple[str | None, str | None]:
    """Return which elements are wrong and what that suggests, as far as a pattern shows.

    Args:
        places: numbers of the wrong elements, ascending; fewer than there are elements.
        shape: of the result.
    """
    import torch

    count, elements, width = len(places), math.prod(shape), shape[-1] if shape else 1
    first, last = int(places[0]), int(places[-1])
    is_run = last - first == count - 1
    if is_run and last == elements - 1:
        return f"the last {count:,} of {elements:,}", "a tail mask?"
    if count == 1:
        return None, None
    rows, columns = places.div(width, rounding_mode="floor").unique(), (places % width).unique()
    if 1 < width < elements and count == len(rows) * len(columns):
        of_rows = f"of {len(rows):,} of {elements // width:,} rows"
        if len(columns) == width:
            end = int(rows[-1]) == elements // width - 1
            told = f"rows {int(rows[0])} to {int(rows[-1])}" if len(rows) > 1 else f"row {int(rows[0])}"
            return f"{told} as a whole", "the last block of rows?" if end else None
        if int(columns[-1]) == width - 1 and int(columns[-1]) - int(columns[0]) == len(columns) - 1:
            return f"the last {len(columns):,} of {width:,} columns {of_rows}", "a tail mask along the row?"
        if len(columns) == 1:
            return f"column {int(columns[0])} {of_rows}", None
    if is_run:
        return f"elements {first:,} to {last:,}", "a block that was left out?"
    steps = torch.diff(places)
    if count > 2 and bool((steps == steps[0]).all()):
        return f"every {int(steps[0]):,}th from {first:,} on", "a stride, or a vector load?"
    return f"between elements {first:,} and {last:,}", None
