"""What is kept of a published record: its summary, what is to be committed, the archive. No GPU, no measurements."""

import json
import tarfile

from bench.validation import publish, publish_summary
from tests.perf import publish_plans
from tests.perf.publish_plans import KEEPING, RUN, states, step

planned = publish_plans.planned


def test_the_summary_says_what_was_wanted_and_found(planned):
    steps = [
        step("slow", "import time; time.sleep(0.2)", wanted_s=0.1),
        step("quick", KEEPING, wanted_s=50.0),
        step("imports", "import time; time.sleep(0.2)", wanted_s=0.1, is_after_import=True),
        step("talks", "print('noise'); print('=== 3 passed ===')"),
    ]
    planned(steps, left_out={"gpu": "needs a CUDA device"})
    text = (planned.folder / "summary.md").read_text()
    rows = {line.split(" | ")[0][2:]: line for line in text.splitlines() if line.startswith("| ")}
    assert "below 0.1 s: missed" in rows["slow"]
    assert "below 50 s: met" in rows["quick"]
    assert "below 0.1 s: met" in rows["imports"]  # the device of these tests takes 2 s to import
    assert "8 ok" in rows["quick"]
    assert "| 3 passed |" in rows["talks"]
    assert "left out: gpu: needs a CUDA device" in text


def test_the_doctor_is_quoted_with_what_is_wrong(planned):
    statuses = {"load": "note", "other work": "bad"}
    findings = [{"name": name, "status": status, "value": "busy"} for name, status in statuses.items()]
    pages = {"unfit": {"fit": False, "findings": findings}, "fit": {"fit": True, "findings": []}}
    code = "import json; print(json.dumps({}, indent=2)); raise SystemExit(1)"
    planned([step(name, code.format(page)) for name, page in pages.items()])
    said = {attempt["name"]: attempt["stdout_tail"] for attempt in publish_summary.attempts(planned.folder)}
    assert said == {"unfit": ["not fit: other work: busy"], "fit": ["fit"]}
    assert "| not fit: other work: busy |" in (planned.folder / "summary.md").read_text()


def test_a_wrong_row_is_named(planned):
    wrong = KEEPING + (
        "file = place / '20261120T233629Z-matmul-a349e4f85f.jsonl'\n"
        "head, first, *rest = file.read_text().splitlines()\n"
        "import json\n"
        "record = json.loads(first)\n"
        "record |= {'status': 'invalid', 'reason': 'wrong at 3', 'provider': 'triton-v9'}\n"
        "file.write_text('\\n'.join([head, json.dumps(record), *rest]) + '\\n')\n"
        "raise SystemExit(1)\n"
    )
    assert planned([step("wrong", wrong)]) == 0
    attempt = publish_summary.attempts(planned.folder)[0]
    assert attempt["rows"] == {"invalid": 1, "ok": 7}
    assert attempt["wrong"] == ["matmul 256x256x256 bf16 triton-v9: invalid: wrong at 3"]
    assert "triton-v9: invalid: wrong at 3" in (planned.folder / "summary.md").read_text()


ROOFS = """
import json, os, pathlib
place = pathlib.Path(os.environ["RIDGEPOINT_RUNS"]) / "h100-sxm"
place.mkdir(parents=True, exist_ok=True)
kept = place / "ceilings-0123456789ab.json"
print(kept.read_text() if kept.exists() else "none")
kept.write_text(json.dumps({"slug": "h100-sxm", "entries": [], "identity": {"host": "secret"}, "by": BY}))
"""


def test_roofs_go_from_step_to_step_but_for_those_of_a_step_of_its_own(planned):
    codes = {name: f"BY = {name!r}\n{ROOFS}" for name in ("full", "quick", "after")}
    planned(
        [step("full", codes["full"]), step("quick", codes["quick"], has_own_roofs=True), step("after", codes["after"])]
    )
    seen = {name: (planned.folder / f"steps/{name}/stdout.txt").read_text() for name in codes}
    assert seen["full"] == seen["quick"] == "none\n"
    assert json.loads(seen["after"])["by"] == "full"
    published = json.loads((planned.folder / "published/h100-sxm/ceilings.json").read_text())
    assert published == {"slug": "h100-sxm", "entries": [], "by": "after"}  # without what identifies the machine


