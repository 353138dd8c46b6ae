"""A run as JUnit XML, for CI servers: a test case a check. A pure function of the records."""

from xml.etree import ElementTree

from conformance.records import CheckRecord, Results

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
    for c in checks:
        _case(suite, c)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ElementTree.Element, c: CheckRecord) -> None:
    name = f"{c.check}[{c.implementation}-{c.golden}-{c.device}-{c.dtype}]"
    case = ElementTree.SubElement(suite, "testcase", classname="conformance", name=_legal(name), time=f"{c.seconds:.3f}")
    if c.outcome in _CHILD:
        reason = _legal(c.reason)
        child = ElementTree.SubElement(case, _CHILD[c.outcome], message=(reason.splitlines() or [c.outcome])[0])
        child.text = reason


def _legal(text: str) -> str:
    """Without the control characters that XML 1.0 does not allow (section 2.2)."""
    return "".join(c for c in text if c in "\t\n\r" or ord(c) >= 0x20)
