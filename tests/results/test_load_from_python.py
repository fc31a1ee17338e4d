"""`results.load`: a run, the newest one, or a folder of them as a frame, and one clear error where
there is none.
"""

import json

import pytest

import results


@pytest.fixture
def folder(save, make_record, tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFMARK_RUNS", str(tmp_path))
    for op, day, slug in (("gelu", 20, "cpu-x"), ("matmul", 21, "cpu-y")):
        records = [make_record(op=op, dtype=dtype, case="8") for dtype in ("fp32", "bf16")]
        device = {"slug": slug, "name": "X", "type": "cpu"}
        save(
            f"{op}-2026",
            *records,
            run_id=f"{op}-2026",
            started_at=f"2026-11-{day}T21:03:12+00:00",
            device=device,
        )
    return tmp_path


def test_a_path_an_id_and_the_newest_run_are_loaded(folder):
    assert list(results.load(folder / "gelu-2026.jsonl")["op"]) == ["gelu", "gelu"]
    assert list(results.load("gelu-2026")["op"]) == ["gelu", "gelu"]
    newest = results.load()
    assert list(newest["op"]) == ["matmul", "matmul"]
    assert newest["samples_s"][0] == [4.2e-6, 4.294967296e-6, 4.4e-6]
    assert newest["median_s"][0] == 4.294967296e-6


def test_a_folder_is_loaded_whole_and_records_are_chosen(folder):
    assert sorted(results.load(folder)["op"]) == ["gelu", "gelu", "matmul", "matmul"]
    assert list(results.load(folder, dtype="bf16", op=["gelu", "add"])["case"]) == ["8"]
    assert set(results.load(folder, machine="cpu-y")["op"]) == {"matmul"}
    assert set(results.load("latest", op="gelu")["op"]) == {"gelu"}
    assert set(results.load("latest", runs=folder, provider="torch")["op"]) == {"matmul"}
    assert set(results.load(folder, since="2026-11-21")["op"]) == {"matmul"}


def test_a_line_that_cannot_be_used_is_told(folder):
    path = folder / "gelu-2026.jsonl"
    lines = path.read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | {"median_s": "fast"})
    path.write_text("\n".join(lines) + "\n")
    with pytest.warns(UserWarning, match=r"gelu-2026.jsonl:2: .*median_s"):
        assert len(results.load(path)) == 1


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        ({"run": "nothing"}, results.StoreError, "no run 'nothing'"),
        ({"run": "no/such/file.jsonl"}, results.StoreError, "no run file"),
        ({"op": "softmax"}, results.StoreError, "has a matching record"),
        ({"since": "soon"}, ValueError, "expected a time ago"),
    ],
)
def test_what_is_not_there_raises_one_line(folder, words, kind, said):
    with pytest.raises(kind, match=said) as raised:
        results.load(**words)
    assert "\n" not in str(raised.value)


def test_a_folder_without_a_fitting_run_says_so(folder):
    with pytest.raises(results.StoreError, match="no run in"):
        results.load(folder, op="softmax")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = results.nothing
