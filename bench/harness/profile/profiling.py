"""Profiles a function or a module from the first call to the rows: `bench.profile`, and the command."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.harness.calibrate.calibration import ceilings_of
from bench.harness.cli.arguments import UsageError
from bench.harness.cli.terminal import Progress
from bench.harness.device.device import Device, detect
from bench.harness.measure.rows import Settings
from bench.harness.profile import report, show
from bench.harness.profile.compiled import compiled
from bench.harness.profile.replay import replay as replay_operations
from bench.harness.profile.step import Breakdown, ProfiledStep, state_kept
from bench.harness.profile.target import guarded_call, target_of
from bench.harness.profile.tracing import time_step
from bench.harness.run import calibrated, stamp
from results.record import Environment, Record
from results.show.terminal import drawn
from results.store.runs import RunWriter
from roofline.plot.figure import plot_run

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Profile:
    """Where the time of a step goes, operation by operation; it shows itself as a table."""

    environment: Environment
    records: Sequence[Record]
    """A row for each signature and for each remainder, the longest first."""

    @cached_property
    def totals(self) -> dict[str, Any]:
        """Sums of the step, see `report.totals_of`."""
        return report.totals_of(self.environment, self.records)

    def to_dataframe(self) -> pd.DataFrame:
        """Return the rows as a frame, with the keys of `--format json`."""
        import pandas as pd

        judged_keys = ("intensity", "bound", "roofline_pct")
        scores = report.scores_of(self.environment, self.records)
        plain = ("op", "flops", "bytes_read", "bytes_written", "status")
        return pd.DataFrame(
            [
                {key: getattr(record, key) for key in plain}
                | {key: value for key, value in record.extra.items() if key != "step"}
                | {key: score[key] for key in judged_keys}
                | {"flags": ", ".join(record.flags)}
                for record, score in zip(self.records, scores, strict=True)
            ]
        )

    def plot(self, path: Path | str, theme: str = "light") -> None:
        """Draw the rows on the roofline of the machine, as .png, .svg or .pdf, `light`, `dark` or for `print`."""
        plot_run(self.environment, list(self.records), Path(path), theme)

    def save(self, path: Path | str | None = None) -> Path:
        """Keep it as a run file, by default where all are kept, and return its path."""
        writer = RunWriter.create(self.environment, "profile", Path(path) if path is not None else None)
        for record in self.records:
            writer.append(record)
        writer.close()
        return writer.path

    def __repr__(self) -> str:
        """Return the table."""
        return drawn(lambda console: show.render(self.environment, self.records, console))

    def _repr_html_(self) -> str:
        """Return the table for a notebook, all names escaped."""
        return f"<pre>{html.escape(repr(self))}</pre>"


def profile(
    function: Any,
    *args: Any,
    backward: bool = False,
    train: bool = False,
    replay: bool = False,
    compile: bool = False,
    **kwargs: Any,
) -> Profile:
    """Profile a function or a module, called with the arguments given.

    It is called once before anything is counted. Gradients, buffers and random generators are left as they were.

    Args:
        function: what is called.
        args: its positional arguments.
        backward: whether to go backward too: from the `loss` of what is returned, else from its first tensor.
        train: whether an AdamW step with a rate of 0 follows.
        replay: whether the operations that take most of the time are measured alone too.
        compile: whether it is compiled by `torch.compile`; each fused region is a row then.
        kwargs: its keyword arguments.

    Raises:
        UsageError: it cannot be called, or it raised.
    """
    if compile and replay:
        raise UsageError("replay= measures single operations and compile= fuses them: give one of the two")
    target = target_of(getattr(function, "__name__", type(function).__name__), function, args, kwargs)
    device = detect(target.device)
    step = ProfiledStep(target, mode_of(backward, train))
    breakdown = account(step)
    dtypes = report.product_dtypes(breakdown.operations)
    ceilings = calibrated(dtypes, device, ceilings_of(device, None), Progress(quiet=True))
    breakdown = timed(step, breakdown, device, is_compiled=compile)
    if replay:
        replayed(step, breakdown, device)
    environment = stamp("bench", device, ceilings, Settings("uniform", "warm", None, 0).to_dict(), ("profile",))
    return Profile(environment, report.records_of(breakdown, "torch"))


def mode_of(backward: bool, train: bool) -> str:
    """Return what a step does, by the options that ask for it."""
    return "train" if train else "backward" if backward else "forward"


def account(step: ProfiledStep) -> Breakdown:
    """Return the operations of a step; one runs before it, so that what is made once is there.

    Raises:
        UsageError: the step raised, or called no operation.
    """
    from bench.harness.profile.account import accounted

    with state_kept(step.target):
        with guarded_call(step.target.name):
            step()
        with guarded_call(step.target.name, is_heard=False):
            breakdown = accounted(step)
    if not breakdown.operations:
        raise UsageError(f"{step.target.name} called no torch operation: there is nothing to profile")
    return breakdown


def timed(
    step: ProfiledStep,
    breakdown: Breakdown,
    device: Device,
    left_s: float | None = None,
    keep: Path | None = None,
    is_compiled: bool = False,
) -> Breakdown:
    """Return a breakdown with times; of a step that is compiled here, its operations are other ones.

    Raises:
        UsageError: the step raised, or cannot be compiled.
    """
    with guarded_call(step.target.name, is_heard=False), state_kept(step.target):
        if is_compiled:
            step, breakdown = compiled(step, breakdown)
        time_step(step, breakdown, device, left_s, keep)
    return breakdown


def replayed(step: ProfiledStep, breakdown: Breakdown, device: Device) -> None:
    """Measure the operations that take most of the time alone too.

    Raises:
        UsageError: an operation raised, or the step is another one each time.
    """
    with guarded_call(step.target.name, is_heard=False):
        replay_operations(step, breakdown, device)
