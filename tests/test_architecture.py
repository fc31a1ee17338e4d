"""Imports between packages and folders go one way, heavy imports are late, and two packages need no
torch.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import bench

ROOT = Path(__file__).resolve().parent.parent

FLOORS = {
    "bench": {"kernels", "roofline", "results"},
    "roofline": {"results"},
    "kernels": {"results"},
    "results": set(),
}
"""The other packages that each package may import."""

ROOFLINE_MODEL = "roofline.model"
"""Three folders of `results` may import it: it needs only the record and statistics of
`results`.
"""

KERNEL_COMMANDS = ("kernels/__main__.py", "kernels/audit/command.py", "kernels/audit/table.py")
"""They print through `results/show`; all other files of `kernels` import no package of this
project.
"""

FOLDERS = {
    "bench.harness": (
        *("op", "op_file", "device", "timing", "worker", "preload", "data", "providers", "measure"),
        *("calibrate", "cli run loop", "model", "transfer", "profile", "fleet", "collectives"),
        *("compare", "api", "lecture", "commands", "fixture"),
    ),
    "roofline": (
        "work",
        "machine",
        "gpu_table",
        "model",
        "links",
        "accounting",
        "estimate",
        "picture",
        "commands",
        "explore",
        "__main__",
    ),
    "roofline.accounting": ("config", ""),
    "results": (
        "record",
        "store",
        "stats",
        "show",
        "compare",
        "export",
        "history",
        "fleet",
        "__main__",
    ),
}
"""Folders and files in import order: each may import those to its left; "" is every other file.
Names in one string may import each other."""

WITHOUT_TORCH = ("roofline", "results")
HEAVY = {
    "torch",
    "triton",
    "numpy",
    "pandas",
    "pyarrow",
    "matplotlib",
    "rich",
    "pynvml",
    "plotly",
    "jinja2",
}
"""Slow imports, allowed only inside the functions that need them: --help must be fast."""

BUILT_ON_TORCH = {
    "bench/harness/collectives.py",
    "bench/harness/lecture/figures.py",
    "bench/harness/model/reproducibility.py",
    "bench/harness/model/step.py",
    "bench/harness/transfer.py",
    "bench/harness/model/transformer.py",
    "bench/harness/profile/projection.py",
    "bench/harness/profile/step.py",
}
"""Files that need torch throughout; they are imported only inside the functions that need them, or
by each other.
"""


SOURCES = [
    path
    for package in FLOORS
    for path in sorted((ROOT / package).rglob("*.py"))
    if not path.is_relative_to(ROOT / "results" / "runs")
]


def label(path):
    return path.relative_to(ROOT).as_posix()


def is_type_checking(node):
    test = node.test
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def imported(path, at_import_only=False, tree=None):
    """Return the full names that a file imports; with `at_import_only`, not those inside
    functions.
    """
    names = set()

    def visit(node):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = path.relative_to(ROOT).parent.parts[
                : len(path.relative_to(ROOT).parts) - node.level
            ]
            module = ".".join(
                [*(package if node.level else ()), *([node.module] if node.module else [])]
            )
            names.update({module, *(f"{module}.{alias.name}" for alias in node.names)})
        if at_import_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return
        if at_import_only and isinstance(node, ast.If) and is_type_checking(node):
            children = node.orelse
        else:
            children = ast.iter_child_nodes(node)
        for child in children:
            visit(child)

    visit(tree or ast.parse(path.read_text(encoding="utf-8")))
    return names


def tops(names):
    return {name.partition(".")[0] for name in names}


def offenders(problem, paths=SOURCES):
    """Return the results of `problem(path)` that are not empty, by file."""
    return {label(path): found for path in paths if (found := problem(path))}


def below(*floors):
    return [path for path in SOURCES if label(path).startswith(floors)]


def test_packages_import_only_lower_packages():
    def above(path):
        package = path.relative_to(ROOT).parts[0]
        judging = label(path).startswith(("results/show/", "results/compare/", "results/export/"))
        names = {
            name for name in imported(path) if not (judging and name.startswith(ROOFLINE_MODEL))
        }
        return tops(names) & set(FLOORS) - {package} - FLOORS[package]

    assert not offenders(above)


def imports_at_large(path):
    """Return the imports of a file, without those of `if __name__ == "__main__":`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))
    ]
    return imported(path, tree=tree)


