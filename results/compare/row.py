"""One row of a comparison: what is told of a case of the baseline and of the candidate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from results.compare.flags import BIMODAL, flags_of
from results.compare.load import LoadedRun, Measured
from results.compare.match import RowKey
from results.stats.comparison import DEFAULT_MARGIN, UNKNOWN, Comparison, verdict_of
from results.stats.samples import geometric_mean_of


@dataclass(frozen=True, eq=False, slots=True)
class Side:
    """One side of a row: its records, all of one provider and one case, from one or several windows of time."""

    label: str
    """What this side is called."""
    records: Sequence[Measured]
    run: LoadedRun

    @property
    def provider(self) -> str:
        """Who computes this side."""
        return self.records[0].provider

    @property
    def time_s(self) -> float:
        """Median; of several windows their geometric mean."""
        if len(self.records) == 1 and self.records[0].median_s:
            return self.records[0].median_s
        return geometric_mean_of([one.median_s for one in self.records if one.median_s])

    @property
    def mfu(self) -> float | None:
        """At that time; None where a count or the peak is not known."""
        return self.run.mfu(self.records[0], self.time_s)

    @property
    def bytes_per_s(self) -> float | None:
        """At that time; None where the bytes are not known, or none."""
        moved = self.records[0].moved
        return moved / self.time_s if moved else None

    @property
    def of_ceiling(self) -> tuple[float, str] | None:
        """Share of the ceiling that binds, and whether that is `compute` or `memory`; None where it is not known."""
        return self.run.of_ceiling(self.records[0], self.time_s)

    @property
    def flags(self) -> tuple[str, ...]:
        """What speaks against the measurement."""
        return flags_of(self.records)


@dataclass(frozen=True, eq=False, slots=True)
class ComparedRow:
    """One case of the baseline and of the candidate."""

    key: RowKey
    """What both sides agree in."""
    baseline: Side
    candidate: Side
    compared: Comparison
    """In the metric: above 1 the candidate is the slower one."""
    is_paired: bool
    """Both took turns, and the ratio is taken round by round; else they were measured apart."""
    cycles_ratio: float | None
    """Ratio of the times in clock cycles; None where a clock is not known."""
    cause: str
    """Why the verdict is what it is."""
    factor: float = 1.0
    """The ratio compared over the ratio of the times: other than 1 where work or ceilings differ."""

    @property
    def reason(self) -> str:
        """Why the verdict is what it is, with what else is odd."""
        remark = self.remark
        return f"{self.cause}; {remark}" if remark else self.cause

    @property
    def remark(self) -> str | None:
        """Why the two medians say something else than the ratio; None where they do not."""
        medians, told = self.candidate.time_s / self.baseline.time_s, self.ratio
        if abs(math.log(medians / told)) <= math.log1p(max(self.compared.margin, DEFAULT_MARGIN)):
            return None
        low, high = self.ci95 or (told, told)
        if low <= medians <= high and (medians > 1) == (told > 1):
            return None
        if BIMODAL in (*self.baseline.flags, *self.candidate.flags):
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
        return verdict_in_cycles(self.compared, self.cycles_ratio)


def verdict_in_cycles(compared: Comparison, cycles_ratio: float | None) -> str | None:
    """Return the verdict on an interval that is as wide in clock cycles; None where a clock or it is not known."""
    if cycles_ratio is None or compared.ci95 == UNKNOWN:
        return None
    low, high = (end * cycles_ratio / compared.ratio for end in compared.ci95)
    return verdict_of(low, high, compared.margin, compared.pairs)
