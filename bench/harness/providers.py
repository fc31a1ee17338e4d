"""Who computes an op: `torch` eager, `torch-compile`, and every `kernels/<family>/vN_*.py` as `triton-vN`."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.harness.device import Device
from bench.harness.inputs import InputSet
from bench.harness.op import Op

VERSION_FILE = re.compile(r"(v\d+)_\w+\.py")
KERNELS_DIRECTORY = Path(__file__).resolve().parents[2] / "kernels"


class UnknownProviderError(ValueError):
    """No provider has this name; the message lists those that there are."""


class ProviderUnavailableError(RuntimeError):
    """The provider exists but cannot run this op on this device; the message says why."""


@dataclass(frozen=True)
class Provider:
    """A way to compute an op."""

    name: str
    function: Callable[..., Any]
    """`function(*inputs, out=out)`, or `function(*inputs)` returning the result."""
    takes_out: bool
    source_sha256: str | None = None
    """Hash of the kernel's file, so that a record tells which text it measured."""
    refuses_with: tuple[type[Exception], ...] = ()
    """Errors of the first call that say "not this case", as our kernels do for a dtype or layout they lack."""

    def call(self, data: InputSet) -> Callable[[], Any]:
        """Return the launch on one set of inputs, as a call without arguments."""
        if self.takes_out:
            return partial(self.function, *data.inputs, out=data.out)
        return partial(self.function, *data.inputs)


def kernel_versions(family: str) -> dict[str, str]:
    """Return the Triton versions of a family, provider name to module name, oldest first, without importing them."""
    found = {}
    for path in (KERNELS_DIRECTORY / family).glob("v*_*.py"):
        match = VERSION_FILE.fullmatch(path.name)
        if match:
            found[f"triton-{match[1]}"] = f"kernels.{family}.{path.stem}"
    return dict(sorted(found.items(), key=lambda item: int(item[0].removeprefix("triton-v"))))


def provider_names(family: str) -> list[str]:
    """Return the names of all providers of a family."""
    return ["torch", "torch-compile", *kernel_versions(family)]


def default_providers(family: str, device: Device) -> list[str]:
    """Return what is measured when no provider is named: eager torch, and on a GPU the newest Triton version."""
    newest = list(kernel_versions(family))[-1:] if device.is_gpu else []
    return ["torch", *newest]


def check_names(names: list[str], family: str) -> None:
    """Refuse a name that no provider of the family has.

    Raises:
        UnknownProviderError: with the names that there are.
    """
    known = provider_names(family)
    for name in names:
        if name not in known:
            raise UnknownProviderError(f"unknown provider '{name}' for {family}; there are: {', '.join(known)}")


def load(name: str, op: Op, family: str, device: Device) -> Provider:
    """Return a provider, ready to be called on inputs that lie on `device`.

    Raises:
        ProviderUnavailableError: it cannot run here, or has no such op.
    """
    if name == "torch":
        return Provider(name, op.eager, takes_out=True)
    if name == "torch-compile":
        return _compiled(op)
    if not device.is_gpu:
        raise ProviderUnavailableError(f"{name} needs a GPU; this is a CPU")
    module = importlib.import_module(kernel_versions(family)[name])
    launchers: dict[str, Callable[..., Any]] = module.KERNELS
    if op.name not in launchers:
        raise ProviderUnavailableError(f"{name} has no {op.name}; it has: {', '.join(launchers)}")
    source = Path(inspect.getfile(module)).read_bytes()
    digest = hashlib.sha256(source).hexdigest()
    return Provider(name, launchers[op.name], takes_out=True, source_sha256=digest, refuses_with=(ValueError,))


def _compiled(op: Op) -> Provider:
    """Return `torch.compile` of the op, compiled anew: static shapes, nothing kept from the case before."""
    import torch

    if shutil.which("g++") is None and shutil.which("clang++") is None and not torch.cuda.is_available():
        raise ProviderUnavailableError("torch-compile needs a C++ compiler on a CPU: install g++")
    torch._dynamo.reset()
    expression = op.expression or op.reference
    if not op.writes_out_when_compiled:
        return Provider("torch-compile", torch.compile(expression, dynamic=False), takes_out=False)

    def into_out(*inputs: Any, out: Any) -> None:
        out.copy_(expression(*inputs))

    return Provider("torch-compile", torch.compile(into_out, dynamic=False), takes_out=True)


@contextmanager
def numerics(dtype: str) -> Iterator[None]:
    """Let fp32 products be fp32, and those of tf32 be tf32; gradients off. What was set before comes back."""
    import torch

    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32" if dtype == "tf32" else "ieee"
    try:
        with torch.no_grad():
            yield
    finally:
        matmul.fp32_precision = before
