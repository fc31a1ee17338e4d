"""Measurements of the lecture: the rows that figures name, the figures themselves, and the
synchronize trap.
"""

from __future__ import annotations

import argparse
import inspect
import re
import shlex
import tomllib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.harness import clock, worker
from bench.harness.cli.arguments import build_parser, chosen_ops
from bench.harness.cli.main import make_all_cases
from bench.harness.device.device import Device
from bench.harness.loop import Measure, label_of, measure_rows, measure_scenarios
from bench.harness.measure import rows as planning
from bench.harness.measure.measure_row import release
from bench.harness.measure.rows import one_line
from bench.harness.op_file import module_of, modules_sha256, options_of
from bench.harness.run import Run
from bench.harness.timing import samplers
from bench.harness.timing.protocol import LIMITS
from results.record import Record
from results.show.rows import document
from roofline.model import mfu, peak_of

_TABLES = tomllib.loads(Path(__file__).with_name("rows.toml").read_text(encoding="utf-8"))
ROWS: dict[str, str] = _TABLES["rows"]
SIZES: dict[str, dict[str, Any]] = _TABLES["sizes"]
QUICK: dict[str, dict[str, Any]] = _TABLES["quick"]
LEFT_OUT: list[str] = _TABLES["quick_leaves_out"]

IMPORTS = {"torch": "import torch", "np": "import numpy as np", "io": "import io"}
"""Import of each name in the code of a figure."""

Figure = Callable[..., Any]


def rows_of(figure: Figure) -> list[str]:
    return list(inspect.signature(figure).parameters)


def commands_of(figure: Figure, sizes: Mapping[str, Any]) -> list[str]:
    """Return the commands that give a figure: those of its rows, or its code."""
    if names := rows_of(figure):
        return [f"python -m bench.{ROWS[name].format(**sizes)}" for name in ROWS if name in names]
    from bench.harness.lecture.figures import CODE

    if figure in CODE:
        code = CODE[figure]
    else:
        source = inspect.getsource(figure).partition("lambda: ")[2].strip(",\n")
        code = " ".join(re.sub(r"(?<=[(\[])\s+|,?\s+(?=[)\]])", "", source).split())
    imports = [text for name, text in IMPORTS.items() if name in figure.__code__.co_names]
    return [f"python -c {shlex.quote('; '.join([*imports, f'print({code})']))}"]


