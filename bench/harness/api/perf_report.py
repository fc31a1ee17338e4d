"""`bench.perf_report`: Triton's decorator and its `Benchmark` objects, with every `do_bench` in it run by ours.

Triton's own code goes through the arguments, makes the frame, prints it and draws it; what is replaced while it runs is
`triton.testing.do_bench`, also where the decorated function's module has imported it by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from bench.harness.api.do_bench import do_bench
from bench.harness.api.records import called, name_of
from bench.harness.cli.arguments import UsageError


class Report:
    """A function with its benchmarks; `run` measures them."""

    def __init__(self, fn: Callable[..., Any], benchmarks: Any) -> None:
        """Keep a function and what Triton's `Benchmark` objects ask of it; `fn` stays callable as `self.fn`."""
        self.fn, self.benchmarks = fn, benchmarks

    def run(
        self,
        show_plots: bool = False,
        print_data: bool = False,
        save_path: str = "",
        return_df: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Measure all benchmarks as Triton's `Mark.run` does, each `do_bench` by ours.

        Args:
            show_plots: whether matplotlib shows each picture.
            print_data: whether each frame is printed.
            save_path: folder for pictures and tables; empty for none.
            return_df: whether the frames are returned: one, or a list where a list of benchmarks was given.
            kwargs: further arguments of the function.

        Raises:
            UsageError: the function raised (its error is the cause).
        """
        mark = _testing().Mark(self.fn, self.benchmarks)
        with ours(self.fn):
            return called(
                name_of(self.fn),
                lambda: mark.run(
                    show_plots=show_plots, print_data=print_data, save_path=save_path, return_df=return_df, **kwargs
                ),
            )


def perf_report(benchmarks: Any) -> Callable[[Callable[..., Any]], Report]:
    """Return a decorator as `triton.testing.perf_report` does; its `run` measures by our `do_bench`.

    Args:
        benchmarks: a `triton.testing.Benchmark`, or a list of them.

    Raises:
        UsageError: they are something else, or Triton is not installed.
    """
    kind = _testing().Benchmark
    listed = benchmarks if isinstance(benchmarks, list | tuple) else [benchmarks]
    if not listed or not all(isinstance(one, kind) for one in listed):
        raise UsageError(f"{benchmarks!r:.60} must be a triton.testing.Benchmark, or a list of them")

    def decorate(fn: Callable[..., Any]) -> Report:
        name_of(fn)
        return Report(fn, benchmarks)

    return decorate


def _testing() -> Any:
    """Return Triton's module of benchmarks.

    Raises:
        UsageError: Triton is not installed.
    """
    try:
        import triton.testing as testing
    except ImportError:
        raise UsageError("perf_report needs triton, which is not installed: pip install triton") from None
    return testing


@contextmanager
def ours(fn: Callable[..., Any]) -> Iterator[None]:
    """Let `do_bench` be ours in Triton's module, and by each name that the module of a function has for it."""
    testing = _testing()
    theirs = testing.do_bench
    names: Sequence[str] = [name for name, value in getattr(fn, "__globals__", {}).items() if value is theirs]
    with mock.patch.object(testing, "do_bench", do_bench):
        if not names:
            yield
            return
        with mock.patch.dict(fn.__globals__, dict.fromkeys(names, do_bench)):
            yield
