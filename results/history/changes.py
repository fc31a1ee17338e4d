"""Where the level of a series of medians changes and stays changed, told from chance and from drift."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from results.stats.comparison import DEFAULT_MARGIN, holm
from results.stats.samples import Z_975

if TYPE_CHECKING:
    from numpy import bool_, float64, int64
    from numpy.random import Generator
    from numpy.typing import NDArray

PERMUTATIONS = 1999
"""With so many, a probability of 0.05 is known to 0.005."""

WAYS = 2
"""Ways to part a series, at one place or at two; the better one is taken, so that its probability counts twice."""

LEAST_RUNS = 9
"""Fewer runs cannot be told from chance: of 4 + 5, one order in 63 is as clear as the one seen, of 4 + 4 one in 35."""

LEAST_STRETCH = 2
"""Runs of a level between two others; one alone is an outlier."""

MAX_TWO_CUTS = 200
"""Runs up to which two cuts at once are tried: their number grows with the square."""

DRIFT_DEVIATES = math.sqrt(2) * Z_975
"""Standard deviations, of runs of one level, that a level must move by beyond the margin: two single runs of one level
differ by more in 5 % of cases.

More runs do not make it less, as they would if runs were independent. They are not: what shifts a machine on one day
shifts it on the next, too. Of 200 simulated histories of 20 equal runs each, with a drift of 2 % (standard deviation),
none had a mark where runs were independent, 1 % where they correlated by 0.5 from run to run, 10 % by 0.8; without this
allowance 4, 47 and 76 %. A slowdown by 10 % in the middle was marked in 97 % or more."""

MAD_FACTOR, MAD_EFFICIENCY = 1.4826, 0.37
"""Standard deviation of normal noise over its median absolute deviation; samples that a standard deviation would need
to be known as well, as a fraction. Source: as of `spread_of_runs`."""


class Parting(NamedTuple):
    """A way to part a series."""

    p_value: float
    """How often chance alone would part runs of one level so clearly; 1 where they do not part far enough."""
    cuts: tuple[int, ...] = ()


def all_change_points(
    series_s: Sequence[Sequence[float]], margin: float = DEFAULT_MARGIN, seed: int = 0
) -> list[list[int]]:
    """Return where the level of each series changes for longer than one run: the first place of each new level.

    Binary segmentation: a series is parted where the means of the logarithms before and after differ most clearly, and
    each part again, as long as a permutation test says that no order of the same values would part them so clearly by
    chance. A level that comes back would hide from one cut, so that two cuts at once are tried as well. All parts of
    all series that are looked at together share 5 % of error by Holm's correction, and a level counts as another one
    where it moved by more than the margin and the drift from run to run.

    Args:
        series_s: of each series one median for each run, in order, above 0.
        margin: change, as a fraction, that does not matter.
        seed: of the permutations.

    Source: one cut, Scott and Knott, A cluster analysis method for grouping means in the analysis of variance,
        Biometrics 30 (1974) 507; two cuts, Olshen, Venkatraman, Lucito and Wigler, Circular binary segmentation,
        Biostatistics 5 (2004) 557; on the medians of benchmarks, Daly, Brown, Ingo, O'Leary and Bradford, The use of
        change point detection to identify software performance regressions, ICPE 2020; a correction at each depth of
        a tree of hypotheses, Meinshausen, Hierarchical testing of variable importance, Biometrika 95 (2008) 265.
    """
    import numpy as np

    logs = [np.log(np.asarray(levels_s, dtype=np.float64)) for levels_s in series_s]
    generator = np.random.default_rng(seed)
    found: list[set[int]] = [set() for _ in logs]
    waiting = [(number, 0, len(values)) for number, values in enumerate(logs)]
    while waiting := [part for part in waiting if part[2] - part[1] >= LEAST_RUNS]:
        partings = [_parting(logs[number][start:end], margin, generator) for number, start, end in waiting]
        confirmed = holm([parting.p_value for parting in partings])
        parts = []
        for (number, start, end), parting, holds in zip(waiting, partings, confirmed, strict=True):
            if holds:
                cuts = [start + cut for cut in parting.cuts]
                found[number].update(cuts)
                parts += [(number, *ends) for ends in pairwise([start, *cuts, end])]
        waiting = parts
    return [sorted(places) for places in found]


def spread_of_runs(levels_s: Sequence[float], cuts: Sequence[int]) -> tuple[float, float]:
    """Return the standard deviation of the logarithm between runs of one level, and its degrees of freedom.

    It comes from the median deviation, so that one run that is off does not widen what is allowed to all others. Of
    fewer runs than change points can be found in, nothing is known: a change would be taken for spread.

    Args:
        levels_s: one median for each run, in order, above 0.
        cuts: the first place of each new level.

    Source: the factor and the efficiency of the median deviation, Rousseeuw and Croux, Alternatives to the median
        absolute deviation, JASA 88 (1993) 1273.
    """
    import numpy as np

    if len(levels_s) < LEAST_RUNS:
        return 0.0, 0.0
    levels = np.split(np.log(np.asarray(levels_s, dtype=np.float64)), list(cuts))
    deviations = np.abs(np.concatenate([level - np.median(level) for level in levels]))
    return MAD_FACTOR * float(np.median(deviations)), MAD_EFFICIENCY * (len(levels_s) - len(levels))


def _parting(part: NDArray[float64], margin: float, generator: Generator) -> Parting:
    """Return the clearest way to part a series: at one place, or at two."""
    import numpy as np

    count = len(part)
    orders = generator.permuted(np.tile(part, (PERMUTATIONS, 1)), axis=1)
    best = Parting(1.0)
    for starts in filter(None, ([0], range(1, count - LEAST_STRETCH) if count <= MAX_TWO_CUTS else ())):
        clearness, first, last = _clearest(part[None, :], starts)
        at, end = int(first[0]), int(last[0])
        inside = np.zeros(count, dtype=bool)
        inside[at:end] = True
        if not _is_beyond_drift(part, inside, margin):
            continue
        as_clear = 1 + int((_clearest(orders, starts)[0] >= clearness * (1 - 1e-9)).sum())
        p_value = WAYS * as_clear / (PERMUTATIONS + 1)
        if p_value < best.p_value:
            best = Parting(p_value, tuple(cut for cut in (at, end) if 0 < cut < count))
    return best


def _is_beyond_drift(part: NDArray[float64], inside: NDArray[bool_], margin: float) -> bool:
    """Return whether two levels, in logarithms, differ by more than the margin and the drift between single runs."""
    moved = abs(float(part[inside].mean() - part[~inside].mean()))
    squares = sum(float(((level - level.mean()) ** 2).sum()) for level in (part[inside], part[~inside]))
    return moved > math.log1p(margin) + DRIFT_DEVIATES * math.sqrt(squares / (len(part) - 2))


def _clearest(rows: NDArray[float64], starts: Sequence[int]) -> tuple[NDArray[float64], NDArray[int64], NDArray[int64]]:
    """Return for each row the stretch that differs most from the rest: the sum of squares between, first, end."""
    import numpy as np

    count = rows.shape[1]
    sums = np.cumsum(np.pad(rows - rows.mean(axis=1, keepdims=True), ((0, 0), (1, 0))), axis=1)
    best, first, last = np.full(len(rows), -1.0), np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    for start in starts:
        least = 1 if start == 0 else LEAST_STRETCH
        ends = np.arange(start + least, count if start == 0 else count + 1)
        length = ends - start
        between = (sums[:, ends] - sums[:, [start]]) ** 2 * count / (length * (count - length))
        place = between.argmax(axis=1)
        value = np.take_along_axis(between, place[:, None], axis=1)[:, 0]
        is_better = value > best
        best, first, last = (
            np.where(is_better, new, old) for new, old in ((value, best), (start, first), (ends[place], last))
        )
    return best, first, last
