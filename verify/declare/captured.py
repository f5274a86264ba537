"""Reads and writes files of captured tensors: operands of a kernel from a real model.

    with verify.capture(model.layers[3].norm, "norm.safetensors", calls=4):
        model(batch)

    @verify.kernel(like=norm, shapes={"x": "n d", "weight": "d"}, inputs="norm.safetensors")

A file has the operands by name: "x", or "2/x" in the third call. Operands without a number belong to all
calls. "2/dy" is the gradient that arrives at the output y. The format is safetensors: a length of 8 bytes, a JSON
header, raw bytes.
"""

import hashlib
import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from verify.errors import UsageError
from verify.ops.graph.shapes import NamedDims
from verify.ops.op import Op
from verify.records.files import write_atomically

SUFFIX = ".safetensors"
PREFIX = "captured "  # of the recipe of such a case, before the number of the call
_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "BOOL": torch.bool, "U8": torch.uint8,
    "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
}  # fmt: skip
_LONGEST_HEADER = 100_000_000  # bytes, as in the format's own description


class Held(NamedTuple):
    """One tensor of a file, which is read when it is needed."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], Tensor]


@dataclass(frozen=True)
class Captured:
    """The calls of a file: the tensors of each by name."""

    path: Path
    calls: tuple[Mapping[str, Held], ...]

    @cached_property
    def digest(self) -> str:
        """The first hex digits of the file's SHA-256: figures of another file do not compare."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()[:12]

    def of(self, recipe: str) -> Mapping[str, Held]:
        """Returns the tensors that a recipe names; none for a recipe of another kind."""
        number = recipe.removeprefix(PREFIX)
        if number == recipe:
            return {}
        if not number.isdecimal() or int(number) >= len(self.calls):
            raise UsageError(f"{self.path.name} has {len(self.calls)} captured calls; the case names {recipe!r}")
        return self.calls[int(number)]

    def tensor(self, recipe: str, name: str) -> Tensor:
        """Reads one tensor. Raises UsageError if it holds NaN or an infinity."""
        found = self.of(recipe)[name].read()
        wrong = torch.nonzero(~torch.isfinite(found.float().reshape(-1))).reshape(-1)
        if wrong.numel():
            raise UsageError(
                f"{self.path.name}: captured numbers are finite; {name} of call {recipe.removeprefix(PREFIX)} has "
                f"{float(found.reshape(-1)[wrong[0]])} at {int(wrong[0])}, {wrong.numel():,} in all",
                hint="leave this call out; `verify run` tries NaN and infinities itself",
            )
        return found

    def dims(self, op: Op, number: int) -> tuple[int, ...]:
        """Returns the sizes of a call. Raises UsageError if its tensors do not have the shapes of the operands."""
        call, geometry = self.calls[number], op.geometry
        operands = {each.name: call[each.name].shape for each in op.operands if each.name in call}
        dims = next(iter(operands.values()), ())  # of an elementwise function
        if isinstance(geometry, NamedDims):
            dims = geometry.dims_of_shapes(operands)
        wanted = op.shapes(dims, op.params)
        for name, shape in operands.items():
            if shape != wanted[name] or not geometry.allows(dims):
                raise UsageError(
                    f"{self.path.name}: {name} of call {number} has the shape {list(shape)}; the declaration "
                    + (f"wants {list(wanted[name])} beside the others" if shape != wanted[name] else "forbids it"),
                    hint="shapes= and where= say which sizes the kernel takes",
                )
        return dims


