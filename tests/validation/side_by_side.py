"""Compare `bench.measure` and `bench.do_bench` with Triton's `do_bench` and
`torch.utils.benchmark`.

    python -m tests.validation.side_by_side --output side_by_side.json
    python -m tests.validation.side_by_side --case matmul/bf16/512x512,gelu/fp32/1048576 --rounds 3

All timers are interleaved in one process, so noise affects all of them. Ratios are taken within
each round; the table shows their median, minimum and maximum. `do_bench` flushes the cache before
each launch and is compared with our cold time; torch's Timer reuses the same inputs and is compared
with our warm time. Triton's `do_bench` needs a GPU and is omitted on a CPU.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import median

import torch
import triton.testing
from torch.nn import functional
from torch.utils.benchmark import Timer

import bench
from results.show.grid import markdown_text

OPS = {
    "matmul": (torch.matmul, 2),
    "add": (torch.add, 2),
    "gelu": (functional.gelu, 1),
    "sum": (torch.sum, 1),
    "softmax": (lambda x: x.softmax(-1), 1),
    "rmsnorm": (lambda x: functional.rms_norm(x, x.shape[-1:]), 1),
}
"""Functions and their argument counts by name; all arguments have one shape."""

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
CASES = {
    "cpu": "gelu/fp32/65536,matmul/bf16/512x512,matmul/fp32/512x512,rmsnorm/fp32/512x4096,softmax/fp32/512x8192,"  # noqa: E501
    "sum/fp32/4194304,add/fp32/4194304,matmul/bf16/1024x1024",
    "cuda": "gelu/bf16/4194304,matmul/bf16/2048x2048,rmsnorm/bf16/2048x4096,softmax/bf16/4096x8192,"
    "matmul/bf16/4096x4096,sum/bf16/268435456,matmul/bf16/8192x8192,add/bf16/1073741824",
}
COMPARED = {
    "bench.do_bench": "ours cold",
    "triton do_bench": "ours cold",
    "torch Timer": "ours warm",
}
"""The time that each timer is compared with."""


def case_of(text):
    """Parse a case `op/dtype/shape`; return function, argument count, dtype and shape."""
    try:
        op, dtype, shape = text.split("/")
        return *OPS[op], DTYPES[dtype], tuple(map(int, shape.split("x")))
    except (KeyError, ValueError):
        ops, dtypes = ", ".join(OPS), ", ".join(DTYPES)
        raise argparse.ArgumentTypeError(
            f"expected OP/DTYPE/SHAPE, got '{text}' (choose OP from {ops} and DTYPE from {dtypes})"
        ) from None


def cases_of(text):
    """Parse a comma-separated list of cases."""
    names = text.split(",")
    for name in names:
        case_of(name)
    return names


def timers_of(function, arguments, device, seconds):
    """Return the timers of one case by name; each returns seconds."""
    ms = 1e3 * seconds
    timer = Timer("function(*arguments)", globals=locals(), num_threads=torch.get_num_threads())

    def call():
        return function(*arguments)

    timers = {
        "ours cold": lambda: (
            bench.measure(function, *arguments, cache="cold", budget_s=seconds).median_s
        ),
        "ours warm": lambda: (
            bench.measure(function, *arguments, cache="warm", budget_s=seconds).median_s
        ),
        "bench.do_bench": lambda: bench.do_bench(call, rep=ms, return_mode="median") / 1e3,
        "triton do_bench": lambda: (
            triton.testing.do_bench(call, rep=ms, return_mode="median") / 1e3
        ),
        "torch Timer": lambda: timer.blocked_autorange(min_run_time=seconds).median,
    }
    if device == "cpu":
        del timers["triton do_bench"]
    return timers


def measured(text, device, rounds, seconds):
    """Return the seconds of one case by timer and round; each round starts with another timer."""
    function, count, dtype, shape = case_of(text)
    arguments = [torch.rand(shape, device=device).to(dtype) for _ in range(count)]
    timers = timers_of(function, arguments, device, seconds)
    names, found = list(timers), {name: [] for name in timers}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            found[name].append(timers[name]())
    return found


def row_of(text, found):
    """Return the table row of a case: the median of each timer, and its ratio to ours."""
    row = {"case": text} | {
        name: f"{1e6 * median(values):.4g} us" for name, values in found.items()
    }
    for name, ours in COMPARED.items():
        if name in found:
            ratios = [theirs / our for theirs, our in zip(found[name], found[ours], strict=True)]
            row[f"{name} / {ours}"] = (
                f"{median(ratios):.3f} ({min(ratios):.2f} to {max(ratios):.2f})"
            )
    return row


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--case",
        metavar="LIST",
        type=cases_of,
        help="cases as op/dtype/shape (default: eight cases of the device)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="number of rounds; each timer measures once per round (default: 5)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.3,
        help="time limit of one measurement, in seconds (default: 0.3)",
    )
    parser.add_argument(
        "--output", metavar="FILE", type=Path, help="save all values to this JSON file"
    )
    args = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else f"CPU, {torch.get_num_threads()} threads"
    )
    document = {
        "device": name,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "seconds": {},
    }
    cases = args.case or CASES[device].split(",")
    for text in cases:
        document["seconds"][text] = measured(text, device, args.rounds, args.seconds)
        if args.output:
            args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{name}, torch {torch.__version__}, median of {args.rounds} rounds\n")
    print(markdown_text([row_of(text, found) for text, found in document["seconds"].items()], ()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
