"""Mutation tests of the code that decides verdicts: edit one operator, number, call or returned
value, and see whether a test fails. Texts are not edited.

mutmut 3.8 also edits texts, and cosmic-ray 8.7 edits the working tree and starts a shell for each
mutant; neither takes single functions or a seeded sample.
"""

import argparse
import ast
import importlib
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Concept(NamedTuple):
    """What is edited: functions by file, all if none are named; and the tests that must notice."""

    code: dict[str, str]
    tests: list[str]
    is_sampled: bool = False


CONCEPTS = {
    "statistics": Concept(
        {f"results/stats/{name}.py": "" for name in ("comparison", "samples")},
        [
            "tests/results/test_reference_values.py",
            "tests/results/test_verdict.py",
            "tests/results/test_samples.py",
            "tests/results/test_compare_statistics.py",
            "tests/results/test_coverage.py",
        ],
    ),
    "judge": Concept(
        {"roofline/model.py": "", "roofline/limits.py": ""}, ["tests/roofline/test_model.py"]
    ),
    "verdicts": Concept(
        {
            "results/compare/comparison.py": (
                "cycles_verdict compare compare_live compare_apart _compare_interleaved "
                "with_flags _may_wait"
            ),
            "results/compare/earlier.py": "SavedRuns",
            "results/compare/output.py": "exit_code",
            "results/compare/sides.py": "code_of Side",
            "results/compare/turns.py": "",
        },
        [
            "tests/results/test_flagged_sides.py",
            "tests/results/test_sides.py",
            "tests/results/test_compare_turns.py",
            "tests/results/test_compare_doubts.py",
            "tests/results/test_compare.py",
            "tests/results/test_compare_output.py",
            "tests/results/test_compare_revisions.py",
        ],
    ),
    "flags": Concept(
        {"bench/harness/measure/flags.py": ""}, ["tests/bench/measure/test_flags.py"], True
    ),
    "verification": Concept(
        {"bench/harness/data/verify.py": ""}, ["tests/bench/data/test_verify.py"], True
    ),
    "checks": Concept(
        {"bench/harness/data/checks.py": "", "bench/harness/data/replay.py": ""},
        [
            "tests/bench/data/test_checks.py",
            "tests/bench/data/test_replay.py",
            "tests/bench/providers/test_user_kernel_cheats.py",
        ],
        True,
    ),
    "budget": Concept(
        {"bench/harness/measure/budget.py": "", "bench/harness/measure/measure_row.py": ""},
        [
            "tests/bench/measure/test_budget.py",
            "tests/bench/measure/test_measure_row.py",
            "tests/bench/measure/test_take_samples.py",
        ],
        True,
    ),
}
SEED = 48
SAMPLE = 300
"""Mutants of all sampled concepts together."""
MAX_OF_A_FILE = 600
MIN_KILLED = {False: 0.85, True: 0.75}
"""Minimum fraction of killed mutants by `is_sampled`."""

SAMPLES = "results/stats/samples.py"
COMPARISON = "results/compare/comparison.py"
FASTEST = "if (ratio > 1) != (compared.ratio > 1):"
NEAR_1 = "neither the interval nor the fastest samples are beyond a factor of 2"
EQUIVALENT = [
    (
        SAMPLES,
        "if len(values) < 2 * least:",
        "2",
        "3",
        "two modes have eight samples each, see VALLEY_DEVIATES; 16 are not fewer than that",
    ),
    (
        SAMPLES,
        "running = np.cumsum(np.concatenate(([0.0], side, side[:block])))",
        "0.0",
        "1.0",
        "only differences of the running sum count",
    ),
    (
        SAMPLES,
        "total = np.concatenate(([0.0], np.cumsum(ordered)))",
        "0.0",
        "1.0",
        "it adds the same to each of the costs that are compared",
    ),
    (
        "results/stats/comparison.py",
        "if interval.center < 0:",
        "< 0",
        "<= 0",
        "a center of 0 is within every margin, which is decided next",
    ),
    (SAMPLES, "CERTAIN = 1e9", "1e9", "2000000000.0", "normal, as 1e9 is"),
    (COMPARISON, FASTEST, "(ratio > 1)", "(ratio >= 1)", NEAR_1),
    (COMPARISON, FASTEST, "(ratio > 1)", "(ratio > 2)", NEAR_1),
    (COMPARISON, FASTEST, "compared.ratio > 1", "compared.ratio >= 1", NEAR_1),
    (COMPARISON, FASTEST, "compared.ratio > 1", "compared.ratio > 2", NEAR_1),
]
"""Edits that cannot change a result: file, line, its part before and after; and the reason."""
MAX_EQUIVALENT = 0.05

