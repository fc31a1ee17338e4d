"""One row of a comparison: what is told of a case of the baseline and of the candidate."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from results.compare.flags import BIMODAL, flags_of
from results.compare.load import Loaded, Measured
from results.compare.match import Key, Pair
from results.compare.sides import source_words
from results.compare.turns import Pairs, cycles_ratio
from results.stats.comparison import DEFAULT_MARGIN, FASTER, SLOWER, UNKNOWN, Comparison, verdict_of
from results.stats.samples import geometric_mean_of


class Row(ABC):
    """One case of the baseline and of the candidate, however its values are kept."""

    __slots__ = ()

    @property
    @abstractmethod
    def key(self) -> Key:
        """What both sides agree in."""

    @property
    @abstractmethod
    def baseline(self) -> str:
        """What the one side is called."""

    @property
    @abstractmethod
    def candidate(self) -> str:
        """What the other side is called."""

    @property
    @abstractmethod
    def provider_baseline(self) -> str:
        """Who computes the one side."""

    @property
    @abstractmethod
    def provider_candidate(self) -> str:
        """Who computes the other side."""

    @property
    @abstractmethod
    def compared(self) -> Comparison:
        """In the metric: above 1 the candidate is the slower one."""

    @property
    @abstractmethod
    def factor(self) -> float:
        """The ratio compared over the ratio of the times: other than 1 where work or ceilings differ."""

    @property
    @abstractmethod
    def baseline_s(self) -> float:
        """Median; of several windows their geometric mean."""

    @property
    @abstractmethod
    def candidate_s(self) -> float:
        """Likewise."""

    @property
    @abstractmethod
    def mfu_baseline(self) -> float | None:
        """At the median; None where a count or the peak is not known."""

    @property
    @abstractmethod
    def mfu_candidate(self) -> float | None:
        """Likewise."""

    @property
    @abstractmethod
    def bytes_per_s_baseline(self) -> float | None:
        """At the median; None where the bytes are not known, or none."""

    @property
    @abstractmethod
    def bytes_per_s_candidate(self) -> float | None:
        """Likewise."""

    @property
    @abstractmethod
    def cycles_ratio(self) -> float | None:
        """Ratio of the times in clock cycles; None where a clock is not known."""

    @property
    @abstractmethod
    def windows(self) -> tuple[int, int]:
        """In how many windows either side was measured."""

    @property
    @abstractmethod
    def flags_baseline(self) -> tuple[str, ...]:
        """What speaks against the measurement of the one side."""

    @property
    @abstractmethod
    def flags_candidate(self) -> tuple[str, ...]:
        """What speaks against that of the other."""

    @property
    @abstractmethod
    def is_paired(self) -> bool:
        """Both took turns, and the ratio is taken round by round; else they were measured apart."""

    @property
    def cause(self) -> str:
        """Why the verdict is what it is."""
        return self.compared.reason

    @property
    def reason(self) -> str:
        """Why the verdict is what it is, with what else is odd."""
        remark = self.remark
        return f"{self.cause}; {remark}" if remark else self.cause

    @property
    def remark(self) -> str | None:
        """Why the two medians say something else than the ratio; None where they do not."""
        medians, told = self.candidate_s / self.baseline_s, self.ratio
        if abs(math.log(medians / told)) <= math.log1p(max(self.compared.margin, DEFAULT_MARGIN)):
            return None
        low, high = self.ci95 or (told, told)
        if low <= medians <= high and (medians > 1) == (told > 1):
            return None
        if BIMODAL in (*self.flags_baseline, *self.flags_candidate):
            cause = "there were two speeds, and a median is that of the more frequent one"
        elif self.is_paired:
            cause = "the speed changed between the rounds, and the ratio is taken within each"
        else:
            cause = "the medians that were kept are not those of the samples"
        return f"the two medians stand at {medians:.4f}: {cause}"

    @property
    def ratio(self) -> float:
        """Candidate time over baseline time."""
        return self.compared.ratio / self.factor

    @property
    def ci95(self) -> tuple[float, float] | None:
        """95 % confidence interval of `ratio`."""
        low, high = self.compared.ci95
        return None if self.compared.ci95 == UNKNOWN else (low / self.factor, high / self.factor)

    @property
    def cycles_verdict(self) -> str | None:
        """Verdict on the same interval in clock cycles; None where a clock or the interval is not known."""
        in_cycles, compared = self.cycles_ratio, self.compared
        if in_cycles is None or compared.ci95 == UNKNOWN:
            return None
        scale = in_cycles / compared.ratio
        low, high = compared.ci95
        return verdict_of(low * scale, high * scale, compared.margin, compared.pairs)


class _Kept(NamedTuple):
    """What is kept of a row."""

    pair: Pair
    turns: Pairs
    runs: tuple[Loaded, Loaded]
    compared: Comparison
    factor: float
    labels: tuple[str, str]


class PairRow(_Kept, Row):
    """A row of two runs, which works out what is told of it when it is asked: of a hundred thousand, few are shown."""

    __slots__ = ()

    @property
    def key(self) -> Key:
        """What both sides agree in."""
        return self.pair.key

    @property
    def sides(self) -> tuple[Sequence[Measured], Sequence[Measured]]:
        """The records that are compared."""
        if self.turns:
            return [shared[0] for shared in self.turns], [shared[1] for shared in self.turns]
        return self.pair.baseline, self.pair.candidate

    @property
    def baseline(self) -> str:
        """What the one side is called."""
        return self.provider_baseline if self.pair.key.provider is None else self.labels[0]

    @property
    def candidate(self) -> str:
        """What the other side is called."""
        return self.provider_candidate if self.pair.key.provider is None else self.labels[1]

    @property
    def provider_baseline(self) -> str:
        """Who computes the one side: all its records are of one provider."""
        return self.pair.baseline[0].provider

    @property
    def provider_candidate(self) -> str:
        """Who computes the other side."""
        return self.pair.candidate[0].provider

    @property
    def baseline_s(self) -> float:
        """Median; of several windows their geometric mean."""
        return _middle(self.sides[0])

    @property
    def candidate_s(self) -> float:
        """Likewise."""
        return _middle(self.sides[1])

    @property
    def mfu_baseline(self) -> float | None:
        """At the median."""
        return self.runs[0].mfu(self.sides[0][0], self.baseline_s)

    @property
    def mfu_candidate(self) -> float | None:
        """Likewise."""
        return self.runs[1].mfu(self.sides[1][0], self.candidate_s)

    @property
    def bytes_per_s_baseline(self) -> float | None:
        """At the median."""
        return _bytes_per_s(self.sides[0][0], self.baseline_s)

    @property
    def bytes_per_s_candidate(self) -> float | None:
        """Likewise."""
        return _bytes_per_s(self.sides[1][0], self.candidate_s)

    @property
    def cycles_ratio(self) -> float | None:
        """Ratio of the times in clock cycles; None where a clock is not known."""
        if self.turns:
            return cycles_ratio(self.turns)
        before, after = _clock(self.pair.baseline), _clock(self.pair.candidate)
        return self.ratio * after / before if before and after else None

    @property
    def windows(self) -> tuple[int, int]:
        """In how many windows either side was measured."""
        before, after = self.sides
        return len(before), len(after)

    @property
    def flags_baseline(self) -> tuple[str, ...]:
        """Flags of all windows of the one side."""
        return flags_of(self.sides[0])

    @property
    def flags_candidate(self) -> tuple[str, ...]:
        """Flags of those of the other."""
        return flags_of(self.sides[1])

    @property
    def is_paired(self) -> bool:
        """Both took turns."""
        return bool(self.turns)

    @property
    def cause(self) -> str:
        """Why the verdict is what it is, with what the samples, the clocks and the sources add to it."""
        before, after = (side[0] for side in self.sides)
        sources = source_words(before, after, self.compared.verdict)
        if not (before.taken and after.taken):
            without = [name for name, one in (("baseline", before), ("candidate", after)) if not one.taken]
            return f"no samples were kept of the {' and the '.join(without)}, only a median{sources}"
        return self.compared.reason + self._cycles_words() + sources

    def _cycles_words(self) -> str:
        """Return whether a gap survives in clock cycles; nothing where there is no gap or no clock."""
        compared = self.compared
        if compared.verdict not in (FASTER, SLOWER) or (in_cycles := self.cycles_ratio) is None:
            return ""
        verdict = self.cycles_verdict
        if verdict in (compared.verdict, None):
            return "; in clock cycles too" if verdict else ""
        change = 100 * (in_cycles * self.factor / compared.ratio - 1)
        return f"; in clock cycles {verdict}: the clock changed by {change:+.2g} %"


def _middle(side: Sequence[Measured]) -> float:
    if len(side) == 1 and side[0].median_s:
        return side[0].median_s
    return geometric_mean_of([one.median_s for one in side if one.median_s])


def _clock(side: Sequence[Measured]) -> float | None:
    if len(side) == 1:
        return side[0].sm_clock_hz
    clocks = [one.sm_clock_hz for one in side]
    known = [clock for clock in clocks if clock]
    return sum(known) / len(known) if len(known) == len(clocks) else None


def _bytes_per_s(one: Measured, median_s: float) -> float | None:
    if one.bytes_read is None or one.bytes_written is None:
        return None
    return (one.bytes_read + one.bytes_written) / median_s or None
