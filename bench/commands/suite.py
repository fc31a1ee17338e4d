"""`python -m bench suite`: all ops at their default sizes, the most informative first, in one run
file.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence

from bench.harness.cli.arguments import NOTES, Request, chosen, make_cases
from bench.harness.op import Case, Families, Op
from bench.harness.settings import Argv, Settings
from results.show.options import add, given, parameters
from results.show.terminal import Parser

DESCRIPTION = """\
Measure every operation at its default sizes; save one run file and a plot. decode-step, which needs
a whole model, is measured by `python -m bench.decode` only.

The most informative cases come first, in case --budget or Ctrl-C ends the run early: the largest
case of each op (matmul, copy, softmax, gelu, rmsnorm and attention before the others), then the
next largest.

`python -m bench list` shows all ops; `python -m bench.<family> --help` has their formulas, FLOPs
and bytes."""

EPILOG = f"""\
{NOTES}

examples:
  python -m bench suite                                # every op in bf16
  python -m bench suite --budget 20 --plot suite.png   # what fits in 20 seconds
  python -m bench suite --dtype bf16,fp32 --provider torch,torch-compile"""

PREFERRED = (
    "matmul",
    "copy",
    "softmax",
    "gelu",
    "rmsnorm",
    "prefill-attention",
    "matvec",
    "decode-attention",
    "dot",
)
"""The most informative ops first: matmul, bandwidth, then other ops of real models."""

Planned = tuple[str, Op, Case]


def add_options(parser: Parser) -> None:
    add(
        parser,
        parameters(Request),
        ("dtype", "provider"),
        dtype="data types; ops skip those that they do not have (default: bf16)",
        provider="implementations; families skip those that they do not have (default: torch, "
        "triton)",
    )
    add(parser, parameters(Settings))


def run(args: argparse.Namespace, families: Families, argv: Argv) -> int:
    from bench.harness.cli import main
    from bench.harness.loop import measure_run
    from bench.harness.measure import rows as planning
    from bench.harness.providers import registry
    from bench.harness.run import Run

    dtypes: set[str] = set()
    providers = set()
    for family, ops in families.items():
        dtypes.update(*(op.dtypes for op in ops))
        providers.update(registry.provider_names(family))
    request = given(Request, args)
    settings = given(Settings, args)
    chosen_dtypes = chosen("dtype", request.dtype, sorted(dtypes), ["bf16"])
    named = chosen("provider", request.provider, sorted(providers), ())
    main.check_places(settings)
    under_test = main.device_of(settings)
    rows = []
    for family, op, case in by_information(planned(chosen_dtypes, families, under_test.type)):
        names = [name for name in named if name in registry.provider_names(family)]
        if names or not named:
            rows += planning.rows_of_case(op, case, family, under_test, settings, names)
    run = Run(settings, "bench", "suite", under_test, argv)
    measure_run(run, rows, may_reorder=True)
    return run.conclude(draws=True)


def planned(dtypes: Sequence[str], families: Families, device_type: str) -> list[Planned]:
    cases = []
    for family, ops in families.items():
        for op in filter(lambda op: op.is_in_suite, ops):
            names = [dtype for dtype in dtypes if dtype in op.dtypes]
            if names:
                cases += [
                    (family, op, case)
                    for case in make_cases(family, op, device_type, Request(dtype=names))
                ]
    return cases


def by_information(cases: Sequence[Planned]) -> list[Planned]:
    """Return the largest case of each op, then the next largest; `PREFERRED` ops come first in each
    group.
    """
    turns: Counter[tuple[str, str]] = Counter()
    ranked = []
    for entry in sorted(cases, key=lambda case: case[1].work(case[2]).bytes, reverse=True):
        _, op, case = entry
        turns[op.name, case.dtype] += 1
        rank = PREFERRED.index(op.name) if op.name in PREFERRED else len(PREFERRED)
        ranked.append((turns[op.name, case.dtype], rank, entry))
    return [entry for _, _, entry in sorted(ranked, key=lambda item: item[:2])]