OTHERS = {
    "Lt": ("<", "<=", ">="),
    "LtE": ("<=", "<", ">"),
    "Gt": (">", ">=", "<="),
    "GtE": (">=", ">", "<"),
    "Eq": ("==", "!="),
    "NotEq": ("!=", "=="),
    "Is": ("is", "is not"),
    "IsNot": ("is not", "is"),
    "In": ("in", "not in"),
    "NotIn": ("not in", "in"),
    "And": ("and", "or"),
    "Or": ("or", "and"),
    "Add": ("+", "-"),
    "Sub": ("-", "+"),
    "Mult": ("*", "/"),
    "Div": ("/", "*"),
    "FloorDiv": ("//", "*"),
    "Mod": ("%", "*"),
    "Pow": ("**", "*"),
    "BitOr": ("|", "&"),
    "BitAnd": ("&", "|"),
}
"""Operators, and those that replace them."""
ORIGINAL = "original"
"""Folder of the copy that is not edited."""
PRELOADED = ["numpy", "scipy.stats", "rich.console", "msgspec"]
PAIRS = [("min", "max"), ("any", "all"), ("below", "above"), ("low", "high")]
OPPOSITES = dict(PAIRS) | {other: name for name, other in PAIRS}


class Mutant(NamedTuple):
    concept: str
    path: str
    line: int
    before: str
    after: str
    text: str
    """The edited file."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before}  ->  {self.after}"


def edits(node, span, raw):
    """Yield start, end and new text of each edit of a syntax tree; `span` gives bytes of a node."""

    def operator(first, second, kind):
        start, end = span(first)[1], span(second)[0]
        between = raw[start:end].decode()
        symbol, *others = OTHERS.get(type(kind).__name__, ("",))
        for other in others if "#" not in between else ():
            yield start, end, between.replace(symbol, other, 1)

    skipped = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    skipped += getattr(node, "decorator_list", [])
    match node:
        case ast.JoinedStr() | ast.keyword(arg="strict"):  # of `zip`, which only finds mistakes
            return
        case ast.Compare():
            operands = [node.left, *node.comparators]
            for first, second, kind in zip(operands, operands[1:], node.ops, strict=False):
                yield from operator(first, second, kind)
        case ast.BoolOp():
            for first, second in zip(node.values, node.values[1:], strict=False):
                yield from operator(first, second, node.op)
        case ast.BinOp() if not (is_text(node.left) or is_text(node.right)):
            yield from operator(node.left, node.right, node.op)
        case ast.AugAssign() if not is_text(node.value):
            yield from operator(node.target, node.value, node.op)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield *span(node), raw[slice(*span(node.operand))].decode()
        case ast.Constant(value=bool()):
            yield *span(node), str(not node.value)
        case ast.Constant(value=int()):
            yield *span(node), str(node.value + 1)
        case ast.Constant(value=float()):
            yield *span(node), repr(node.value * 2 or 1.0)
        case ast.Name(id=name, ctx=ast.Load()) if name in OPPOSITES:
            yield *span(node), OPPOSITES[name]
        case ast.Attribute(attr=name, ctx=ast.Load()) if name in OPPOSITES:
            yield span(node.value)[1], span(node)[1], f".{OPPOSITES[name]}"
        case ast.If(test=ast.Name("TYPE_CHECKING")):
            return
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) if isinstance(
            test, ast.Name | ast.Attribute | ast.Call
        ):
            yield *span(test), f"(not {raw[slice(*span(test))].decode()})"
        case ast.Expr(value=ast.Call()):
            yield *span(node), "pass"
        case ast.Return(value=ast.expr()) if not is_text(node.value):
            yield *span(node.value), "None"
    for child in ast.iter_child_nodes(node):
        if child not in skipped:
            yield from edits(child, span, raw)


def is_text(node):
    match node:
        case ast.JoinedStr() | ast.List() | ast.Constant(value=str()):
            return True
        case ast.BinOp(left=first, right=second) | ast.IfExp(body=first, orelse=second):
            return is_text(first) or is_text(second)
    return False


def mutants_of(concept, path, functions=""):
    """Return the mutants of a file, or of some of its functions and classes."""
    source = (ROOT / path).read_text(encoding="utf-8")
    raw = source.encode()
    starts = [0] + [match.end() for match in re.finditer(b"\n", raw)]

    def span(node):
        start = starts[node.lineno - 1] + node.col_offset
        return start, starts[node.end_lineno - 1] + node.end_col_offset

    tree = ast.parse(source)
    parts = [node for node in ast.walk(tree) if getattr(node, "name", "") in functions.split()]
    if len(parts) != len(functions.split()):
        sys.exit(f"{path} has not exactly one of each: {functions}")
    found = {}
    for part in parts or [tree]:
        for start, end, new in edits(part, span, raw):
            text = (raw[:start] + new.encode() + raw[end:]).decode()
            lines = zip(source.splitlines(), text.splitlines(), strict=False)
            changed = [
                (number, *pair) for number, pair in enumerate(lines, 1) if pair[0] != pair[1]
            ]
            if changed and is_python(text):
                number, before, after = changed[0]
                found[text] = Mutant(concept, path, number, before.strip(), after.strip(), text)
    return sampled(list(found.values()), MAX_OF_A_FILE)


def is_python(text):
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def sampled(mutants, count):
    return random.Random(SEED).sample(mutants, count) if len(mutants) > count else mutants


def mutants_of_a_run(names):
    """Return the mutants of these concepts in a whole run, those that are not equivalent."""
    groups = {False: [], True: []}
    for name, concept in CONCEPTS.items():
        if not (concept.is_sampled or name in names):
            continue
        for path, functions in concept.code.items():
            groups[concept.is_sampled] += mutants_of(name, path, functions)
    chosen = groups[False] + sampled(groups[True], SAMPLE)
    same = {(path, line, line.replace(old, new, 1)) for path, line, old, new, _ in EQUIVALENT}
    kept = [mutant for mutant in chosen if (mutant.path, mutant.before, mutant.after) not in same]
    if len(chosen) - len(kept) > MAX_EQUIVALENT * len(chosen):
        sys.exit(f"more than {MAX_EQUIVALENT:.0%} are listed as equivalent")
    return [mutant for mutant in kept if mutant.concept in names]


def preload(needs_torch):
    """Import what the tests import of other projects, so that each fork has it."""
    for name in [*PRELOADED, "torch"] if needs_torch else PRELOADED:
        importlib.import_module(name)
    for plugin in entry_points(group="pytest11"):
        if plugin.name != "roofmark":  # it imports the code that is edited
            plugin.load()


class Trial(NamedTuple):
    """Tests that run on a copy of the tree, in a process of their own."""

    mutant: Mutant | None
    process: int
    began_s: float


def tests_of(mutant):
    """Return the tests, those named like the file first."""
    stem = Path(mutant.path).stem
    return sorted(CONCEPTS[mutant.concept].tests, key=lambda path: stem not in path)


def start(copy, tests, mutant=None):
    """Start tests in a fork of this process, which has imported numpy and torch."""
    process = os.fork()
    if process:
        return Trial(mutant, process, time.monotonic())
    code = 3
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        os.chdir(copy)
        log = os.open(f"{copy}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        paths = [str(copy), str(copy / "bench" / "installed")]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        sys.path[:] = paths + [path for path in sys.path if path and Path(path) != ROOT]
        for name in list(sys.modules):
            if name.partition(".")[0] == "tests":
                del sys.modules[name]
        quiet = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", f"--basetemp={copy}.tmp"]
        code = importlib.import_module("pytest").main(quiet + tests)
    finally:
        os._exit(int(code))


def ended(trial, limit_s):
    """Return the exit code of the tests, None while they run; ends them after the time limit."""
    process, status = os.waitpid(trial.process, os.WNOHANG)
    is_late = time.monotonic() - trial.began_s > limit_s
    if not process and not is_late:
        return None
    with suppress(ProcessLookupError):
        os.killpg(trial.process, signal.SIGKILL)  # and all that the tests left behind
    if process:
        return os.waitstatus_to_exitcode(status)
    os.waitpid(trial.process, 0)
    return -1


def run_alone(copy, tests):
    trial = start(copy, tests)
    while (code := ended(trial, 1200)) is None:
        time.sleep(0.02)
    return code, time.monotonic() - trial.began_s


def write(copy, path, text):
    """Write a file without its bytecode, which would hide an edit of the same second and size."""
    for compiled in (copy / path).parent.glob(f"__pycache__/{Path(path).stem}.*"):
        compiled.unlink()
    (copy / path).write_text(text, encoding="utf-8")


def restore(copy, path):
    """Undo an edit; the working tree may have changed since the start."""
    write(copy, path, (copy.with_name(ORIGINAL) / path).read_text(encoding="utf-8"))


def seconds_of(concepts, copy):
    """Return the time of each concept's tests, which must pass and must import the code."""
    seconds = {}
    for name in concepts:
        concept = CONCEPTS[name]
        code, seconds[name] = run_alone(copy, concept.tests)
        if code != 0:
            sys.exit(f"tests of {name} fail without an edit:\n{Path(f'{copy}.log').read_text()}")
        for path in concept.code:
            write(copy, path, "raise ImportError")
            if run_alone(copy, concept.tests)[0] == 0:
                sys.exit(f"the tests of {name} do not import {path}")
            restore(copy, path)
        print(f"{name}: its tests take {seconds[name]:.1f} s", file=sys.stderr)
    return seconds


