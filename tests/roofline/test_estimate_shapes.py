"""Intensity of operations, einsums, views and copies: the values of CS336 lecture 2, and those of
torch.
"""

import json
import random

import pytest
import torch
from test_estimate import call, data_of, text_of

import roofline
from bench.__main__ import families
from bench.harness.op import Case
from roofline.accounting.config import ConfigError
from roofline.accounting.strides import after, dense_strides
from roofline.estimate.ladder import LADDER, OPERATIONS
from roofline.picture.charts import draw_lines


def test_the_ladder_reaches_the_ridge_with_a_matmul_of_886(capsys):
    data = data_of(capsys, "intensity --gpu h100-sxm")
    rows = {(row["op"], row["shape"]): row for row in data["rows"]}
    by_op = {row["op"]: row["intensity"] for row in data["rows"]}
    assert (by_op["relu"], by_op["gelu"]) == (0.25, 5)
    assert by_op["dot"] == pytest.approx(0.5, rel=1e-6)
    assert by_op["matvec"] == pytest.approx(1, rel=1e-3)
    at_ridge = rows["matmul", "886x886x886"]
    assert int(data["ridge"]) == int(at_ridge["intensity"]) == 295
    # 885 has 295, below the ridge.
    assert data["ridge"] < at_ridge["intensity"] < data["ridge"] + 1 / 3
    assert at_ridge["attainable_flops_per_s"] == 989.4e12
    assert rows["relu", "4096x4096"]["attainable_flops_per_s"] == pytest.approx(0.25 * 3.352e12)
    assert [row["bound"] for row in data["rows"]] == ["memory"] * 5 + ["mixed", "compute"]
    keys = {
        "op",
        "shape",
        "dtype",
        "flops",
        "bytes",
        "intensity",
        "bound",
        "attainable_flops_per_s",
    }
    assert keys <= set(data["rows"][0])


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_ladder_counts_the_work_that_is_measured(dtype):
    ops = {op.name: op for family in families().values() for op in family}
    rows = roofline.estimate.intensity(
        gpu="h100-sxm", shape=96, dtype=dtype, op=list(OPERATIONS)
    ).rows
    options = {"batch": 1, "heads": 32, "kv-heads": 8, "head-dim": 128}
    options |= {"experts": 8, "load": "even", "model": "llama-3-8b", "layers": "all"}
    for row in rows:
        op = ops[row["op"]]
        shape = dict.fromkeys(op.axes, 96) | ({"b": 1} if row["shape"] == "96" else {})
        work = op.work(Case(op.name, dtype, shape, options))
        assert (row["flops"], row["bytes"]) == (work.flops, work.bytes), op.name
    assert OPERATIONS.keys() <= ops.keys()


@pytest.mark.parametrize("name", ["fleet", "transfer"])
def test_what_has_no_intensity_says_why(name):
    """They are in `bench list`, and are no operations."""
    with pytest.raises(ConfigError, match=rf"unknown '{name}'; .* \(choose from relu") as raised:
        roofline.estimate.intensity(gpu="h100-sxm", op=name)
    assert "python -m bench" in str(raised.value) or "bench.fleet measures" in str(raised.value)


def test_the_ladder_is_drawn_under_the_roof_of_its_machine(tmp_path):
    path = tmp_path / "ladder.svg"
    # A copy has no FLOPs, so it has no place on logarithmic axes.
    ops = ",".join([*LADDER, "copy"])
    assert call("intensity", "--gpu", "h100-sxm", "--op", ops, "--plot", str(path)) == 0
    drawn = path.read_text()
    assert all(
        name in drawn
        for name in ("roofline of h100-sxm in bf16", "gelu 4096x4096", "matmul 886x886x886")
    )


