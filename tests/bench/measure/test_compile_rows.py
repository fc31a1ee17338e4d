"""Kernels compiled before the rows are measured."""

import pickle
from dataclasses import replace

import pytest
import torch

import kernels.launch
from bench.__main__ import families
from bench.harness.cli.arguments import Request, make_cases
from bench.harness.device.device import Device
from bench.harness.measure import isolated as beforehand
from bench.harness.measure.rows import Settings, plan
from bench.harness.providers.registry import default_providers
from kernels import precompile
from kernels.launch import Gpu

H100 = Device(
    "cuda",
    "cuda:0",
    "h100-sxm",
    "H100",
    50 * 2**20,
    80 * 2**30,
    sm_count=132,
    compute_capability="9.0",
)
pytestmark = pytest.mark.skipif(
    kernels.launch.INTERPRETED, reason="interpreted kernels are not compiled"
)


@pytest.fixture
def rows(monkeypatch):
    monkeypatch.setattr(Device, "free_bytes", lambda self: 80 * 2**30)
    found = []
    for family, dtypes in (("softmax", ["bf16"]), ("matmul", ["tf32", "fp32"])):
        (op,) = families()[family]
        request = Request(dtype=dtypes, shape=["64"])
        cases = [(op, case) for case in make_cases(family, op, "cuda", request)]
        names = [*default_providers(family, H100), "triton-v5-autotune"]
        for op, case in cases:
            found += plan(op, case, names, H100, Settings(), family=family)
    return found


@pytest.mark.exhaustive
def test_each_triton_launch_compiles_and_can_be_pickled(rows, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    launches = beforehand.launches_of(rows)
    assert [name.partition(",")[0] for name in launches] == [
        "softmax bf16 4096x64",
        "matmul tf32 64x64x64",
        "matmul fp32 64x64x64",
    ]
    before = torch.get_float32_matmul_precision()
    with precompile.compile_only(Gpu(90, 132, 50 * 2**20)) as compiled:
        for launch in pickle.loads(pickle.dumps(launches)).values():
            launch()
    precisions = [kernel.metadata.name for kernel in compiled]
    assert len(precisions) >= 3
    assert torch.get_float32_matmul_precision() == before
    hashes = [kernel.hash for kernel in compiled]
    assert len(set(hashes)) == len(hashes)  # tf32 and fp32 are two kernels


def test_few_kernels_a_cpu_or_rejected_rows_start_no_process(rows, monkeypatch):
    compiled = []
    monkeypatch.setattr(
        precompile,
        "precompile",
        lambda launches: compiled.append(sorted(launches)) or {"a row": "why"},
    )
    assert beforehand.compile_rows(rows, H100) == {}
    monkeypatch.setattr(beforehand, "MIN_KERNELS", 3)
    assert beforehand.compile_rows(rows, replace(H100, type="cpu")) == {}
    assert compiled == []
    assert beforehand.compile_rows(rows, H100) == {"a row": "why"}
    assert len(compiled[0]) == 3
    refused = [replace(row, refused="a record") for row in rows]
    assert beforehand.compile_rows(refused, H100) == {}
