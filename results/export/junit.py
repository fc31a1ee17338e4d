"""JUnit XML: a confirmed SLOWER is a failure, UNSURE is skipped, a wrong or failed row is an error.

Source: https://github.com/windyroad/JUnit-Schema, JUnit.xsd, the schema of Apache Ant's reports.
Its times are decimals without an exponent, its timestamps have no time zone, and both outputs of a
suite are required.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple
from xml.etree.ElementTree import Element, SubElement, tostring

from results.compare.comparison import ComparedRow, compared_of
from results.compare.earlier import runs_beside
from results.compare.selection import EVERYTHING, Selection
from results.compare.sides import WRONG, CompareOptions
from results.export.rows import Row
from results.record import RowKey
from results.show.table import table_of_run
from results.show.terminal import printable
from results.stats.comparison import SLOWER, UNSURE
from results.store.runfile import Run, load_run
from results.store.runs import unix_time


class Case(NamedTuple):
    """A test case."""

    name: str
    seconds: float
    kind: str
    """`failure`, `error` or `skipped`; empty if it passed."""
    type: str
    message: str


@dataclass
class Suite:
    """A file with one test suite."""

    name: str
    started_s: float = 0.0
    """Unix time."""
    host: str = "localhost"
    properties: Mapping[str, str] = field(default_factory=dict)
    output: str = ""
    cases: list[Case] = field(default_factory=list)

    def text(self) -> str:
        suites = Element("testsuites")
        suite = SubElement(suites, "testsuite", name=self.name, package=self.name, id="0")
        properties = SubElement(suite, "properties")
        for name, text in self.properties.items():
            SubElement(properties, "property", name=name, value=printable(text))
        for case in self.cases:
            seconds = f"{case.seconds:.12f}"
            name = printable(case.name)
            element = SubElement(suite, "testcase", classname=self.name, name=name, time=seconds)
            if case.kind:
                message = printable(case.message)
                SubElement(element, case.kind, type=case.type, message=message)
        SubElement(suite, "system-out").text = self.output
        SubElement(suite, "system-err")
        started = datetime.fromtimestamp(self.started_s, UTC)
        suite.set("timestamp", f"{started:%Y-%m-%dT%H:%M:%S}")
        suite.set("hostname", printable(self.host))
        suite.set("time", f"{sum(case.seconds for case in self.cases):.12f}")
        suite.set("tests", str(len(self.cases)))
        for name, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(name, str(len(suite.findall(f"testcase/{kind}"))))
        document: bytes = tostring(suites, encoding="utf-8", xml_declaration=True)
        return document.decode() + "\n"


def render(
    run: Run, rows: Sequence[Row], baseline: Run | None = None, chosen: Selection = EVERYTHING
) -> str:
    """Return one test case for each row; without a baseline, each measured row passes."""
    environment = run.environment
    verdicts = None
    if baseline:
        whole = [baseline, load_run(run.path)]
        earlier = [*runs_beside(whole), *whole]
        compared = compared_of(chosen.records_of(baseline), run, CompareOptions(), None, earlier)
        verdicts = {row.key: row for row in compared.rows}
    suite = Suite(
        "roofmark",
        unix_time(environment.started_at),
        environment.host.get("name") or "localhost",
        {"run": environment.run_id, "command": shlex.join(environment.argv)},
        table_of_run(environment, run.records).render("md"),
    )
    suite.cases += [Case(row.name, row.median_s, *_outcome(row, verdicts)) for row in rows]
    return suite.text()


def _outcome(row: Row, verdicts: Mapping[RowKey, ComparedRow] | None) -> tuple[str, str, str]:
    """Return element, type and message of a row; the element is empty if it passed."""
    record = row.record
    if record.status != "ok":
        return (
            "error" if record.status in WRONG else "skipped",
            record.status,
            record.reason or "unknown reason",
        )
    if verdicts is None:
        return "", "", ""
    compared = verdicts.get(record.row)
    if compared is None:
        return "skipped", "unmatched", "not compared: no matching row in the baseline"
    verdict = compared.compared.verdict
    interval = ""
    if compared.ci95:
        low, high = compared.ci95
        interval = f" (95% CI {low:.4f} to {high:.4f})"
    message = (
        f"{verdict}: {compared.compared.bound}{compared.ratio:.4f}x the time of the "
        f"baseline{interval}; {compared.reason}"
    )
    return {SLOWER: "failure", UNSURE: "skipped"}.get(verdict, ""), verdict, message
