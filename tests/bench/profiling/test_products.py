"""Matmul FLOPs and bytes of calls, compared with values computed by hand; the formula of each is
beside it.

Most are the inputs of public reports about other counters, named by their issue.
"""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import flex_attention
from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula

from bench.profiling.counts import count
from bench.profiling.step import ProfiledStep, counted
from bench.profiling.target import target_of


def operations_of(function, *args, mode="forward"):
    return counted(ProfiledStep(target_of("step", function, args), mode)).operations


def products_of(function, *args, mode="forward"):
    return sum(each.matmul_flops for each in operations_of(function, *args, mode=mode))


def unknown_of(operations):
    return [each.op for each in operations if not each.is_modelled]


def moved(function, *args):
    operations = operations_of(function, *args)
    assert not unknown_of(operations)
    return sum(each.bytes_read for each in operations), sum(
        each.bytes_written for each in operations
    )


class Inference(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 256)
        self.norm = nn.LayerNorm(256)

    @torch.inference_mode()
    def forward(self, x):
        return self.norm(self.linear(x))


def test_operations_under_inference_mode_are_decomposed():  # pytorch#126268
    operations = operations_of(Inference(), torch.randn(64, 256))
    assert sum(each.matmul_flops for each in operations) == 2 * 64 * 256 * 256
    assert not unknown_of(operations)
    assert {each.module for each in operations if each.flops} == {"linear", "norm"}


def test_operations_on_inference_tensors_are_decomposed():
    with torch.inference_mode():
        x = torch.randn(64, 256)
    operations = operations_of(nn.LayerNorm(256), x)
    assert [each.op for each in operations if each.flops] == ["aten.native_layer_norm"]


@pytest.mark.parametrize(
    ("convolution", "channels", "backward"),
    [
        # 2 gradients x 2 x 64 channels x 256 positions x 9 weights of a filter: pytorch#183405
        (nn.Conv2d(64, 64, 3, padding=1, groups=64), 64, 589_824),
        (nn.Conv2d(8, 16, 3, padding=1), 8, 2 * 2 * 16 * 256 * 8 * 9),
        (nn.ConvTranspose2d(8, 16, 3, padding=1, groups=2), 8, 2 * 2 * 8 * 256 * 8 * 9),
    ],
)
def test_gradients_of_a_convolution_count_the_pairs_of_the_forward_pass(
    convolution, channels, backward
):
    x = torch.randn(1, channels, 16, 16, requires_grad=True)
    assert products_of(convolution, x) == backward // 2
    assert products_of(convolution, x, mode="backward") == backward // 2 + backward


def test_complex_numbers_count_four_real_multiply_adds():
    x = torch.randn(4, 5, dtype=torch.complex64)
    y = torch.randn(5, 6, dtype=torch.complex64)
    assert products_of(torch.mm, x, y) == 8 * 4 * 5 * 6
    for function, flops in ((torch.mul, 6 * 20), (torch.add, 2 * 20)):
        assert sum(each.flops for each in operations_of(function, x, x)) == flops
    assert sum(each.flops for each in operations_of(torch.mv, x, y[:, 0])) == 8 * 4 * 5
    assert sum(each.flops for each in operations_of(torch.mul, x, x.real)) == 2 * 20


def dynamic(layer):
    quantize = torch.ao.quantization.quantize_dynamic
    return quantize(nn.ModuleList([layer]), {type(layer)}, dtype=torch.qint8)[0]


def int8(*shape):
    return torch.ones(shape, dtype=torch.int8)


def encoder_with_padding(x, mask):
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 2).eval()(x, src_key_padding_mask=mask)


def attention_of_sequences(*sequences):
    x = torch.nested.nested_tensor(list(sequences), layout=torch.jagged).transpose(1, 2)
    return functional.scaled_dot_product_attention(x, x, x)


