"""Show the declared kernels, or the known ops.

Show the kernels that files or modules declare, or the ops that a kernel can compute.

    verify list accuracy.py
    verify list --ops
    verify list --op layer_norm
    verify list --models

targets
--ops  show the known ops instead
--op NAME  show one op: operands, results, parameters
--models  show the public models that --model knows, and the names of dimensions that take their sizes
--json: the list
"""

import argparse

from verify.cli import exits, given, screen, sinks
from verify.declare import config
from verify.declare.models import FORMS, MODELS
from verify.declare.requests import ListOps, declared_by
from verify.declare.target import Declared
from verify.errors import UsageError
from verify.report.words import plural
from verify.workers import process


def main(options: argparse.Namespace) -> int:
    """Carries out the command."""
    if options.models:
        return _models(options)
    return _ops(options) if options.ops or options.op else _kernels(options)


def _models(options: argparse.Namespace) -> int:
    found = [{"name": each.name, "source": each.source, "dtype": each.dtype, **each.sizes} for each in MODELS.values()]
    lines = []
    for each in MODELS.values():
        lines += [f"{each.name}  {each.source}, {each.dtype}", f"    {each.words}"]
    lines += ["", *(f"{role}: {', '.join([role, *forms])}" for role, forms in FORMS.items())]
    end = sinks.ending(f"{len(found)} models", "verify run FILE.py --model NAME")
    return sinks.deliver_data(options, found, lines + end)


def _kernels(options: argparse.Namespace) -> int:
    targets = given.targets(options, config.find())
    found: list[Declared] = []
    failed: list[UsageError] = []
    with process.Worker() as worker:
        for target in targets:
            try:
                found += declared_by(worker, target, failed=failed)
            except UsageError as error:
                failed.append(error)
    lines = []
    for item in found:
        params = ", ".join(f"{k}={v!r}" for k, v in item.params.items())
        peer = "  (peer: measured, not judged)" if item.peer else ""
        lines += [f"{item.target}  {item.op}({params}){peer}", f"    {item.promise}"]
    if found:
        lines += sinks.ending(f"{plural(len(found), 'kernel')} declared", f"verify run {found[0].target}")
    sinks.deliver_data(options, found, lines)
    screen.complain(map(str, failed))
    return exits.USAGE if failed else exits.PASS


def _ops(options: argparse.Namespace) -> int:
    with process.Worker() as worker:
        found = worker.ask(ListOps(options.op or ""), timeout=process.START_SECONDS)
    lines = []
    for op in found:
        lines.append(f"{op.name}({', '.join(op.operands)}) -> {', '.join(op.outputs)}    {op.summary}")
        if options.op:
            lines.append(f"    gradients: {', '.join(op.gradients)}")
            for name, default in op.params.items():
                choices = op.choices.get(name)
                lines.append(f"    {name} = {default}" + (f", one of {', '.join(choices)}" if choices else ""))
            lines.append(f"    judged by the {op.gate} error")
    end = [] if options.op else sinks.ending(f"{len(found)} ops known", "verify list --op NAME")
    return sinks.deliver_data(options, found, lines + end)
