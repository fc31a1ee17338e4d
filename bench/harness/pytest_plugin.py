"""The fixture `gpu_benchmark`: Ridgepoint measures, pytest-benchmark shows, saves and compares.

    def test_softmax(gpu_benchmark):
        x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        gpu_benchmark(torch.softmax, x, -1, bytes_read=x.nbytes, bytes_written=x.nbytes, dtype="bf16")

The samples go to pytest-benchmark as its rounds, each of `launches_per_sample` iterations, and all that it has no
column for into `extra_info`. How long is measured is a matter of Ridgepoint's protocol: of pytest-benchmark's options,
`--benchmark-min-rounds`, `-min-time`, `-max-time`, `-timer`, `-precision`, `-confidence`, `-calibration-precision`,
`-warmup`, `-warmup-iterations`, `-disable-gc` and those of `-cprofile` change nothing here. All others do what they
say.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest

from bench.harness.arguments import UsageError
from bench.harness.device.stamp import installed_version
from bench.harness.function_meter import Answer, Question, as_arguments, measure_function
from bench.harness.runner import plain
from results.table import printable

NEEDED = ("_make_stats", "_mode", "enabled", "extra_info", "has_error")
"""What is used of pytest-benchmark's fixture. It has no public way to hand over times that were taken elsewhere."""

RECORDED = (
    *("method", "cache", "copies", "launches_per_sample", "median_s", "ci95_s", "converged", "warm_median_s"),
    *("settled", "outliers", "first_call_s", "host_latency_s", "telemetry"),
)
"""Fields of the record that `extra_info` holds as they are, beside counts, judged keys and flags."""


