"""Kernels compiled ahead of time, for the tests that read what the compiler made of them."""

import csv
import re
from pathlib import Path

import triton

from kernels.audit import catalog, rows, sass

ARCHES = catalog.ARCHES
NEWEST_VERSIONS = list({version.family: version for version in catalog.shipped()}.values())
FP8 = ("fp8e4m3", "fp8e5m2")
TENSOR_CORES = {
    80: {"tf32": "HMMA", "fp16": "HMMA", "bf16": "HMMA", "int8": "IMMA"},
    90: {"tf32": "HGMMA", "fp16": "HGMMA", "bf16": "HGMMA", "int8": "IGMMA"}
    | dict.fromkeys(FP8, "QGMMA"),
    100: {"tf32": "UTCHMMA", "fp16": "UTCHMMA", "bf16": "UTCHMMA"} | dict.fromkeys(FP8, "UTCQMMA"),
}
TENSOR_CORES[100]["int8"] = "UTCIMMA" if triton.__version__ >= "3.8" else "IMMA"


def compile_ahead(variant, arch, integers="i32", known_sizes=True):
    source = rows.source_of(variant, integers, known_sizes)
    return rows.compile_ahead(source, arch, variant.options)


def read_back(compiled):
    return sass.read_back(compiled.asm["cubin"])


def widths(instructions, kind):
    return list(sass.widths(instructions, kind).elements())


def divisible(compiled):
    names = compiled.src.fn.arg_names
    return {names[path[0]] for path, attributes in compiled.src.attrs.items() if attributes}


def widened_first(ir):
    """Whether the program number is made 64 bits wide before anything else is done with it."""
    [program] = re.findall(r"(%\w+) = tt\.get_program_id x", ir)
    uses = [line for line in ir.splitlines() if re.search(rf"= .*{program}\b(?!\s*=)", line)]
    assert uses
    return all(f"arith.extsi {program} : i32 to i64" in line for line in uses)


RECORDED = {
    rows.key_of(row): row
    for row in csv.DictReader(Path(__file__).with_name("audited.csv").read_text().splitlines())
}
"""What `python -m kernels audit --format csv` printed when the kernels were accepted."""
IS_RECORDED_TRITON = {row["triton"].rpartition(".")[0] for row in RECORDED.values()} == {
    triton.__version__.rpartition(".")[0]
}

STACK_BYTES = 0 if IS_RECORDED_TRITON else 32
"""Most stack of a lean kernel; Triton 3.6 leaves a few bytes to some."""


def assert_lean(binary, allow_double=False):
    assert binary.registers > 0
    assert binary.stack_bytes <= STACK_BYTES
    assert not (IS_RECORDED_TRITON and [item for item in binary.instructions if item.spill_bytes])
    assert any(item.base == "EXIT" for item in binary.instructions)
    assert allow_double or not [str(item) for item in binary.instructions if item.is_double]
