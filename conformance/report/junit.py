"""A run as JUnit XML, for CI servers: a test case a check. A pure function of the records."""

from xml.etree import ElementTree

from conformance.records import ActivationRecord, CheckRecord, Results
from conformance.report.findings import findings, layers_of
from conformance.report.words import place, smallest, told

_CHILD = {"fail": "failure", "xpass": "failure", "crash": "error", "error": "error", "timeout": "error"}
_CHILD |= {"skip": "skipped", "xfail": "skipped"}


def junit(results: Results) -> str:
    """One suite; `xfail` is told as skipped, as pytest does."""
    checks = results.checks
    count = {kind: sum(_CHILD.get(c.outcome) == kind for c in checks) for kind in ("failure", "error", "skipped")}
    suite = ElementTree.Element(
        "testsuite",
        name="bert-conformance",
        tests=str(len(checks)),
        failures=str(count["failure"]),
        errors=str(count["error"]),
        skipped=str(count["skipped"]),
        time=f"{sum(c.seconds for c in checks):.3f}",
    )
    for case in results.cases:
        _case(suite, case.check, list(case.activations))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ElementTree.Element, c: CheckRecord, activations: list[ActivationRecord]) -> None:
    name = f"{c.check}[{c.implementation}-{c.golden}-{c.device}-{c.dtype}]"
    case = ElementTree.SubElement(suite, "testcase", classname="conformance", name=_legal(name), time=f"{c.seconds:.3f}")
    if c.outcome in _CHILD:
        reason = _legal(c.reason)
        child = ElementTree.SubElement(case, _CHILD[c.outcome], message=(reason.splitlines() or [c.outcome])[0])
        lines = [f"{place(a)}: {a.reason}" for a in activations if a.outcome == "fail" and a.reason]
        layers = layers_of(activations)
        lines += ["; ".join(told(finding, layers)) for finding in findings(activations)]
        if c.counterexample:
            lines += [*smallest(c.counterexample), c.counterexample.script]
        child.text = _legal("\n".join([reason, *lines]))


def _legal(text: str) -> str:
    """Without what is no character of XML 1.0 (section 2.2, production 2)."""
    return "".join(c for c in text if c in "\t\n\r" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c >= "\U00010000")
