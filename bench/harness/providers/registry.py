"""The providers of an op: `torch` (eager), `torch-compile`, every `kernels/<family>/vN_*.py` as `triton-vN`, and a
user's function, `path/to/file.py:function` or `package.module:function`.

Of a version's file two module-level names are read from its text, so that no list and no `--help` imports Triton:

    AUTOTUNED       launchers that search their configuration, by op: the version is `triton-vN-autotune` too
    MINIMUM_ARCH    the least architecture that the version runs on, 90 for sm_90
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from bench.harness.op import Op
from bench.harness.providers.user_kernel import UserKernelError, find
from bench.harness.providers.user_kernel import load as load_user_kernel
from kernels import versions

if TYPE_CHECKING:
    from torch import Tensor

    from bench.harness.data.inputs import InputSet
    from bench.harness.device.device import Device

AUTOTUNE = "-autotune"
USER_KERNEL = "path/to/file.py:function"
"""How a user's own function is written, for messages and help."""

AUTOTUNED_LINE = re.compile(r"^AUTOTUNED\b", re.MULTILINE)
MINIMUM_ARCH_LINE = re.compile(r"^MINIMUM_ARCH\b.*?=\s*(\d+)", re.MULTILINE)
FAST_ACCUM = "torch-fast-accum"
"""The matmul of torch in fp8 with sums that keep about 14 bits, which is measured beside the other by default."""

FAST_TOLERANCE = 4.0
"""Sums that keep about 14 bits are off by up to 2 % where 4,096 products are added.

Source: DeepSeek-V3 technical report (arXiv 2412.19437), section 3.3.2."""


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
    """Hash of the kernel's file, and of what it imports of ours: a record tells which text it measured."""
    refuses_with: tuple[type[Exception], ...] = ()
    """Errors of the first call that say "not this case", as our kernels do for a dtype or layout they lack."""
    restored: tuple[str, ...] = ()
    """Settings that importing the user's file changed, and that were set back."""
    tolerance: float = 1.0
    """Times the error that rounding explains which its results may have."""

    def call(self, data: InputSet) -> Callable[[], Any]:
        if self.takes_out:
            return partial(self.function, *data.inputs, out=data.out)
        return partial(self.function, *data.inputs)


def fast_matmul(a: Tensor, b: Tensor, *scales: Tensor, out: Tensor) -> None:
    """Compute C = A B in fp8, with sums that keep about 14 bits on Hopper. Source: torch 2.11, `_scaled_mm`."""
    import torch

    if not scales:
        raise ValueError("fast accumulation is for fp8")
    scale_a, scale_b = scales
    torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=out.dtype, out=out, use_fast_accum=True)


def is_user_kernel(name: str) -> bool:
    """Return whether a provider's name names a user's function: no built-in name has a colon."""
    return ":" in name


def kernel_versions(family: str) -> dict[str, str]:
    """Return the Triton versions of a family, provider name to module name, oldest first, without importing them."""
    names = {}
    for version, module in versions.modules(family).items():
        names[f"triton-{version}"] = module
        if AUTOTUNED_LINE.search(_source(module)):
            names[f"triton-{version}{AUTOTUNE}"] = module
    return names


def _source(module: str) -> str:
    path: Path = versions.PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")
    return path.read_text(encoding="utf-8")


def minimum_arch(module: str) -> int:
    """Return the least architecture that a version runs on, 90 for sm_90; 0 where its file names none."""
    match = MINIMUM_ARCH_LINE.search(_source(module))
    return int(match[1]) if match else 0


def architecture(device: Device) -> int:
    """Return the compute capability of a GPU as one number, 90 for 9.0; 0 where it has none."""
    return int((device.compute_capability or "0").replace(".", ""))


def provider_names(family: str) -> list[str]:
    return ["torch", "torch-compile", *([FAST_ACCUM] if family == "matmul" else []), *kernel_versions(family)]


def default_providers(family: str, device: Device, dtype: str = "") -> dict[str, tuple[str, ...]]:
    """Return what is measured when no provider is named: eager torch, and the newest Triton version that can run.

    Which version takes a case is known to the version alone: to each provider belong the stand-ins of which the first
    that can is measured where it refuses the case, here the older versions, newest first.
    """
    if not device.is_gpu:
        return {"torch": ()}
    also = [FAST_ACCUM] if family == "matmul" and dtype.startswith("fp8") else []
    arch, known = architecture(device), kernel_versions(family).items() if has_triton() else ()
    fitting = [name for name, module in known if not name.endswith(AUTOTUNE) and minimum_arch(module) <= arch]
    newest = {fitting[-1]: tuple(fitting[-2::-1])} if fitting else {}
    return dict.fromkeys(("torch", *also), ()) | newest


def has_triton() -> bool:
    """Return whether Triton is installed, without importing it: its wheels are for Linux only."""
    return importlib.util.find_spec("triton") is not None


