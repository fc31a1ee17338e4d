"""Providers: eager torch, compiled torch, and every kernel version of a family."""

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch

from bench.__main__ import families
from bench.elementwise import OPS as ELEMENTWISE
from bench.harness.cli.main import check_providers
from bench.harness.data.inputs import Filler, InputSet, make_sets
from bench.harness.data.verify import check
from bench.harness.op import Case, UsageError
from bench.harness.providers import registry
from bench.harness.providers.registry import (
    ProviderUnavailableError,
    default_providers,
    kernel_versions,
    load,
    minimum_arch,
    named_providers,
    numerics,
    provider_names,
    unavailable,
)
from bench.matmul import OPS as MATMUL
from kernels import versions as kernel_files
from tests.bench.commands import A100, CPU, GPU, H100

OPS = {op.name: op for op in (*ELEMENTWISE, *MATMUL)}
FAMILIES = sorted(families())

KERNEL = """\
def add(x, y, out):
    out.copy_(x + y)


KERNELS = {"add": add}
"""

TUNED = (
    KERNEL
    + """

def tuned_add(x, y, out):
    add(x, y, out)


AUTOTUNED: dict[str, object] = {"add": tuned_add}
"""
)

FOR_HOPPER = (
    KERNEL
    + """
MINIMUM_ARCH = 90  # TMA
"""
)


@pytest.fixture
def versions(tmp_path, monkeypatch):
    """Return the directory of a family with four kernel versions, and files that are not
    versions.
    """
    package = tmp_path / "kernels_of_a_test"
    family = package / "elementwise"
    family.mkdir(parents=True)
    for folder in (package, family):
        (folder / "__init__.py").write_text("")
    for name in ("v1_naive", "v2_fused", "v10_tiled", "v3_vectorized"):
        (family / f"{name}.py").write_text(KERNEL)
    for name in ("launch.py", "v4.py", "vx_wrong.py", "v5_notes.txt", "old_v6_x.py", "v7_a.b.py"):
        (family / name).write_text("raise RuntimeError('imported')")
    named = tmp_path / "as_named" / "kernels"  # path in which imports of the package are followed
    named.parent.mkdir()
    named.symlink_to(package)
    monkeypatch.setattr(kernel_files, "PACKAGE", named)
    monkeypatch.syspath_prepend(tmp_path)
    real = registry.importlib.import_module
    monkeypatch.setattr(
        registry.importlib,
        "import_module",
        lambda name: real(name.replace("kernels.", "kernels_of_a_test.", 1)),
    )
    yield named / family.name
    for name in [name for name in sys.modules if name.startswith("kernels_of_a_test")]:
        del sys.modules[name]


def test_versions_are_found_by_file_name_in_numeric_order(versions):
    assert kernel_versions("elementwise") == {
        "triton-v1": "kernels.elementwise.v1_naive",
        "triton-v2": "kernels.elementwise.v2_fused",
        "triton-v3": "kernels.elementwise.v3_vectorized",
        "triton-v10": "kernels.elementwise.v10_tiled",
    }
    names = ["torch", "torch-compile", "liger_kernel", "triton", "triton-v1"]
    assert provider_names("elementwise")[:5] == names


def test_an_unknown_provider_lists_the_known_ones(versions):
    check_providers(["torch", "torch-compile", "triton-v10"], ["elementwise"])
    with pytest.raises(UsageError) as caught:
        check_providers(["torch", "triton-v4"], ["elementwise"])
    assert str(caught.value) == (
        "unknown provider 'triton-v4' for elementwise; choose from torch, torch-compile, "
        "liger_kernel, triton, triton-v1, triton-v2, triton-v3, triton-v10, "
        "path/to/file.py:function"
    )


def sets_of(name, size=100):
    options = {"layout": "nn", "batch": 1} if name == "matmul" else {}
    case = Case(name, "fp32", dict.fromkeys(OPS[name].axes, size), options)
    return case, make_sets(OPS[name], case, Filler("uniform", "fp32", CPU, 0), CPU, 1)[0]


