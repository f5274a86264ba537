"""Completes declarations with codes and scales: of quantisers, and of kernels with quantised operands."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from verify.errors import UsageError
from verify.truth.quantised.encoding import Encoding
from verify.truth.quantised.operands import drawn, dtype_of, laid, meant, shapes_of

_LARGE_BLOCK = 1024  # elements; a larger block need not divide the rows, which cases have too few of


def _itself(x: Any) -> Any:
    return x


def _beside_bits(x: Any, bits: Any) -> Any:
    return x


def quantiser(
    encoding: Encoding,
    like: Callable[..., Any] | None,
    shapes: Mapping[str, str] | None,
    where: str,
    operands: Iterable[str] | None,
    op: object,
) -> tuple[Encoding, Callable[..., Any], Mapping[str, str], str, Iterable[str] | None, Mapping[str, str]]:
    """Returns quantise=, like=, shapes=, where=, operands= and integers= of a quantiser.

    Without like= it quantises its one operand, a matrix of m rows and k columns. Random bits are a second operand.
    """
    if not isinstance(encoding, Encoding):
        text = f"quantise= is what verify.quantised(...) returns; received {encoding!r}"
        raise UsageError(text, hint='quantise=verify.quantised("e4m3", block=(1, 32), scale="e8m0")')
    if op is not None:
        text = f"quantise= is about x, or about the result of like=; received op={op!r} beside it"
        raise UsageError(text, hint="like=FUNCTION computes the result that is quantised")
    if like is not None:
        if shapes is None:
            raise UsageError("quantise= with like= takes shapes=", hint='shapes={"x": "m k"}')
        if encoding.random:
            raise UsageError("quantise= with random bits takes no like=", hint="a quantiser of x and bits")
        return replace(encoding, fused=True), like, shapes, where, operands, {}
    rows, columns = encoding.block
    divided = [f"m % {rows} == 0"] * (rows > 1) + [f"k % {columns} == 0"] * (columns > 1)
    shared = zip("mk", encoding.block, encoding.packs, strict=True)
    divided += [f"{token} % {count} == 0" for token, size, count in shared if count > 1 and (size == 0 or size % count)]
    if not encoding.random:
        return encoding, _itself, {"x": "m k"}, _and(divided, where), ("x",), {}
    integers = {"bits": f"0 <= bits < {2**encoding.random_bits}"}
    return encoding, _beside_bits, {"x": "m k", "bits": "m k"}, _and(divided, where), ("x", "bits"), integers


def _and(parts: list[str], where: str) -> str:
    return " and ".join([*parts, *([f"({where})"] if where else [])])


@dataclass(frozen=True)
class Part:
    """Computes one part of a quantised operand from the numbers that a case draws for it."""

    operand: str
    encoding: Encoding
    part: str

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.Signature([inspect.Parameter(self.operand, inspect.Parameter.POSITIONAL_OR_KEYWORD)])

    @property
    def exact(self) -> str:
        """Says what the part is, for the digest of the op."""
        return f"{self.part} of {self.encoding.declaration}"

    def __call__(self, x: Any) -> Any:
        return drawn(self.encoding, x)[self.part]


@dataclass(frozen=True)
class Encoded:
    """The quantised operands of a kernel, and what shapes= and where= become.

    `whole` is like= as it was declared, and `taken` are the arguments of the kernel.
    """

    encodings: Mapping[str, Encoding]
    whole: Any
    shapes: Any
    where: str
    taken: tuple[str, ...] = ()

    @property
    def like(self) -> Any:
        """Returns like= as a function of the kernel's operands."""
        return self.reading(self.encodings) if self.encodings else self.whole

    @property
    def parts(self) -> dict[str, tuple[str, str]]:
        """Maps the name of each part, such as w_codes, to its operand and its own name."""
        return {f"{name}_{part}": (name, part) for name, each in self.encodings.items() for part in each.names}

    @property
    def derive(self) -> dict[str, Part]:
        """Returns derive= of the parts."""
        return {name: Part(operand, self.encodings[operand], part) for name, (operand, part) in self.parts.items()}

    @property
    def raw(self) -> dict[str, Callable[[Any], Any]]:
        """Returns what lays out each part as the kernel receives it."""
        return {name: partial(laid, self.encodings[operand], part) for name, (operand, part) in self.parts.items()}

    @property
    def shown(self) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
        """Returns what computes the numbers of each operand from all operands of a case."""
        return {name: partial(self._meant, name) for name in self.encodings}

    def reading(self, encodings: Mapping[str, Encoding]) -> Callable[..., Any]:
        """Returns like= as a function of the parts by name, which are read by these encodings.

        It passes operands on by name where `whole` has such parameters, else in the kernel's order.
        """
        names = tuple(dict.fromkeys(self.parts[name][0] if name in self.parts else name for name in self.taken))
        try:
            by_name = set(names) <= set(inspect.signature(self.whole).parameters)
        except (TypeError, ValueError):
            by_name = False
        shown = replace(self, encodings=encodings).shown

        def of_parts(**given: Any) -> Any:
            others = [given[name] for name in names if name not in encodings]
            kind = next((each.dtype for each in others if each.is_floating_point()), torch.float32)
            values = {n: shown[n](given).to(kind) if n in encodings else given[n] for n in names}
            return self.whole(**values) if by_name else self.whole(*values.values())

        parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in self.taken]
        of_parts.__name__ = getattr(self.whole, "__name__", type(self.whole).__name__)
        of_parts.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return of_parts

    def _meant(self, operand: str, given: Mapping[str, Any]) -> Any:
        parts = {part: given[name] for name, (of, part) in self.parts.items() if of == operand}
        return meant(self.encodings[operand], parts)

    def with_scales(
        self, dtypes: Mapping[str, Mapping[str, str]], promised: Iterable[str]
    ) -> dict[str, dict[str, str]]:
        """Adds the dtypes of scales that are no codes to operand_dtypes=."""
        kinds = {name: dtype_of(self.encodings[operand], part) for name, (operand, part) in self.parts.items()}
        own = {name: kind for name, kind in kinds.items() if kind}
        return {dtype: {**dtypes.get(dtype, {}), **own} for dtype in promised} if own else dict(dtypes)  # type: ignore[arg-type]


