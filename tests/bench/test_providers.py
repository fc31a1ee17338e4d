"""Who computes: eager torch, compiled torch, and every kernel version found in its folder."""

import hashlib
import sys

import pytest
import torch

from bench.elementwise import OPS as ELEMENTWISE
from bench.harness import providers
from bench.harness.device import Device
from bench.harness.inputs import Filler, make_sets
from bench.harness.op import Case
from bench.harness.providers import (
    ProviderUnavailableError,
    UnknownProviderError,
    check_names,
    default_providers,
    kernel_versions,
    load,
    numerics,
    provider_names,
)
from bench.harness.verify import check, run_poisoned
from bench.matmul import OPS as MATMUL

CPU = Device(type="cpu", torch_name="cpu", slug="cpu", name="a CPU", cache_bytes=2**20, memory_bytes=2**30)
GPU = Device(type="cuda", torch_name="cuda:0", slug="gpu", name="a GPU", cache_bytes=2**20, memory_bytes=2**30)
OPS = {op.name: op for op in (*ELEMENTWISE, *MATMUL)}

KERNEL = """\
def add(x, y, out):
    out.copy_(x + y)


KERNELS = {"add": add}
"""


@pytest.fixture
def versions(tmp_path, monkeypatch):
    """A kernels folder with ten versions of one family, and files that are none."""
    package = tmp_path / "kernels_of_a_test"
    family = package / "elementwise"
    family.mkdir(parents=True)
    for folder in (package, family):
        (folder / "__init__.py").write_text("")
    for name in ("v1_naive", "v2_fused", "v10_tiled", "v3_vectorized"):
        (family / f"{name}.py").write_text(KERNEL)
    for name in ("launch.py", "v4.py", "vx_wrong.py", "v5_notes.txt", "old_v6_x.py", "v7_a.b.py"):
        (family / name).write_text("raise RuntimeError('imported')")
    monkeypatch.setattr(providers, "KERNELS_DIRECTORY", package)
    monkeypatch.syspath_prepend(tmp_path)
    real = providers.importlib.import_module
    monkeypatch.setattr(
        providers.importlib, "import_module", lambda name: real(name.replace("kernels.", "kernels_of_a_test.", 1))
    )
    yield family
    for name in [name for name in sys.modules if name.startswith("kernels_of_a_test")]:
        del sys.modules[name]


def test_versions_are_found_by_their_file_names_in_the_order_of_their_numbers(versions):
    assert kernel_versions("elementwise") == {
        "triton-v1": "kernels.elementwise.v1_naive",
        "triton-v2": "kernels.elementwise.v2_fused",
        "triton-v3": "kernels.elementwise.v3_vectorized",
        "triton-v10": "kernels.elementwise.v10_tiled",
    }
    assert provider_names("elementwise")[:3] == ["torch", "torch-compile", "triton-v1"]


def test_a_new_file_is_a_new_provider_and_needs_no_registering(versions):
    (versions / "v11_persistent.py").write_text(KERNEL)
    assert provider_names("elementwise")[-1] == "triton-v11"
    assert default_providers("elementwise", GPU) == ["torch", "triton-v11"]


def test_a_family_without_kernels_has_torch_alone(versions):
    assert kernel_versions("matmul") == {}
    assert provider_names("matmul") == ["torch", "torch-compile"]
    assert default_providers("matmul", GPU) == ["torch"]


def test_by_default_a_cpu_runs_torch_and_a_gpu_the_newest_kernel_too(versions):
    assert default_providers("elementwise", CPU) == ["torch"]
    assert default_providers("elementwise", GPU) == ["torch", "triton-v10"]


def test_finding_versions_imports_none_of_them(versions):
    provider_names("elementwise")
    assert not [name for name in sys.modules if name.startswith("kernels_of_a_test")]


