"""Bytes and FLOPs of single operations, compared with values computed by hand."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import bench
from bench.profiling.counts import RULES, count
from bench.profiling.products import grouped_flops
from roofline.work import Work


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.counts = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.counts.append(count(func, args, kwargs or {}, result))
        return result


def counted(function, *args):
    with torch.no_grad(), Counting() as seen:
        function(*args)
    return seen.counts


def moved(function, *args):
    counts = counted(function, *args)
    return sum(operation.bytes_read for operation in counts), sum(
        operation.bytes_written for operation in counts
    )


def floats(*shape):
    return torch.ones(shape)


X, SAME = floats(8, 16), floats(8, 16)
ADAMW = [[floats(10)], [floats(10)], [floats(10)], [floats(10)], [], [torch.ones(())]]

CASES = {
    "two inputs": (lambda: X + SAME, 1024, 512),
    "one input twice": (lambda: X + X, 512, 512),
    "a broadcast row": (lambda: X + floats_row, 512 + 64, 512),
    "a copy of what was expanded": (lambda: floats_row.expand(8, 16).clone(), 64, 512),
    "transpose itself": (lambda: X.t(), 0, 0),
    "a copy of a transpose": (lambda: X.t().clone(memory_format=torch.contiguous_format), 512, 512),
    "slices that overlap": (lambda: line[0:6] + line[4:10], 40, 24),
    "every other column": (lambda: X[:, ::2] + 1, 256, 256),
    "windows that overlap": (lambda: line.unfold(0, 4, 1).sum(), 40, 4),
    "in place": (lambda: X.clone().add_(SAME), 512 + 1024, 512 + 512),
    "fill_": (lambda: X.new_empty(8, 16).fill_(1), 0, 512),
    "into out": (lambda: torch.add(X, SAME, out=buffer), 1024, 512),
    "three rows of an embedding": (lambda: torch.embedding(table, rows), 3 * 64 + 24, 3 * 64),
    "a column of rows and columns set": (
        lambda: table.index_put_((rows[:, None], columns), zero),
        24 + 16 + 4,
        24,
    ),
    "more rows than there are": (
        lambda: torch.embedding(square[:2], repeated),
        2 * 64 + 64,
        8 * 64,
    ),
    "gather": (lambda: table.gather(0, rows[:, None]), 12 + 24, 12),
    "rows added in place": (lambda: table.index_put_((rows,), X[:3], True), 24 + 192 + 192, 192),
    "cat": (lambda: torch.cat([X, SAME]), 1024, 1024),
    "a product": (lambda: X @ square, 512 + 1024, 512),
    "bf16 from fp32": (lambda: X.to(torch.bfloat16), 512, 256),
    "cross-entropy picks": (
        lambda: torch.ops.aten.nll_loss_forward(X, labels, None, 1, -100),
        32 + 64,
        8,
    ),
    "AdamW step": (lambda: adamw(), 4 * 40 + 4, 3 * 40),
}
floats_row, line, buffer = floats(16), floats(10), floats(8, 16)
table, rows, square = floats(100, 16), torch.tensor([3, 7, 50]), floats(16, 16)
repeated = labels = torch.zeros(8, dtype=torch.int64)
columns, zero = torch.tensor([0, 2]), torch.zeros(())


def adamw():
    options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8}
    torch.ops.aten._fused_adamw_(*ADAMW, **options, amsgrad=False, maximize=False)


@pytest.mark.parametrize("case", CASES)
def test_bytes_agree_with_counts_by_hand(case):
    function, read, written = CASES[case]
    assert moved(function) == (read, written)


@pytest.mark.parametrize(
    ("function", "flops", "products"),
    [
        (lambda: X @ square, 2 * 8 * 16 * 16, 2 * 8 * 16 * 16),
        (lambda: X + SAME, 128, 0),
        (lambda: torch.nn.functional.gelu(X), 20 * 128, 0),
        (lambda: X.sum(), 128, 0),
        (lambda: X.clone(), 0, 0),
        (lambda: labels + labels, 0, 0),
        (lambda: torch._foreach_add([X, X], 1.0), 256, 0),
    ],
)
def test_flops_agree_with_counts_by_hand(function, flops, products):
    counts = counted(function)
    assert sum(operation.flops for operation in counts) == flops
    assert sum(operation.matmul_flops for operation in counts) == products
    assert all(operation.is_modelled for operation in counts)


@pytest.mark.parametrize(
    ("first", "second", "flops"),
    [
        ((5, 3), (4, 3, 7), 2 * 5 * 3 * 7),  # tokens by expert, times a matrix each
        ((4, 5, 3), (4, 3, 7), 2 * 4 * 5 * 3 * 7),  # as many for each
        ((3, 5), (5, 7), 2 * 3 * 5 * 7),  # gradients of the matrices
    ],
)
def test_grouped_matmul_flops_use_one_matrix_per_token(first, second, flops):
    assert grouped_flops({"self": floats(*first), "mat2": floats(*second)}, None) == flops


@pytest.fixture(params=[torch.library.custom_op, torch.library.triton_op])
def double(request):
    """Return the name and function of a custom operation, which on a GPU would be a Triton
    kernel.
    """
    name = f"roofmark_test::double_by_{request.param.__name__}"

    @request.param(name, mutates_args=())
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    yield name, function
    RULES.clear()


def test_a_custom_operation_has_its_declared_work(double):
    name, function = double
    (before,) = counted(function, X)
    assert not before.is_modelled
    bench.declare_work(name, lambda x: Work(2 * x.numel(), 100, 50))
    (found,) = counted(function, X)
    assert (found.flops, found.matmul_flops, found.bytes_read, found.bytes_written) == (
        256,
        0,
        100,
        50,
    )
    assert found.is_modelled
    bench.declare_work(name, lambda x: Work(2 * x.numel(), 100, 50), is_product=True)
    assert counted(function, X)[0].matmul_flops == 256


def test_invalid_work_declarations_are_rejected(double):
    name, function = double
    for bad in ("aten::mm", "double"):
        with pytest.raises(ValueError, match="not the name of your own"):
            bench.declare_work(bad, lambda x: Work(1, 1, 1))
    bench.declare_work(name, lambda x: 3)
    with pytest.raises(TypeError, match="got int"):
        counted(function, X)


def test_operations_without_a_rule_are_not_modelled():
    assert not counted(lambda: torch.linalg.eigh(square))[0].is_modelled