def modules():
    """Return the path of each module by its full name."""
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in SOURCES}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def test_folders_import_only_earlier_folders():
    def position(module, parent):
        name = module.removeprefix(parent + ".").partition(".")[0]
        groups = [group.split() for group in FOLDERS[parent]]
        return next(
            (at for at, group in enumerate(groups) if name in group),
            groups.index([]) if [] in groups else -1,
        )

    def to_the_right(path):
        found = set()
        for module in [name for name, own in modules().items() if own == path]:
            for parent in [parent for parent in FOLDERS if module.startswith(parent + ".")]:
                inside = {
                    name
                    for name in imports_at_large(path) & set(modules())
                    if name.startswith(parent + ".")
                }
                found |= {
                    name for name in inside if position(name, parent) > position(module, parent)
                }
        return found

    assert not offenders(to_the_right)


def test_imports_have_no_cycles():
    known = modules()
    graph = {
        name: sorted((imports_at_large(path) & set(known)) - {name}) for name, path in known.items()
    }
    done, circles = set(), []

    def walk(name, way):
        if name in way:
            circles.append(" -> ".join([*way[way.index(name) :], name]))
        elif name not in done:
            for other in graph[name]:
                walk(other, [*way, name])
            done.add(name)

    for name in graph:
        walk(name, [])
    assert circles == []


def test_kernels_import_only_torch_and_triton():
    allowed = {"kernels", "torch", "triton"} | sys.stdlib_module_names

    def more(path):
        printing = {"results", "results.show"} if label(path) in KERNEL_COMMANDS else set()
        names = {name for name in imported(path) if not name.startswith("results.show.")}
        return {name for name in names - printing if name.partition(".")[0] not in allowed}

    assert not offenders(more, below("kernels"))


def test_roofline_and_results_never_import_torch():
    assert not offenders(
        lambda path: tops(imported(path)) & {"torch", "triton"}, below(*WITHOUT_TORCH)
    )


def test_heavy_imports_are_inside_the_functions_that_need_them():
    def heavy(path):
        allowed = {"torch", "numpy"} if label(path) in BUILT_ON_TORCH else set()
        return tops(imported(path, at_import_only=True)) & HEAVY - allowed

    assert not offenders(heavy, below("bench", "roofline", "results"))


def test_no_module_has_the_name_of_one_in_the_standard_library():
    # `python path/to/file.py` puts the file's folder before the standard library.
    taken = sys.stdlib_module_names - {"__main__", "__init__"}
    assert not offenders(lambda path: {path.stem} & taken)


FAMILIES = sorted(path.stem for path in (ROOT / "bench").glob("[a-z]*.py"))


def run(code, *arguments, cwd=ROOT, **environment):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


HEAVY_NOW = f"import sys; print(*sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"


def test_importing_every_family_has_no_effect(tmp_path):
    imports = "; ".join(f"import bench.{family}" for family in FAMILIES)
    done = run(
        f"{imports}; import bench.__main__, bench.harness.cli.main; {HEAVY_NOW}",
        "--bogus",
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "",
        "\n",
    )  # nothing said, nothing heavy
    assert list(tmp_path.iterdir()) == []  # nothing written


def test_importing_kernels_imports_nothing_else():
    done = run(f"import kernels; {HEAVY_NOW}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "\n")


def test_importing_the_packages_and_an_estimate_load_nothing_heavy():
    done = run(f"""
import bench, roofline, results, roofline.estimate
bench.matmul.run, bench.train_step.run, roofline.attainable, roofline.draw, results.load
roofline.estimate.params(model="gpt2")
roofline.attainable("h100-sxm", 1, 1)
{HEAVY_NOW}""")
    assert (done.returncode, done.stderr) == (0, "\n")


def test_every_public_name_of_bench_can_be_imported():
    names = [*bench.LATE, *bench.FAMILIES]
    assert all(getattr(bench, name) for name in names)
    assert set(names) <= set(dir(bench))
    with pytest.raises(AttributeError, match="module 'bench' has no attribute 'nothing'"):
        _ = bench.nothing
