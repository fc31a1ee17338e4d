"""The functions: what each is, with which inputs, and which paths run it."""

import ast
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
FOLDER = Path(__file__).resolve().parent.relative_to(ROOT)
HONEST = FOLDER / "honest.py"

PATHS = ("op", "compare", "bench.compare", "bench.measure", "bench.sweep", "gpu_benchmark")
COMMANDS = PATHS[:2]
"""They run the function in another process, so it may end or block it."""
VERIFIED = PATHS[:3]
"""They have a reference. The other paths return the result and do not verify it."""

FILES = {
    "mistakes/values.py": VERIFIED,
    "mistakes/arithmetic.py": VERIFIED,
    "mistakes/extremes.py": COMMANDS[:1],
    "mistakes/unwritten.py": VERIFIED,
    "mistakes/memory.py": VERIFIED,
    "mistakes/kinds.py": VERIFIED,
    "mistakes/inputs.py": PATHS,
    "cheats/caches.py": PATHS,
    "cheats/work.py": PATHS,
    "cheats/constants.py": VERIFIED,
    "cheats/elsewhere.py": PATHS,
    "cheats/clocks.py": PATHS,
    "cheats/settings.py": PATHS,
    "cheats/errors.py": PATHS,
    "cheats/ends.py": COMMANDS,
    "cheats/orphans.py": COMMANDS,
    "cheats/answers.py": COMMANDS,
    "cheats/streams.py": (),
}
"""Paths by file. Work on streams needs a GPU, which this command does not use; only an op says that
its inputs may be the extremes of a dtype."""

LISTED = ("gelu_by_outer_caller", "gelu_check_replaced")
"""Functions that are not found; `.github/SECURITY.md` says what each takes."""

SHAPES = {
    "gelu": "8200",
    "relu": "8200",
    "sum": "8200",
    "softmax": "64x1000",
    "layernorm": "64x1000,1000,1000",
    "matmul": "96x96,96x96",
    "longmatmul": "32x4096,4096x32",
    "bigmatmul": "1088x1024,1024x1024",
}
"""Shapes of the inputs by the first part of a function's name. `bigmatmul` has so many FLOPs that
an op compares every second row by elements: `FULL_CHECK_FLOPS` in bench/harness/data/verify.py."""

CASES = {"matmul": "96", "longmatmul": "32x32x4096", "bigmatmul": "1088x1024x1024"}
"""What `--shape` of an op takes, if it is not the shape of the first input."""


class Subject(NamedTuple):
    """A function, `FILE:FUNCTION` from the root of the repository, and its honest twin."""

    provider: str
    twin: str
    cause: str
    paths: tuple[str, ...]

    @property
    def file(self) -> str:
        return self.provider.partition(":")[0]

    @property
    def name(self) -> str:
        return self.provider.partition(":")[2]

    @property
    def baseline(self) -> str:
        return f"{HONEST}:{self.op}"

    @property
    def kind(self) -> str:
        if self.name in LISTED:
            return "listed"
        return "mistake" if "/mistakes/" in self.file else "cheat"

    @property
    def op(self) -> str:
        return self.name.partition("_")[0]

    @property
    def dtype(self) -> str:
        return "bf16" if self.name.endswith("in_bf16") else "fp32"


def subjects() -> list[Subject]:
    """Return all functions. A docstring starts with `CAUSE: `; the twin is `honest_OP` of the same
    file, else that of honest.py.
    """
    found = []
    for file, paths in FILES.items():
        tree = ast.parse((ROOT / FOLDER / file).read_text())
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        names = {node.name for node in functions}
        for node in functions:
            op = node.name.partition("_")[0]
            if op in SHAPES:
                cause = ast.get_docstring(node).partition(":")[0]
                own = f"honest_{op}"
                twin = f"{FOLDER / file}:{own}" if own in names else f"{HONEST}:{op}"
                found.append(Subject(f"{FOLDER / file}:{node.name}", twin, cause, paths))
    return found
