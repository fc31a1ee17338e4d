"""The providers of an op: `torch` (eager), `torch-compile`, every `kernels/<family>/vN_*.py` as
`triton-vN`, for matmul also as an einsum, and a user's function, `path/to/file.py:function` or
`package.module:function`. Some families also have functions of packages, `LIBRARIES`.

Two module-level names are read from the text of a version's file, so that lists and `--help` do not
import Triton:

    AUTOTUNED       autotuned launchers by op: the version is also available as `triton-vN-autotune`
    MINIMUM_ARCH    minimum architecture of the version, 90 for sm_90
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from types import FunctionType
from typing import TYPE_CHECKING, Any

from bench.harness.data.torch_settings import (
    fp32_precision,
    set_fp32_precision,
    settings_kept,
)
from bench.harness.op import Op
from bench.harness.providers.user_kernel import find
from bench.harness.providers.user_kernel import load as load_user_kernel
from bench.harness.torch_private import scaled_mm
from kernels import versions

if TYPE_CHECKING:
    from torch import Tensor

    from bench.harness.data.inputs import InputSet
    from bench.harness.device.device import Device

AUTOTUNE = "-autotune"
NEWEST = "triton"
"""Name that stands for the newest Triton version that can run."""

USER_KERNEL = "path/to/file.py:function"
"""Form of a user's function in messages and helps."""

AUTOTUNED_LINE = re.compile(r"^AUTOTUNED\b", re.MULTILINE)
MINIMUM_ARCH_LINE = re.compile(r"^MINIMUM_ARCH\b.*?=\s*(\d+)", re.MULTILINE)
FAST_ACCUM = "torch-fast-accum"
"""torch's fp8 matmul with 14-bit accumulation, measured by default in addition to `torch`."""

COMPILED = "-compile"

INTERPRETED_ARCH = 90

LIBRARIES: dict[str, dict[str, Mapping[str, Any]]] = {
    "attention": {
        "flash_attn": {"prefill-attention": ("flash_attn:flash_attn_func", {"causal": True})},
    },
    "cross_entropy": {
        "quack": {"cross-entropy": ("quack:cross_entropy", {"reduction": "none"})},
    },
    "elementwise": {
        "liger_kernel": {"swiglu": ("liger_kernel.transformers.functional:liger_swiglu", {})},
    },
    "norm": {
        "flashinfer": {"rmsnorm": ("flashinfer.norm:rmsnorm", {"eps": 1e-6})},
        "liger_kernel": {
            "rmsnorm": (
                "liger_kernel.transformers.functional:liger_rms_norm",
                {"eps": 1e-6, "casting_mode": "gemma"},  # rounds once, as the op does
            ),
            "layernorm": ("liger_kernel.transformers.functional:liger_layer_norm", {"eps": 1e-5}),
        },
        "quack": {"rmsnorm": ("quack:rmsnorm", {"eps": 1e-6})},
    },
    "softmax": {
        "liger_kernel": {"softmax": ("liger_kernel.transformers.functional:liger_softmax", {})},
        "quack": {"softmax": ("quack:softmax", {})},
    },
}
"""Public functions of packages and their options, by family, package and op.

Source: flash-attention's README; FlashInfer 0.6 documentation; liger-kernel 0.8.5,
`transformers/functional.py`; quack-kernels 0.6.5, `quack/__init__.py`."""

DISTRIBUTIONS = {
    "flash_attn": "flash-attn",
    "flashinfer": "flashinfer-python",
    "liger_kernel": "liger-kernel",
    "quack": "quack-kernels",
}
"""Names under which pip installs the packages of `LIBRARIES`."""

EINSUMS = {"einsum": "torch", "einops": "einops"}
"""Matmul as an einsum of float dtypes, by the library that has it; each is also available
compiled.
"""

FAST_TOLERANCE = 4.0
"""14-bit accumulation of 4,096 products has an error of up to 2 %.

Source: DeepSeek-V3 technical report (arXiv 2412.19437), section 3.3.2."""


class ProviderUnavailableError(RuntimeError):
    """The provider cannot run this op on this device; the message has the reason."""


@dataclass(frozen=True)
class Provider:
    """A way to compute an op."""

    name: str
    function: Callable[..., Any]
    """`function(*inputs, out=out)`, or `function(*inputs)` returning the result."""
    takes_out: bool
    source_sha256: str | None = None
    """Hash of the kernel's file, and of the files of this project that it imports."""
    refuses_with: tuple[type[Exception], ...] = ()
    """Errors of the first call that reject the case, such as an unsupported dtype or layout."""
    restored: tuple[str, ...] = ()
    """Settings that importing the user's file changed, and that were restored."""
    tolerance: float = 1.0
    """Factor on the allowed rounding error."""

    def call(self, data: InputSet) -> Callable[[], Any]:
        if self.takes_out:
            return partial(self.function, *data.inputs, out=data.out)
        return partial(self.function, *data.inputs)


