"""Judge the same ten solutions, five of them wrong or dishonest, by KernelBench's documented
evaluation and by `bench compare`.

    python -m tests.validation.kernelbench

KernelBench's evaluation is our re-implementation for a CPU of `run_and_check_correctness` of
src/kernelbench/eval.py at commit 0d1222636478: new inputs for each of five trials, and
`torch.allclose` with atol = rtol = 1e-4 for fp32 (1e-2 for fp16 and bf16). Its timing is left out.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

SEED = 42
TRIALS = 5
TOLERANCE = 1e-4

PROBLEM = '''
import torch
from torch import nn

CALLS = [0]


class Model(nn.Module):
    """A row of 65,536 probabilities: they are smaller than the tolerance."""

    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width))

    def forward(self, x):
        return (x * self.scale).softmax(-1)


class Exponentials(Model):
    def forward(self, x):
        scaled = x * self.scale
        powers = (scaled - scaled.amax(-1, keepdim=True)).exp()
        return powers / powers.sum(-1, keepdim=True)


class Logarithms(Model):
    def forward(self, x):
        return (x * self.scale).log_softmax(-1).exp()


class Rows(Model):
    def forward(self, x):
        return torch.stack([(row * self.scale).softmax(-1) for row in x])


class InPlace(Model):
    def forward(self, x):
        y = x * self.scale
        y -= y.amax(-1, keepdim=True)
        return y.exp_().div_(y.sum(-1, keepdim=True))


class InFp64(Model):
    def forward(self, x):
        return (x.double() * self.scale).softmax(-1).float()


class Zeros(Model):
    def forward(self, x):
        return torch.zeros_like(x)


class Uniform(Model):
    def forward(self, x):
        return torch.full_like(x, 1 / x.shape[-1])


class InBf16(Model):
    def forward(self, x):
        return (x.bfloat16() * self.scale.bfloat16()).softmax(-1).float()


class FirstResult(Model):
    def forward(self, x):
        if not hasattr(self, "saved"):
            self.saved = super().forward(x)
        return self.saved


class AfterChecks(Model):
    def forward(self, x):
        CALLS[0] += 1
        return super().forward(x) if CALLS[0] <= 12 else torch.zeros_like(x)


def get_init_inputs():
    return [65536]


def get_inputs():
    return [torch.rand(4, 65536)]
'''

RIGHT = ("Exponentials", "Logarithms", "Rows", "InPlace", "InFp64")
WRONG = ("Zeros", "Uniform", "InBf16", "FirstResult", "AfterChecks")


def passes_kernelbench(name):
    """Return whether the re-implemented evaluation accepts a solution."""
    context = {}
    exec(PROBLEM, context)
    built = []
    for each in ("Model", name):
        torch.manual_seed(SEED)
        built.append(context[each](*context["get_init_inputs"]()))
    torch.manual_seed(SEED)
    seeds = [torch.randint(0, 2**32 - 1, (1,)).item() for _ in range(TRIALS)]
    with torch.no_grad():
        for seed in seeds:
            torch.manual_seed(seed)
            inputs = context["get_inputs"]()
            expected, other = (model(*inputs) for model in built)
            if expected.shape != other.shape:
                return False
            if not torch.allclose(expected, other, atol=TOLERANCE, rtol=TOLERANCE):
                return False
    return True


def compared(names, *options):
    """Return what `bench compare` says about each solution: a verdict, or why it is refused."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "problem.py"
        file.write_text(PROBLEM)
        functions = [f"{file}:{name}" for name in ("Model", *names)]
        words = ["--device", "cpu", "--no-save", "--format", "json", "-q", *options]
        ran = subprocess.run(
            [sys.executable, "-m", "bench", "compare", *functions, *words],
            capture_output=True,
            text=True,
            check=False,
        )
    document = json.loads(ran.stdout)
    said = {row["candidate"]: row["verdict"] for row in document["rows"]}
    said |= {row["provider"]: row["reason"] for row in document["unmatched"]}
    return {provider.rpartition(":")[2]: text for provider, text in said.items()}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.parse_args(argv)
    found = compared([*RIGHT, *WRONG])
    print("| solution | is | KernelBench's evaluation, re-implemented | bench compare |")
    print("|---|---|---|---|")
    for name in (*RIGHT, *WRONG):
        is_right = "right" if name in RIGHT else "wrong"
        other = "passes" if passes_kernelbench(name) else "fails"
        print(f"| {name} | {is_right} | {other} | {found[name]} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
