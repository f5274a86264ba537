"""What the schema of SARIF 2.1.0 demands of the objects that verify writes, as facts: fields, types, required ones.

The schema allows no other fields in these objects. `python -m tests.report.sarif_schema SCHEMA.json` compares the table
with the official one (sarif-schema-2.1.0.json of oasis-tcs/sarif-spec).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LEVELS = ("none", "note", "warning", "error")
# object -> field -> a type, the values, [the object in an array], {"": the type of every value}, or another object
OBJECTS: dict[str, dict[str, Any]] = {
    "log": {"$schema": str, "version": ("2.1.0",), "runs": ["run"]},
    "run": {"tool": "tool", "columnKind": ("utf16CodeUnits", "unicodeCodePoints"), "results": ["result"]},
    "tool": {"driver": "toolComponent"},
    "toolComponent": {"name": str, "semanticVersion": str, "rules": ["reportingDescriptor"]},
    "reportingDescriptor": {
        "id": str,
        "shortDescription": "multiformatMessageString",
        "defaultConfiguration": "reportingConfiguration",
    },
    "reportingConfiguration": {"level": LEVELS},
    "multiformatMessageString": {"text": str},
    "result": {
        "ruleId": str,
        "ruleIndex": int,
        "level": LEVELS,
        "message": "message",
        "locations": ["location"],
        "partialFingerprints": {"": str},
        "properties": {"": str},
    },
    "message": {"text": str},
    "location": {"physicalLocation": "physicalLocation", "logicalLocations": ["logicalLocation"]},
    "physicalLocation": {"artifactLocation": "artifactLocation", "region": "region"},
    "artifactLocation": {"uri": str, "uriBaseId": str},
    "region": {"startLine": int},
    "logicalLocation": {"name": str, "kind": str},
}
REQUIRED = {
    "log": {"version", "runs"},
    "run": {"tool"},
    "tool": {"driver"},
    "toolComponent": {"name"},
    "reportingDescriptor": {"id"},
    "multiformatMessageString": {"text"},
    "result": {"message"},
}
# GitHub's code scanning demands more: a rule, a text and a line of a file for each result
OF_GITHUB = {
    "result": {"ruleId", "locations", "partialFingerprints"},
    "message": {"text"},
    "location": {"physicalLocation"},
    "physicalLocation": {"artifactLocation", "region"},
    "artifactLocation": {"uri"},
    "region": {"startLine"},
    "reportingDescriptor": {"shortDescription"},
}


def faults(value: Any, name: str = "log", place: str = "$") -> Iterator[str]:
    """Yields each place where a document is no SARIF, or lacks what GitHub demands."""
    fields = OBJECTS[name]
    yield from (f"{place}: no field {key} in {name}" for key in value.keys() - fields.keys())
    needed = REQUIRED.get(name, set()) | OF_GITHUB.get(name, set())
    yield from (f"{place}: {name} lacks {key}" for key in needed - value.keys())
    for key, item in value.items():
        at, kind = f"{place}.{key}", fields.get(key)
        if isinstance(kind, str):
            yield from faults(item, kind, at)
        elif isinstance(kind, list):
            for index, each in enumerate(item):
                yield from faults(each, kind[0], f"{at}[{index}]")
        elif isinstance(kind, dict):
            yield from (f"{at}.{inner} is no text" for inner, text in item.items() if type(text) is not kind[""])
        elif isinstance(kind, tuple) and item not in kind:
            yield f"{at}: {item!r} is none of {kind}"
        elif isinstance(kind, type) and type(item) is not kind:
            yield f"{at}: {item!r} is no {kind.__name__}"
    if name == "region" and value.get("startLine", 0) < 1:
        yield f"{place}: lines begin with 1"


def differences(schema: dict[str, Any]) -> Iterator[str]:
    """Yields each field in which the table is not the official schema."""
    for name, fields in OBJECTS.items():
        official = schema if name == "log" else schema["definitions"][name]
        if official["additionalProperties"] or set(official.get("required", ())) != REQUIRED.get(name, set()):
            yield f"{name}: other required or additional fields"
        for key, kind in fields.items():
            if not _fits(kind, official["properties"][key]):
                yield f"{name}.{key}: {official['properties'][key]}"


def _fits(kind: Any, official: dict[str, Any]) -> bool:
    if isinstance(kind, str):
        return bool(official["$ref"] == f"#/definitions/{kind}")
    if isinstance(kind, list):
        return bool(official["items"]["$ref"] == f"#/definitions/{kind[0]}")
    if isinstance(kind, tuple):
        return set(official["enum"]) == set(kind)
    if isinstance(kind, dict):
        return "object" in official.get("type", "") or official["$ref"] == "#/definitions/propertyBag"
    return bool(official["type"] == {str: "string", int: "integer"}[kind])


if __name__ == "__main__":
    found = list(differences(json.loads(Path(sys.argv[1]).read_text())))
    print("\n".join(found) or "the table is the schema")
    sys.exit(bool(found))
