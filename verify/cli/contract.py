"""Find where a layer and a kernel round, and where they part.

Search for the contract of each from the bits of its results alone: which number of the layer's program is stored in
which format, which products are not rounded before they are added, and in which form the program is computed. Print
the programs for `like=` with `verify.rounds`, how many bits they predict on other inputs, the first place where the
two differ, and an input that shows it. This is a report and no verdict: the exit code is 0 if they differ too.

    verify contract torch.nn.functional.silu accuracy.py::my_silu
    verify contract model.py::RMSNorm accuracy.py::my_norm --dtype bfloat16
    verify contract like accuracy.py::my_norm --gradients

layer: LAYER  the PyTorch function: FILE.py::NAME, a dotted name, or `like` for the kernel's own definition
target: TARGET  FILE.py::KERNEL or MODULE::KERNEL
--dtype --backend
--timeout: the search
--json: what was found
--gradients  compare the gradients in place of the results; an upstream gradient is an operand, dy
"""

import argparse

from verify.cli import replay
from verify.diagnose.requests import FindContract


def main(options: argparse.Namespace) -> int:
    """Carries out the command."""
    request = FindContract(options.target, options.layer, options.dtype, options.gradients)
    return replay.report(options, request, lambda found: str(found).splitlines())