def captured(about: str, given: Any, op: Op, dtypes: Mapping[str, Mapping[str, torch.dtype]], file: str) -> Captured:
    """Returns the calls of the file that inputs= names, a path relative to the declaring file.

    `dtypes` has the dtype of each floating-point operand for each dtype of cases. Raises UsageError if a name is no
    operand, or if a call has no sizes or dtypes that the kernel takes.
    """
    path = Path(file).parent / str(given)
    if path.suffix != SUFFIX or not path.is_file():
        raise UsageError(
            f"{about}: inputs is a file that ends in {SUFFIX}; received {str(given)!r}"
            + ("" if path.is_file() else ", which does not exist"),
            hint=f"verify.capture(module, {str(given)!r}) writes one",
        )
    try:
        found = _safetensors(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{about}: {path.name} is no file of tensors: {error}", hint="write it again") from error
    known = {each.name for each in op.operands if each.derive is None} | {"d" + name for name in op.outputs}
    numbers = sorted({int(name.split("/")[0]) for name in found if "/" in name and name.split("/")[0].isdecimal()})
    shared = {name: held for name, held in found.items() if "/" not in name}
    calls = []
    for number in numbers or [0]:
        own = {name.partition("/")[2]: held for name, held in found.items() if name.startswith(f"{number}/")}
        calls.append({**shared, **own})
    for name in found:
        if name.rpartition("/")[2] not in known or ("/" in name and not name.split("/")[0].isdecimal()):
            text = f"{about}: {path.name} names operands, {', '.join(sorted(known))}; received {name!r}"
            raise UsageError(text, hint='"x", or "0/x" for that of the first call')
    made = Captured(path, tuple(calls))
    for number, call in enumerate(calls):
        made.dims(op, number)
        kinds = {name: held.dtype for name, held in call.items() if held.dtype.is_floating_point}
        if not any(fits(call, of_dtype) for of_dtype in dtypes.values()):
            told = ", ".join(f"{name} {str(kind).removeprefix('torch.')}" for name, kind in kinds.items())
            raise UsageError(
                f"{about}: call {number} of {path.name} has {told or 'no numbers'}; the kernel has no such dtypes",
                hint=f"dtypes= has {', '.join(dtypes)}; operand_dtypes= gives single operands another one",
            )
    return made


def fits(call: Mapping[str, Held], wanted: Mapping[str, torch.dtype]) -> bool:
    """True if a call has some operand in numbers, and each in its dtype; integers fit in any."""
    given = {name: call[name].dtype for name in wanted if name in call}
    return bool(given) and all(kind == wanted[name] for name, kind in given.items())


# -- formats ----------------------------------------------------------------------------------------------


def _safetensors(path: Path) -> dict[str, Held]:
    """Reads the header of a safetensors file."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= min(_LONGEST_HEADER, size - 8):
            raise ValueError(f"its header has {length:,} bytes, the file {size:,}")
        header = json.loads(stream.read(length))
    found = {}
    for name, each in header.items():
        if name == "__metadata__":
            continue
        kind, shape, (start, end) = _TYPES[each["dtype"]], tuple(map(int, each["shape"])), each["data_offsets"]
        if not 0 <= start <= end <= size - 8 - length or end - start != math.prod(shape) * kind.itemsize:
            raise ValueError(f"{name} of shape {list(shape)} has the bytes {start:,} to {end:,}")
        found[name] = Held(kind, shape, partial(_bytes_of, path, 8 + length + start, end - start, kind, shape))
    return found


def _bytes_of(path: Path, start: int, count: int, kind: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    with path.open("rb") as stream:
        stream.seek(start)
        data = bytearray(stream.read(count))
    flat = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return flat.view(kind).reshape(shape)


def _written(tensors: Mapping[str, Tensor]) -> bytes:
    """Returns the bytes of a file."""
    held = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    header, data, names = dict[str, Any](), bytearray(), {kind: name for name, kind in _TYPES.items()}
    for name, value in held.items():
        start = len(data)
        data += value.reshape(-1).view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": names[value.dtype], "shape": list(value.shape), "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


@contextmanager
def capture(module: torch.nn.Module, path: str, *, calls: int = 1) -> Iterator[None]:
    """Writes the arguments of a module's calls inside the block, as a file for inputs=: at most so many calls.

    Operands have the names of the arguments of `forward`, and parameters theirs with `_` for dots. An output is y, or
    y1 and y2. The gradients that arrive there are written too. An error in the block leaves no file.
    """
    target = Path(path)
    if not isinstance(calls, int) or calls < 1:
        raise UsageError(f"a capture has at least one call; received calls={calls!r}", hint="calls=1")
    if target.suffix != SUFFIX:
        raise UsageError(f"a capture is written to a {SUFFIX} file; received {path!r}")
    found: dict[str, Tensor] = {}
    begun = [0]

    def arrived(name: str, gradient: Tensor) -> None:
        found[name] = gradient.detach().clone()

    def before(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if begun[0] < calls:
            given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
            found.update({f"{begun[0]}/{n}": v.detach().clone() for n, v in given.items() if isinstance(v, Tensor)})
        begun[0] += 1

    def after(module: torch.nn.Module, args: Any, output: Any) -> None:
        returned = output if isinstance(output, tuple | list) else [output]
        outputs = [each for each in returned if isinstance(each, Tensor)]
        for place, value in enumerate(outputs, 1):
            name = f"{begun[0] - 1}/dy" + (str(place) if len(outputs) > 1 else "")
            if begun[0] <= calls and value.requires_grad:
                value.register_hook(partial(arrived, name))  # type: ignore[no-untyped-call]

    handles = [module.register_forward_pre_hook(before, with_kwargs=True), module.register_forward_hook(after)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    if not begun[0]:
        raise UsageError("the module was not called inside `with verify.capture(...)`", hint="call the model there")
    parameters = {name.replace(".", "_"): value for name, value in module.named_parameters()}
    write_atomically(target, _written(parameters | found))
