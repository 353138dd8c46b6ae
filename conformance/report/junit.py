"""JUnit XML of a run, for CI servers: one test case for each check. A pure function.

Missing and contradictory results are reported as failing test cases, because servers show failures but hide a suite's output.
"""

from xml.etree import ElementTree

from conformance.names import printable_lines
from conformance.report.case import case_view
from conformance.report.document import Document
from conformance.report.terminal import MEASURE, plain
from conformance.results.outcomes import OUTCOME_TEXT
from conformance.results.records import CaseRecords, Header, Results


def junit(document: Document) -> str:
    """Return the report of a run as one JUnit test suite; the outcome `xfail` is reported as skipped, as pytest does."""
    results: Results = document.view["results"]
    checks = results.checks
    grave = [note for note in results.notes if note.grave]
    count = {kind: sum(OUTCOME_TEXT[c.outcome].junit == kind for c in checks) for kind in ("failure", "error", "skipped")}
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name="bert-conformance",
        tests=str(len(checks) + len(grave)),
        failures=str(count["failure"] + len(grave)),
        errors=str(count["error"]),
        skipped=str(count["skipped"]),
        time=f"{sum(c.seconds for c in checks):.3f}",
    )
    for case in results.cases:
        _add(suite, case, results.headers)
    for note in grave:
        test = ElementTree.SubElement(suite, "testcase", classname="conformance.report", name=_legal(str(note)), time="0.000")
        ElementTree.SubElement(test, "failure", message=_legal(note.text))
    if beside := [str(note) for note in results.remarks if not note.grave]:
        ElementTree.SubElement(suite, "system-out").text = _legal("\n".join(beside))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add(suite: ElementTree.Element, case: CaseRecords, headers: tuple[Header, ...]) -> None:
    c = case.check
    name = f"{c.check}[{c.implementation}-{c.golden}-{c.device}-{c.dtype}]"
    test = ElementTree.SubElement(suite, "testcase", classname="conformance", name=_legal(name), time=f"{c.seconds:.3f}")
    if element := OUTCOME_TEXT[c.outcome].junit:
        child = ElementTree.SubElement(test, element, message=(_legal(c.reason).splitlines() or [c.outcome])[0])
        child.text = plain(Document("one_case", {"c": case_view(case, headers)}), MEASURE, is_long=True)


def _legal(text: str) -> str:
    """Escape characters that XML 1.0 does not allow (section 2.2, production 2) or that are not printable."""
    return "\n".join(printable_lines(text))