BROKEN = """
import os, pathlib
place = pathlib.Path(os.environ["RIDGEPOINT_RUNS"]) / "h100-sxm"
head, first, *rest = (place / "20261120T233629Z-matmul-a349e4f85f.jsonl").read_text().splitlines()
broken = {"torn": ['{"kind": "envi'], "empty": [head], "holed": [head, "{}", first], "cut": [head, first, "{"]}
for name, lines in broken.items():
    (place / f"20261120T233630Z-{name}-00.jsonl").write_text("\\n".join(lines))
"""


def test_published_are_whole_runs_of_the_attempts_that_count(planned):
    broken = step("broken", KEEPING + BROKEN)
    writing = "import pathlib; pathlib.Path('found').mkdir(); pathlib.Path('found/spread.json').write_text('{}')"
    planned([step("good", KEEPING), broken, step("quick", KEEPING, has_own_roofs=True), step("script", writing)])
    place = planned.folder / "published/h100-sxm"
    assert {path.name for path in place.iterdir()} == {
        *("20261120T233629Z-matmul-a349e4f85f.jsonl", "README.md"),
        "20261120T233630Z-cut-00.jsonl",  # a last line that was cut off is normal
        *("good.png", "broken.png", "quick.png", "spread.json"),
    }
    assert (place / "20261120T233629Z-matmul-a349e4f85f.jsonl").read_bytes() == RUN.read_bytes()
    assert "| good | done |" in (place / "README.md").read_text()


def test_the_archive_holds_all_and_is_whole_at_any_moment(planned, tmp_path, monkeypatch):
    file = tmp_path / "new/record.tar.gz"
    planned([step("one", KEEPING)], "--archive", str(file))
    with tarfile.open(file) as packed:
        names = packed.getnames()
    assert "record/steps/one/step.json" in names
    assert "record/published/h100-sxm/one.png" in names
    before = file.read_bytes()
    monkeypatch.setattr(tarfile.TarFile, "add", lambda *args, **kwargs: (_ for _ in ()).throw(OSError("no space left")))
    assert planned([step("two")], "--archive", str(file)) == 0  # the measurement counts, the archive waits
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["record.tar.gz"]


def test_an_archive_inside_the_record_does_not_pack_itself(planned):
    for _ in range(2):
        planned([step("one")], "--archive", str(planned.folder / "all.tar.gz"), "--again")
    with tarfile.open(planned.folder / "all.tar.gz") as packed:
        assert not [name for name in packed.getnames() if "tar.gz" in name]


def test_an_unpacked_archive_goes_on_elsewhere(planned, tmp_path):
    planned([step("one")], "--archive", str(tmp_path / "all.tar.gz"))
    with tarfile.open(tmp_path / "all.tar.gz") as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11 has none before 3.11.4
        packed.extractall(tmp_path / "elsewhere")
    assert publish.main(["--output", str(tmp_path / "elsewhere/record")]) == 0
    assert states(tmp_path / "elsewhere/record") == {"one": "done"}


def test_a_text_that_a_terminal_would_obey_is_shown_as_its_escape(planned):
    planned([step("rogue", r"import sys; print('\x1b[2Jgone', file=sys.stderr); print('\x1b[31m'); sys.exit(2)")])
    assert "\x1b" not in (planned.folder / "summary.md").read_text()
    assert "\\x1b[2Jgone" in (planned.folder / "summary.md").read_text()


KEPT = """
import json, os, pathlib
place = pathlib.Path(os.environ["RIDGEPOINT_RUNS"]) / "h100-sxm"
place.mkdir(parents=True, exist_ok=True)
kept = place / "ceilings-{of}.json"
kept.write_text(json.dumps(dict(identity="a machine", of="{of}", entries=[1] * {count})))
print("false verdicts: 0 of 40")
"""


def test_the_fullest_ceilings_are_published_and_what_a_step_prints_where_it_keeps_no_run(planned):
    """A later call on another machine of the same name measures a few ceilings anew: they are newer, and fewer."""
    full, few = (step(name, KEPT.format(of=name, count=n), kept_as=f"{name}.txt") for name, n in (("a", 9), ("b", 2)))
    assert planned([full, few]) == 0
    place = planned.folder / "published/h100-sxm"
    assert json.loads((place / "ceilings.json").read_text()) == {"of": "a", "entries": [1] * 9}
    assert (place / "b.txt").read_text() == "false verdicts: 0 of 40\n"