def test_an_index_has_a_position_and_a_picture_shows_the_strides(capsys):
    """Element (1, 2) of 4 x 4 is the seventh in storage."""
    data = data_of(capsys, "tensor --shape 4x4 --index 1,2")
    assert data["position"] == torch.zeros(4, 4)[1, 2].storage_offset() == 6
    assert "1 x 4 + 2 x 1" in text_of(capsys, "tensor --shape 4x4 --index 1,2")
    for index in ("1,4", "1,2,3", "1,:", "-1", "1,x"):
        with pytest.raises(ConfigError, match=r"does not fit a tensor|is not an index such as 1,2"):
            roofline.estimate.tensor(shape="4x4", index=index)
    curve = roofline.estimate.tensor(shape="3x4", then="transpose,[2:]").curve
    for row, points in enumerate(curve.lines.values()):
        view = torch.zeros(3, 4).T[2:][row]
        assert points == [(place, element.storage_offset()) for place, element in enumerate(view)]
    assert len(curve.lines) == 2
    [axes] = draw_lines("strides", curve.x, curve.y, curve.lines).axes
    assert all(tick == round(tick) for tick in axes.get_xticks())


def test_more_rows_raise_the_intensity_of_a_matmul(capsys):
    """x (rows, 4096) W (4096, 4096): at one row it is a matrix-vector product."""
    words = "sweep matmul --shape 1x4096x4096 --gpu h100-sxm --over rows=1:4096:x16"
    rows = json.loads(text_of(capsys, f"{words} --format json"))["rows"]
    assert [row["rows"] for row in rows] == [1, 16, 256, 4096]
    assert [row["intensity"] for row in rows] == pytest.approx([1, 15.88, 227.6, 1365], rel=1e-3)
    assert [row["bound"] for row in rows] == ["memory"] * 3 + ["compute"]


EINSUMS = {
    # x[4, 8, 16, 32] @ w[32, 2] of the study notes: w is read once, not 32 times
    ("a b c d, d e -> a b c e", "a=4,b=8,c=16,d=32,e=2", "bf16"): (65_536, 34_944),
    # As in torch, the result may be left out.
    ("bsh,hk", "b=4,s=8,h=16,k=32", "bf16"): (32_768, 4_096),
    ("...ij,jk->...ik", "...=32,i=16,j=32,k=2", "bf16"): (65_536, 34_944),
    (
        "batch seq1 hidden, batch seq2 hidden -> batch seq1 seq2",
        "batch=2,seq1=3,seq2=3,hidden=4",
        "fp32",
    ): (144, 264),
    ("hidden,hidden->", "hidden=10", "bf16"): (20, 42),
}


@pytest.mark.parametrize(("words", "counts"), EINSUMS.items())
def test_an_einsum_reads_each_operand_once(words, counts):
    einsum, sizes, dtype = words
    values = roofline.estimate.matmul(einsum=einsum, sizes=sizes, dtype=dtype).values
    assert (values["flops"], values["bytes"]) == counts
    timed = roofline.estimate.matmul(einsum=einsum, sizes=sizes, dtype=dtype, gpu="h100-sxm")
    assert timed.values["seconds"] == counts[1] / 3.352e12


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"einsum": "i j -> i", "sizes": "i=1,j=2"}, "is not an einsum of two operands"),
        (
            {"einsum": "ij,jk->iq", "sizes": "i=1,j=2,k=2,q=2"},
            "is not an einsum: Output character 'q'",
        ),
        (
            {"einsum": "i j, j k -> i k", "sizes": "i=1,j=2"},
            "index 'k' has no size; --sizes has i, j",
        ),
        ({"einsum": "i j, j k -> i", "sizes": "i=1,j=2,k=2"}, "index 'k' must be in two"),
        ({"einsum": "i, j -> i j", "sizes": "i=1,j=2"}, "sums over no index"),
        ({"einsum": "i, i ->", "sizes": "i"}, "is not a list of sizes"),
        ({"einsum": "i, i ->", "sizes": "i=2", "batch": 2}, "expected --shape MxNxK"),
    ],
)
def test_a_product_that_is_not_one_is_one_line(options, said):
    with pytest.raises(ConfigError, match=said) as raised:
        roofline.estimate.matmul(**options)
    assert "\n" not in str(raised.value)