CASES = {
    # 2 x 32 tokens x (3 x 32 x 32 + 32 x 32 + 2 x 32 x 64) + 4 x 2 x 16 x 16 x 32: fvcore#153
    "encoder layer": (
        lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval(),
        (torch.randn(2, 16, 32),),
        589_824,
    ),
    "multi-head attention": (
        lambda: nn.MultiheadAttention(32, 4, batch_first=True).eval(),
        (torch.randn(2, 16, 32),) * 3,
        327_680,
    ),
    # 2 x 15 tokens x 80 x (10 + 20): fvcore#98
    "LSTM": (lambda: nn.LSTM(10, 20), (torch.randn(5, 3, 10),), 72_000),
    # 2 x 15 tokens x 60 x (10 + 20): calflops#55
    "GRU": (lambda: nn.GRU(10, 20), (torch.randn(5, 3, 10),), 54_000),
    "int8": (lambda: torch._int_mm, (int8(32, 16), int8(16, 32)), 32_768),
    "int8 weights": (
        lambda: torch._weight_int8pack_mm,
        (torch.ones(4, 16, dtype=torch.bfloat16), int8(8, 16), torch.ones(8).bfloat16()),
        1_024,
    ),
    "triangular solve": (
        lambda: lambda a, b: torch.linalg.solve_triangular(a, b, upper=True),
        (torch.eye(8), torch.ones(8, 3)),
        8 * 8 * 3,
    ),
    "sparse COO": (
        lambda: torch.sparse.mm,
        (torch.eye(8).to_sparse(), torch.ones(8, 4)),
        2 * 8 * 4,
    ),
    "sparse CSR": (
        lambda: torch.matmul,
        (torch.eye(8).to_sparse_csr(), torch.ones(8, 4)),
        2 * 8 * 4,
    ),
    "jagged": (
        lambda: nn.Linear(8, 6),
        (torch.nested.nested_tensor([torch.ones(3, 8), torch.ones(5, 8)], layout=torch.jagged),),
        2 * 8 * 8 * 6,
    ),
    "nested": (
        lambda: nn.Linear(8, 6),
        (torch.nested.nested_tensor([torch.ones(3, 8), torch.ones(5, 8)]),),
        2 * 8 * 8 * 6,
    ),
    # 16 + 9 tokens x 2 x (4 x 32 x 32 + 2 x 32 x 64) + 4 x 32 x (16 x 16 + 9 x 9), of each layer
    "encoder with padding": (
        lambda: encoder_with_padding,
        (torch.randn(2, 16, 32), torch.arange(16) >= torch.tensor([[16], [9]])),
        2 * 452_736,
    ),
    # 4 x 2 heads x (3 x 3 + 5 x 5) x 8
    "attention of nested sequences": (
        lambda: attention_of_sequences,
        (torch.randn(3, 2, 8), torch.randn(5, 2, 8)),
        4 * 2 * 34 * 8,
    ),
    # The branch that runs: pytorch#167224
    "cond": (
        lambda: lambda x: torch.cond(x.sum() > 0, lambda x: x @ x @ x, lambda x: x @ x, (x,)),
        (torch.ones(4, 4),),
        2 * 2 * 64,
    ),
    "flex attention": (
        lambda: lambda x: flex_attention.flex_attention(x, x, x),
        (torch.ones(1, 2, 16, 8),),
        2 * 2 * 2 * 16 * 16 * 8,
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_products_agree_with_counts_by_hand(case):
    if case == "flex attention" and torch.__version__ < "2.13":
        pytest.skip("torch 2.11 runs flex attention where no dispatch mode sees it")
    make, args, flops = CASES[case]
    operations = operations_of(make(), *args)
    assert sum(each.matmul_flops for each in operations) == flops
    assert not unknown_of(operations)


def quantized_convolution():
    weight = torch.quantize_per_tensor(torch.ones(8, 4, 3, 3), 0.1, 0, torch.qint8)
    packed = torch.ops.quantized.conv2d_prepack(weight, None, [1, 1], [0, 0], [1, 1], 2)
    quantize = partial(torch.quantize_per_tensor, scale=0.1, zero_point=0, dtype=torch.quint8)
    return lambda x: torch.ops.quantized.conv2d(quantize(x), packed, 0.1, 0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "shape", "flops"),
    [
        (lambda: dynamic(nn.Linear(16, 8)), (4, 16), 2 * 4 * 16 * 8),
        (lambda: dynamic(nn.GRUCell(8, 16)), (3, 8), 2 * 3 * 48 * 24),
        (lambda: dynamic(nn.LSTM(8, 16)), (5, 3, 8), 2 * 15 * 64 * 24),
        (quantized_convolution, (1, 8, 14, 14), 2 * 144 * 8 * 36),
    ],
)
def test_a_quantized_layer_is_counted(make, shape, flops):
    operations = operations_of(make(), torch.ones(shape))
    assert not unknown_of(operations)
    assert sum(each.matmul_flops for each in operations) == flops
    if shape == (4, 16):  # rows of fp32, the int8 matrix, its fp32 bias
        assert sum(each.bytes_read for each in operations) == 4 * 16 * 4 + 8 * 16 + 8 * 4


def spread(*shape):
    return torch.randn(shape, requires_grad=True)


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x @ x

    @staticmethod
    def backward(context, gradient):
        return gradient @ gradient + gradient @ gradient


def square(x):
    return x @ x


LINEAR = nn.Linear(8, 6)
AS_TORCH = {
    "gradient": (
        lambda x: torch.func.grad(lambda y: square(y).sum())(x.detach()).sum() + (x @ x),
        spread(3, 3),
    ),
    "expanded bmm": (lambda x, y: x.expand(7, 4, 6) @ y, spread(1, 4, 6), spread(7, 6, 7)),
    "dilated conv2d": (
        lambda x, w: functional.conv2d(x, w, stride=2, dilation=2),
        spread(2, 3, 9, 9),
        spread(6, 3, 3, 3),
    ),
    "transposed conv2d": (
        lambda x, w: functional.conv_transpose2d(x, w, stride=2),
        spread(2, 3, 4, 4),
        spread(3, 5, 3, 3),
    ),
    "function": (Squared.apply, spread(5, 5)),
    "vmap": (lambda x: torch.vmap(lambda row: LINEAR(row))(x), spread(4, 8)),
    "jacobian": (lambda x: torch.func.jacrev(square)(x.detach()).sum() + (x @ x), spread(3, 3)),
    "checkpoint": (
        lambda x: torch.utils.checkpoint.checkpoint(LINEAR, x, use_reentrant=True),
        spread(4, 8),
    ),
}


@pytest.mark.parametrize("case", AS_TORCH)
def test_products_are_those_of_torch(case):
    function, *args = AS_TORCH[case]
    for mode in ("forward", "backward"):
        with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(mode != "forward"):
            result = function(*args)
            if mode == "backward":
                result.sum().backward()
        assert counter.get_total_flops() > 0
        assert products_of(function, *args, mode=mode) == counter.get_total_flops()


def test_a_formula_that_is_registered_with_torch_counts():
    name = "roofmark_test::formula"

    @torch.library.custom_op(name, mutates_args=())
    def formula(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    register_flop_formula(torch.ops.roofmark_test.formula)(lambda shape, **_: 5)
    try:
        assert products_of(formula, torch.ones(3)) == 5
    finally:
        del flop_registry[torch.ops.roofmark_test.formula]


def test_gradients_of_a_recurrent_layer_are_counted():
    x = torch.randn(5, 3, 10, requires_grad=True)
    assert products_of(nn.LSTM(10, 20), x, mode="backward") == 3 * 72_000


def test_an_embedding_bag_reads_the_rows_of_its_indices():
    bag = nn.EmbeddingBag(1000, 64, mode="sum")
    operations = operations_of(bag, torch.arange(20), torch.tensor([0, 5, 10, 15]))
    assert not unknown_of(operations)
    # 20 rows of 64 fp32 values, and the int64 indices and offsets.
    assert sum(each.bytes_read for each in operations) == 20 * 64 * 4 + 20 * 8 + 4 * 8
    assert sum(each.flops for each in operations) == 20 * 64


def test_the_bytes_of_a_sparse_matrix_are_its_values_and_indices():
    read, written = moved(torch.matmul, torch.eye(8).to_sparse_csr(), torch.ones(8, 4))
    assert read == 8 * 4 + 8 * 8 + 9 * 8 + 8 * 4 * 4  # values, columns, row starts, the matrix
    assert written == 8 * 4 * 4


TABLE = torch.zeros(100, 16)
ROW = torch.tensor([3])
SOURCE = torch.zeros(1, 1)


@pytest.mark.parametrize(
    ("function", "read", "written"),
    [
        (lambda: TABLE.index_copy_(0, ROW, TABLE[:1].clone()), 8 + 64 + 64, 64 + 64),
        (lambda: TABLE.scatter_(0, ROW[:, None], 1.0), 8, 4),
        (lambda: TABLE.scatter_add_(0, ROW[:, None], SOURCE), 8 + 4 + 4, 4),
        (lambda: TABLE.index_fill_(0, ROW, 1.0), 8, 64),
        (lambda: TABLE.put_(ROW, SOURCE), 8 + 4, 4),
        (lambda: TABLE.take(ROW), 8 + 4, 4),
        (lambda: torch.unsafe_split(TABLE, 10), 0, 0),
        (lambda: TABLE.detach().transpose_(0, 1), 0, 0),
        (lambda: TABLE.detach_(), 0, 0),
    ],
)
def test_what_is_overwritten_is_not_read(function, read, written):
    assert moved(function) == (read, written)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Hardswish(),
        nn.ELU(),
        nn.LeakyReLU(),
        nn.PReLU(),
        nn.GLU(),
        nn.ReflectionPad2d(1),
        nn.AdaptiveMaxPool2d(2),
        nn.Upsample(scale_factor=2, mode="nearest-exact"),
    ],
)
def test_common_layers_have_rules(layer):
    assert not unknown_of(operations_of(layer, spread(2, 4, 8, 8), mode="backward"))


