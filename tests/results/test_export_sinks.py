"""Exports for trackers of benchmarks, read back by the format that each tracker documents."""

import json
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from bench.__main__ import families
from bench.harness.cli.arguments import build_parser
from bench.harness.op_file import options_of
from results import __main__ as results
from results.export.rows import rows_of
from results.store.runfile import load_run

NAME = "matmul/1024x1024x1024/bf16/torch@h100-sxm"
MEDIAN_S, LOW_S, HIGH_S = 4.294967296e-6, 4.2e-6, 4.4e-6
ROOF_S = (2**22 + 2**21) / 2e12
HOSTILE = "a\"b<c>&d\\e\nf\x1b[31m{}' \u202e"
FORMATS = results.SINKS
TEXT, NUMBER = {"type": "string"}, {"type": "number"}


DECIMAL = re.compile(r"\d+(\.\d+)?")
SUITE = [
    "name",
    "package",
    "id",
    "timestamp",
    "hostname",
    "tests",
    "failures",
    "errors",
    "skipped",
    "time",
]


def read_junit(text):
    """Return the test cases by name, after checks of what JUnit.xsd of windyroad/JUnit-Schema
    requires.
    """
    root = ElementTree.fromstring(text.encode())
    (suite,) = root
    assert (root.tag, suite.tag, sorted(suite.attrib)) == ("testsuites", "testsuite", sorted(SUITE))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.get("timestamp"))
    cases = suite.findall("testcase")
    assert [child.tag for child in suite] == [
        "properties",
        *["testcase"] * len(cases),
        "system-out",
        "system-err",
    ]
    assert all(sorted(child.attrib) == ["name", "value"] for child in suite[0])
    for case in cases:
        assert sorted(case.attrib) == ["classname", "name", "time"]
        assert len(case) <= 1
        assert all(
            child.tag in ("failure", "error", "skipped") and child.get("type") for child in case
        )
    assert all(DECIMAL.fullmatch(element.get("time")) for element in (suite, *cases))
    counts = [
        len(suite.findall(f"testcase{path}")) for path in ("", "/failure", "/error", "/skipped")
    ]
    assert [int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")] == counts
    assert len({case.get("name") for case in cases}) == len(cases)
    return {case.get("name"): case for case in cases}


def read_openmetrics(text):
    """Return the values of each metric by its sorted labels."""
    reason = "the parser is not installed here: pip install -e '.[test]'"
    parser = pytest.importorskip("prometheus_client.openmetrics.parser", reason=reason)
    metrics = {}
    for family in parser.text_string_to_metric_families(text):
        assert (family.type, bool(family.documentation)) == ("gauge", True)
        assert family.name.endswith(f"_{family.unit}")
        for sample in family.samples:
            metrics.setdefault(family.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return metrics


def export(capsys, path, form, *arguments):
    """Return the text of an export, and the lines on stderr."""
    assert results.main(["export", str(path), "--format", form, *map(str, arguments)]) == 0
    out, err = capsys.readouterr()
    return out, err.splitlines()


def names_in(form, text):
    if form == "junit":
        return list(read_junit(text))
    document = json.loads(text)
    return list(document) if form == "bmf" else [row["name"] for row in document]


def test_bmf_has_measures_with_their_intervals(save, make_record, capsys):
    document = json.loads(export(capsys, save("a", make_record()), "bmf")[0])
    assert document == {
        NAME: {
            "latency": pytest.approx(
                {"value": 1e9 * MEDIAN_S, "lower_value": 4200, "upper_value": 4400}
            ),
            "throughput": pytest.approx(
                {"value": 1 / MEDIAN_S, "lower_value": 1 / HIGH_S, "upper_value": 1 / LOW_S}
            ),
            "mfu": pytest.approx(
                {
                    "value": 0.5,
                    "lower_value": 0.5 * MEDIAN_S / HIGH_S,
                    "upper_value": 0.5 * MEDIAN_S / LOW_S,
                }
            ),
        }
    }


def test_github_benchmark_has_half_the_interval_as_range(save, make_record, capsys):
    (entry,) = json.loads(export(capsys, save("a", make_record()), "github-benchmark")[0])
    assert set(entry) == {"name", "unit", "value", "range", "extra"}  # it rejects other keys
    assert (entry["name"], entry["unit"]) == (NAME, "ns")
    assert entry["value"] == pytest.approx(1e9 * MEDIAN_S)
    # The pattern of src/extractRangeInfo.ts; the rest must be a number.
    assert float(re.search(r"(?:\+-|±)\s*(\d.*)", entry["range"])[1]) == pytest.approx(100)
    assert entry["extra"].split("\n") == [
        *("samples: 3", "95% CI: 4200 to 4400 ns", f"roof: {1e9 * ROOF_S:.6g} ns"),
        *("run: 20261120T210312Z-a", "command: python -m bench.matmul --dtype bf16"),
    ]


def test_openmetrics_has_a_gauge_for_each_quantity(save, make_record, capsys):
    text = export(capsys, save("a", make_record(), make_record(**UNKNOWN)), "openmetrics")[0]
    assert text.endswith("# EOF\n")
    case = {"op": "matmul", "case": "1024x1024x1024", "dtype": "bf16", "device": "h100-sxm"}
    known, other = (
        tuple(sorted((case | {"provider": name}).items())) for name in ("torch", "triton-v1")
    )
    assert read_openmetrics(text) == {
        "roofmark_time_seconds": {known: MEDIAN_S, other: MEDIAN_S},
        "roofmark_time_ci95_low_seconds": {known: LOW_S},
        "roofmark_time_ci95_high_seconds": {known: HIGH_S},
        "roofmark_roof_seconds": {known: pytest.approx(ROOF_S)},
        "roofmark_mfu_ratio": {known: pytest.approx(0.5)},
        "roofmark_time_samples": {known: 3, other: 0},
    }


UNKNOWN = {"provider": "triton-v1", "ci95_s": None, "samples_s": (), "flops": None}
"""A record of which only the median was saved."""


def test_unknown_interval_samples_and_roof_are_left_out(save, make_record, capsys):
    path = save("a", make_record(**UNKNOWN))
    ((name, measures),) = json.loads(export(capsys, path, "bmf")[0]).items()
    assert (name, list(measures)) == (NAME.replace("torch", "triton-v1"), ["latency", "throughput"])
    assert list(measures["latency"]) == ["value"]
    (entry,) = json.loads(export(capsys, path, "github-benchmark")[0])
    assert "range" not in entry


def test_junit_without_a_baseline(save, make_record, make_skipped, capsys):
    failed = [
        make_skipped(status=status, provider=status, reason="raised")
        for status in ("failed", "invalid")
    ]
    text, notes = export(
        capsys, save("a", make_record(), *failed, make_skipped(provider="x")), "junit"
    )
    cases = read_junit(text)
    assert [[child.tag for child in case] for case in cases.values()] == [
        [],
        ["error"],
        ["error"],
        ["skipped"],
    ]
    assert float(cases[NAME].get("time")) == pytest.approx(MEDIAN_S, rel=1e-6)
    assert cases[NAME.replace("torch", "failed")][0].get("message") == "raised"
    assert "±2.3%" in text
    assert notes == []


@pytest.mark.parametrize(
    ("scale", "verdict", "tags"),
    [
        (1.1, "SLOWER", ["failure"]),
        (1.01, "UNSURE", ["skipped"]),
        (1.0, "SAME", []),
        (0.9, "FASTER", []),
    ],
)
def test_junit_has_the_verdicts_of_compare(save, measured, capsys, scale, verdict, tags):
    before = save("a", measured(seed=1), again=True)
    after = save("b", measured(scale, seed=2), measured(provider="new"), again=True)
    results.main(["compare", str(before), str(after), "--format", "json"])
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["verdict"] == verdict
    cases = read_junit(export(capsys, after, "junit", "--baseline", before)[0])
    assert [child.tag for child in cases[NAME]] == tags
    for child in cases[NAME]:
        assert child.get("type") == verdict
        assert f"{row['ratio']:.4f}x the time" in child.get("message")
        assert child.get("message").endswith(row["reason"])
    assert (
        cases[NAME.replace("torch", "new")][0].get("message")
        == "not compared: no matching row in the baseline"
    )


def test_junit_of_a_run_without_any_result_has_errors(save, measured, make_skipped, capsys):
    before, after = save("a", measured()), save("b", make_skipped(status="failed"))
    cases = read_junit(export(capsys, after, "junit", "--baseline", before)[0])
    assert [child.tag for child in cases[NAME]] == ["error"]


@pytest.mark.parametrize("form", [name for name in FORMATS if name != "junit"])
def test_rows_without_a_time_are_counted_and_left_out(
    save, make_record, make_skipped, capsys, form
):
    text, notes = export(
        capsys, save("a", make_record(), make_skipped(status="failed"), make_skipped()), form
    )
    assert notes == ["note: 2 of 3 rows have no time and are left out"]
    if form == "openmetrics":
        assert len(read_openmetrics(text)["roofmark_time_seconds"]) == 1
    else:
        assert names_in(form, text) == [NAME]


@pytest.mark.parametrize("form", FORMATS)
def test_any_name_is_escaped(save, make_record, capsys, form):
    path = save("a", make_record(op=HOSTILE, provider=HOSTILE), make_record())
    text = export(capsys, path, form)[0]
    assert all(character.isprintable() or character == "\n" for character in text)
    shown = HOSTILE.replace("\n", r"\n").replace("\x1b", r"\x1b").replace("\u202e", r"\u202e")
    if form == "openmetrics":
        (labels, _) = read_openmetrics(text)["roofmark_time_seconds"]
        assert (dict(labels)["op"], dict(labels)["provider"]) == (shown, shown)
    else:
        assert names_in(form, text) == [f"{shown}/1024x1024x1024/bf16/{shown}@h100-sxm", NAME]


@pytest.mark.parametrize("form", FORMATS)
def test_each_row_has_its_own_name(save, make_record, capsys, form):
    usual = {"layout": "nn", "batch": 1}
    rows = [{}, {"options": usual | {"layout": "nt"}}, {"fill": "zeros"}, {}, {"options": usual}]
    path = save("a", *(make_record(**changes) for changes in rows), settings={"cache": "warm"})
    text = export(capsys, path, form)[0]
    options = [
        "cache=warm",
        "cache=warm layout=nt",
        "cache=warm fill=zeros",
        "cache=warm #2",
        "cache=warm #3",
    ]
    if form == "openmetrics":
        labels = map(dict, read_openmetrics(text)["roofmark_time_seconds"])
        assert [label["options"] for label in labels] == options
    else:
        assert names_in(form, text) == [f"{NAME}[{text}]" for text in options]


def test_name_does_not_depend_on_other_rows(save, make_record):
    row = make_record(options={"layout": "nt"})
    alone, among = (
        load_run(save(name, *records))
        for name, records in (("a", [row]), ("b", [make_record(), row]))
    )
    assert rows_of(alone)[0].name == rows_of(among)[1].name == f"{NAME}[layout=nt]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "bmf", "--baseline", "latest"], "--baseline requires --format junit"),
        (["--format", "junit", "--baseline", "nowhere"], "no run 'nowhere'"),
        (["nowhere", "--format", "bmf"], "no run 'nowhere'"),
        (["--format", "junitt"], "invalid choice: 'junitt' (choose from "),
    ],
)
def test_wrong_arguments_are_one_line(save, make_record, tmp_path, capsys, arguments, message):
    save("a", make_record())
    try:
        code = results.main(["export", "--runs", str(tmp_path), *arguments])
    except SystemExit as leaving:
        code = leaving.code
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_the_newest_run_is_exported_to_a_file_by_default(save, make_record, tmp_path, capsys):
    save("a", make_record())
    path = tmp_path / "new" / "bencher.json"
    assert (
        results.main(["export", "--runs", str(tmp_path), "--format", "bmf", "-o", str(path)]) == 0
    )
    assert capsys.readouterr() == ("", f"saved: {path}: 1 records of run 20261120T210312Z-a\n")
    assert list(json.loads(path.read_text())) == [NAME]


