"""Findings as SARIF 2.1.0, which GitHub's code scanning, editors and other tools read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from verify import __version__
from verify.report.checks import RULES, Check, findings, in_checkout

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def render(checks: Sequence[Check]) -> bytes:
    """Returns the findings of checks as one SARIF log. A passing command has no results in it."""
    found = findings(checks)
    names = sorted({check.rule for check in found})
    rules = [
        {"id": name, "shortDescription": {"text": RULES[name][1]}, "defaultConfiguration": {"level": RULES[name][0]}}
        for name in names
    ]
    driver = {"name": "verify", "semanticVersion": __version__, "rules": rules}
    results = [_result(check, names.index(check.rule)) for check in found]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return f"{json.dumps({'$schema': SCHEMA, 'version': '2.1.0', 'runs': [run]}, indent=1)}\n".encode()


def _result(check: Check, rule: int) -> dict[str, Any]:
    file, line = check.place
    identity = hashlib.sha256("\0".join((check.rule, check.suite, check.name)).encode("utf-8", "replace"))
    found: dict[str, Any] = {
        "ruleId": check.rule,
        "ruleIndex": rule,
        "level": check.level,
        "message": {"text": check.text},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": _file(file), "region": {"startLine": line}},
                "logicalLocations": [{"name": check.suite, "kind": "function"}],
            }
        ],
        # GitHub hashes the line in the place of a missing fingerprint, and merges the findings of one line
        "partialFingerprints": {"primaryLocationLineHash": identity.hexdigest()[:16]},
    }
    return found | ({"properties": {"replay": check.replay}} if check.replay else {})


def _file(file: str) -> dict[str, str]:
    inside, path = in_checkout(file)
    if not inside:
        return {"uri": Path(path).as_uri()}
    return {"uri": quote(os.fsencode(path)), "uriBaseId": "%SRCROOT%"}
