"""`python -m roofline notes`: every number of the table comes from the accounting functions and from nowhere else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from roofline.accounting.claims import memory, speed
from roofline.accounting.claims.checks import all_claims
from roofline.accounting.claims.claim import NOTES, compared, holds_to

ROOT = Path(__file__).parents[2]


def notes(*arguments):
    command = [sys.executable, "-m", "roofline", "notes", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


ROWS = {claim.claim: claim for _, claims in all_claims() for claim in claims}

EXPECTED = {
    "largest on one H100 at 12 bytes": ("wrong", "6.67B"),
    "largest on 8 H100 at 16 bytes": ("holds", "40.0B"),
    "70B on 15T tokens, 1024 H100": ("holds", "143.93 days"),
    "the same, as it says the lecture has it": ("wrong", "143.9 days"),
    "1.28B on 300B tokens, 8 H100": ("wrong", "6.74 days"),
    "fp16 is 0 below": ("wrong", "2.98e-08"),
    "bf16(1e-8)": ("wrong", "1.0012e-08"),
    "[4,8,16,32] @ [32,2]": ("wrong", "65,536"),
    "bf16 over fp32 on an H100": ("wrong", "14.8"),
    "fp8 over fp32 on tensor cores": ("wrong", "29.6x"),
    "decimal digits of E5M2": ("wrong", "0.90"),
    "fp64 over bf16 in memory": ("wrong", "4x, 2x of fp32"),
    "AdamW in mixed precision, bytes": ("depends", "8 to 18"),
    "checkpointing saves of GPT-3's activations": ("wrong", "97 % full, 70 % selective"),
    "and costs in compute": ("wrong", "33 % full, 0.9 % selective"),
    "activations, B 8, T 2048, d 4096, L 32": ("wrong", "244.8 GB"),
    "saved by flash attention": ("depends", "70 %"),
    "saved by tying V 50,257, d 1024": ("wrong", "51.5M, 205.9 MB"),
    "12 d^2 L at d 1024, L 12": ("wrong", "151.0M"),
    "GPT-3 over the 1.28B model": ("wrong", "136x"),
    "Llama 3 70B over the 1.28B model": ("wrong", "2734x"),
    "steps of training on trillions of tokens": ("wrong", "0.9375 to 3.75 million"),
    "GPT-3's MLP matrix in fp32": ("wrong", "2.416 GB = 2.25 GiB"),
    "FLOPs of 8 H100 in two weeks": ("wrong", "9.575e21"),
    "bits of an FP4 value": ("wrong", "4.5"),
}
"""Verdict and beginning of our value, as the published figures and the arithmetic by hand have them."""


@pytest.mark.parametrize(("claim", "expected"), EXPECTED.items())
def test_verdicts(claim, expected):
    verdict, ours = expected
    assert ROWS[claim].verdict.split()[0] == verdict
    assert ROWS[claim].ours.startswith(ours)


def test_the_verdict_follows_from_the_numbers():
    assert holds_to(144, 143.93, 3)
    assert not holds_to(88, 143.93, 2)
    assert not holds_to(6.5, 6.74, 2)
    row = ("S2", "claim", (2.0, "2"), (2.04, "2.04"), "formula")
    assert compared(*row, 1).verdict == compared(*row, 2).verdict == "holds"
    assert compared(*row, 3).verdict == "wrong"
    assert compared(*row, 1, depends="x").verdict == "depends on x"


def test_our_values_are_computed(monkeypatch):
    monkeypatch.setattr(speed, "H100_PEAK", speed.H100_PEAK * 2)
    rows = {claim.claim: claim for claim in speed.time_claims()}
    assert rows["70B on 15T tokens, 1024 H100"].ours == "71.96 days"
    assert rows["70B on 15T tokens, 1024 H100"].verdict == "wrong"
    monkeypatch.setattr(memory, "largest_params", lambda *_: 53e9)
    rows = {claim.claim: claim for claim in memory.state_claims()}
    assert rows["largest on one H100 at 12 bytes"].verdict == "holds"


def test_every_row_is_complete():
    assert len(ROWS) >= 45
    for claim in ROWS.values():
        assert claim.theirs
        assert claim.ours
        assert claim.formula
        assert claim.verdict.split()[0] in ("holds", "wrong", "depends")
        assert {part for word in claim.notes.split(", ") for part in word.split("-")} <= set(NOTES)


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