def test_commands_of_the_workflow_have_valid_arguments():
    path = Path(results.__file__).parent / "export" / "github-workflow.yml"
    (job,) = yaml.safe_load(path.read_text())["jobs"].values()
    commands = []
    for step in job["steps"]:
        for name, value in {"round": "1", **step.get("env", {})}.items():
            step["run"] = step.get("run", "").replace(f"${name}", value)
        commands += re.findall(r"python -m ([^\n)>]+)", step["run"])
    assert "pip install -e './roofmark[bench]'" in [step["run"] for step in job["steps"]]
    ops, parsed = families(), {}
    for command in commands:
        module, *arguments = shlex.split(command)
        _, _, family = module.partition("bench.")
        parser = (
            build_parser(family, "", (), ops[family], options_of(family))
            if family
            else results._parser(arguments)
        )
        parsed.setdefault(module, []).append(vars(parser.parse_args(arguments)))
    measured = [str(options["output"]) for options in parsed["bench.elementwise"]]
    assert measured == ["../runs/base-1.jsonl", "runs/head-1.jsonl"]
    assert [options["name"] for options in parsed["results"]] == ["compare", "export", "export"]
    summary = next(step["run"] for step in job["steps"] if "compare" in step["run"])
    assert summary.endswith('--format md >> "$GITHUB_STEP_SUMMARY"')
