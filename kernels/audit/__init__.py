"""Compile kernels for GPUs that need not be present, and analyze the machine code."""

import argparse
from dataclasses import dataclass
from typing import Annotated

from results.show.options import Names, Parameter

SIGNATURE = """argument types, in order or by name: '*bf16:16,*bf16:16,i32' or
'x_ptr=*bf16:16,n=i32';
':16' marks a multiple of 16, for a pointer in bytes"""

CONSTEXPR = """constants, such as 'BLOCK=1024,ROUND=True,DTYPE=bf16': numbers, True, False, None,
data types, and names in the file; anything else and anything in quotes is text"""

OWN = "your own kernel"
"""Title of a group of options."""


class AuditError(Exception):
    """An error of one line for the user."""


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected an integer from 1, got '{text}'")
    return int(text)


def _warps(text: str) -> int:
    warps = _positive(text)
    # CUDA C++ Programming Guide: at most 1024 threads; Triton: a power of two.
    if warps not in (1, 2, 4, 8, 16, 32):
        raise argparse.ArgumentTypeError(f"expected 1, 2, 4, 8, 16 or 32 warps, got '{text}'")
    return warps


ONE_WORD = {"nargs": 1}
"""Names of kernels may follow a list option."""


@dataclass(frozen=True)
class Selection:
    """The options of an audit, besides those of a user's kernel."""

    arch: Annotated[
        Names,
        Parameter(
            "architectures, such as sm_90 (default: sm_80,sm_90,sm_100)", group="", told=ONE_WORD
        ),
    ] = None
    dtype: Annotated[
        Names, Parameter("data types, such as bf16 (default: all)", group="", told=ONE_WORD)
    ] = None
    version: Annotated[
        Names, Parameter("versions, such as v2 (default: all)", group="", told=ONE_WORD)
    ] = None
    all: Annotated[bool, "compile all variants of all versions, which takes minutes", bool, ""] = (
        False
    )
    sass: Annotated[
        bool, "print the machine code of the hot loop, or without a loop of the hot path", bool, ""
    ] = False


@dataclass(frozen=True)
class OwnKernel:
    """The options of an audit of a user's kernel."""

    signature: Annotated[str, SIGNATURE, str, OWN, "TYPES"] = ""
    constexpr: Annotated[str, CONSTEXPR, str, OWN, "NAME=VALUE,..."] = ""
    num_warps: Annotated[int | None, "warps per program (default: 4)", _warps, OWN, "N"] = None
    num_stages: Annotated[int | None, "pipeline stages (default: 3)", _positive, OWN, "N"] = None
    elements: Annotated[
        int, "elements that a program computes in one pass of its main loop", _positive, OWN, "N"
    ] = 0
    bytes: Annotated[
        int | None, "bytes of memory traffic for these elements", _positive, OWN, "N"
    ] = None
