"""`python -m roofline estimate`: what a tensor, a model or a training run costs, each worked out step by step."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from results.show.terminal import OutputError, drawn, fail, print_out
from results.show.theme import add_theme
from results.store.runs import StoreError

if TYPE_CHECKING:
    from roofline.accounting.answers.answer import Answer

EXAMPLES = """examples:
  python -m roofline estimate train --params 70e9 --tokens 15e12 --gpu h100-sxm --gpus 1024 --mfu 0.5
  python -m roofline estimate fit --gpu h100-sxm --gpus 8 --bytes-per-param 16
  python -m roofline estimate chinchilla --gpu h100-sxm --gpus 32 --days 14 --mfu 0.5
  python -m roofline estimate params --model llama-3-8b
  python -m roofline estimate flops --config path/to/config.json --sequence 8192 --convention palm
  python -m roofline estimate memory --model llama-3-8b --recipe bf16-master --checkpoint full --gpu h100-sxm
  python -m roofline estimate mfu --params 540e9 --tokens-per-s 238e3 --gpu h100-sxm --gpus 6144 --peak 275e12
  python -m roofline estimate gpus --params 70e9 --tokens 15e12 --days 90 --mfu 0.4 --gpu h100-sxm
  python -m roofline estimate generate --model llama-3-8b --gpu h100-sxm --output-tokens 512 --batch 8 --price 2.5
  python -m roofline estimate params --layers 16 --width 2048 --heads 32 --kv-heads 8 --ffn 8192 --vocab 128256 --tied
  python -m roofline estimate infer --model llama-3-8b --gpu h100-sxm,a100-sxm-80gb --prompt 4096 --batch 16
  python -m roofline estimate matmul --shape 4096x4096x4096 --gpu a100-sxm-80gb,h100-sxm --dtype fp32,bf16
  python -m roofline estimate tensor --shape 49152x12288 --dtype fp32
  python -m roofline estimate dtype --value 1e-8

  python -m roofline estimate sweep infer --model llama-3-8b --gpu h100-sxm --over batch=1:1024:x2 --plot batch.png

exit codes: 0 done, 2 a wrong value or an unreadable file
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command `estimate` to `python -m roofline`."""
    from roofline.commands.estimate.parts import PARTS

    parser = subparsers.add_parser(
        "estimate",
        description="Resource accounting. Each answer shows its arithmetic, its formula, its source and what it leaves "
        "out.\nNumbers may be written 70e9 or 70B. Nothing is measured here.",
        epilog=EXAMPLES,
    )
    parts = parser.add_subparsers(metavar="WHAT", required=True)
    for part in PARTS:
        inner = parts.add_parser(part.name, help=part.help, description=part.description)
        part.add_options(inner)
        inner.add_argument("--plot", type=Path, metavar="PATH", help=part.plot)
        if part.plot != argparse.SUPPRESS:
            add_theme(inner)
        inner.add_argument("--format", choices=("text", "json"), default="text", help="default: %(default)s")
        inner.set_defaults(run=run, answer=part.answer, part=part.name, theme=inner.get_default("theme"))

    sweep = parts.add_parser("sweep", help="any of these over one or two of its options", description=SWEEP)
    sweep.add_argument("words", nargs=argparse.REMAINDER, metavar="WHAT [options] --over OPTION=VALUES")
    sweep.set_defaults(run=run_sweep, part="sweep")


SWEEP = """\
Any estimate over one or two of its options: --over batch=1,8,64 or --over sequence=2048:131072:x2 (:+1024 adds).
--format text, csv or json; --plot PATH draws what was asked first, --theme in which colors."""


def run_sweep(args: argparse.Namespace) -> int:
    """Print an estimate over its options; return the exit code, 2 for what cannot be answered, read or written."""
    from results.show import export
    from results.show.picture import check_picture, save_picture
    from roofline.accounting.config.config import ConfigError
    from roofline.ceilings import CeilingError
    from roofline.commands.estimate.parts import PARTS
    from roofline.commands.estimate.sweep import draw, swept
    from roofline.commands.estimate.text import print_rows
    from roofline.hardware.gpu import UnknownGpuError

    errors = (ConfigError, CeilingError, OutputError, OverflowError, StoreError, UnknownGpuError)
    try:
        sweep = swept(args.words, PARTS)
        if sweep.plot:
            check_picture(sweep.plot)
            save_picture(draw(sweep), sweep.plot)
        if sweep.format == "json":
            print_out(export.json_text({"rows": sweep.rows}))
        elif sweep.format == "csv":
            print_out(export.csv_text(sweep.rows, ()))
        else:
            print_out(drawn(lambda console: print_rows(console, sweep.rows, sweep.columns)))
    except errors as error:
        return fail("python -m roofline estimate sweep", error)
    return 0


def run(args: argparse.Namespace) -> int:
    """Print the answer asked for; return the exit code, 2 for what cannot be answered or read."""
    from roofline.accounting.config.config import ConfigError
    from roofline.ceilings import CeilingError
    from roofline.commands.estimate.text import print_answer
    from roofline.hardware.gpu import UnknownGpuError

    errors = (ConfigError, CeilingError, OutputError, OverflowError, StoreError, UnknownGpuError)
    try:
        answer: Answer = args.answer(args)
        if args.plot is not None:
            _draw(answer, args.plot, args.theme)
        if args.format == "json":
            print_out(json.dumps(answer.to_dict(), indent=2, allow_nan=False) + "\n")
        else:
            print_out(drawn(lambda console: print_answer(console, answer)))
    except errors as error:
        return fail(f"python -m roofline estimate {args.part}", error)
    return 0


def _draw(answer: Answer, path: Path, theme: str) -> None:
    """Write the picture of the parts of an answer.

    Raises:
        ConfigError: it has none.
        StoreError: the picture cannot be written.
    """
    from results.show.picture import check_picture, save_picture
    from roofline.accounting.answers.answer import in_words
    from roofline.accounting.config.config import ConfigError
    from roofline.plot.estimates import draw_lines, draw_parts

    check_picture(path)
    words = ", ".join(in_words(key, answer.values[key]) for key in answer.main if answer.values.get(key) is not None)
    if answer.curve:
        x, y, lines, marks, dots = answer.curve
        points = {**lines, **{name: [dot] for name, dot in dots.items()}}
        save_picture(draw_lines(f"{answer.title}: {words}", x, y, points, marks, theme), path)
        return
    parts = [(step.label, step.amount, step.result) for step in answer.steps if step.amount]
    if not parts:
        raise ConfigError(
            "--plot draws parameters, FLOPs and memory by their parts, and budgets; others over an option: sweep"
        )
    save_picture(draw_parts(answer.title, words, parts, theme), path)
