"""`verify explain`: which step of a kernel's computation makes how much of the error of one element."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from verify.cli import exits, replay, sinks
from verify.truth.figure import UNIT, shown, signed

if TYPE_CHECKING:
    from verify.diagnose.requests import Explanation, Other

_KINDS = {
    "cast": "rounding of the inputs",
    "arithmetic": "arithmetic",
    "intrinsic": "intrinsic functions",
    "accumulation": "accumulation",
    "output": "rounding of the output",
}


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "explain",
        help="divide the error of one element among the steps of its computation",
        description="Find the way in which a kernel computes, among those that are common for its op, by comparing "
        "bits; then divide the error of one element among its steps. Takes the arguments of a replay command as they "
        "are. Without --index: the worst element of the result; without a case: the worst of the record in --run. "
        "This is a report and no verdict: the exit code is 0 whatever the error is.",
        examples=(
            "verify explain --run run.json",
            "verify explain my_gelu --run run.json --result dx --regime tail",
            "verify explain accuracy.py::my_attention --blind",
        ),
    )
    replay.add_place(parser)
    parser.add_argument(
        "--blind",
        action="store_true",
        help="instead of an element: every constant and step of the like= definition that could be 1%% off, or left "
        "out, within the kernel's limits; --dtype chooses one",
    )
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """Explain; a report, not a verdict: exit 0 whatever the error is."""
    import msgspec

    from verify.diagnose.requests import Explain

    if options.blind:
        return _blind(options)
    replay.place(options)
    request = Explain(options.target, options.case, options.result, options.index, options.law or "")
    found = replay.ask(options, request)
    sinks.deliver_data(options, lambda: msgspec.to_builtins(found), lambda: sinks.lines(*lines_of(found)))
    return exits.PASS


def _blind(options: argparse.Namespace) -> int:
    """Print the blind spots of a kernel's limits."""
    import msgspec

    from verify.diagnose.requests import FindBlindSpots
    from verify.errors import UsageError

    if not options.target or options.case or options.run:
        raise UsageError(
            "--blind is about a kernel: it takes a TARGET, and neither a case nor --run",
            hint="verify explain FILE.py::KERNEL --blind",
        )
    found = replay.ask(options, FindBlindSpots(options.target, (options.dtype,) if options.dtype else ()))

    def lines() -> list[str]:
        made = []
        for each in found:
            made.append(f"{each.dtype}: {len(each.spots)} of {each.tried} errors of the definition would pass")
            made += [f"  {spot}" for spot in each.spots]
        return made

    sinks.deliver_data(options, lambda: msgspec.to_builtins(found), lambda: sinks.lines(*lines()))
    return exits.PASS


def lines_of(found: Explanation) -> list[str]:
    """An explanation as a person reads it."""
    element = found.replay
    unit = UNIT[element.gate]
    worst = element.worst
    judged = worst.ulp if element.gate == "plain" else worst.scaled_ulp
    lines = [
        f"{element.kernel} ({element.op}) {element.result} {element.dtype} on {element.backend}",
        f"  at        [{', '.join(str(i) for i in worst.index)}]",
        *(f"  {name:<9} {text}" for name, text in worst.inputs.items()),
        f"  got       {worst.got} ({worst.got_hex})",
        f"  truth     {worst.truth}",
        f"  error     {_figure(judged)}{unit}, the limit is {element.limit:g}",
        f"  at best   {_figure(found.least)}{unit}: the exact value rounded once",
    ]
    if found.sensitivity is not None:
        lines.append(f"  input     half an ulp of x moves the exact result by {_plain(found.sensitivity)} ULP")
    lines += ["", *_model(found)]
    if found.baseline_same == found.compared:
        lines.append(f"same bits as PyTorch's own kernel in all {found.compared:,}")
    elif found.baseline_same is not None:
        lines.append(f"same bits as PyTorch's own kernel in {found.baseline_same:,} of {found.compared:,}")
    if found.stages:
        lines += ["", *_stages(found, unit)]
    if found.others:
        lines += ["", "the program here" if found.program else "other formulas here"]
        lines += [f"  {_figure(other.error):>12}{unit}  {_other(other, found)}" for other in found.others]
    lines += ["", f"cause: {found.cause}"]
    return lines


def _model(found: Explanation) -> list[str]:
    if found.status == "unknown" and found.program:
        return [
            "no formula that it follows is known here; what rounding one step of the program does:",
            "",
            *_program(found),
        ]
    if found.status == "unknown":
        return ["no way to compute this is known here; what is above holds for any kernel"]
    share = f"{found.same:,} of {found.compared:,} elements"
    if found.status == "matches":
        alike = f" (as {found.alike} more)" if found.alike else ""
        return [f"same bits in all {found.compared:,} elements compared: {found.model}{alike}"]
    if found.status == "nearest":
        return [f"no known way gives the same bits everywhere; same bits here and in {share}: {found.model}"]
    return [f"no known way gives these bits, here and in nearly all others; the nearest, in {share}: {found.model}"]


def _program(found: Explanation) -> list[str]:
    formats = list(found.program[0].moves)
    width, digits = (
        max(len(each) for each in of) for of in zip(*((s.text, s.value) for s in found.program), strict=True)
    )
    head = "".join(f"  {'in ' + name + ', ULP':>18}" for name in formats)
    lines = [f"  {'step':<{width}}  {'value':>{digits}}{head}"]
    for step in found.program:
        moves = "".join(f"  {_figure(step.moves[name]):>18}" for name in formats)
        lines.append(f"  {step.text:<{width}}  {step.value:>{digits}}{moves}")
    return lines


def _stages(found: Explanation, unit: str) -> list[str]:
    stages = found.stages
    width = max(len(stage.text) for stage in stages)
    digits = max(len(stage.value) for stage in stages)
    lines = [f"  {'step':<{width}}  {'value':>{digits}}  {'off by, ulp':>11}  {'effect, ' + unit.strip():>20}"]
    for stage in stages:
        lost = "" if stage.lost_bits is None or not float(stage.lost_bits) >= 1 else _lost(stage.lost_bits)
        off = "" if stage.off is None else f"{float(stage.off):+.3g}"
        effect = "" if math.isnan(float(stage.effect)) else _figure(stage.effect)
        lines.append(f"  {stage.text:<{width}}  {stage.value:>{digits}}  {off:>11}  {effect:>20}{lost}".rstrip())
    if found.formula is not None:
        lines.append("")
        lines += [f"  {_KINDS[kind]:<24} {_figure(value):>14}{unit}" for kind, value in found.kinds.items()]
        lines.append(f"  {'the formula itself':<24} {_figure(found.formula):>14}{unit}")
    return lines


def _other(other: Other, found: Explanation) -> str:
    return f"{other.name}: same bits in {other.same:,} of {found.compared:,}" if found.program else other.name


def _lost(bits: Any) -> str:
    value = float(bits)
    return "  cancels every bit" if math.isinf(value) else f"  cancels {value:.0f} bit{'s' if value >= 1.5 else ''}"


def _figure(value: Any) -> str:
    return signed(float(value))


def _plain(value: Any) -> str:
    return shown(float(value))
