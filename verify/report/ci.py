"""Checks in the formats of others: SARIF 2.1.0 for code scanning and editors, JUnit XML for CI, annotations of GitHub.

GitLab knows a test of JUnit by `classname` and `name` and ignores a second one with both alike. A missing verdict is an
error there, as a skipped test would pass. Annotations are workflow commands that GitHub's runner finds in the output of
a step.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as Xml

from verify import __version__
from verify.declare.lines import Place
from verify.records.grouped import grouped
from verify.report.checks import RULES, Check, findings, in_checkout
from verify.report.markdown.comment import Budget, inert

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LONGEST = 300  # characters of an attribute
MOST = 10  # annotations of one kind that GitHub shows of a step
LONGEST_SUMMARY = 60_000  # bytes of a summary
KINDS = {"error": "error", "warning": "warning", "note": "notice"}


def sarif(checks: Sequence[Check]) -> bytes:
    """Returns the findings of checks as one SARIF log. A passing command has no results in it."""
    found = findings(checks)
    names = sorted({check.rule for check in found})
    about = [(name, *RULES[name]) for name in names]
    rules = [{"id": a, "shortDescription": {"text": c}, "defaultConfiguration": {"level": b}} for a, b, c in about]
    driver = {"name": "verify", "semanticVersion": __version__, "rules": rules}
    results = [_finding(check, names.index(check.rule)) for check in found]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return f"{json.dumps({'$schema': SCHEMA, 'version': '2.1.0', 'runs': [run]}, indent=1)}\n".encode()


def _finding(check: Check, rule: int) -> dict[str, Any]:
    identity = hashlib.sha256("\0".join((check.rule, check.suite, check.name)).encode("utf-8", "replace"))
    logical = [{"name": check.suite, "kind": "function"}]
    found: dict[str, Any] = {"ruleId": check.rule, "ruleIndex": rule, "level": check.level}
    found |= {"message": {"text": check.text}}
    found |= {"locations": [{"physicalLocation": _location(check.place), "logicalLocations": logical}]}
    # GitHub hashes the line in the place of a missing fingerprint, and merges the findings of one line
    found |= {"partialFingerprints": {"primaryLocationLineHash": identity.hexdigest()[:16]}}
    if check.declared is not None:
        declared = {"physicalLocation": _location(check.declared), "message": {"text": "the declaration"}}
        found["relatedLocations"] = [declared]
    return found | ({"properties": {"replay": check.replay}} if check.replay else {})


def _location(place: Place) -> dict[str, Any]:
    inside, path = in_checkout(place[0])
    file = {"uri": quote(os.fsencode(path)), "uriBaseId": "%SRCROOT%"} if inside else {"uri": Path(path).as_uri()}
    return {"artifactLocation": file, "region": {"startLine": place[1]}}


def junit(checks: Sequence[Check]) -> bytes:
    """Returns the checks as one document: a suite for each kernel or solution, a test case for each check."""
    top = Xml.Element("testsuites", {"name": "verify", **_counts(checks)})
    for name, members in grouped(checks, lambda check: check.suite).items():
        suite = Xml.SubElement(top, "testsuite", {"name": _legal(name), **_counts(members)})
        names = Counter[str]()
        for check in members:
            names[check.name] += 1
            _case(suite, check, check.name if names[check.name] == 1 else f"{check.name} ({names[check.name]})")
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


def annotated(checks: Sequence[Check]) -> str:
    """Returns a line for each finding. Where GitHub would drop some of a kind, the last line counts them."""
    lines = []
    for level, kind in KINDS.items():
        found = [check for check in findings(checks) if check.level == level]
        shown = found if len(found) <= MOST else found[: MOST - 1]
        lines += [_line(kind, check) for check in shown]
        if more := len(found) - len(shown):
            lines.append(f"::{kind} title=verify::{more:,} more findings; the summary of this job has them")
    return "".join(f"{line}\n" for line in lines)


def summary(checks: Sequence[Check]) -> str:
    """Returns the checks as a list in Markdown, for commands that have no page of their own."""
    signs = {"none": "✓", "note": "○", "warning": "○", "error": "✗"}
    lines = [f"- {signs[check.level]} {inert(check.message.partition(chr(10))[0])}" for check in checks]
    budget = Budget(LONGEST_SUMMARY)
    budget.fill(lines, "checks")
    return budget.text()


def _line(kind: str, check: Check) -> str:
    _, file = in_checkout(check.place[0])
    title = _property(f"{check.rule}: {check.suite} {check.name}")
    return f"::{kind} file={_property(file)},line={check.place[1]},title={title}::{_data(check.text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
