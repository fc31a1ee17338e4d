"""JUnit XML: a confirmed SLOWER is a failure, UNSURE is skipped, a wrong or failed row is an error.

Source: https://github.com/windyroad/JUnit-Schema, JUnit.xsd, the schema of Apache Ant's reports.
Its times are decimals without an exponent, its timestamps have no time zone, and both outputs of a
suite are required.
"""

import shlex
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from xml.etree.ElementTree import Element, SubElement, tostring

from results.compare.comparison import ComparedRow, compare
from results.compare.sides import WRONG, CompareOptions
from results.export.rows import Row, rows_of
from results.record import RowKey, unix_time
from results.show.table import table_of_run
from results.show.terminal import printable
from results.stats.comparison import SLOWER, UNSURE
from results.store.runfile import Run
from results.store.runs import EVERYTHING, Selection

SUITE = "roofmark"


def render(run: Run, baseline: Run | None = None, chosen: Selection = EVERYTHING) -> str:
    """Return one test case for each row; without a baseline, each measured row passes."""
    environment = run.environment
    rows = rows_of(run)
    verdicts = None
    if baseline:
        compared = compare(chosen.records_of(baseline), run, CompareOptions())
        verdicts = {row.key: row for row in compared.rows}
    suites = Element("testsuites")
    suite = SubElement(suites, "testsuite", name=SUITE, package=SUITE, id="0")
    properties = SubElement(suite, "properties")
    command = printable(shlex.join(environment.argv))
    SubElement(properties, "property", name="run", value=environment.run_id)
    SubElement(properties, "property", name="command", value=command)
    counts = Counter[str]()
    for row in rows:
        case = SubElement(
            suite, "testcase", classname=SUITE, name=row.name, time=_time(row.median_s)
        )
        kind, status, message = _outcome(row, verdicts)
        counts[kind] += 1
        if kind:
            SubElement(case, kind, type=status, message=printable(message))
    SubElement(suite, "system-out").text = table_of_run(environment, run.records).render("md")
    SubElement(suite, "system-err")
    started = datetime.fromtimestamp(unix_time(environment.started_at), UTC)
    suite.set("timestamp", f"{started:%Y-%m-%dT%H:%M:%S}")
    suite.set("hostname", printable(environment.host.get("name") or "localhost"))
    suite.set("time", _time(sum(row.median_s for row in rows)))
    suite.set("tests", str(len(rows)))
    suite.set("failures", str(counts["failure"]))
    suite.set("errors", str(counts["error"]))
    suite.set("skipped", str(counts["skipped"]))
    document: bytes = tostring(suites, encoding="utf-8", xml_declaration=True)
    return document.decode() + "\n"


def _time(seconds: float) -> str:
    return f"{seconds:.12f}"


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
    ratio = f"{compared.compared.bound}{compared.ratio:.4f}x the time of the baseline"
    message = f"{verdict}: {ratio}; {compared.reason}"
    return {SLOWER: "failure", UNSURE: "skipped"}.get(verdict, ""), verdict, message
