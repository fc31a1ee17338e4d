"""Invalid operands that launchers reject, in Triton's interpreter. See test_interpreted.py."""

import pytest
import torch
from exact import rejection, version_of
from families import every_way, small, versions_of


def launcher_of(family, op, version):
    return versions_of(family)[version].KERNELS[op], f"{op} {version}"


@pytest.mark.parametrize(("family", "op", "module"), every_way())
def test_launchers_reject_invalid_operands(family, op, module):
    (first, *others), out = small(family, op, torch.float32)

    def line(*inputs, out=out):
        return rejection(module.KERNELS[op], f"{op} {version_of(module)}", *inputs, out=out)

    every_other = torch.stack((first, first), -1).flatten(-2)[..., ::2]
    assert " has strides " in line(every_other, *others)
    offset = torch.zeros(first.numel() + 1, dtype=first.dtype)[1:].view(first.shape)
    assert f"starts {first.itemsize} bytes past a multiple of 16" in line(offset, *others)
    assert "has dtype torch.float64; " in line(first.double(), *others)
    assert "out has shape" in line(first, *others, out=out[None])
    assert "out is on meta, " in line(first, *others, out=out.to("meta"))
    for place, tensor in enumerate(others):
        wrong = [*others[:place], tensor.to(torch.float16), *others[place + 1 :]]
        assert "torch.float16" in line(first, *wrong)


@pytest.mark.parametrize("version", versions_of("elementwise"))
def test_elementwise_rejects_invalid_operands(version):
    def line(op, *inputs, out):
        return rejection(*launcher_of("elementwise", op, version), *inputs, out=out)

    x = torch.ones(8)
    assert "up has shape (1,)" in line("swiglu", x, x[:1], out=x)
    assert "x has shape (8,); expected two dimensions" in line("bias-gelu", x, x, out=x)
    assert "not an offset view" in line("dropout", x, torch.tensor([1, 2])[1:], out=x)


@pytest.mark.parametrize("version", versions_of("cross_entropy"))
def test_cross_entropy_rejects_invalid_operands(version):
    def line(*inputs, out):
        return rejection(*launcher_of("cross_entropy", "cross-entropy", version), *inputs, out=out)

    x, labels, out = torch.ones(4, 8), torch.zeros(4, dtype=torch.int64), torch.zeros(4)
    assert "strides (0, 1); rows must be dense and must not overlap" in line(
        x[:1].expand(4, 8), labels, out=out
    )
    assert "logits has 0 columns; 1 to 1073741824 are supported" in line(x[:, :0], labels, out=out)
    assert "labels has shape (3,); the other operands need (4,)" in line(x, labels[:3], out=out)
    assert "out has dtype torch.float16; expected torch.float32" in line(x, labels, out=out.half())


@pytest.mark.parametrize("version", versions_of("matmul"))
def test_matmul_rejects_invalid_operands(version):
    def line(a, b, *scales, out):
        return rejection(*launcher_of("matmul", "matmul", version), a, b, *scales, out=out)

    a, b, out = torch.ones(4, 8), torch.ones(8, 12), torch.zeros(4, 12)
    assert "expected layouts nn, nt, tn" in line(
        torch.ones(8, 4).t(), torch.ones(12, 8).t(), out=out
    )
    assert "b has shape (12, 12); the other operands need (8, 12)" in line(
        a, torch.ones(12, 12), out=out
    )
    overlapping = torch.ones(2, 4, 8), b.expand(2, 8, 12)
    assert "a tensor of shape (2, 8, 12) has strides (0, 12, 1)" in line(
        *overlapping, out=torch.ones(2, 4, 12)
    )
    assert "2 scales with operands of torch.float32; expected 0" in line(a, b, a, a, out=out)
    long = torch.empty(2**30 + 1, dtype=torch.float16)[None]  # never touched, so never there
    assert f"1x1x{2**30 + 1} is too large; at most 1073741824" in line(
        long, long.t(), out=torch.zeros(1, 1).half()
    )
    a, out, one = (
        torch.ones(16, 16).to(torch.float8_e4m3fn),
        torch.zeros(16, 16).bfloat16(),
        torch.ones(1),
    )
    assert "0 scales with operands of torch.float8_e4m3fn; expected 2" in line(a, a.t(), out=out)
    assert "only layout nt in fp8" in line(a, a, one, one, out=out)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_old_matmul_versions_reject_int8(version):
    a = torch.ones(16, 16, dtype=torch.int8)
    message = rejection(
        *launcher_of("matmul", "matmul", version), a, a, out=torch.zeros(16, 16, dtype=torch.int32)
    )
    assert "no kernel for int8 on sm_90; it has fp32, " in message


