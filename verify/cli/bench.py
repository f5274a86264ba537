"""Accuracy and speed of every implementation, side by side.

Compare the kernels of targets that compute the same, also with PyTorch eager and torch.compile. Speed is measured
on a GPU only, interleaved, as a fraction of a copy of the same bytes.

    verify bench accuracy.py --dtype bfloat16
    verify bench accuracy.py::my_gelu peers.py --shape 8192,4096 --forward
    verify bench accuracy.py --no-accuracy --json bench.json

targets --dtype ...
--shape N,N ...  time at this shape, e.g. 8192,4096; M,K,N for linear
--forward  time the forward pass only
--backward  time the backward pass only
--no-accuracy  time only
--rounds ROUNDS = 15  timed rounds (default 15)
--seed: the observed cases
--backend --jobs
--timeout: a kernel
--json: the run record
--html --markdown
"""

import argparse

from verify.cli import exits, given, screen, sinks
from verify.declare import config
from verify.measure.bench import Bench, bench
from verify.measure.session import Session
from verify.report import bench_words


def main(options: argparse.Namespace) -> int:
    """Carries out the command."""
    session = Session(
        backend=options.backend,
        seed=options.seed,
        timeout=options.timeout,
        jobs=options.jobs,
        dtypes=tuple(options.dtype),
        progress=(progress := screen.Progress()),
    )
    both = options.forward == options.backward
    settings = Bench(
        wanted=tuple(given.targets(options, config.find())),
        shapes=tuple(dict.fromkeys(options.shape)),
        directions=tuple(name for name in Bench.directions if both or getattr(options, name)),
        rounds=options.rounds,
        accuracy=not options.no_accuracy,
    )
    result = bench(settings, session, given.again(options))
    progress.clear()
    sinks.deliver_run(options, result, lambda: sinks.pages(bench_words.document(result)))
    screen.complain(session.usage)
    if result.verdict == "fail":
        return exits.WRONG
    if session.usage:
        return exits.USAGE
    return exits.INCOMPLETE if result.incomplete else exits.PASS
