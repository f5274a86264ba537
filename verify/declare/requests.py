"""Defines the requests to workers about files, modules and ops, and their replies."""

from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from verify.declare.target import Declared, Target
from verify.errors import UsageError, VerifyError
from verify.workers.process import START_SECONDS, Answers
from verify.workers.requests import Died, Late, Request


class Listed(msgspec.Struct, frozen=True):
    """Holds the kernels of a target, and a digest of the modules of its project: of all, and by file.

    `refused` has the message and the hint of each declaration that is none.
    """

    sources: str
    kernels: list[Declared]
    files: dict[str, str] = {}
    refused: list[tuple[str, str | None]] = []


class ListKernels(Request[Listed], frozen=True, tag="list"):
    """Asks for the kernels that a target declares."""

    lists: ClassVar[bool] = True
    target: str

    def answer(self) -> Listed:
        """Imports the target in this process."""
        from verify.declare.discovery import load
        from verify.declare.sources import digests_of, sources_of

        target, failed = Target.parse(self.target), list[UsageError]()
        kernels = load(target, failed)
        declared = [Declared.of(item, target.source) for item in kernels]
        errors = [(error.message, error.hint) for error in failed]
        return Listed(sources_of(kernels[0]), declared, digests_of(kernels[0]), errors)


class Description(msgspec.Struct, frozen=True):
    """Holds a declaration as JSON, see `Kernel.described`.

    `own_op`: its op is one of verify's own. `contained`: its function runs in a further process, so the process that
    imports its module can judge it.
    """

    kernel: dict[str, Any]
    own_op: bool
    contained: bool = False


class Describe(Request[Description], frozen=True, tag="describe"):
    """Asks for the declaration of one kernel, for a judge that does not import its module."""

    lists: ClassVar[bool] = True
    target: str


class Forget(Request[None], frozen=True, tag="forget"):
    """Asks to end the process of the last target, so that the next request imports the files as they are then."""


class OpAbout(msgspec.Struct, frozen=True):
    """Holds the facts of an op that `verify list --ops` prints."""

    name: str
    summary: str
    operands: list[str]
    outputs: list[str]
    gradients: list[str]
    params: dict[str, str]
    choices: dict[str, list[str]]
    gate: str


class ListOps(Request[list[OpAbout]], frozen=True, tag="ops"):
    """Asks for every op, or for the one of a name."""

    op: str = ""


Known = dict[str, Listed]  # the listings of targets that were requested before, if no declaration changes meanwhile


def _listed(worker: Answers, target: str, known: Known | None) -> Listed:
    known = {} if known is None else known
    if target not in known:
        known[target] = worker.ask(ListKernels(target), timeout=START_SECONDS)
    return known[target]


def sources_of(worker: Answers, targets: Iterable[str], known: Known | None = None) -> dict[str, str]:
    """Returns a digest for each target of its project's imported modules: a changed kernel is another kernel."""
    found = {}
    for target in targets:
        try:
            found[target] = _listed(worker, target, known).sources
        except VerifyError as error:
            # A failing import is reported when the target runs. Its message becomes part of the settings.
            found[target] = error.message if isinstance(error, UsageError) else str(error)
    return found


def declared_by(
    worker: Answers, target: str, known: Known | None = None, failed: list[UsageError] | None = None
) -> list[Declared]:
    """Returns the kernels of a target. If importing fails, raises UsageError with a command that shows why.

    Adds refused declarations to `failed`; without it, raises the first.
    """
    try:
        found = _listed(worker, target, known)
    except (Late, Died) as error:
        late = f"took more than {START_SECONDS:g} s; stopped"
        why = late if isinstance(error, Late) else f"ended the process: {error}"
        raise UsageError(f"{target}: importing it {why}", hint=Target.parse(target).import_command()) from None
    errors = [UsageError(message, hint=hint) for message, hint in found.refused]
    if errors and failed is None:
        raise errors[0]
    if failed is not None:
        failed += errors
    return found.kernels
