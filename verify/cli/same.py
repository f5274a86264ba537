"""Find which settings of a kernel give the same bits.

Call the kernel with other numbers of rows, rows in other places, other layouts of its operands, other
configurations of its autotuners, a second time, and in place of it the functions of `same_bits_as=`. Print the
classes of equal bits of each setting, and an element at which two classes differ. Within a class the bits are the
same over the inputs tried, which is no proof. This is a report and no verdict: the exit code is 0 in any case;
`same_bits=` in a declaration makes every run demand the bits.

    verify same accuracy.py::my_norm
    verify same accuracy.py::my_norm --dtype bfloat16 --backend cuda

target: TARGET  FILE.py::KERNEL or MODULE::KERNEL
case
--dtype --backend
--timeout: the search
--json: the classes
--proved  prove for every input, from what Triton compiled, which numbers of rows give the outputs of all at once
"""

import argparse
import string

from verify.cli import sinks
from verify.diagnose.requests import FindSettings, SameBits
from verify.errors import KernelError, UsageError
from verify.workers.pool import using
from verify.workers.requests import Died

_SHOWN = 5  # values of a class


def main(options: argparse.Namespace) -> int:
    """Carries out the command. A value of a setting that ends the process is left out in the next one."""
    without, begun = dict[str, str](), list[str]()
    with using(None, options.backend) as workers:
        while True:
            request = FindSettings(options.target, options.dtype, options.case, options.proved, without)
            try:
                found = workers.ask(request, timeout=options.timeout, progress=begun.append)
                return sinks.deliver_data(options, found, lines_of(found))
            except (KernelError, Died) as error:
                if not begun or begun[-1] in without:
                    raise UsageError(f"{options.target}: {error}") from error
                without = {**without, begun[-1]: str(error)}


def lines_of(found: SameBits) -> list[str]:
    """Returns the classes as lines for the screen."""
    sizes = ", ".join(f"{name} {size:,}" for name, size in found.sizes.items())
    lines = [f"{found.kernel} {found.dtype} on {found.backend}: {sizes}; {_inputs(found)}"]
    width = max((len(each.setting) for each in found.settings), default=0)
    for each in found.settings:
        for letter, one in zip(string.ascii_uppercase, each.classes, strict=False):
            name = each.setting if letter == "A" else ""
            more = len(one) - _SHOWN
            shown = [*one[:_SHOWN], *([f"{more:,} more"] if more > 0 else [])]
            lines.append(f"  {name:<{width}}  {letter}  {', '.join(shown)}")
        if more := len(each.classes) - len(string.ascii_uppercase):
            lines += [f"  {'':<{width}}  and {more:,} classes more"] if more > 0 else []
        lines += [f"  {'':<{width}}     {text}" for text in each.witness]
        lines += [f"  {'':<{width}}  refused: {text}" for text in each.refused]
        if each.undecided:
            text = f"{'; '.join(each.undecided)}: elements share memory, and 16 bits may hide another order"
            lines.append(f"  {'':<{width}}  undecided: {text}")
        lines += [f"  {'':<{width}}  proved for every input: {each.proved}"] if each.proved else []
    held = [each.setting for each in found.settings if len(each.classes) == 1]
    lines.append(f"within a class: the same bits over {_inputs(found)}, which is no proof")
    return lines + ([f"one class: {', '.join(held)}"] if held else [])


def _inputs(found: SameBits) -> str:
    return "1 input" if found.inputs == 1 else f"{found.inputs:,} inputs"
