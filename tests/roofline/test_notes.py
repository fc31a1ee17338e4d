"""`python -m roofline notes`: the table is complete, and what it gives as ours is what the package computes."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from roofline.accounting.activations import Kernels, model_activations
from roofline.accounting.budget import SECONDS_PER_DAY, affordable_flops, largest_params, six_nd, training_seconds
from roofline.accounting.config.file import load_preset, read_config
from roofline.accounting.flops import train_flops
from roofline.accounting.number_formats import FORMATS, scale_bytes, shown_in
from roofline.accounting.parameters import count_parameters
from roofline.accounting.state import RECIPES, bytes_per_param
from roofline.commands.notes import load_notes
from roofline.estimate.answer import number, size
from roofline.hardware.gpu import find_gpu, load_gpus
from roofline.model import intensity, ridge_intensity
from roofline.work import bytes_of, elementwise_work, matmul_work

ROOT = Path(__file__).parents[2]
NOTES = load_notes()
ROWS = {row["claim"]: row for row in NOTES["claims"]}


def notes(*arguments):
    command = [sys.executable, "-m", "roofline", "notes", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def gpt(width, layers, heads, vocabulary):
    """Return a GPT of the notes: no biases, no learned positions."""
    sizes = {"n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": 2048, "vocab_size": vocabulary}
    return read_config({"model_type": "nanogpt", "has_positions": False, **sizes}, "the notes' model")


def kept(config, batch, *recompute, is_flash=False):
    return sum(
        model_activations(config, 2048, batch, Kernels(is_flash=is_flash, has_dropout=True), *recompute).values()
    )


def days(params, tokens, peak, gpus):
    return training_seconds(six_nd(params, tokens), peak, gpus, 0.5) / SECONDS_PER_DAY


H100 = find_gpu("h100-sxm")
PEAKS = H100.peaks_flops_per_s
RATIO = PEAKS["bf16"] / PEAKS["fp32"]
SMALL, LARGE = gpt(1024, 12, 16, 50257), gpt(4096, 32, 32, 32000)
FORWARD = train_flops(LARGE, 4096, convention="gemm-full").forward
BLOCK = FORWARD["attention_projections"] + FORWARD["mlp"]
GPT_3 = load_preset("gpt-3")
GPT_3_FLOPS = 300_000_000_000 * train_flops(GPT_3, 2048, convention="6nd").per_token
FULL = train_flops(GPT_3, 2048, convention="gemm-full", checkpoint="full", is_flash=False)
TIED = count_parameters(load_preset("notes-1.28b")).total
EMBEDDING = count_parameters(SMALL).components["embedding"]
WITH_FP8 = {gpu.architecture for gpu in load_gpus().values() if "fp8e4m3" in gpu.peaks_flops_per_s}
BYTES = [bytes_per_param(recipe, "adamw") for recipe in RECIPES.values()]
GELU = [elementwise_work(1024, 20, 1, dtype) for dtype in ("bf16", "fp32")]
SQUARE = matmul_work(1024, 1024, 1024, "bf16", "bf16")

COMPUTED = {
    "70B on 15T tokens, 1024 H100": f"{days(70e9, 15e12, 1979e12 / 2, 1024):.2f} days",
    "1.28B on 300B tokens, 8 H100": f"{days(1.28e9, 300e9, 989e12, 8):.2f} days",
    "FLOPs of GPT-3": number(GPT_3_FLOPS),
    "GPT-3 over the 1.28B model": f"{GPT_3_FLOPS / six_nd(1.28e9, 300e9):.0f}x",
    "Llama 3 70B over the 1.28B model": f"{six_nd(70e9, 15e12) / six_nd(1.28e9, 300e9):.0f}x",
    "FLOPs of 8 H100 in two weeks": number(affordable_flops(1979e12 / 2, 8, 1, 14 * SECONDS_PER_DAY)),
    "[4,8,16,32] @ [32,2]": f"{matmul_work(4 * 8 * 16, 2, 32, 'fp32', 'fp32').flops:,}",
    "attention's share that 6 N D leaves out at T = d": f"{100 * FORWARD['attention_core'] / BLOCK:.0f} %",
    "fp32 peak of an H100, TFLOP/s": f"{PEAKS['fp32'] / 1e12:g}",
    "bf16 over fp32 on an H100": f"{RATIO:.1f}",
    "fp8 over fp32 on tensor cores": f"{PEAKS['fp8e4m3'] / PEAKS['fp32']:.1f}x",
    "GPU architectures with fp8": f"{len(WITH_FP8)} ",
    "intensity of square products": f"{intensity(SQUARE.flops, SQUARE.bytes):.0f} at n = 1024",
    "ridge point of an H100, bf16": f"{ridge_intensity(PEAKS['bf16'], H100.memory_bandwidth_bytes_per_s):.1f}",
    "intensity of GELU": "{:g} in bf16, {:g} in fp32".format(*(intensity(work.flops, work.bytes) for work in GELU)),
    "fp16 is 0 below": f"{float(FORMATS['fp16'].smallest_subnormal) / 2:.2e}",
    "bf16(1e-8)": f"{float(shown_in(Fraction('1e-8'), 'bf16')):.4e}",
    "decimal digits of E5M2": f"{FORMATS['fp8e5m2'].decimal_digits:.2f}",
    "bits of an FP4 value": f"{8 * (bytes_of(1024, 'nvfp4') + scale_bytes(1024, 'nvfp4')) / 1024:g}",
    "GPT-3's MLP matrix in fp32": size(bytes_of(4 * 12288 * 12288, "fp32")),
    "12 d^2 L at d 1024, L 12": f"{(count_parameters(SMALL).matmul - EMBEDDING) / 1e6:.1f}M",
    "saved by tying V 50,257, d 1024": f"{EMBEDDING / 1e6:.1f}M, {size(4 * EMBEDDING)}",
    "d 2048, L 24, V 32,000": f"{TIED / 1e9:.3f}B tied",
    "AdamW in mixed precision, bytes": f"{min(BYTES)} to {max(BYTES)}",
    "largest on 8 H100 at 16 bytes": f"{largest_params(80e9, 8, 16) / 1e9:.1f}B",
    "largest on one H100 at 12 bytes": f"{largest_params(80e9, 1, 12) / 1e9:.2f}B",
    "activations, B 8, T 2048, d 4096, L 32": f"{size(kept(LARGE, 8))} unfused, {size(kept(LARGE, 8, is_flash=True))}",
    "saved by flash attention": f"{100 * (1 - kept(LARGE, 8, is_flash=True) / kept(LARGE, 8)):.0f} %",
    "checkpointing saves of GPT-3's activations": f"{100 * (1 - kept(GPT_3, 1, 'full') / kept(GPT_3, 1)):.0f} % full",
    "and costs in compute": f"{100 * (FULL.hardware_flops / FULL.model_flops - 1):.0f} % full",
}
"""By claim: how the value that the table gives as ours begins."""


@pytest.mark.parametrize(("claim", "ours"), COMPUTED.items())
def test_our_value_is_the_one_that_the_package_computes(claim, ours):
    assert ROWS[claim]["ours"].startswith(ours)


def test_every_row_is_complete():
    assert len(ROWS) == len(NOTES["claims"]) >= 45
    for row in ROWS.values():
        assert all(row[key] for key in row if key != "remark")
        assert row["verdict"].split()[0] in ("holds", "wrong", "depends")
        assert {part for word in row["notes"].split(", ") for part in word.split("-")} <= set(NOTES["notes"])


def test_formats():
    done = notes()
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{len(ROWS)} claims: " in done.stdout
    assert all(claim in done.stdout for claim in ROWS)
    data = json.loads(notes("--format", "json").stdout)
    assert [row["claim"] for row in data["claims"]] == list(ROWS)
    table = notes("--format", "md").stdout.splitlines()
    assert len(table) == len(ROWS) + 2
    assert {line.replace("\\|", "").count("|") for line in table} == {8}


def test_the_notes_are_named_before_the_first_claim_of_them() -> None:
    lines = notes().stdout.splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["S0", "S1", "S2", "S3", "S4"]
    assert "https://stanford-cs336.github.io" in lines[5]
    assert lines[7].startswith("notes ")
