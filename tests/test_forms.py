"""Forms of code that a reader has to decode, and that no rule of ruff finds."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = [
    path
    for package in ("bench", "kernels", "roofline", "results")
    for path in sorted((ROOT / package).rglob("*.py"))
    if not path.is_relative_to(ROOT / "results" / "runs")
]
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
MAX_NESTED_LOOPS = 25
"""Comprehensions with several `for`, over plain grids of cases."""
MAX_PAIRS_PER_1000 = 6
"""Tuple assignments per 1,000 statements: swaps, and pairs that are one thing."""


def fills_a_line(node):
    """`*("a", "b")` in a literal or a call, and `**{...}`."""
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return any(key is None and isinstance(value, ast.Dict) for key, value in pairs)
    if isinstance(node, ast.Call):
        packed = [keyword.value for keyword in node.keywords if keyword.arg is None]
        return any(isinstance(value, ast.Dict) and has_fixed_keys(value) for value in packed)
    return isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple | ast.List | ast.Set)


def has_fixed_keys(node):
    return all(isinstance(key, ast.Constant) for key in node.keys)


def is_text(node):
    is_literal = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_literal or isinstance(node, ast.JoinedStr)


def is_truth(node):
    is_call = isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("bool", "not")
    is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return isinstance(node, ast.Compare | ast.BoolOp) or is_call or is_not


def is_text_times_truth(node):
    """`"s" * (count != 1)`."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return False
    sides = (node.left, node.right)
    return any(map(is_text, sides)) and any(map(is_truth, sides))


def is_nested_condition(node):
    """`a if x else b if y else c`."""
    return isinstance(node, ast.IfExp) and any(
        isinstance(part, ast.IfExp) for part in (node.body, node.orelse)
    )


def hides_an_if(node):
    """`for x in xs if is_asked else ():`."""
    is_loop = isinstance(node, ast.For | ast.comprehension)
    if not (is_loop and isinstance(node.iter, ast.IfExp)):
        return False
    sides = (node.iter.body, node.iter.orelse)
    return any(isinstance(side, ast.Tuple | ast.List) and not side.elts for side in sides)


def works_in_a_list(node):
    """`[x := make(), change(x), x][-1]`."""
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.List)
        and any(isinstance(part, ast.NamedExpr) for part in ast.walk(node.value))
    )


def has_several_loops(node):
    return isinstance(node, COMPREHENSIONS) and len(node.generators) > 1


def assigns_a_tuple(node):
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
    )


@pytest.fixture(scope="module")
def nodes():
    """Return all nodes of the product with their files."""
    found = []
    for path in FILES:
        name = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found.append((name, node))
    return found


def places(nodes, form):
    return [f"{name}:{node.lineno}" for name, node in nodes if form(node)]


FORBIDDEN = (fills_a_line, is_text_times_truth, is_nested_condition, hides_an_if, works_in_a_list)


@pytest.mark.parametrize("form", FORBIDDEN, ids=lambda form: form.__name__)
def test_no_statement_has_this_form(nodes, form):
    assert places(nodes, form) == []


def test_few_comprehensions_have_several_loops(nodes):
    found = places(nodes, has_several_loops)
    assert len(found) <= MAX_NESTED_LOOPS, found


def test_few_assignments_pack_tuples(nodes):
    found = places(nodes, assigns_a_tuple)
    statements = sum(isinstance(node, ast.stmt) for _, node in nodes)
    assert len(found) <= MAX_PAIRS_PER_1000 * statements / 1000, found
