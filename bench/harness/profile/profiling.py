"""Profiles a function or a module from the first call to the rows: `bench.profile`, and the command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.harness.cli.arguments import UsageError
from bench.harness.profile import report, show
from bench.harness.profile.join import joined
from bench.harness.profile.report import Timing
from bench.harness.profile.step import ProfiledStep, state_kept
from bench.harness.profile.target import guarded_call, target_of
from bench.harness.profile.timed import recorded, steps_worth, unprofiled_s
from results.record import Environment, Record

if TYPE_CHECKING:
    import pandas as pd

    from bench.harness.device.device import Device
    from bench.harness.profile.account import Accounted


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
        from roofline.plot.figure import plot_run

        plot_run(self.environment, list(self.records), Path(path), theme)

    def save(self, path: Path | str | None = None) -> Path:
        """Keep it as a run file, by default where all are kept, and return its path."""
        from results.store.runs import RunWriter

        writer = RunWriter.create(self.environment, "profile", Path(path) if path is not None else None)
        for record in self.records:
            writer.append(record)
        writer.close()
        return writer.path

    def __repr__(self) -> str:
        """Return the table."""
        from results.show.terminal import drawn

        return drawn(lambda console: show.render(self.environment, self.records, console))

    def _repr_html_(self) -> str:
        """Return the table for a notebook, all names escaped."""
        import html

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
    from bench.harness.calibrate.calibration import ceilings_of
    from bench.harness.cli.terminal import Progress
    from bench.harness.device.device import detect
    from bench.harness.measure.plan import Settings
    from bench.harness.run import calibrated, stamp

    if compile and replay:
        raise UsageError("replay= measures single operations and compile= fuses them: give one of the two")
    target = target_of(getattr(function, "__name__", type(function).__name__), function, args, kwargs)
    device = detect(target.device)
    step = ProfiledStep(target, mode_of(backward, train))
    accounted = account(step)
    ceilings = calibrated(
        False, report.product_dtypes(accounted.calls), device, ceilings_of(device, None), Progress(quiet=True)
    )
    if compile:
        accounted, timing = compiled(step, accounted, device)
    else:
        timing = timed(step, accounted, device)
    environment = stamp("bench", device, ceilings, Settings("uniform", "warm", None, 0).to_dict(), ("profile",))
    records = report.records_of(accounted, timing, "torch")
    if replay:
        records = replayed(step, records, accounted, timing, device)
    return Profile(environment, records)


def mode_of(backward: bool, train: bool) -> str:
    """Return what a step does, by the options that ask for it."""
    return "train" if train else "backward" if backward else "forward"


def account(step: ProfiledStep) -> Accounted:
    """Return the work of a step; one runs before it, so that what is made once is there.

    Raises:
        UsageError: the step raised.
    """
    from bench.harness.profile.account import accounted

    with state_kept(step.target):
        with guarded_call(step.target.name):
            step()
        with guarded_call(step.target.name, is_heard=False):
            found = accounted(step)
    if not found.calls:
        raise UsageError(f"{step.target.name} called no torch operation: there is nothing to profile")
    return found


def compiled(
    step: ProfiledStep, accounted: Accounted, device: Device, left_s: float | None = None, keep: Path | None = None
) -> tuple[Accounted, Timing]:
    """Return the work and the times of a step that is compiled: a row is a region, or what was not fused into one.

    Raises:
        UsageError: the step raised, or cannot be compiled.
    """
    from bench.harness.profile.compiled import Compiler, still_called

    compiler = Compiler()
    with guarded_call(step.target.name, is_heard=False):
        fast = compiler.compiled(step)
        with state_kept(step.target):
            regions = compiler.calls_of(fast)
    eager_bytes = sum(call.bytes_read + call.bytes_written for call in accounted.calls)
    both = replace(accounted, calls=[*accounted.calls, *regions], eager_bytes=eager_bytes)
    timing = timed(fast, both, device, left_s, keep)
    called, steps = still_called(both, timing.steps)
    return called, Timing(timing.samples_s, steps)


def timed(
    step: ProfiledStep, accounted: Accounted, device: Device, left_s: float | None = None, keep: Path | None = None
) -> Timing:
    """Return the times of a step: whole without a profiler, then part by part.

    Raises:
        UsageError: the step raised.
    """
    with guarded_call(step.target.name, is_heard=False), state_kept(step.target):
        samples_s = unprofiled_s(step, device, left_s)
        typical_s = sorted(samples_s)[len(samples_s) // 2]
        trace = recorded(step, steps_worth(typical_s, len(accounted.calls)), keep)
    return Timing(samples_s, joined(accounted.calls, trace))


def replayed(
    step: ProfiledStep,
    records: Sequence[Record],
    accounted: Accounted,
    timing: Timing,
    device: Device,
    say: Callable[[str], None] = lambda _: None,
) -> list[Record]:
    """Return records with the times of the operations that take most of the step, each measured alone.

    Raises:
        UsageError: an operation raised, or the step is another one each time.
    """
    from bench.harness.profile import replay

    with guarded_call(step.target.name, is_heard=False):
        places = report.worth_replaying(accounted.calls, timing)
        return report.with_replays(
            records, accounted.calls, replay.replayed(step, accounted.calls, places, device, say)
        )