def test_a_transposed_tensor_is_copied_to_be_reshaped(capsys):
    data = data_of(capsys, "tensor --shape 4x8 --then transpose,reshape,[0:4],contiguous")
    assert [
        (step["op"], step["result"], step["strides"], step["bytes_copied"]) for step in data["rows"]
    ] == [
        ("transpose", "view", [1, 8], 0),
        ("reshape", "copy", [1], 128),
        ("[0:4]", "view", [1], 0),
        ("contiguous", "view", [1], 0),
    ]
    assert data["copied_bytes"] == data["bytes"] == 128
    assert call("tensor", "--shape", "4x8", "--then", "transpose,view:32") == 2
    assert (
        "view:32 of a tensor of 8x4 with strides 1, 8 is an error in torch"
        in capsys.readouterr().err
    )


REJECTED = "flip transpose:0 transpose:0:2 permute:0:0 reshape:5 reshape:0x8 reshape:-1x-1 view:x"


@pytest.mark.parametrize(
    "operation", [*REJECTED.split(), "[4]", "[::-1]", "[2:2]", "[0,0,0]", "[a]"]
)
def test_an_operation_that_torch_rejects_is_one_line(operation):
    with pytest.raises(
        ConfigError, match="does not fit a tensor of 4x8 with strides 8, 1"
    ) as raised:
        roofline.estimate.tensor(shape="4x8", then=operation)
    assert "\n" not in str(raised.value)


def test_views_and_copies_are_those_of_torch():
    dice = random.Random(0)
    seen = {"view": 0, "copy": 0, "error": 0}
    for _ in range(400):
        shape = tuple(dice.choices((1, 2, 3, 4), k=3))
        start = 0
        strides, theirs = dense_strides(shape), torch.empty(shape, device="meta")
        for _ in range(4):
            if not theirs.dim():
                break
            operation, function = random_operation(dice, theirs)
            try:
                result = function(theirs)
            except RuntimeError:
                seen["error"] += 1
                with pytest.raises(ConfigError):
                    after(operation, shape, strides)
                continue
            shape, strides, is_copy, skipped = after(operation, shape, strides)
            start = 0 if is_copy else start + skipped
            shares = result.untyped_storage()._cdata == theirs.untyped_storage()._cdata
            assert (shape, strides, is_copy, start) == (
                tuple(result.shape),
                result.stride(),
                not shares,
                result.storage_offset(),
            ), operation
            seen["copy" if is_copy else "view"] += 1
            theirs = result
    assert min(seen.values()) > 25


def random_operation(dice, tensor):
    """Return an operation as text, and as a function of a tensor."""
    order = dice.sample(range(tensor.dim()), tensor.dim())
    sizes = dice.choice(
        [(-1,), (tensor.numel(), 1), (2, -1), tuple(tensor.shape[::-1]), tuple(tensor.shape)]
    )
    index = ",".join(dice.choice((":", "0", "-1", "::2", ":2")) for _ in tensor.shape)
    return dice.choice(
        [
            ("permute:" + ":".join(map(str, order)), lambda x: x.permute(order)),
            ("transpose:0:-1", lambda x: x.transpose(0, -1)),
            ("contiguous", lambda x: x.contiguous()),
            ("view:" + "x".join(map(str, sizes)), lambda x: x.view(sizes)),
            ("reshape:" + "x".join(map(str, sizes)), lambda x: x.reshape(sizes)),
            (f"[{index}]", lambda x: eval(f"x[{index}]", {"x": x})),
        ]
    )


def test_ticks_that_are_too_close_are_left_out():
    [axes] = draw_lines("", "x", "y", {"": [(x, 1.0) for x in (1, 1.1, 10, 1000)]}).axes
    assert list(axes.get_xticks()) == [1, 10, 1000]