def unavailable(name: str, device: Device) -> str | None:
    """Return why a provider can run nothing here, whatever the op, or None."""
    if is_user_kernel(name):
        why = "a user's function runs in a forked process of its own, and this Python has no os.fork"
        return None if hasattr(os, "fork") else why
    if name.startswith("triton") and not device.is_gpu:
        return f"{name} needs a GPU; this is a CPU"
    if name == FAST_ACCUM and not device.is_gpu:
        return f"{name} needs a GPU that CUDA runs on"
    needs_triton = name.startswith("triton") or (name == "torch-compile" and device.is_gpu)
    if needs_triton and not has_triton():
        return f"{name} needs Triton on a GPU, which is not installed; there are wheels for Linux only"
    return None


def check_names(names: list[str], family: str) -> None:
    known = provider_names(family)
    for name in names:
        if is_user_kernel(name):
            try:
                find(name)
            except UserKernelError as error:
                raise UnknownProviderError(str(error)) from None
        elif name not in known:
            listed = ", ".join((*known, USER_KERNEL))
            raise UnknownProviderError(f"unknown provider '{name}' for {family}; choose from {listed}")


def load(name: str, op: Op, family: str, device: Device) -> Provider:
    """Return a provider, ready to be called on inputs that lie on `device`; a user's file is imported."""
    if name == "torch":
        return Provider(name, op.eager, takes_out=True)
    if is_user_kernel(name):  # imported here: in a worker, where nothing else can come to harm
        from bench.harness.data.checks import current_settings, restore_settings

        before = current_settings()
        function, takes_out = load_user_kernel(name, op)
        return Provider(name, function, takes_out, find(name).sha256(), restored=restore_settings(before))
    if name == "torch-compile":
        return _compiled(op, device)
    if reason := unavailable(name, device):
        raise ProviderUnavailableError(reason)
    if name == FAST_ACCUM:
        return Provider(name, fast_matmul, True, refuses_with=(ValueError,), tolerance=FAST_TOLERANCE)
    return _triton(name, op, kernel_versions(family)[name], architecture(device))


def _triton(name: str, op: Op, path: str, arch: int) -> Provider:
    """Return a version of our kernels, refused before it is imported where the GPU is too old."""
    needed = minimum_arch(path)
    if arch < needed:
        which = f"sm_{arch}" if arch else "of no compute capability"
        raise ProviderUnavailableError(f"{name} needs sm_{needed} or newer; this GPU is {which}")
    module = importlib.import_module(path)
    launchers: dict[str, Callable[..., Any]] = module.AUTOTUNED if name.endswith(AUTOTUNE) else module.KERNELS
    if op.name not in launchers:
        raise ProviderUnavailableError(f"{name} has no {op.name}; it has: {', '.join(launchers)}")
    return Provider(
        name,
        launchers[op.name],
        takes_out=True,
        source_sha256=versions.source_sha256(path),
        refuses_with=(ValueError,),
    )


def _compiled(op: Op, device: Device) -> Provider:
    """Return `torch.compile` of the op, compiled anew: static shapes, nothing kept from the case before.

    What others have compiled in this process stays as it is.
    """
    import torch

    if not device.is_gpu and not any(map(shutil.which, ("g++", "clang++", "cl"))):
        raise ProviderUnavailableError("torch-compile needs a C++ compiler on a CPU: install g++")
    expression = _with_own_code(op.expression or op.reference)

    def returned(*inputs: Any) -> Any:
        return expression(*inputs)

    def into_out(*inputs: Any, out: Any) -> None:
        out.copy_(expression(*inputs))

    takes_out = op.writes_out_when_compiled
    function = _with_own_code(into_out if takes_out else returned)
    return Provider("torch-compile", torch.compile(function, dynamic=False), takes_out)


def _with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a function that shares no code object with it; what is no function of Python is itself.

    torch keeps what it has compiled with the code object, and after `recompile_limit` times, 8, compiles it no more.
    Source: torch 2.11, `torch/_dynamo/cache_size.py` and `_dynamo/config.py`.
    """
    if not isinstance(function, FunctionType):
        return function
    code, closure = function.__code__.replace(), function.__closure__
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


@contextmanager
def numerics(dtype: str) -> Iterator[None]:
    """Let fp32 products be fp32, and those of tf32 be tf32; gradients off. What was set before comes back.

    Set by the older of torch's switches, with which all of them agree: after `fp32_precision` alone torch raises where
    the older ones are read, and Inductor reads them.

    Source: torch 2.13, `torch/__init__.py`, `get_float32_matmul_precision`; pytorch#166387.
    """
    import torch

    backends: Any = torch.backends
    matmuls = (backends.cuda.matmul, backends.mkldnn.matmul)
    before, older = [matmul.fp32_precision for matmul in matmuls], "highest"
    with suppress(RuntimeError):  # the newer settings contradict the older ones
        older = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_float32_matmul_precision(older)
        for matmul, precision in zip(matmuls, before, strict=True):
            if matmul.fp32_precision != precision:
                matmul.fp32_precision = precision
