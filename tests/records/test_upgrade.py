"""Records of older schemas are read as those of this one."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from tests.report.sample import hostile_kernel, make, rich, sample
from verify.errors import UsageError
from verify.records.files import decode
from verify.records.record import SCHEMA, Origin, Run, replay_command

LATER = {"stages", "selftest", "speed", "source", "properties", "curve", "hardest", "special", "operand", "bits"}


def written_by(schema: int, run: Run) -> bytes:
    """A record as an older verify wrote it: every default in place, commands as text; 1 had no later fields."""
    return json.dumps({**_plain(run, LATER if schema == 1 else set()), "schema": schema}).encode()


def unclassed(run: Run) -> Run:
    """The record without the classes of inputs, which no older schema had."""
    kernels = [
        msgspec.structs.replace(
            kernel, results=[msgspec.structs.replace(result, classes=[]) for result in kernel.results]
        )
        for kernel in run.kernels
    ]
    return msgspec.structs.replace(run, kernels=kernels)


def _plain(value: Any, without: set[str]) -> Any:
    if isinstance(value, msgspec.Struct):
        names = [name for name in value.__struct_fields__ if name not in without]
        found = {name: _plain(getattr(value, name), without) for name in names}
        if "origin" in found:
            found["replay"] = replay_command(value.origin)  # type: ignore[attr-defined]
            if "law" in found:
                found["case"] = found["origin"]["case"] if found["origin"] else ""
            del found["origin"]
        return found
    if isinstance(value, dict):
        return {name: _plain(item, without) for name, item in value.items()}
    return [_plain(item, without) for item in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize(
    "run",
    [unclassed(sample()), unclassed(rich()), unclassed(make([hostile_kernel()]))],
    ids=["sample", "rich", "hostile"],
)
def test_what_was_written_comes_back(run: Run) -> None:
    raw = written_by(2, run)
    assert (b'"replay": "verify replay' in raw) and b"origin" not in raw
    assert decode(raw) == run


def test_the_first_schema_had_fewer_fields() -> None:
    found = decode(written_by(1, unclassed(sample())))
    assert found.schema == SCHEMA
    assert found.kernels[0].results[0].curve is None and found.kernels[0].results[0].source == "run"
    assert found.kernels[0].results[0].worst == sample().kernels[0].results[0].worst


def test_the_origins_of_elements_regimes_special_values_and_laws() -> None:
    run = rich()
    result = run.kernels[0].results[0]
    regimes = [
        result.regimes[0],
        msgspec.structs.replace(result.regimes[1], worst=result.worst[0]),
        *result.regimes[2:],
    ]
    kernel = msgspec.structs.replace(
        run.kernels[0], results=[msgspec.structs.replace(result, regimes=regimes, baseline_worst=result.worst[:1])]
    )
    found = decode(written_by(2, unclassed(make([kernel])))).kernels[0].results[0]
    assert found.regimes[1].worst == found.baseline_worst[0] == result.worst[0]
    assert isinstance(found.worst[0].origin, Origin) and found.worst[0].origin.result == "y"


@pytest.mark.parametrize("text", ["verify replay", "verify replay a b --result y", "x", "verify replay a b --index 3"])
def test_what_is_no_replay_command_names_its_place(text: str) -> None:
    document = json.loads(written_by(2, rich()))
    document["kernels"][0]["results"][0]["worst"][0]["replay"] = text
    place = "$.kernels[0].results[0].worst[0].replay"
    wanted = f"r breaks the record schema: Expected a replay command, got {text!r} - at `{place}`"
    with pytest.raises(UsageError, match=f"^{re.escape(wanted)}\n"):
        decode(json.dumps(document).encode(), source="r")


def test_a_wrong_type_is_left_to_the_schema() -> None:
    for path, wrong in (("kernels", 3), ("kernels", [3])):
        document = {**json.loads(written_by(2, rich())), path: wrong}
        with pytest.raises(UsageError, match="breaks the record schema: Expected"):
            decode(json.dumps(document).encode(), source="r")


def test_packed_records_are_refused() -> None:
    for schema in (3, 4):
        with pytest.raises(UsageError, match=f"has schema {schema}; this verify reads schemas 1, 2, 5, 6"):
            decode(written_by(schema, rich()), source="r")
