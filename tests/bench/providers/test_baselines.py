"""Kernels of other libraries as providers: listed where they are installed, with the semantics of our ops."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from bench import cross_entropy, matmul, norm, softmax
from bench.harness.data.inputs import InputSet
from bench.harness.data.verify import check
from bench.harness.op import Case
from bench.harness.providers import registry
from bench.harness.providers.registry import (
    ProviderUnavailableError,
    default_providers,
    load,
    provider_names,
    unavailable,
)
from tests.bench.commands import CPU, H100

OPS = {op.name: op for module in (matmul, norm, softmax, cross_entropy) for op in module.OPS}
F = torch.nn.functional

LIBRARIES = {
    "quack": {
        "rmsnorm": {"rmsnorm": lambda x, weight, *, eps: F.rms_norm(x, x.shape[-1:], weight, eps)},
        "softmax": {"softmax": lambda x: x.softmax(-1)},
        "cross_entropy": {"cross_entropy": lambda x, y, *, reduction: F.cross_entropy(x, y, reduction=reduction)},
    },
    "liger_kernel": {
        "transformers.functional": {
            "liger_rms_norm": lambda x, w, eps: F.rms_norm(x, x.shape[-1:], w, eps),
            "liger_layer_norm": lambda x, w, b, eps: F.layer_norm(x, x.shape[-1:], w, b, eps),
            "liger_fused_add_rms_norm": lambda x, r, w, eps: (F.rms_norm(x + r, x.shape[-1:], w, eps), x + r),
            "liger_softmax": lambda x: x.softmax(-1),
        }
    },
    "flashinfer": {"norm": {"rmsnorm": lambda x, w, eps, out: out.copy_(F.rms_norm(x, x.shape[-1:], w, eps))}},
}  # fmt: skip
"""Stand-ins with the parameters of the libraries' own functions."""


@pytest.fixture
def installed(monkeypatch):
    """Put stand-ins for the libraries where imports find them."""
    for package, modules in LIBRARIES.items():
        for path, functions in modules.items():
            parts = f"{package}.{path}".split(".")
            for length in range(1, len(parts) + 1):
                name = ".".join(parts[:length])
                module = ModuleType(name)
                module.__spec__ = SimpleNamespace(name=name)
                if name not in sys.modules or length == len(parts):
                    monkeypatch.setitem(sys.modules, name, module)
            vars(sys.modules[".".join(parts)]).update(functions)


EACH = [
    (family, name, op)
    for family, by_name in registry.BASELINES.items()
    for name, by_op in by_name.items()
    for op in by_op
    if name != "torch-fast-accum"
]


@pytest.mark.parametrize(("family", "name", "op"), EACH)
def test_a_library_is_called_with_the_semantics_of_the_op(family, name, op, installed):
    assert name in provider_names(family)
    assert name not in default_providers(family, H100, "bf16")
    provider = load(name, OPS[op], family, H100)
    axes = dict(zip(OPS[op].axes, (6, 40), strict=True))
    case = Case(op, "fp32", axes)
    torch.manual_seed(0)

    def tensor(*shape, dtype=None):
        return torch.randint(0, 1000, shape) if dtype == "int64" else torch.randn(shape) * 1e-2  # the epsilon counts

    data = InputSet(OPS[op].make_inputs(case, tensor), torch.empty(OPS[op].output_shape(case)))
    result = provider.call(data)()
    result = torch.stack(result) if isinstance(result, tuple) else result
    assert check(OPS[op], case, data, result).is_right


def test_what_is_not_installed_is_not_listed():
    missing = {"quack", "liger", "flashinfer"} if importlib.util.find_spec("quack") is None else set()
    assert not missing & set(provider_names("norm"))
    assert provider_names("matmul")[2] == "torch-fast-accum"


def test_fp8_is_measured_with_and_without_fast_accumulation():
    assert list(default_providers("matmul", H100, "fp8e4m3"))[:2] == ["torch", "torch-fast-accum"]
    for dtype, device in (("bf16", H100), ("fp8e4m3", CPU)):
        assert "torch-fast-accum" not in default_providers("matmul", device, dtype)
    assert unavailable("torch-fast-accum", CPU) == "torch-fast-accum needs a GPU that CUDA runs on"
    with pytest.raises(ProviderUnavailableError, match="needs a GPU"):
        load("torch-fast-accum", OPS["matmul"], "matmul", CPU)


def test_fast_accumulation_is_asked_for_and_has_a_bound_of_its_own(monkeypatch):
    provider = load("torch-fast-accum", OPS["matmul"], "matmul", H100)
    assert provider.tolerance == registry.FAST_TOLERANCE
    scaled, asked = torch._scaled_mm, []

    def seen(*tensors, **options):
        asked.append(options["use_fast_accum"])
        return scaled(*tensors, **options)

    monkeypatch.setattr(torch, "_scaled_mm", seen)
    case = Case("matmul", "fp8e4m3", {"m": 32, "n": 48, "k": 64}, {"layout": "nt", "batch": 1})

    def tensor(*shape, dtype=None):
        return torch.ones(shape) if dtype == "fp32" else torch.randn(shape).to(torch.float8_e4m3fn)

    data = InputSet(matmul.make_inputs(case, tensor), torch.empty(32, 48, dtype=torch.bfloat16))
    provider.call(data)()
    assert asked == [True]
    assert check(OPS["matmul"], case, data, data.out).is_right
    with pytest.raises(provider.refuses_with, match="fast accumulation is for fp8"):
        provider.function(torch.ones(2, 2), torch.ones(2, 2), out=torch.ones(2, 2))


def test_a_library_that_has_no_such_op_says_so(installed):
    with pytest.raises(ProviderUnavailableError, match="quack has no layernorm; it has: rmsnorm"):
        load("quack", OPS["layernorm"], "norm", H100)