class GpuBenchmark:
    """Measures one function in one test and hands its times to pytest-benchmark."""

    def __init__(self, benchmark: Any) -> None:
        """Stand beside `benchmark`, the fixture of pytest-benchmark in the same test."""
        missing = [name for name in NEEDED if not hasattr(benchmark, name)]
        if missing:
            _refuse_version(f"its fixture is a {type(benchmark).__name__} without {', '.join(missing)}")
        self._benchmark = benchmark
        self.answer: Answer | None = None
        """What was measured; None before, and where benchmarks are disabled."""

    def __call__(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        flops: int | None = None,
        bytes_moved: int | None = None,
        bytes_read: int | None = None,
        bytes_written: int | None = None,
        dtype: str | None = None,
        inputs: Callable[[], Any] | None = None,
        cache: str | None = None,
        device: str | None = None,
        budget_s: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Measure `function(*args, **kwargs)` and return what its first call returned.

        Where benchmarks are disabled it is called once and not measured. The test fails, with one line, where an
        argument cannot be, or the time that was measured cannot.

        Args:
            function: what is measured; a call of it is a launch.
            args: its positional arguments.
            flops: floating-point operations of one call; a fused multiply-add counts as 2.
            bytes_moved: compulsory bytes of one call where it is not known how they divide; judged as those of a copy.
            bytes_read: compulsory bytes that one call reads.
            bytes_written: compulsory bytes that one call writes.
            dtype: dtype whose peak MFU is taken over: `bf16`, `fp32`, ...
            inputs: makes the positional arguments in place of `args`, fresh ones at each call, as a tuple or a single
                one. Launches go round so many of them that none finds its own in the cache.
            cache: `cold`, which needs `inputs`, or `warm`: the same arguments again and again. By default cold with
                `inputs` and warm without.
            device: `cpu`, `cuda`, `cuda:N` or `mps`; by default where the tensors among arguments and result are.
            budget_s: seconds that sampling may take at most; the warm-up comes beside it.
            kwargs: keyword arguments of the function.
        """
        __tracebackhide__ = True
        asked = {"flops": flops, "bytes_moved": bytes_moved, "bytes_read": bytes_read, "bytes_written": bytes_written}
        how = {"dtype": dtype, "cache": cache, "device": device, "budget_s": budget_s}
        result = refused = None
        try:
            result = self._answered(function, args, kwargs, inputs, asked | how)
        except UsageError as error:
            refused = str(error)
        except BaseException:
            self._benchmark.has_error = True
            raise
        if refused is not None:
            self._benchmark.has_error = True
            _refuse(refused)
        return result

    def _answered(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        inputs: Callable[[], Any] | None,
        asked: dict[str, Any],
    ) -> Any:
        """Return what the first call returned, measured where that is asked for.

        Raises:
            UsageError: it cannot be measured, or was already, or the time cannot be.
        """
        __tracebackhide__ = True
        if self._benchmark._mode:
            raise UsageError(f"a test has one measurement, and this one has had its own by {self._benchmark._mode}")
        self._benchmark._mode = "gpu_benchmark(...)"
        question = Question(**asked)
        question.check_inputs(inputs is not None, len(args))
        if not self.enabled:
            return function(*(args if inputs is None else as_arguments(inputs())), **kwargs)
        with untraced():
            answer = measure_function(function, args, kwargs, inputs, question)
        if answer.record.status != "ok":
            raise UsageError(f"invalid: {answer.record.reason}")
        self.answer = answer
        self.extra_info.update(extra_info(answer, question))
        hand_over(self._benchmark, answer)
        return answer.result

    @property
    def extra_info(self) -> MutableMapping[str, Any]:
        """What the JSON of pytest-benchmark holds beside the times; a test may add to it."""
        info: MutableMapping[str, Any] = self._benchmark.extra_info
        return info

    @property
    def group(self) -> str | None:
        """Name of the table in which the test appears; may be set before the call."""
        group: str | None = self._benchmark.group
        return group

    @group.setter
    def group(self, name: str | None) -> None:
        """Name the table."""
        self._benchmark.group = name

    @property
    def enabled(self) -> bool:
        """Whether anything is measured: not with `--benchmark-disable`, and not beside other workers of xdist."""
        # pytest-benchmark 5.0 says that it is disabled there, and measures in the workers all the same.
        return bool(self._benchmark.enabled) and "PYTEST_XDIST_WORKER" not in os.environ

    @property
    def name(self) -> str:
        """Name of the test."""
        return str(self._benchmark.name)

    @property
    def stats(self) -> Any:
        """Statistics of pytest-benchmark over the samples: `stats["median"]` in seconds; None before the call."""
        return self._benchmark.stats


def extra_info(answer: Answer, question: Question) -> dict[str, Any]:
    """Return what is known of a measurement beside its samples, as JSON; SI base units, None where not known."""
    record, device = answer.record, answer.device
    return {
        "device": device.name,
        "device_type": device.type,
        "device_slug": device.slug,
        "threads": device.threads,
        "torch": installed_version("torch"),
        **{name: getattr(record, name) for name in RECORDED},
        "dtype": question.dtype,
        "flops": question.flops,
        "bytes_moved": question.work.bytes if question.is_bytes_known else None,
        "bytes_read": question.bytes_read,
        "bytes_written": question.bytes_written,
        **answer.judged,
        "flags": list(record.flags),
        "flag_reasons": dict(record.flag_reasons),
    }


def hand_over(benchmark: Any, answer: Answer) -> None:
    """Put the samples where pytest-benchmark keeps its own: one round each, with the launches as its iterations."""
    record, limits = answer.record, answer.limits
    launches = record.launches_per_sample or 1
    try:
        stats = benchmark._make_stats(launches)
        for sample_s in record.samples_s:
            stats.update(sample_s * launches)
        stats.options.update(
            timer=f"ridgepoint, {record.method}",
            disable_gc=True,
            min_rounds=limits.min_samples,
            min_time=limits.min_sample_s,
            max_time=limits.cap_s,
            precision=limits.target_half_width,
            confidence=0.95,
            warmup=True,
        )
    except (AttributeError, TypeError) as error:
        _refuse_version(f"{type(error).__name__}: {error}")


@contextmanager
def untraced() -> Iterator[None]:
    """Keep coverage tools, debuggers and profilers out of the launches."""
    trace, profile = sys.gettrace(), sys.getprofile()
    sys.settrace(None)
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.settrace(trace)
        sys.setprofile(profile)


def _refuse(reason: str) -> NoReturn:
    pytest.fail(f"gpu_benchmark: {printable(reason)}", pytrace=False)


def _refuse_version(what: str) -> NoReturn:
    found = installed_version("pytest-benchmark")
    _refuse(f"pytest-benchmark {found} is not one that it can hand its times to ({what}); it knows releases 5.0 to 5.3")


# ---- what is printed ----------------------------------------------------------------------------------------------


def annotate(benchmarks: Iterable[dict[str, Any]]) -> None:
    """Write behind the name of each row what was reached: device, cache, rates, utilization, flags.

    Args:
        benchmarks: rows of pytest-benchmark's table; those of other fixtures stay as they are. A row of a saved run
            has the times of then and the work of now, and its flags are not known.
    """
    for row in benchmarks:
        if "launches_per_sample" in row["extra_info"]:
            note = ", ".join(achievements(row["extra_info"], row["median"], row.get("source") in (None, False, "NOW")))
            if note:
                row["name"] = f"{row['name']} ({note})"
                row["fullname"] = f"{row['fullname']} ({note})"


def achievements(info: dict[str, Any], median_s: float, is_current: bool) -> list[str]:
    """Return what a row of the table reached, in words.

    Args:
        info: its `extra_info`.
        median_s: its median, of this run or of a saved one.
        is_current: whether it is of this run, so that device, cache and flags are its own.
    """
    scale = info["median_s"] / median_s
    words = [f"{info['device_type']} {info['cache']}"] if is_current else []
    if info["flops_per_s"]:
        rate = info["flops_per_s"] * scale
        words.append(f"{plain(rate / 1e12, 4)} TFLOP/s" if rate >= 1e12 else f"{plain(rate / 1e9, 4)} GFLOP/s")
    if info["bytes_per_s"]:
        words.append(f"{plain(info['bytes_per_s'] * scale / 1e9, 4)} GB/s")
    words += [f"{key.upper()} {100 * info[key] * scale:.3g}%" for key in ("mfu", "mbu") if info[key]]
    return words + (list(info["flags"]) if is_current else [])


def summary(fixtures: Sequence[GpuBenchmark]) -> list[str]:
    """Return the lines below the tables: the machine, and what speaks against a measurement."""
    measured = [(fixture.name, fixture.answer) for fixture in fixtures if fixture.answer is not None]
    torch = installed_version("torch")
    lines = list(dict.fromkeys(_machine(answer, torch) for _, answer in measured))
    for name, answer in measured:
        lines += [f"{name}: {flag}: {reason}" for flag, reason in answer.record.flag_reasons.items()]
        if answer.judged["excess"]:
            lines.append(f"{name}: {answer.judged['excess']}")
    return [printable(f"gpu_benchmark: {line}") for line in lines]


def _machine(answer: Answer, torch: str | None) -> str:
    device = answer.device
    threads = f", {device.threads} threads" if device.threads else ""
    return f"{device.name} ({device.type}{threads}), torch {torch}; times are those of one launch"
