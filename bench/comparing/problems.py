"""Problems of flashinfer-bench and SOL-ExecBench: a definition, its workloads and solutions.

Files are parsed as data. Their sources are code, which runs in a worker only.

Sources of the formats: flashinfer-bench, docs/flashinfer_trace/definition.md at commit
0d4284acd80e, workload.md at c1505369fad9, docs/flashinfer-trace/solution.mdx at 15618a67e8d7;
SOL-ExecBench, docs/*.md at commit 266784cd2688, random inputs in bench/utils.py there. Constraints
and tolerances are not read: results are checked as those of all functions that are compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from bench.comparing.case import Case, Functions
from bench.harness.data.agreement import Fn
from bench.harness.op import UsageError
from bench.harness.op_file import import_file
from results.record import Object

if TYPE_CHECKING:
    import torch
    from torch import Tensor

T = TypeVar("T")

LANGUAGES = ("python", "pytorch", "triton")
"""Languages whose entry point is a Python function."""

RANGES = {"bool": (0, 2), "int8": (-128, 128)}
OTHER_RANGE = (-1024, 1024)
"""Random integers: the first and the one after the last, by dtype."""


class Axis(Struct, frozen=True):
    """A named extent."""

    type: Literal["const", "var", "expr"]
    value: int = 0
    expression: str = ""


class Spec(Struct, frozen=True):
    """An input or an output; a number if `shape` is None."""

    shape: tuple[str, ...] | None
    dtype: str


class Definition(Struct, frozen=True):
    """What is computed: `reference` has a function `run`."""

    name: str
    axes: dict[str, Axis]
    inputs: dict[str, Spec]
    outputs: dict[str, Spec]
    reference: str
    custom_inputs_entrypoint: str | None = None


class Source(Struct, frozen=True):
    """Where an input comes from."""

    type: Literal["random", "scalar", "safetensors", "custom"]
    value: bool | int | float | None = None
    path: str = ""
    tensor_key: str = ""


class Workload(Struct, frozen=True):
    """Values of the variable axes, and the inputs."""

    axes: dict[str, int]
    inputs: dict[str, Source]
    uuid: str = ""


class File(Struct, frozen=True):
    """A source file of a solution."""

    path: str
    content: str


class Build(Struct, frozen=True):
    """How a solution is called."""

    entry_point: str
    """`main.py::run`."""
    language: str = ""
    languages: tuple[str, ...] = ()
    destination_passing_style: bool = True
    """Whether the outputs are its last arguments; else it returns them."""


class Solution(Struct, frozen=True):
    """An implementation of a definition."""

    definition: str
    spec: Build
    sources: tuple[File, ...]


def read(path: str, kind: type[T]) -> T:
    """Return the object in a JSON file.

    Raises:
        UsageError: it cannot be read, or is not of this kind.
    """
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path} is not a {kind.__name__.lower()}: {error}") from None


def read_workloads(path: str) -> list[Workload]:
    """Return the workloads of a file, one in a line, alone or as `workload` of a trace."""
    try:
        lines = msgspec.json.Decoder(dict[str, Any]).decode_lines(Path(path).read_bytes())
        workloads = [msgspec.convert(line.get("workload", line), Workload) for line in lines]
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path} is not a list of workloads: {error}") from None
    if not workloads:
        raise UsageError(f"{path} has no workload")
    return workloads


@dataclass(kw_only=True)
class Problem(Case):
    """One workload of a definition."""

    definition: Definition
    workload: Workload
    sides: dict[str, Solution | None]
    """Solutions by provider; None for the reference."""
    file: Path
    """File of the workload, for the paths of its tensors."""
    directory: Path
    """Directory of the sources."""

    @cached_property
    def reference(self) -> ModuleType:
        return import_file(
            self._write(File("reference.py", self.definition.reference), "definition")
        )

    @cached_property
    def axes(self) -> dict[str, int]:
        values = dict(self.workload.axes)
        axes = self.definition.axes.items()
        for name, axis in sorted(axes, key=lambda item: item[1].type == "expr"):
            if axis.type == "expr":  # of the others; it is code, as the reference is
                values[name] = int(eval(axis.expression, {"__builtins__": {}}, values))
            elif axis.type == "const":
                values[name] = axis.value
            elif name not in values:
                raise UsageError(f"the workload has no axis {name}")
        return values

    def work(self, arguments: Sequence[Any]) -> Object:
        """Return the bytes of inputs and outputs; numbers have none."""
        sizes = [getattr(x, "nbytes", 0) for x in arguments]
        count = len(self.definition.inputs)
        return {"bytes_read": sum(sizes[:count]), "bytes_written": sum(sizes[count:])}

    def arguments(self) -> tuple[Any, ...]:
        """Return new inputs, then outputs of NaN, which a solution has to overwrite."""
        import torch

        arguments = self._inputs()
        for spec in self.definition.outputs.values():
            dtype = getattr(torch, spec.dtype)
            empty = math.nan if dtype.is_floating_point else 1
            arguments.append(torch.full(self._shape(spec), empty, device=self.device).to(dtype))
        return tuple(arguments)

    def functions(self, names: Sequence[str]) -> Functions:
        """Return the functions, the baseline first, as `loaded` does."""
        self.make = self.arguments
        return self.loaded(names, self._function)

    def _function(self, name: str) -> Fn:
        """Return a function that takes `arguments` and returns the outputs.

        Raises:
            UsageError: the solution is not in Python, or its files are not a directory's.
        """
        solution = self.sides[name]
        if solution is None:
            return partial(self._outputs, self.reference.run, False)
        spec = solution.spec
        others = {*spec.languages, spec.language} - {"", *LANGUAGES}
        if others:
            other = ", ".join(sorted(others))
            raise UsageError(f"its language is {other}; only {', '.join(LANGUAGES)} can be run")
        entry, _, function = spec.entry_point.partition("::")
        directory = f"solution{list(self.sides).index(name)}"
        for file in solution.sources:
            path = Path(file.path)
            if path.is_absolute() or ".." in path.parts:
                raise UsageError(f"its source {file.path} is outside its directory")
            self._write(file, directory)
        run = getattr(import_file(self.directory / directory / entry), function)
        return partial(self._outputs, run, spec.destination_passing_style)

    def _write(self, file: File, directory: str) -> Path:
        path = self.directory / directory / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.content, encoding="utf-8")
        return path

    def _outputs(self, run: Fn, is_written: bool, *arguments: Any) -> Sequence[Any]:
        """Call a function; its outputs are its last arguments if `is_written`."""
        count = len(self.definition.inputs)
        if is_written:
            run(*arguments)
            return arguments[count:]
        result = run(*arguments[:count])
        if isinstance(result, dict):
            return [result[name] for name in self.definition.outputs]
        return result if isinstance(result, tuple | list) else [result]

    def _inputs(self) -> list[Any]:
        import torch

        sources = self.workload.inputs
        specs = self.definition.inputs
        if any(source.type == "custom" for source in sources.values()):
            make = getattr(self.reference, self.definition.custom_inputs_entrypoint or "")
            made = make(dict(self.axes), torch.device(self.device))
            return [made[name] for name in specs]
        inputs: list[Any] = []
        for name, spec in specs.items():
            source = sources[name]
            if source.type == "scalar":
                inputs.append(source.value)
            elif source.type == "safetensors":
                inputs.append(self._saved(source))
            else:
                drawn = random(self._shape(spec), getattr(torch, spec.dtype), self.device)
                inputs.append(drawn.item() if spec.shape is None else drawn)
        return inputs

    def _saved(self, source: Source) -> Tensor:
        """Return a tensor of a file; its path is from the workload's directory or one above it."""
        from safetensors.torch import load_file  # type: ignore[import-not-found,unused-ignore]

        above = [parent / source.path for parent in self.file.absolute().parents]
        path = next((each for each in above if each.is_file()), above[0])
        return load_file(path)[source.tensor_key].to(self.device)

    def _shape(self, spec: Spec) -> tuple[int, ...]:
        return tuple(int(self.axes.get(x, x)) for x in spec.shape or ())


def random(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    import torch

    if dtype.is_floating_point:
        return torch.randn(shape, device=device).to(dtype)
    low, high = RANGES.get(str(dtype).removeprefix("torch."), OTHER_RANGE)
    return torch.randint(low, high, shape, device=device).to(dtype)