def test_descriptors_reject_unaligned_strides():
    def line(a, b, out):
        return rejection(*launcher_of("matmul", "matmul", "v4"), a, b, out=out)

    a, out = torch.ones(4, 8), torch.ones(4, 5)
    assert "stored rows of b are 20 bytes apart; a tensor descriptor needs" in line(
        a, torch.ones(8, 5), out
    )
    batch = torch.ones(2 * 34).as_strided((2, 4, 8), (34, 8, 1))
    assert "matrices of a are 136 bytes apart" in line(
        batch, torch.ones(2, 8, 8), torch.ones(2, 4, 8)
    )
    assert "k is 0; a tensor descriptor needs at least one term" in line(
        a[:, :0], torch.empty(0, 4), out[:, :4]
    )


@pytest.mark.parametrize("version", versions_of("matvec"))
def test_matvec_rejects_invalid_operands(version):
    def line(*inputs, out):
        return rejection(*launcher_of("matvec", "matvec", version), *inputs, out=out)

    a, x, out = torch.ones(4, 8), torch.ones(8), torch.zeros(4)
    assert "rows must be dense and must not overlap" in line(
        torch.ones(40).as_strided((4, 8), (4, 1)), x, out=out
    )
    assert "x has shape (4,)" in line(a, x[:4], out=out)


def test_matvec_int8_rejects_invalid_operands():
    def line(*inputs, out):
        return rejection(*launcher_of("matvec", "matvec-int8", "v3"), *inputs, out=out)

    a, x, scales, out = (
        torch.ones((4, 16), dtype=torch.int8),
        torch.ones(16),
        torch.ones(4),
        torch.zeros(4),
    )
    assert "a has dtype torch.float32; expected torch.int8" in line(a.float(), x, scales, out=out)
    assert "scales has shape (3,)" in line(a, x, scales[:3], out=out)


@pytest.mark.parametrize(("version", "limit"), [("v1", 65536), ("v3", 2**30), ("v4", 2**30)])
def test_norm_rejects_invalid_operands(version, limit):
    def line(op, *inputs, out):
        return rejection(*launcher_of("norm", op, version), *inputs, out=out)

    x, w, out = torch.ones(4, 8), torch.ones(8), torch.zeros(4, 8)
    assert "strides (0, 1)" in line("rmsnorm", w.expand(4, 8), w, out=out)
    assert "bias has shape (1, 8)" in line("layernorm", x, w, w[None], out=out)
    overlapping = torch.ones(200).as_strided((2, 4, 8), (31, 8, 1))
    assert "must not overlap" in line("residual-rmsnorm", x, x, w, out=overlapping)
    broad = torch.ones(1).expand(1, limit + 1)
    assert f"x has {limit + 1} columns; at most {limit} are supported" in line(
        "rmsnorm", broad, w, out=out
    )


@pytest.mark.parametrize(("version", "limit"), [("v1", 65536), ("v2", 2**30), ("v3", 2**30)])
def test_softmax_rejects_invalid_operands(version, limit):
    def line(x, out):
        return rejection(*launcher_of("softmax", "softmax", version), x, out=out)

    x = torch.ones(4, 8)
    assert "strides (0, 1); rows must be dense and must not overlap" in line(
        x[:1].expand(4, 8), x.clone()
    )
    wide = torch.empty(limit + 1, dtype=torch.float16)[None]  # never touched, so never there
    with pytest.raises(
        ValueError, match=f"x has {limit + 1} columns; at most {limit} are supported"
    ):
        versions_of("softmax")[version].KERNELS["softmax"](wide, out=wide)
    if version != "v1":
        assert "rows of x are 300 elements apart, rows of out 308" in line(
            torch.ones(2, 300), torch.ones(2, 308)[:, :300]
        )