def survivors_of(mutants, copies, seconds):
    """Return the mutants that no test noticed; as many are tried at the same time as copies are."""
    waiting = list(reversed(mutants))
    trials = {}
    survivors = []
    try:
        while waiting or trials:
            for copy in copies:
                if copy in trials:
                    mutant = trials[copy].mutant
                    code = ended(trials[copy], 20 + 4 * seconds[mutant.concept])
                    if code is None:
                        continue
                    del trials[copy]
                    restore(copy, mutant.path)
                    if code == 0:
                        survivors.append(mutant)
                    done = len(mutants) - len(waiting) - len(trials)
                    fate = "survived" if code == 0 else "killed"
                    print(f"{done}/{len(mutants)} {fate} {mutant}", file=sys.stderr, flush=True)
                if waiting:
                    mutant = waiting.pop()
                    write(copy, mutant.path, mutant.text)
                    trials[copy] = start(copy, tests_of(mutant), mutant)
            time.sleep(0.02)
    finally:
        for trial in trials.values():  # after Ctrl-C or SIGTERM
            with suppress(ProcessLookupError):
                os.killpg(trial.process, signal.SIGKILL)
    return survivors


def report(mutants, survivors):
    """Print the counts and the survivors; return whether enough mutants were killed."""
    tried = Counter(mutant.concept for mutant in mutants)
    survived = Counter(mutant.concept for mutant in survivors)
    for name, count in tried.items():
        killed = count - survived[name]
        print(f"{name}: {killed} of {count} killed ({killed / count:.0%})")
        for mutant in survivors:
            if mutant.concept == name:
                print(f"    {mutant}")
    is_enough = True
    for is_sampled, least in MIN_KILLED.items():
        names = [name for name in tried if CONCEPTS[name].is_sampled == is_sampled]
        count = sum(tried[name] for name in names)
        killed = count - sum(survived[name] for name in names)
        is_enough = is_enough and killed >= least * count
        if count:
            print(f"{', '.join(names)}: {killed / count:.1%} killed, at least {least:.0%} expected")
    return is_enough


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--jobs", type=int, default=1, help="mutants tried at the same time")
    parser.add_argument("--concept", action="append", choices=CONCEPTS, help="default: all")
    parser.add_argument("--limit", type=int, help="number of mutants to sample from the whole run")
    options = parser.parse_args(arguments)
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the trials, as Ctrl-C does
    whole = mutants_of_a_run(options.concept or CONCEPTS)
    mutants = sampled(whole, options.limit) if options.limit else whole
    preload(needs_torch=any(mutant.path.startswith("bench") for mutant in mutants))
    with tempfile.TemporaryDirectory() as folder:
        original, *copies = (
            Path(folder) / name for name in [ORIGINAL, *map(str, range(options.jobs))]
        )
        shutil.copytree(ROOT, original, ignore=shutil.ignore_patterns(".*", "__pycache__", "runs"))
        shutil.copytree(original, copies[0])
        seconds = seconds_of(dict.fromkeys(mutant.concept for mutant in mutants), copies[0])
        for copy in copies[1:]:
            shutil.copytree(copies[0], copy)
        begin_s = time.monotonic()
        survivors = survivors_of(mutants, copies, seconds)
        minutes = (time.monotonic() - begin_s) / 60
    is_enough = report(mutants, survivors)
    estimate = minutes * len(whole) / len(mutants)
    print(f"{minutes:.1f} minutes; {estimate:.0f} would be needed for {len(whole)} mutants")
    return 0 if is_enough else 1


if __name__ == "__main__":
    sys.exit(main())