def test_an_operation_that_cannot_be_counted_is_a_row_without_a_rule():
    x = torch.ones(4, 4).to_mkldnn()
    operations = operations_of(lambda x: x.to_dense() + 1, x)
    assert unknown_of(operations) == ["aten._to_dense"]
    assert operations[-1].op == "aten.add"


@pytest.mark.parametrize(("queries", "keys", "pairs"), [(8, 8, 36), (4, 8, 10), (8, 4, 26)])
def test_causal_attention_has_the_flops_of_every_pair_and_of_those_that_run(queries, keys, pairs):
    q = torch.ones(1, 2, queries, 16)
    kv = torch.ones(1, 2, keys, 16)
    (operation,) = [
        each
        for each in operations_of(
            lambda: functional.scaled_dot_product_attention(q, kv, kv, is_causal=True)
        )
        if each.flops
    ]
    assert operation.matmul_flops == 4 * 2 * queries * keys * 16
    assert operation.flops == 4 * 2 * pairs * 16


@pytest.mark.parametrize(("keys", "flops"), [(128, 134_217_728), (256, 268_435_456)])
@pytest.mark.parametrize("options", [{"is_causal": True}, {"dropout_p": 0.5}, {}])
def test_attention_has_the_flops_of_torch_s_own_tests(keys, flops, options):
    """Source: test/test_flop_counter.py of torch; its counter answers 0 on a CPU."""
    query, key = spread(4, 8, 128, 64), spread(4, 8, keys, 64)
    attention = partial(functional.scaled_dot_product_attention, **options)
    assert products_of(attention, query, key, key) == flops
    assert products_of(attention, query, key, key, mode="backward") == 3 * flops


def test_attention_with_a_mask_one_head_of_keys_and_narrow_values():
    query, key, value = spread(2, 4, 8, 16), spread(2, 1, 6, 16), spread(2, 1, 6, 4)
    mask = torch.ones(8, 6, dtype=torch.bool)
    attention = partial(functional.scaled_dot_product_attention, attn_mask=mask, enable_gqa=True)
    assert products_of(attention, query, key, value) == 2 * 2 * 4 * 8 * 6 * (16 + 4)


def test_packed_sequences_count_as_of_their_longest_length():
    x = torch.empty(32, 4, 8, device="meta")  # two sequences of up to 16 tokens, 4 heads
    ends = torch.empty(3, dtype=torch.int32, device="meta")
    func = torch.ops.aten._flash_attention_forward.default
    args = (x, x, x, ends, ends, 16, 16, 0.0, True, False)
    operation = count(func, args, {}, func(*args))
    assert operation.flops == operation.matmul_flops == 4 * 2 * 4 * 16 * 16 * 8