def test_an_unknown_provider_is_named_with_those_that_there_are(versions):
    check_names(["torch", "torch-compile", "triton-v10"], "elementwise")
    with pytest.raises(UnknownProviderError) as caught:
        check_names(["torch", "triton-v4"], "elementwise")
    assert str(caught.value) == (
        "unknown provider 'triton-v4' for elementwise; "
        "there are: torch, torch-compile, triton-v1, triton-v2, triton-v3, triton-v10"
    )


def test_a_kernel_needs_a_gpu(versions):
    with pytest.raises(ProviderUnavailableError, match="triton-v1 needs a GPU; this is a CPU"):
        load("triton-v1", OPS["add"], "elementwise", CPU)


def test_a_kernel_is_loaded_with_the_hash_of_its_file(versions):
    provider = load("triton-v2", OPS["add"], "elementwise", GPU)
    assert provider.name == "triton-v2"
    assert provider.source_sha256 == hashlib.sha256((versions / "v2_fused.py").read_bytes()).hexdigest()
    case = Case("add", "fp32", {"n": 100})
    data = make_sets(OPS["add"], case, Filler("uniform", "fp32", CPU, 0), CPU, 1)[0]
    provider.call(data)()
    assert check(OPS["add"], case, data, data.out).is_right


def test_a_kernel_without_the_op_says_which_it_has(versions):
    with pytest.raises(ProviderUnavailableError, match="triton-v2 has no relu; it has: add"):
        load("triton-v2", OPS["relu"], "elementwise", GPU)


def test_eager_torch_writes_into_the_output_that_it_is_given():
    case = Case("add", "fp32", {"n": 100})
    data = make_sets(OPS["add"], case, Filler("uniform", "fp32", CPU, 0), CPU, 1)[0]
    result = run_poisoned(load("torch", OPS["add"], "elementwise", CPU).call(data), data.out, CPU.synchronize)
    assert result is data.out
    assert check(OPS["add"], case, data, result).is_right


def test_without_a_compiler_torch_compile_says_what_to_install(monkeypatch):
    monkeypatch.setattr(providers.shutil, "which", lambda name: None)
    with pytest.raises(ProviderUnavailableError, match=r"needs a C\+\+ compiler on a CPU: install g\+\+"):
        load("torch-compile", OPS["add"], "elementwise", CPU)


@pytest.mark.parametrize(("name", "takes_out"), [("add", True), ("matmul", False)])
def test_torch_compile_compiles_anew_for_each_case_with_static_shapes(monkeypatch, name, takes_out):
    asked = []
    monkeypatch.setattr(providers.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(torch._dynamo, "reset", lambda: asked.append("reset"))
    monkeypatch.setattr(torch, "compile", lambda function, **options: asked.append(options) or function)
    provider = load("torch-compile", OPS[name], "any", CPU)
    assert asked == ["reset", {"dynamic": False}]
    assert provider.takes_out is takes_out

    options = {"layout": "nn", "batch": 1} if name == "matmul" else {}
    case = Case(name, "fp32", dict.fromkeys(OPS[name].axes, 32), options)
    data = make_sets(OPS[name], case, Filler("uniform", "fp32", CPU, 0), CPU, 1)[0]
    result = run_poisoned(provider.call(data), data.out, CPU.synchronize)
    assert (result is data.out) is takes_out
    assert check(OPS[name], case, data, result).is_right


@pytest.mark.parametrize("before", ["ieee", "tf32"])
def test_products_have_the_precision_of_their_dtype_and_what_was_set_comes_back(before):
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


@pytest.mark.parametrize("family", ["matmul", "elementwise", "matvec", "reduction"])
def test_a_version_number_belongs_to_one_file(family):
    files = [path.name for path in (providers.KERNELS_DIRECTORY / family).glob("v*_*.py")]
    numbers = [providers.VERSION_FILE.fullmatch(name)[1] for name in files]
    assert len(set(numbers)) == len(numbers)
    assert len(kernel_versions(family)) == len(files)
