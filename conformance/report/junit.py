"""JUnit XML of a run, for CI servers: one test case for each check. A pure function.

Missing and contradictory results are reported as failing test cases, because servers show failures but hide a suite's output.
"""

from xml.etree import ElementTree

from conformance.names import printable_lines
from conformance.report.case import CaseView
from conformance.report.document import Document
from conformance.report.terminal import MEASURE, plain
from conformance.results.outcomes import OUTCOME_TEXT
from conformance.results.records import Note, Results


def junit(document: Document) -> str:
    """Return the report of a run as one JUnit test suite; the outcome `xfail` is reported as skipped, as pytest does."""
    results: Results = document.view["run"].results
    checks = results.checks
    grave = [note for note in results.notes if note.grave]
    count = {kind: sum(OUTCOME_TEXT[c.outcome].junit == kind for c in checks) for kind in ("failure", "error", "skipped")}
    suite = ElementTree.Element(
        "testsuite",
        name="bert-conformance",
        tests=str(len(checks) + len(grave)),
        failures=str(count["failure"] + len(grave)),
        errors=str(count["error"]),
        skipped=str(count["skipped"]),
        time=f"{sum(c.seconds for c in checks):.3f}",
    )
    for case in results.cases:
        _case(suite, CaseView(case, results.headers))
    for note in grave:
        _note(suite, note)
    beside = [str(note) for note in results.remarks if not note.grave]
    if beside:
        ElementTree.SubElement(suite, "system-out").text = _legal("\n".join(beside))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ElementTree.Element, view: CaseView) -> None:
    c = view.check
    name = f"{c.check}[{c.implementation}-{c.golden}-{c.device}-{c.dtype}]"
    case = ElementTree.SubElement(suite, "testcase", classname="conformance", name=_legal(name), time=f"{c.seconds:.3f}")
    if element := OUTCOME_TEXT[c.outcome].junit:
        child = ElementTree.SubElement(case, element, message=(_legal(c.reason).splitlines() or [c.outcome])[0])
        child.text = plain(Document("one_case", {"c": view}), MEASURE, is_long=True)


def _note(suite: ElementTree.Element, note: Note) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname="conformance.report", name=_legal(str(note)), time="0.000")
    ElementTree.SubElement(case, "failure", message=_legal(note.text))


def _legal(text: str) -> str:
    """Escape characters that XML 1.0 does not allow (section 2.2, production 2) or that are not printable."""
    return "\n".join(printable_lines(text))
