"""One row of a comparison: a case of the baseline and of the candidate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from results.compare.flags import BIMODAL, flags_of
from results.compare.match import RowKey
from results.record import Environment, Record
from results.show.judge import judged
from results.stats.comparison import DEFAULT_MARGIN, UNKNOWN, Comparison, verdict_of
from results.stats.samples import geometric_mean_of


@dataclass(frozen=True, eq=False)
class Side:
    """One side of a row: its records, all of one provider and one case, from one or several windows of time."""

    label: str
    """Name of this side."""
    records: Sequence[Record]
    environment: Environment

    @property
    def provider(self) -> str:
        """Provider of this side."""
        return self.records[0].provider

    @property
    def time_s(self) -> float:
        """Median; of several windows their geometric mean."""
        return geometric_mean_of([one.median_s for one in self.records if one.median_s])

    @cached_property
    def _score(self) -> Mapping[str, Any]:
        return judged(self.environment, self.records[:1])[0]

    def rate(self, key: str) -> float | None:
        """Return a judged rate or utilization of the first record, which all are of the same work, at `time_s`."""
        value, median_s = self._score[key], self.records[0].median_s
        return value * median_s / self.time_s if value and median_s else None

    @property
    def mfu(self) -> float | None:
        """Fraction of the peak; None if a count or the peak is unknown."""
        return self.rate("mfu")

    @property
    def bytes_per_s(self) -> float | None:
        """Compulsory bytes a second; None if the bytes are unknown or 0."""
        return self.rate("bytes_per_s")

    @property
    def of_ceiling(self) -> tuple[float, str] | None:
        """Fraction of the ceiling that binds, and `compute` or `memory`; None if unknown."""
        share_pct, mbu = self.rate("roofline_pct"), self.rate("mbu")
        if share_pct is None:
            return None
        is_memory = mbu is not None and math.isclose(100 * mbu, share_pct, rel_tol=1e-9)
        return share_pct / 100, "memory" if is_memory else "compute"

    @property
    def flags(self) -> tuple[str, ...]:
        """Data-quality flags of the records."""
        return flags_of(self.records)


@dataclass(frozen=True, eq=False)
class ComparedRow:
    """One case of the baseline and of the candidate."""

    key: RowKey
    """The fields in which both sides agree."""
    baseline: Side
    candidate: Side
    compared: Comparison
    is_paired: bool
    """Both were interleaved, and the ratio is taken round by round; else they were measured apart."""
    cycles_ratio: float | None
    """Ratio of the times in clock cycles; None if a clock is unknown."""
    cause: str
    """Why the verdict is what it is."""

    @property
    def reason(self) -> str:
        """Why the verdict is what it is, with what else is odd."""
        remark = self.remark
        return f"{self.cause}; {remark}" if remark else self.cause

    @property
    def remark(self) -> str | None:
        """Why the ratio of the two medians differs from the ratio of the row; None if it does not."""
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
            cause = "the saved medians are not those of the samples"
        return f"the two medians stand at {medians:.4f}: {cause}"

    @property
    def ratio(self) -> float:
        """Candidate time over baseline time."""
        return self.compared.ratio

    @property
    def ci95(self) -> tuple[float, float] | None:
        """95 % confidence interval of `ratio`; None if unknown."""
        return None if self.compared.ci95 == UNKNOWN else self.compared.ci95

    @property
    def cycles_verdict(self) -> str | None:
        """Verdict on the same interval in clock cycles; None if a clock or the interval is unknown."""
        return verdict_in_cycles(self.compared, self.cycles_ratio)


def verdict_in_cycles(compared: Comparison, cycles_ratio: float | None) -> str | None:
    """Return the verdict on an interval that is as wide in clock cycles; None if a clock or the interval is unknown."""
    if cycles_ratio is None or compared.ci95 == UNKNOWN:
        return None
    low, high = (end * cycles_ratio / compared.ratio for end in compared.ci95)
    return verdict_of(low, high, compared.margin, compared.pairs)
