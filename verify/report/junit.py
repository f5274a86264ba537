"""Checks as JUnit XML, which GitLab, Buildkite, Jenkins and others read.

GitLab knows a test by `classname` and `name` and ignores a second one with both alike. A missing verdict is an error
there, as a skipped test would pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as Xml

from verify.report.checks import Check, in_checkout

LONGEST = 300  # characters of an attribute


def render(checks: Sequence[Check]) -> bytes:
    """Returns the checks as one document: a suite for each kernel or solution, a test case for each check."""
    suites: dict[str, list[Check]] = {}
    for check in checks:
        suites.setdefault(check.suite, []).append(check)
    top = Xml.Element("testsuites", {"name": "verify", **_counts(checks)})
    for name, members in suites.items():
        suite = Xml.SubElement(top, "testsuite", {"name": _legal(name), **_counts(members)})
        names: dict[str, int] = {}
        for check in members:
            count = names[check.name] = names.get(check.name, 0) + 1
            _case(suite, check, check.name if count == 1 else f"{check.name} ({count})")
    Xml.indent(top, " ")
    return bytes(Xml.tostring(top, encoding="utf-8", xml_declaration=True)) + b"\n"


def _counts(checks: Sequence[Check]) -> dict[str, str]:
    tags = [_tag(check) for check in checks]
    plural = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    counts = {name: str(tags.count(tag)) for name, tag in plural.items()}
    return {"tests": str(len(checks)), **counts, "time": f"{sum(check.seconds for check in checks):.3f}"}


def _tag(check: Check) -> str:
    if check.rule == "kernel-skipped":
        return "skipped"
    return {"error": "failure", "warning": "error"}.get(check.level, "")


def _case(suite: Xml.Element, check: Check, name: str) -> None:
    _, file = in_checkout(check.place[0])
    names = {"classname": _legal(check.suite), "name": _legal(name), "time": f"{check.seconds:.3f}"}
    case = Xml.SubElement(suite, "testcase", {**names, "file": _legal(file), "line": str(check.place[1])})
    if tag := _tag(check):
        first = check.message.partition("\n")[0]
        Xml.SubElement(case, tag, type=check.rule, message=_legal(first[:LONGEST])).text = _legal(check.text)
    elif check.level == "note":
        Xml.SubElement(case, "system-out").text = _legal(check.text)


def _legal(text: str) -> str:
    """Returns the text without the characters that XML 1.0 excludes."""
    return "".join(c for c in text if c in "\n\t" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff")