@pytest.mark.parametrize(("name", "device"), [("triton-v2", GPU), ("torch", CPU)])
def test_a_provider_writes_into_the_given_output(versions, name, device):
    provider = load(name, OPS["add"], "elementwise", device)
    of_text = kernel_files.source_sha256("kernels.elementwise.v2_fused")
    assert (provider.name, provider.source_sha256) == (name, None if name == "torch" else of_text)
    case, data = sets_of("add")
    provider.call(data)()
    assert check(OPS["add"], case, data, data.out).is_right


def test_torch_compile_without_a_compiler_says_what_to_install(monkeypatch):
    monkeypatch.setattr(registry.shutil, "which", lambda name: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # the machine also has a GPU
    with pytest.raises(
        ProviderUnavailableError, match=r"needs a C\+\+ compiler on a CPU; install g\+\+"
    ):
        load("torch-compile", OPS["add"], "elementwise", CPU)


@pytest.fixture
def compiled(monkeypatch):
    """Return the list of graphs that `torch.compile` compiles; they run uncompiled."""
    graphs, compile_with = [], torch.compile

    def backend(graph, inputs):
        graphs.append(tuple(inputs[0].shape))
        return graph.forward

    monkeypatch.setattr(registry.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(
        torch,
        "compile",
        lambda function, **options: compile_with(function, backend=backend, **options),
    )
    yield graphs
    torch._dynamo.reset()


def call_of(name, size):
    return load("torch-compile", OPS[name], "any", CPU).call(sets_of(name, size)[1])


@pytest.mark.parametrize("name", ["add", "matmul"])
def test_loading_torch_compile_keeps_the_users_compiled_code(compiled, name):
    users = torch.compile(lambda x: x.sin() + 1)
    x = torch.ones(5)
    users(x)
    call_of(name, 32)()
    users(x)
    assert compiled == [(5,), compiled[1]]


@pytest.mark.parametrize("name", ["add", "matmul"])
def test_each_of_many_cases_is_compiled_once(compiled, name):
    """More cases than torch recompiles one function for, and the first case again."""
    sizes = [*range(8, 8 * (torch._dynamo.config.recompile_limit + 4), 8), 8]
    for size in sizes:
        call = call_of(name, size)
        call()
        call()
    assert len(compiled) == len(sizes)


@pytest.mark.parametrize("before", ["ieee", "tf32"])
def test_matmul_precision_follows_the_dtype_and_is_restored(before):
    matmul = torch.backends.cuda.matmul
    at_first = matmul.fp32_precision
    matmul.fp32_precision = before
    try:
        for dtype, wanted in {"fp32": "ieee", "tf32": "tf32", "bf16": "ieee"}.items():
            with numerics(dtype):
                assert matmul.fp32_precision == wanted
                assert not torch.is_grad_enabled()
            assert matmul.fp32_precision == before
            assert torch.is_grad_enabled()
        with pytest.raises(ZeroDivisionError), numerics("tf32"):
            raise ZeroDivisionError
        assert matmul.fp32_precision == before
        assert torch.is_grad_enabled()
    finally:
        matmul.fp32_precision = at_first


def test_fp8_is_measured_with_and_without_fast_accumulation():
    assert list(default_providers("matmul", H100, "fp8e4m3"))[:2] == ["torch", "torch-fast-accum"]
    for dtype, device in (("bf16", H100), ("fp8e4m3", CPU)):
        assert "torch-fast-accum" not in default_providers("matmul", device, dtype)
    assert unavailable("torch-fast-accum", CPU) == "torch-fast-accum needs a GPU with CUDA"
    with pytest.raises(ProviderUnavailableError, match="needs a GPU"):
        load("torch-fast-accum", OPS["matmul"], "matmul", CPU)


def test_matmul_can_be_an_einsum(monkeypatch):
    assert provider_names("matmul")[3:7] == ["einsum", "einsum-compile", "einops", "einops-compile"]
    assert "einsum" not in [*provider_names("elementwise"), *default_providers("matmul", CPU)]
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    assert torch.allclose(load("einsum", OPS["matmul"], "matmul", CPU).function(a, b), a @ b)
    provider = load("einsum-compile", OPS["matmul"], "matmul", CPU)
    assert (provider.name, provider.takes_out) == ("einsum-compile", False)
    assert unavailable("einsum", CPU, "bf16") is None
    assert "same dtype as the inputs, which int8 products" in unavailable(
        "einsum-compile", CPU, "int8"
    )
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
    for name in ("einops", "einops-compile"):
        assert (
            unavailable(name, CPU)
            == f"{name} needs einops, which is not installed: pip install einops"
        )


ATTENTION = next(op for op in families()["attention"] if op.name == "prefill-attention")
NORMS = {op.name: op for op in families()["norm"]}


@pytest.fixture
def installed(monkeypatch):
    """Packages that record how they are called."""
    calls = []

    def rmsnorm(*inputs, **options):
        calls.append((inputs, options))
        return inputs[0]

    def flash_attn_func(q, k, v, causal):
        calls.append(([tuple(x.shape) for x in (q, k, v)], causal))
        return 2 * q

    for name, function in (("quack", rmsnorm), ("flash_attn", flash_attn_func)):
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        setattr(module, function.__name__, function)
        monkeypatch.setitem(sys.modules, name, module)
    return calls


def test_functions_of_packages_are_providers_of_their_ops(installed):
    assert provider_names("norm")[2:5] == ["flashinfer", "liger_kernel", "quack"]
    assert "quack" not in [*provider_names("matmul"), *default_providers("norm", H100)]
    assert unavailable("quack", H100, "bf16") is None
    x, weight = torch.randn(2, 4), torch.randn(4)
    provider = load("quack", NORMS["rmsnorm"], "norm", H100)
    assert provider.function(x, weight) is x
    assert not provider.takes_out
    assert installed == [((x, weight), {"eps": 1e-6})]
    with pytest.raises(ProviderUnavailableError, match="quack has no layernorm; it has: rmsnorm"):
        load("quack", NORMS["layernorm"], "norm", H100)


def test_flash_attention_gets_views_with_the_heads_third(installed):
    q, keys = torch.randn(1, 8, 6, 4), torch.randn(1, 2, 6, 4)
    provider = load("flash_attn", ATTENTION, "attention", H100)
    assert torch.equal(provider.function(q, keys, keys), 2 * q)
    assert installed == [([(1, 6, 8, 4), (1, 6, 2, 4), (1, 6, 2, 4)], True)]


def test_packages_that_cannot_be_used_are_named(monkeypatch):
    assert unavailable("quack", CPU, "bf16") == "quack needs a GPU, got a CPU"
    assert unavailable("quack", H100, "fp32") == "quack is compared in fp16 and bf16, got fp32"
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
    reason = "quack needs quack, which is not installed: pip install quack-kernels"
    assert unavailable("quack", H100, "bf16") == reason
    with pytest.raises(ProviderUnavailableError, match="not installed: pip install flash-attn"):
        load("flash_attn", ATTENTION, "attention", H100)


def test_fast_accumulation_has_its_own_tolerance(monkeypatch):
    provider = load("torch-fast-accum", OPS["matmul"], "matmul", H100)
    assert provider.tolerance == registry.FAST_TOLERANCE
    scaled, settings = torch._scaled_mm, []

    def seen(*tensors, **options):
        settings.append(options["use_fast_accum"])
        return scaled(*tensors, **options)

    monkeypatch.setattr(torch, "_scaled_mm", seen)
    case = Case("matmul", "fp8e4m3", {"m": 32, "n": 48, "k": 64}, {"layout": "nt", "batch": 1})

    def tensor(*shape, dtype=None):
        return torch.ones(shape) if dtype == "fp32" else torch.randn(shape).to(torch.float8_e4m3fn)

    data = InputSet(MATMUL[0].make_inputs(case, tensor), torch.empty(32, 48, dtype=torch.bfloat16))
    provider.call(data)()
    assert settings == [True]
    assert check(OPS["matmul"], case, data, data.out).is_right
    with pytest.raises(provider.refuses_with, match="fast accumulation is for fp8"):
        provider.function(torch.ones(2, 2), torch.ones(2, 2), out=torch.ones(2, 2))


def test_a_version_with_autotuning_is_two_providers(versions):
    (versions / "v11_tuned.py").write_text(TUNED)
    assert provider_names("elementwise")[-2:] == ["triton-v11", "triton-v11-autotune"]
    assert list(default_providers("elementwise", H100)) == ["torch", "triton-v11"]
    fixed, tuned = (
        load(name, OPS["add"], "elementwise", H100)
        for name in ("triton-v11", "triton-v11-autotune")
    )
    assert (fixed.function.__name__, tuned.function.__name__) == ("add", "tuned_add")
    assert fixed.source_sha256 == tuned.source_sha256
    with pytest.raises(UsageError):
        check_providers(["triton-v10-autotune"], ["elementwise"])


def test_triton_is_the_newest_version_that_fits(versions):
    (versions / "v11_tma.py").write_text(FOR_HOPPER + TUNED)
    names = ["triton", "torch", "triton-v1"]
    for device, newest in ((H100, "triton-v11"), (A100, "triton-v10")):
        found = named_providers(names, "elementwise", device)
        assert list(found) == [newest, "torch", "triton-v1"]
        assert found[newest][-1] == "triton-v1"  # stands in if the newest rejects a case
        assert found["triton-v1"] == ()
    assert named_providers(["triton"], "elementwise", CPU) == {"triton": ()}
    assert unavailable("triton", CPU) == (
        "triton needs a GPU, got a CPU; TRITON_INTERPRET=1 runs it in Triton's interpreter"
    )


def test_the_interpreter_runs_what_an_h100_runs_but_not_bf16(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert named_providers(["triton"], "matmul", CPU) == {
        "triton-v5": ("triton-v4", "triton-v3", "triton-v2", "triton-v1")
    }
    assert unavailable("triton-v1", CPU, "fp16") is None
    assert "rounds bf16 wrongly" in unavailable("triton-v1", CPU, "bf16")
    assert list(default_providers("elementwise", CPU)) == ["torch"]


VERSIONS = [(family, name) for family in FAMILIES for name in kernel_versions(family)]


@pytest.mark.parametrize(("family", "name"), VERSIONS)
def test_facts_read_from_source_agree_with_the_module(family, name):
    module_name = kernel_versions(family)[name]
    module = importlib.import_module(module_name)
    assert minimum_arch(module_name) == getattr(module, "MINIMUM_ARCH", 0)
    assert (f"{name.removesuffix('-autotune')}-autotune" in kernel_versions(family)) == hasattr(
        module, "AUTOTUNED"
    )


@pytest.mark.parametrize("older", ["highest", "high", "medium"])
def test_a_precision_set_by_the_older_api_is_restored(older):
    at_first = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(older)
    try:
        for dtype in ("tf32", "fp32"):
            with numerics(dtype):
                pass
            assert torch.get_float32_matmul_precision() == older
    finally:
        torch.set_float32_matmul_precision(at_first)


@pytest.mark.exhaustive
def test_tf32_matmuls_can_be_compiled():
    a = torch.ones(32, 32)
    with numerics("tf32"):
        assert torch.equal(torch.compile(lambda x: x @ x, dynamic=False)(a), a @ a)