def fast_matmul(a: Tensor, b: Tensor, *scales: Tensor, out: Tensor) -> None:
    """Compute C = A B in fp8, with about 14-bit accumulation on Hopper. Source: torch 2.11,
    `_scaled_mm`.
    """
    if not scales:
        raise ValueError("fast accumulation is for fp8")
    scale_a, scale_b = scales
    scaled_mm(a, b, scale_a, scale_b, out_dtype=out.dtype, out=out, use_fast_accum=True)


def einops_matmul(a: Tensor, b: Tensor) -> Any:
    import einops  # type: ignore[import-not-found,unused-ignore]

    return einops.einsum(a, b, "... m k, ... k n -> ... m n")


def _heads_second(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Call a function of tensors (b, s, heads, d) with views of ones (b, heads, s, d)."""
    return function(*(x.transpose(1, 2) for x in inputs)).transpose(1, 2)


def is_user_kernel(name: str) -> bool:
    """Return whether a provider is a user's function: no built-in name has a colon."""
    return ":" in name


def kernel_versions(family: str) -> dict[str, str]:
    """Return provider and module names of a family's Triton versions, oldest first, without
    importing them.
    """
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
    """Return the minimum architecture of a version, 90 for sm_90; 0 if its file has none."""
    match = MINIMUM_ARCH_LINE.search(_source(module))
    return int(match[1]) if match else 0


def is_interpreting(device: Device) -> bool:
    """Return whether Triton's interpreter runs kernels on this CPU."""
    return versions.is_interpreted() and not device.is_gpu and has_triton()


def architecture(device: Device) -> int:
    """Return the compute capability of a GPU as one number, 90 for 9.0; 0 if it has none.

    The interpreter runs the versions that an H100 can run.
    """
    if is_interpreting(device):
        return INTERPRETED_ARCH
    return int((device.compute_capability or "0").replace(".", ""))


def provider_names(family: str) -> list[str]:
    einsums = [name + form for name in EINSUMS for form in ("", COMPILED)]
    own = kernel_versions(family)
    return [
        "torch",
        "torch-compile",
        *([FAST_ACCUM, *einsums] if family == "matmul" else []),
        *LIBRARIES.get(family, {}),
        *([NEWEST] if own else []),
        *own,
    ]


def default_providers(family: str, device: Device, dtype: str = "") -> dict[str, tuple[str, ...]]:
    """Return the default providers, each with its stand-ins: torch, and the newest Triton version
    that can run.
    """
    also = [FAST_ACCUM] if device.is_gpu and family == "matmul" and dtype.startswith("fp8") else []
    own = newest_triton(family, device) if device.is_gpu else {}
    return dict.fromkeys(("torch", *also), ()) | own


def named_providers(
    names: Iterable[str], family: str, device: Device
) -> dict[str, tuple[str, ...]]:
    """Return the named providers, each with its stand-ins, which only `triton` has."""
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        newest = newest_triton(family, device) if name == NEWEST else {}
        found |= newest or {name: ()}
    return found


def newest_triton(family: str, device: Device) -> dict[str, tuple[str, ...]]:
    """Return the newest Triton version that can run, with its stand-ins; empty if there is none.

    If a version rejects a case, the older versions are tried, newest first.
    """
    if not (device.is_gpu or is_interpreting(device)):
        return {}
    arch = architecture(device)
    known = kernel_versions(family).items() if has_triton() else ()
    fitting = [
        name
        for name, module in known
        if not name.endswith(AUTOTUNE) and minimum_arch(module) <= arch
    ]
    return {fitting[-1]: tuple(fitting[-2::-1])} if fitting else {}


def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def unavailable(name: str, device: Device, dtype: str = "") -> str | None:
    """Return why a provider cannot run any op here, or none in a dtype; None if it can."""
    if is_user_kernel(name):
        reason = "a user's function runs in a forked process, and this Python has no os.fork"
        return None if hasattr(os, "fork") else reason
    if name.startswith("triton") and is_interpreting(device):
        wrong = "Triton's interpreter rounds bf16 wrongly; use fp32 or fp16"
        return wrong if dtype == "bf16" else None
    if name.startswith("triton") and not device.is_gpu:
        return f"{name} needs a GPU, got a CPU; TRITON_INTERPRET=1 runs it in Triton's interpreter"
    if name == FAST_ACCUM and not device.is_gpu:
        return f"{name} needs a GPU with CUDA"
    if name.removesuffix(COMPILED) in EINSUMS and dtype.startswith(("int8", "fp8")):
        return (
            f"{name} needs a result of the same dtype as the inputs, which {dtype} products do "
            f"not have"
        )
    if name in DISTRIBUTIONS and not device.is_gpu:
        return f"{name} needs a GPU, got a CPU"
    if name in DISTRIBUTIONS and dtype not in ("fp16", "bf16", ""):
        return f"{name} is compared in fp16 and bf16, got {dtype}"
    library = name if name in DISTRIBUTIONS else EINSUMS.get(name.removesuffix(COMPILED), "torch")
    if importlib.util.find_spec(library) is None:
        distribution = DISTRIBUTIONS.get(name, library)
        return f"{name} needs {library}, which is not installed: pip install {distribution}"
    needs_triton = name.startswith("triton") or (name.endswith(COMPILED) and device.is_gpu)
    if needs_triton and not has_triton():
        return (
            f"{name} needs Triton on a GPU, which is not installed; its wheels are for Linux only"
        )
    if name == NEWEST:
        return f"no Triton version can run on {device.name}"
    return None


def load(name: str, op: Op, family: str, device: Device) -> Provider:
    """Return a provider for inputs on `device`; import a package or a user's file."""
    import torch

    if name == "torch":
        return Provider(name, op.eager, takes_out=op.result_in is None)
    if is_user_kernel(name):  # only in a worker, because importing the file may crash
        with settings_kept() as changed:
            function, takes_out = load_user_kernel(name, op)
        return Provider(name, function, takes_out, find(name).sha256(), restored=tuple(changed))
    if name == "torch-compile":
        return _compiled(name, op.expression or op.reference, op.writes_out_when_compiled, device)
    reason = unavailable(name, device)
    if reason:
        raise ProviderUnavailableError(reason)
    if name == FAST_ACCUM:
        return Provider(
            name, fast_matmul, True, refuses_with=(ValueError,), tolerance=FAST_TOLERANCE
        )
    if name in DISTRIBUTIONS:
        functions = LIBRARIES[family][name]
        if op.name not in functions:
            raise ProviderUnavailableError(
                f"{name} has no {op.name}; it has: {', '.join(functions)}"
            )
        path, options = functions[op.name]
        function = partial(resolve_name(path), **options)
        if name == "flash_attn":
            function = partial(_heads_second, function)
        return Provider(name, function, takes_out=False)
    if name.removesuffix(COMPILED) in EINSUMS:
        expression: Callable[..., Any] = einops_matmul
        if name.startswith("einsum"):
            expression = partial(torch.einsum, "...mk,...kn->...mn")
        if name.endswith(COMPILED):
            return _compiled(name, expression, False, device)
        return Provider(name, expression, takes_out=False)
    return _triton(name, op, kernel_versions(family)[name], architecture(device))


def _triton(name: str, op: Op, path: str, arch: int) -> Provider:
    """Return a Triton version; it is rejected before the import if the GPU is too old."""
    needed = minimum_arch(path)
    if arch < needed:
        actual = f"sm_{arch}" if arch else "a GPU without a compute capability"
        raise ProviderUnavailableError(f"{name} needs sm_{needed} or newer, got {actual}")
    module = importlib.import_module(path)
    launchers: dict[str, Callable[..., Any]] = (
        module.AUTOTUNED if name.endswith(AUTOTUNE) else module.KERNELS
    )
    if op.name not in launchers:
        raise ProviderUnavailableError(f"{name} has no {op.name}; it has: {', '.join(launchers)}")
    return Provider(
        name,
        launchers[op.name],
        takes_out=op.result_in is None,
        source_sha256=versions.source_sha256(path),
        refuses_with=(ValueError,),
    )


def _compiled(name: str, plain: Callable[..., Any], takes_out: bool, device: Device) -> Provider:
    """Return `torch.compile` of a function with static shapes, compiled again for each case."""
    import torch

    if not device.is_gpu and not any(map(shutil.which, ("g++", "clang++", "cl"))):
        raise ProviderUnavailableError(f"{name} needs a C++ compiler on a CPU; install g++")
    expression = _with_own_code(plain)

    def returned(*inputs: Any) -> Any:
        return expression(*inputs)

    def into_out(*inputs: Any, out: Any) -> None:
        out.copy_(expression(*inputs))

    function = _with_own_code(into_out if takes_out else returned)
    return Provider(name, torch.compile(function, dynamic=False), takes_out)


def _with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a Python function with a new code object; return any other callable
    unchanged.

    torch saves compiled code with the code object, and stops compiling it after `recompile_limit`
    times, 8.
    Source: torch 2.11, `torch/_dynamo/cache_size.py` and `_dynamo/config.py`.
    """
    if not isinstance(function, FunctionType):
        return function
    code = function.__code__.replace()
    closure = function.__closure__
    copy = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, closure
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


@contextmanager
def numerics(dtype: str) -> Iterator[None]:
    """Use fp32 matmuls for fp32 and tf32 matmuls for tf32, without gradients; restore the settings
    afterwards.

    The older of torch's settings is set, which changes all of them: if only `fp32_precision` is
    set, torch raises when Inductor reads the older ones.
    """
    import torch

    before = fp32_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        with torch.no_grad():
            yield
    finally:
        set_fp32_precision(before)