def encoded(
    about: str, function: Callable[..., Any], like: Callable[..., Any] | None, operands: Any, shapes: Any, where: str
) -> Encoded:
    """Reads operands={"w": verify.quantised(...)}. Other declarations stay as they are.

    The kernel takes the parts w_codes and w_scales, and w_second if there is one. like= takes w, the numbers that they
    mean, in the dtype of an operand that is not quantised.
    """
    if not isinstance(operands, Mapping):
        return Encoded({}, like, shapes, where)
    hint = 'operands={"w": verify.quantised("int4", block=(1, 32), scale="float16")}, like=..., shapes={"w": "n k"}'
    if like is None or not all(isinstance(each, Encoding) for each in operands.values()):
        raise UsageError(f"{about}: operands= maps operands of like= to verify.quantised(...)", hint=hint)
    texts = dict(shapes or {})
    if missing := [name for name in operands if not isinstance(texts.get(name), str) or not texts[name].split()]:
        raise UsageError(f"{about}: shapes= has no dimensions of the quantised {', '.join(missing)}", hint=hint)
    sizes = [size for name, each in operands.items() for size in _divided(tuple(texts[name].split()), each)]
    for name, encoding in operands.items():
        own = shapes_of(encoding, tuple(texts[name].split()))
        texts |= {f"{name}_{part}": text for part, text in own.items()}
    parameters = inspect.signature(function).parameters.values()
    taken = tuple(each.name for each in parameters if each.default is each.empty)
    made = Encoded(operands, like, texts, _and(sizes, where), taken)
    if absent := [name for name in made.parts if name not in taken]:
        raise UsageError(
            f"{about}: a kernel takes the parts of its quantised operands, {', '.join(made.parts)}, in any order; "
            f"received one that takes {', '.join(taken)}",
            hint=f"an argument of the kernel for each of {', '.join(absent)}",
        )
    return made


def _divided(tokens: tuple[str, ...], encoding: Encoding) -> list[str]:
    """Lists the conditions on sizes: whole blocks, and whole integers of packed codes."""
    rows, columns = encoding.block
    rows = 0 if rows * columns > _LARGE_BLOCK else rows
    shared = zip((rows, columns), encoding.packs, strict=True)
    sizes = [math.lcm(size or 1, count) if count > 1 else size for size, count in shared]
    matrix = ("1", *tokens)[-2:]
    return [f"({token}) % {size} == 0" for token, size in zip(matrix, sizes, strict=True) if size > 1]
