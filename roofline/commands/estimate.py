"""`python -m roofline estimate`: cost estimates with their steps."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from results.show.grid import Table
from results.show.options import add
from results.show.picture import save_picture
from results.show.terminal import OK, Parser, add_format, add_picture, busy, print_out
from roofline.estimate import QUESTIONS

if TYPE_CHECKING:
    from roofline.estimate.answer import Answer

EXAMPLES = """\
train --params 70e9 --tokens 15e12 --gpu h100-sxm --gpus 1024 --mfu 0.5
train --model llama-3-70b --gpu h100-sxm --gpus 512 --tensor-parallel 8 --zero 1
fit --gpu h100-sxm --gpus 8 --bytes-per-param 16
chinchilla --gpu h100-sxm --gpus 32 --days 14 --mfu 0.5
mfu --params 540B --gpu tpu-v4 --gpus 6144 --tokens-per-s 238e3
gpus --params 70B --tokens 15T --days 90 --gpu h100-sxm --mfu 0.4
params --model llama-3-8b
flops --model llama-3-8b --sequence 8192 --convention palm
memory --model llama-3-8b --batch 8 --sequence 2048 --checkpoint full --gpu h100-sxm
parallel --model llama-3-70b --gpu h100-sxm --gpus 64 --batch 512 --checkpoint full
collective --gpu h100-sxm --gpus 64 --size 1e9
context --model llama-3-70b --gpu h100-sxm --gpus 4 --batch 8
infer --model llama-3-8b --gpu h100-sxm --prompt 4096 --batch 16
infer --model llama-3-70b --gpus 2 --gpu all
generate --model llama-3-8b --gpu h100-sxm --output-tokens 512 --price 2.5
matmul --shape 4096x4096x4096 --gpu a100-sxm-80gb,h100-sxm --dtype fp32,bf16
matmul --einsum 'b s h, h k -> b s k' --sizes b=4,s=8,h=16,k=32
intensity --gpu h100-sxm
tensor --shape 4x8 --then transpose,reshape
dtype --dtype fp32,bf16,fp8e4m3 --value 1e-8
sweep infer --model llama-3-8b --gpu h100-sxm --over batch=1:1024:x2 -o batch.png
"""
"""Estimates with arguments; a page of `python -m roofline explore` starts with the first of its
estimate.
"""
DESCRIPTION = """\
Estimate the time, memory and FLOPs of training and inference.
Each answer shows its steps, formula, sources and assumptions.
Numbers may be written as 70e9 or 70B. Nothing is measured.
Which GPU for my job: --gpu all ranks those of the table on which it fits."""
EXIT_CODES = "exit codes: 0 success, 2 invalid argument or unreadable file"
SWEEP = """\
Vary one or two options of an estimate: --over batch=1,8,64, or a range: --over
sequence=2048:131072:x2 (+1024 adds). --format: table, json, csv or md. -o PATH: save a plot of the
main result. --theme: light or dark."""
PROG = "python -m roofline estimate"

PLOTS = ("tensor", "dtype", "matmul", "intensity", "params", "flops", "memory", "train")
"""Estimates with a picture."""


class _Question(Parser):
    """The parser of one estimate; its options are added at first use, because they import the
    estimate.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        name = self.prog.rpartition(" ")[2]
        if name in QUESTIONS:
            from roofline import estimate
            from roofline.estimate.question import parameters

            function = getattr(estimate, name)
            paragraph, _, _ = str(function.__doc__).partition("\n\n")
            self.description = " ".join(paragraph.split())
            add(self, parameters(function), is_raw=True)
        if name == "params":
            from textwrap import fill

            from roofline.accounting.presets import preset_names

            self.epilog = fill(f"presets: {', '.join(preset_names())}", 100, break_on_hyphens=False)
        return super().parse_known_args(args, namespace)


def add_options(parser: Parser) -> None:
    examples = [f"  {PROG} {words}" for words in EXAMPLES.splitlines()]
    parser.description = DESCRIPTION
    parser.epilog = "\n".join(["examples:", *examples, "", EXIT_CODES])
    questions = parser.add_subparsers(metavar="ESTIMATE", required=True, parser_class=_Question)
    for name, (_, help_text) in QUESTIONS.items():
        inner = questions.add_parser(name, help=help_text)
        add_format(inner)
        inner.set_defaults(prog=inner.prog, question=name, output=None)
        if name in PLOTS:
            add_picture(inner)
    sweep = questions.add_parser(
        "sweep",
        help="repeat an estimate while varying one or two of its options",
        description=SWEEP,
    )
    sweep.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="ESTIMATE [options] --over OPTION=VALUES"
    )
    sweep.set_defaults(prog=sweep.prog, question="sweep")


def example_of(name: str) -> dict[str, Any]:
    """Return the arguments of the first example of an estimate, with None for those not given."""
    examples = map(shlex.split, EXAMPLES.splitlines())
    words = next(words for words in examples if words[0] == name)
    parsed: argparse.Namespace = _Question(prog=f"{PROG} {name}").parse_args(words[1:])
    return vars(parsed)


def run(args: argparse.Namespace) -> int:
    print_out(_swept(args.words) if args.question == "sweep" else _answered(args))
    return OK


def _answered(args: argparse.Namespace) -> str:
    from roofline import estimate
    from roofline.accounting.config import ConfigError
    from roofline.estimate.answer import print_answer
    from roofline.estimate.question import is_of_all, parameters, values_of

    function = getattr(estimate, args.question)
    given = {key: getattr(args, key) for key in parameters(function)}
    if args.output is not None and is_of_all(values_of(function, given)):
        raise ConfigError("--gpu all has no picture: name the GPUs")
    answer: Answer = function(**given)
    if args.output is not None:
        from roofline.picture.charts import draw_answer

        with busy("drawing"):
            save_picture(draw_answer(answer, args.theme), args.output)
    table = Table(
        rows=answer.table_rows,
        document=answer.to_dict,
        draw=lambda console: print_answer(console, answer),
    )
    return table.render(args.format)


def _swept(words: Sequence[str]) -> str:
    from roofline.accounting.config import ConfigError
    from roofline.estimate.answer import print_rows
    from roofline.estimate.sweep import Over, swept

    own = Parser(prog=f"{PROG} sweep", add_help=False)
    own.add_argument("--over", action="append", default=[])
    add_format(own)
    add_picture(own)
    # The method of the base class has no error for unknown options.
    options, rest = argparse.ArgumentParser.parse_known_args(own, list(words))
    own.choose_theme(options)
    if not rest or rest[0] not in QUESTIONS:
        raise ConfigError(f"sweep: expected one of {', '.join(QUESTIONS)}")
    name, *rest = rest
    given = vars(_Question(prog=f"{PROG} {name}").parse_args(rest))
    sweep = swept(name, given, [Over.read(text) for text in options.over])
    if options.output:
        from roofline.picture.charts import draw_sweep

        y = next(iter(sweep.main), "")
        y = "step_seconds" if y == "step_range" else y  # a range is no number
        subject = f"{QUESTIONS[name][1]}: {' '.join(word.removeprefix('--') for word in rest)}"
        with busy("drawing"):
            save_picture(
                draw_sweep(sweep, subject, y, options.theme),
                options.output,
            )
    table = Table(
        rows=lambda: sweep.rows,
        document=lambda: {"rows": sweep.rows},
        draw=lambda console: print_rows(
            console, sweep.rows, {key: key.replace("_", " ") for key in sweep.columns}
        ),
    )
    return table.render(options.format)
