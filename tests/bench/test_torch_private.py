"""Private names of torch that are used exist in the installed torch."""

import pytest
import torch

from bench.harness import torch_private


@pytest.mark.parametrize("name", torch_private.NAMES)
def test_the_name_exists(name):
    assert getattr(torch_private, name) is not None


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (torch, "_scaled_mm"),
        (torch, "_int_mm"),
        (torch.cuda, "_sleep"),
        (torch.nn.Module(), "_compiled_call_impl"),
    ],
)
def test_the_name_of_a_function_exists(module, name):
    assert hasattr(module, name)


def test_int_mm_multiplies():
    a = torch.randint(-8, 8, (32, 16), dtype=torch.int8)
    b = torch.randint(-8, 8, (16, 24), dtype=torch.int8)
    assert torch.equal(torch_private.int_mm(a, b), a.int() @ b.int())


def test_a_compiled_module_is_forgotten():
    model = torch.nn.Linear(2, 2)
    model.compile(backend="eager")
    torch_private.forget_compiled(model)
    assert model._compiled_call_impl is None


def test_a_missing_name_is_named(monkeypatch):
    monkeypatch.setitem(torch_private.NAMES, "tree_iter", "torch.utils._pytree.gone")
    with pytest.raises(torch_private.MissingNameError, match=r"has no torch\.utils\._pytree\.gone"):
        _ = torch_private.tree_iter
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = torch_private.nothing


def test_the_memory_of_a_failed_capture_is_freed(monkeypatch):
    calls = []

    def failing(device, pool):
        calls.append(("end", device, pool))
        raise RuntimeError("no capture is under way")

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", failing, raising=False)
    monkeypatch.setattr(
        torch._C,
        "_cuda_releasePool",
        lambda device, pool: calls.append(("release", device, pool)),
        raising=False,
    )
    torch_private.free_capture(pool="a pool")
    assert calls == [("end", 3, "a pool"), ("release", 3, "a pool")]
    monkeypatch.delattr(torch._C, "_cuda_endAllocateToPool")
    torch_private.free_capture(pool="a pool")
    assert calls[2:] == [("release", 3, "a pool")]
