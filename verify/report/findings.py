"""What a maintainer would fix first: wrong results by cause, the most ordinary inputs first."""

from __future__ import annotations

from dataclasses import replace

from verify.records.record import UNPROVEN, Run
from verify.report.run_words import Found, badness, of_class, shown_worst, worst_class, wrong_results
from verify.report.words import clean

MOST_ALSO = 8  # results of one cause that are named beside the first


def findings(run: Run) -> list[Found]:
    """Wrong results, those of one cause together under the worst of them."""
    causes: dict[tuple[str, ...], list[Found]] = {}
    for found in sorted(wrong_results(run), key=lambda found: badness(found.result), reverse=True):
        causes.setdefault(_cause(found), []).append(found)
    return [replace(first, also=tuple(each.result for each in rest)) for first, *rest in causes.values()]


def unproven(run: Run) -> list[Found]:
    """Vacuous and undecided results of judged kernels, those of one kernel and reason together."""
    causes: dict[tuple[str, ...], list[Found]] = {}
    for kernel in run.kernels:
        for result in kernel.results if not kernel.peer else ():
            if result.status in UNPROVEN:
                cause = kernel.target, result.status, result.reason
                causes.setdefault(cause, []).append(Found(kernel, result, shown_worst(result)))
    return [replace(first, also=tuple(each.result for each in rest)) for first, *rest in causes.values()]


def _cause(found: Found) -> tuple[str, ...]:
    """One output in several dtypes has one; so has NaN, which goes from an output into its gradients."""
    nan = found.worst is not None and found.worst.got == "nan"
    return found.kernel.target, worst_class(found.result), "nan" if nan else found.result.output


def also(found: Found, *, dash: str = "\N{EN DASH}") -> str:
    """`y bfloat16 (71), float16 (566.4); dx float32 (NaN)`: what else is wrong for the same reason, and how far off."""
    outputs: dict[str, list[str]] = {}
    for result in found.also[:MOST_ALSO]:
        figure = of_class(result, worst_class(result), dash=dash) if worst_class(result) else ""
        outputs.setdefault(result.output, []).append(f"{result.dtype} ({figure})" if figure else result.dtype)
    more = f" and {len(found.also) - MOST_ALSO} more" if len(found.also) > MOST_ALSO else ""
    return clean("; ".join(f"{name} {', '.join(each)}" for name, each in outputs.items()) + more)
