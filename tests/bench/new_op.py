"""A new op as its author writes it, and a copy of the repository that has it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SCALED_COPY = '''\
"""A scaled copy: out (n) = scale x (n).

FLOPs   n: one product an element.
Bytes   w n read and w n written, w the bytes of an element.
Source  worked out by hand.
"""

from bench.harness.op import Op, Option
from roofline.work import elementwise_work

EXAMPLES = ()


def parse_layout(word):
    """Return a layout, whose names are not those of a matrix."""
    if word not in ("dense", "sparse"):
        raise ValueError(f"unknown layout '{word}'; choose from dense, sparse")
    return word


OPTIONS = (
    Option("layout", "how x is stored: dense, sparse", parse_layout, lambda dtype: "dense"),
    Option("scale-by", "the factor, 50% for half", float, lambda dtype: 2.0),
)


def scaled(x, out=None):
    """Return x, twice."""
    return x + x


OPS = (
    Op(
        name="scaled-copy",
        formula="out (n) = scale x (n)",
        axes=("n",),
        default_shapes={"cpu": ("4096",), "cuda": ("4096",)},
        make_inputs=lambda case, tensor: (tensor(case.shape["n"]),),
        output_shape=lambda case: (case.shape["n"],),
        reference=scaled,
        eager=scaled,
        work=lambda case: elementwise_work(case.shape["n"], 1, 1, case.dtype),
    ),
)

if __name__ == "__main__":
    from bench.harness.cli.main import main

    raise SystemExit(main(__file__, __doc__, EXAMPLES, OPS, OPTIONS))
'''


def repository_with(folder, **files):
    """Return a copy of the repository's packages with more files in `bench/`."""
    for package in ("bench", "kernels", "roofline", "results"):
        ignored = shutil.ignore_patterns("__pycache__", "runs", "published")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    for name, text in files.items():
        (folder / "bench" / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def run_in(repository, module, *words, **environment):
    """Run `python -m module` in a copy of the repository; return exit code, stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, words)],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(repository), "COLUMNS": "250", **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr
