"""Show which step of the computation makes the error of one element.

Show what rounding each step of a computation does to one element. The steps are those of the kernel, if it is
written in PyTorch and runs on a CPU, else of the PyTorch function that it is judged against. Takes the
arguments of a replay command as they are. Without --index: the worst element of the result; without a case: the
worst of the record in --run. This is a report and no verdict: the exit code is 0 whatever the error is.

    verify explain --run run.json
    verify explain my_gelu --run run.json --result dx --regime tail
    verify explain accuracy.py::my_norm --order

target case --result --index --law --run --dtype --regime --backend
--timeout: the case
--json: what was found
--order  instead of an element: the order in which the kernel adds up, at the sizes of a case, probed in its results,
    and proved from what Triton compiled
"""

import argparse
from typing import Any

from verify.cli import replay
from verify.diagnose.requests import Explain, Explanation, FindOrders, Order
from verify.records.figure import UNIT, shown, signed


def main(options: argparse.Namespace) -> int:
    """Carries out the command."""
    if options.order:
        request = FindOrders(options.target, options.dtype or "", options.case or "")
        return replay.report(options, request, lines_of_orders)
    return replay.report(options, request_of(options), lines_of)


def request_of(options: argparse.Namespace) -> Explain:
    """Returns the request about the element that the options name, which may be that of a record."""
    replay.place(options)
    return Explain(options.target, options.case, options.result, options.index, options.law or "")


def lines_of_orders(found: list[Order]) -> list[str]:
    """Returns the orders of a kernel's sums as lines for the screen."""
    lines = [line for order in found for line in lines_of_order(order)]
    return lines or ["no operand has rows that can be probed: nothing is known of the order"]


def lines_of_order(order: Order) -> list[str]:
    """Returns the order of a sum as lines for the screen."""
    if order.basis == "compiled":
        return _lines_of_compiled(order)
    head = f"{order.kernel} {order.dtype} on {order.backend}: {order.result} over {order.operand}"
    if order.unknown:
        return [f"{head}: not known", f"  {order.unknown}"]
    lines = [f"{head}: {order.terms:,} terms, {order.rows:,} rows a call", *(f"  {line}" for line in order.words)]
    share = f"{order.explained:.1%} of {order.tested}"
    if order.explained < 1:
        why = "an accumulator may be wider, or the numbers may decide"
        return [*lines, f"  not its order, which gives {share}: {why}"]
    deep = f"at most {order.depth:,} additions round a term: {order.depth * order.spacing / 2:.1e} of the magnitudes"
    return [*lines, f"  it gives {share}, which is no proof", f"  {deep}"]


def _lines_of_compiled(order: Order) -> list[str]:
    """Returns the order in what Triton compiled as lines for the screen."""
    head = f"{order.kernel} {order.dtype}, as compiled"
    if order.unknown or order.proof is None:
        return [f"{head}: not known", f"  {order.unknown}"]
    proof, place = order.proof, ", ".join(map(str, order.proof.program))
    sums = "1 sum" if order.rows == 1 else f"{order.rows:,} sums"
    lines = [f"{head} for {proof.target}: {sums} of {order.terms:,} terms of {order.operand}, added in {order.kind}"]
    lines += [f"  {line}" for line in order.words]
    roundings = f"at most {order.depth:,} roundings{', one of a product' if proof.products else ''}"
    range_left = f"overflow{' or an underflowing product' if proof.products else ''}"
    where = f"every input without {range_left}{', where data choose this branch' if proof.branches else ''}"
    lines.append(f"  proved for {where}:")
    lines.append(f"  {roundings}, |error| <= {proof.bound:.1e} of the magnitudes of the terms")
    return [*lines, f"  in program {place} of {', '.join(map(str, proof.grid))}; --json has the certificate"]


def lines_of(found: Explanation) -> list[str]:
    """Returns the lines of an explanation for the screen."""
    element = found.replay
    unit = UNIT[element.gate]
    worst = element.worst
    judged = worst.ulp if element.gate == "plain" else worst.scaled_ulp
    excused = f" on ordinary inputs, none on {element.unpromised}" if element.unpromised else ""
    lines = [
        f"{element.kernel} ({element.op}) {element.result} {element.dtype} on {element.backend}",
        f"  at        [{', '.join(str(i) for i in worst.index)}]",
        *(f"  {name:<9} {text}" for name, text in worst.inputs.items()),
        f"  got       {worst.got} ({worst.got_hex})",
        f"  truth     {worst.truth}",
        f"  error     {_figure(judged)}{unit}, the limit is {element.limit:g}{excused}",
        f"  at best   {_figure(found.least)}{unit}: the exact value rounded once",
    ]
    if found.sensitivity is not None:
        lines.append(f"  input     half an ulp of x moves the exact result by {shown(float(found.sensitivity))} ULP")
    if found.steps:
        whose = "the kernel" if found.owner == "kernel" else "the definition"
        lines += ["", f"what rounding one step of {whose} does:", "", *_steps(found), "", f"{whose} as a whole"]
        if found.formula is not None:  # else it is zero by definition
            lines.append(f"  {_figure(found.formula):>12}{unit}  no step rounded")
        for whole in found.wholes:
            same = f"same bits in {whole.same:,} of {found.compared:,}"
            text = f"every step rounded to {whole.format}, each sum once: {same}"
            lines.append(f"  {_figure(whole.error):>12}{unit}  {text}")
    return [*lines, "", f"cause: {found.cause}"]


def _steps(found: Explanation) -> list[str]:
    formats = list(found.steps[0].moves)
    width, digits = (
        max(len(each) for each in of) for of in zip(*((s.text, s.value) for s in found.steps), strict=True)
    )
    head = "".join(f"  {'in ' + name + ', ULP':>18}" for name in formats)
    lines = [f"  {'step':<{width}}  {'value':>{digits}}{head}"]
    for step in found.steps:
        moves = "".join(f"  {_figure(step.moves[name]):>18}" for name in formats)
        lines.append(f"  {step.text:<{width}}  {step.value:>{digits}}{moves}")
    return lines


def _figure(value: Any) -> str:
    return signed(float(value))