class Measurements:
    """The rows that figures name: `scenarios` and `ops` by name."""

    def __init__(self, figures: Iterable[Figure], args: argparse.Namespace, device: Device) -> None:
        self.scenarios: dict[str, tuple[Record, Measure]] = {}
        self.ops: dict[str, planning.Row] = {}
        self.settings = planning.Settings(budget_s=args.budget, seed=args.seed)
        kind = "gpu" if device.is_gpu else "cpu"
        self.sizes = SIZES[kind] | (QUICK[kind] if args.quick else {})
        named = set(chain.from_iterable(map(rows_of, figures)))
        for name in [
            name for name in ROWS if name in named and not (args.quick and name in LEFT_OUT)
        ]:
            family, *words = ROWS[name].format(**self.sizes).split()
            module = module_of(family)
            if hasattr(module, "LISTED"):
                options = module.build_parser().parse_args(words)
                for option, value in vars(options).items():
                    # The function that measures a row reads them.
                    vars(args).setdefault(option, value)
                # A comparison ends with its candidate.
                *_, (blank, measure) = module.rows_of(options, device)
                sha256 = modules_sha256((f"bench.{family}", *module.MODULES))
                self.scenarios[name] = replace(blank, op_sha256=sha256), measure
                continue
            options = build_parser(family, "", (), module.OPS, options_of(family)).parse_args(words)
            cases = make_all_cases(
                options, chosen_ops(options.op, {family: module.OPS}), device.type
            )
            ((_, op, case),) = cases
            providers = options.provider or ["torch"]
            (self.ops[name],) = planning.plan(
                [(op, case)], providers, device, self.settings, {}, family
            )

    @property
    def is_empty(self) -> bool:
        return not (self.scenarios or self.ops)

    def measure(self, run: Run) -> dict[str, Any]:
        """Measure all rows and return those that succeeded by name, with their computed keys.

        Scenarios come first, because the run file is complete after the rows of ops.
        """
        labels = {label_of(blank): name for name, (blank, _) in self.scenarios.items()}
        labels |= {label_of(row.blank()): name for name, row in self.ops.items()}
        # bf16 takes long on a CPU.
        dtypes = () if self.is_empty else dict.fromkeys((self.sizes["dtype"], "fp32"))
        began_s = clock.now()
        with run:
            run.start(tuple(dtypes) or None)
            if not run.device.is_gpu:  # calibrating a GPU takes longer than a short budget
                run.deadline = began_s + run.args.budget
            measure_scenarios(run, list(self.scenarios.values()), self.settings, len(self.ops))
            if self.ops:
                measure_rows(run, list(self.ops.values()))
            run.note_time()
            run.judge_again()
        assert run.environment is not None
        rows = zip(run.records, document(run.environment, run.records)["records"], strict=True)
        return {
            labels[label_of(record)]: SimpleNamespace(**row)
            for record, row in rows
            if record.status == "ok"
        }

    def synchronize_trap(self, run: Run) -> Sequence[dict[str, Any]]:
        """Return the rows of `synchronize_trap` at the size of the row `matmul`; none if it was not
        planned or raises.
        """
        row = self.ops.get("matmul")
        if row is None or row.refused:
            return []
        peak, _ = peak_of(row.blank(), run.ceilings)
        size = row.case.shape["n"]
        dtype = row.case.dtype
        peak_flops_per_s = peak.value if peak else None
        try:
            if release(run.device):
                return synchronize_trap(run.device, size, dtype, peak_flops_per_s)
            # After an illegal access only a new process can use the GPU.
            answer, _ = worker.call(
                synchronize_trap,
                run.device,
                size,
                dtype,
                peak_flops_per_s,
                timeout_s=worker.OWN_TIMEOUT_S,
            )
            return answer
        except RuntimeError as error:  # of the GPU, or of the worker
            run.progress.note(f"the timings without synchronizing are missing: {one_line(error)}")
            return []


def value_of(figure: Figure, rows: Mapping[str, Any]) -> bool | float | str | None:
    """Return a figure, or the name of the error that its code raises; None if a row was not
    measured.
    """
    names = rows_of(figure)
    if not rows.keys() >= set(names):
        return None
    try:
        with warnings.catch_warnings(action="ignore"):  # code of the notes is deprecated
            value = figure(*(rows[name] for name in names))
    except Exception as error:
        return None if names else type(error).__name__
    return value if isinstance(value, bool | int | float) else str(value)


def synchronize_trap(
    device: Device, n: int, dtype: str, peak_flops_per_s: float | None
) -> list[dict[str, Any]]:
    """Time an n x n x n matmul without synchronizing, with it, and on the device; `possible` is MFU
    <= 1.

    On a CPU a call returns when its result is finished; the time of an operation on one element is
    the first row.
    """
    import torch

    from bench.harness.data.inputs import torch_dtype
    from bench.harness.measure.measure_row import take_samples

    a, b = (torch.randn(n, n, device=device.torch_name).to(torch_dtype(dtype)) for _ in range(2))
    samples = take_samples([partial(torch.mm, a, b)], "warm", device, LIMITS[device.type], 2 * n**3)
    if device.is_gpu:
        times_s = {
            "not synchronized": samples.host_launch_s,
            "synchronized": samples.host_latency_s,
        }
        times_s["device"] = samples.median_s
    else:
        times_s = {"caller's overhead": samplers.empty_launch_s(device), "call": samples.median_s}
    rows = []
    for timing, seconds in times_s.items():
        share = mfu(2 * n**3 / seconds, peak_flops_per_s) if seconds and peak_flops_per_s else None
        rows.append(
            {
                "timing": timing,
                "seconds": seconds,
                "mfu": share,
                "possible": share is None or share <= 1,
            }
        )
    return rows
