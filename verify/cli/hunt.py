"""Search for the worst input where trying every input is impossible.

Search for the worst input of each result: rows, pairs, float64, dot products, sums over rows. Every find is judged
exactly and comes with a command that replays it. A hunt proves that an error exists, never that none does.

    verify hunt accuracy.py::my_norm --result dx --duration 5m
    verify hunt accuracy.py --evaluations 1000000 --seed 7 --json hunt.json

targets --dtype ... --result ...
--duration TIME  how long to search for each result of each dtype, e.g. 90s, 20m or 1h30m (default 1m)
| --evaluations N  how many candidates to judge there instead
--seed: the search
--width N = 0  length of rows and dot products, numbers of a case of like= (default 128; 16 in float64 and of sums)
--largest X  search inputs of at most this magnitude
--strategy {hunt,random} = hunt  random: draw every candidate fresh, for comparison
--backend
--timeout: a search that is past its duration
--gpus | --scheduler
--json: the run record
--html --markdown --sarif --junit --github
"""

import argparse
import sys

from verify import api
from verify.cli import given, screen, sinks
from verify.declare import config


def main(options: argparse.Namespace) -> int:
    """Carries out the command."""
    targets = given.targets(options, config.find())
    progress = screen.Progress()
    said = "\nverify: stopping; the finds are judged and kept. Ctrl-C again abandons them."
    own = {"progress": progress, "stopping": lambda: print(said, file=sys.stderr)}
    done = api.hunt(targets, **given.arguments(options, api.hunt, **own))
    progress.clear()
    sinks.deliver_run(options, done.record)
    return done.exit_code
