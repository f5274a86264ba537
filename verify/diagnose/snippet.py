"""Makes a self-contained Python script that shows one wrong element, for a bug report to the kernel's authors.

The script needs torch and the imports of the kernel, but not verify. It spells out the bits of every operand, calls the
kernel, and compares the element with the exact value. The exact value has 30 decimal digits. A few lines compute the
error, so that everyone can check them.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import math
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verify.backends import Backend
from verify.cases import Case
from verify.cases.case import spell
from verify.declare.declaration import Kernel
from verify.diagnose.requests import Replay
from verify.errors import UsageError
from verify.measure.call import Measured, run_kernel
from verify.records.figure import UNIT
from verify.records.record import replay_command, value_of
from verify.truth import formats
from verify.truth.formats import Format
from verify.truth.ulp import Policy

LIMIT = 4096  # a script spells out at most this many elements in memory
_FUTURE = "from __future__ import annotations"
_KNOWN = sys.stdlib_module_names | {"torch", "triton", "numpy"}


def too_long(kernel: Kernel, case: Case, backend: Backend) -> int:
    """Returns how many elements a script of this case would spell out, if these are too many; else 0."""
    measured = run_kernel(kernel, case, backend.device)
    count = sum(_memory(tensor).numel() for tensor in _tensors(kernel, measured).values())
    return count if count > LIMIT else 0


def snippet(kernel: Kernel, backend: Backend, found: Replay) -> str:
    """Returns the script that shows the element of `found`."""
    case = Case.from_json(found.case)
    measured = run_kernel(kernel, case, backend.device)
    if count := too_long(kernel, case, backend):
        raise UsageError(
            f"a script spells out at most {LIMIT:,} elements; this case has {count:,}",
            hint="choose a smaller case, or one that is beyond its limit: that can be made smaller with --shrink",
        )
    source, name = kernel_source(kernel)
    sections = [
        _heading(kernel, backend, found, source),
        _imports(kernel, backend, source),
        f"# -- the kernel\n\n{source}",
        f"# -- the operands, bit for bit\n\n{_TENSOR}\n\n{_operands(kernel, case, measured)}",
        f"# -- the call\n\n{_call(kernel, case, name, found)}",
        f"# -- the exact value and the error\n\n{_error(kernel, found)}",
    ]
    return "\n\n".join(sections) + "\n"


def _heading(kernel: Kernel, backend: Backend, found: Replay, source: str) -> str:
    """Returns the script's docstring: the finding, the device, how to run the script, and the command for a replay."""
    worst, figure = found.worst, f"{found.judged:.6g}{UNIT[found.gate]}"
    device = backend.label.rpartition(" (")[0] or "CPU"
    lines = [
        f'"""{kernel.name} ({found.op}), {found.result} in {found.dtype}: {figure} off at {list(worst.index)}.',
        "",
        f"Measured with torch {torch.__version__} on {backend.name} ({device}).",
    ]
    if kernel.policy != Policy():
        lines.append(f"verify judged it under {kernel.policy}; the lines at the end use the default.")
    if _interprets(backend, source):
        lines.append(
            "That is verify's interpreter of Triton; run the script on a GPU. Triton's own interpreter, which it"
        )
        lines.append("falls back to, rounds bfloat16 and fma differently, and may fail.")
    lines.append(
        "Run it in the folder of the kernel's project; it exits 1 while the element is beyond the kernel's limit."
    )
    lines += ["The command that it comes from:", "", replay_command(worst.origin)]
    if found.smaller is not None and found.smaller.original not in (None, worst.origin):
        lines += ["", "The case was made smaller; the one that was found:", "", replay_command(found.smaller.original)]
    lines.append('"""')
    return "\n".join(line.replace("\\", "\\\\") for line in lines)


def _imports(kernel: Kernel, backend: Backend, source: str) -> str:
    needed, lines, device = {"math", "sys"}, ["import torch"], f'"{backend.device}"'
    if _interprets(backend, source):
        needed.add("os")
        device = '"cuda" if torch.cuda.is_available() else "cpu"'
        lines += ["", "if not torch.cuda.is_available():", '    os.environ["TRITON_INTERPRET"] = "1"']
    if _modules(source) - _KNOWN:
        path = Path(kernel.file).resolve()  # as `verify` imports a file
        project = next((parent for parent in path.parents if (parent / "pyproject.toml").exists()), path.parent)
        folders = list(dict.fromkeys([".", os.path.relpath(project), os.path.relpath(path.parent)]))
        lines.append(f"sys.path[:0] = {folders!r}")
    imports = [f"import {name}" for name in sorted(needed)]
    if _FUTURE in inspect.getsource(sys.modules[kernel.module]):  # this import must come before everything else
        imports[:0] = [_FUTURE, ""]
    return "\n".join([*imports, "from fractions import Fraction", "", *lines, "", f"DEVICE = {device}"])


def _interprets(backend: Backend, source: str) -> bool:
    """True if the kernel may be Triton code that needs the interpreter."""
    used = _modules(source)
    return backend.triton == "interpreted" and ("triton" in used or bool(used - _KNOWN))


def _modules(source: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


# -- the kernel's own code -----------------------------------------------------------------------------


def kernel_source(kernel: Kernel) -> tuple[str, str]:
    """Returns Python source that defines or imports the function of a kernel, and the expression that names it.

    If the function belongs to the declaring file, the source has everything of that file that it uses, without its
    declaration. Any other function is imported from its module.
    """
    function = kernel.function
    owner = getattr(function, "__self__", None)
    bound = isinstance(owner, type)
    holder: Any = owner if bound else function
    top = str(getattr(holder, "__qualname__", "")).split(".")[0]
    name = f"{holder.__qualname__}.{function.__name__}" if bound else str(getattr(holder, "__qualname__", ""))
    module = str(getattr(holder, "__module__", ""))
    if module == kernel.module and "<" not in name:
        return _sliced(kernel, top), name
    if "<" not in name and _importable(module, name) == function:
        return f"from {module} import {top}", name
    raise UsageError(
        f"a script needs the source of {kernel.name}: a function or class of its file, or one that can be imported; "
        f"it is {function!r}",
        hint="declare a function with def, which calls it",
    )


def _importable(module: str, name: str) -> Any:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found
    except (ImportError, AttributeError, ValueError):
        return None


def _sliced(kernel: Kernel, name: str) -> str:
    """Returns the statements of the declaring file that a name depends on, without verify."""
    text = inspect.getsource(sys.modules[kernel.module])
    statements = ast.parse(text).body
    ours = _names_of_verify(statements)
    chosen, wanted = _rests_on({name}, statements, ours)
    if wanted & ours:
        raise UsageError(f"a script runs without verify, which {kernel.name} uses beyond its declaration")
    if not chosen:
        raise UsageError(f"{kernel.name} is not defined at the top of its file; a script cannot show it")
    read = set[str]().union(*(_reads(statement, set()) for statement in statements))
    for place, statement in enumerate(statements):
        if _acts(statement, read):
            more, needs = _rests_on(_reads(statement, ours), statements, ours)
            if not needs & ours:
                chosen |= more | {place}
    pieces = [_text(statements[place], text, ours) for place in sorted(chosen)]
    return "\n\n".join(piece for piece in pieces if piece)


def _rests_on(names: set[str], statements: Sequence[ast.stmt], ours: set[str]) -> tuple[set[int], set[str]]:
    """Returns the positions of the statements that names depend on, and all names that these statements need."""
    wanted, chosen = set(names), set[int]()
    while more := {
        place
        for place, statement in enumerate(statements)
        if place not in chosen and _binds(statement) & (wanted - ours)
    }:
        chosen |= more
        for place in more:
            wanted |= _reads(statements[place], ours)
    return chosen, wanted


def _acts(statement: ast.stmt, read: set[str]) -> bool:
    """True if a statement matters for its effect: a call, a setting, or the import of a module under an unused name."""
    match statement:
        case ast.Expr(value=ast.Call()):
            return True
        case ast.Assign() | ast.AugAssign():
            return not _binds(statement)
        case ast.Import() | ast.ImportFrom():
            used = {alias.name.split(".")[0] for alias in statement.names}
            modules = {(statement.module or "").split(".")[0]} if isinstance(statement, ast.ImportFrom) else used
            return not modules & {*_KNOWN, "verify"} and not _binds(statement) & read
        case _:
            return False


def _names_of_verify(statements: Iterable[ast.stmt]) -> set[str]:
    """Returns the file's names for verify and for everything imported from it."""
    names: set[str] = set()
    for statement in statements:
        if isinstance(statement, ast.Import):
            found = [alias for alias in statement.names if alias.name.split(".")[0] == "verify"]
            names |= {alias.asname or alias.name.split(".")[0] for alias in found}
        elif isinstance(statement, ast.ImportFrom) and (statement.module or "").split(".")[0] == "verify":
            names |= {alias.asname or alias.name for alias in statement.names}
    return names


def _binds(statement: ast.stmt) -> set[str]:
    """Returns the names that a statement of a module binds."""
    if isinstance(statement, ast.FunctionDef) and statement.name == "_":  # the decorator registers this function
        return {node.id for item in statement.decorator_list for node in ast.walk(item) if isinstance(node, ast.Name)}
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.split(".")[0] for alias in statement.names}
    found: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.stmt) and node is not statement:
            found |= _binds(node)
    return found


def _declares(decorator: ast.expr, ours: set[str]) -> bool:
    roots = [node.id for node in ast.walk(decorator) if isinstance(node, ast.Name)]
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    while isinstance(called, ast.Attribute):
        called = called.value
    return bool(roots) and isinstance(called, ast.Name) and called.id in ours


def _reads(statement: ast.stmt, ours: set[str]) -> set[str]:
    """Returns the names that a statement uses, without its declaration to verify."""
    skipped: set[int] = set()
    for node in ast.walk(statement):
        for decorator in getattr(node, "decorator_list", []):
            if _declares(decorator, ours):
                skipped |= {id(part) for part in ast.walk(decorator)}
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and id(node) not in skipped}


def _text(statement: ast.stmt, text: str, ours: set[str]) -> str:
    """Returns the source of a statement without its declaration."""
    if isinstance(statement, ast.Import):
        begun = [item for item in statement.names if (item.name, item.asname) == ("torch", None)]  # by every script
        left = [item for item in statement.names if item.name.split(".")[0] != "verify" and item not in begun]
        return ast.unparse(ast.Import(left)) if left else ""
    lines = text.splitlines()
    decorators = [item for item in getattr(statement, "decorator_list", []) if not _declares(item, ours)]
    kept = ["\n".join(lines[item.lineno - 1 : item.end_lineno]) for item in decorators]
    kept.append("\n".join(lines[statement.lineno - 1 : statement.end_lineno]))
    return "\n".join(kept)


# -- operands, call, error -----------------------------------------------------------------------------

_TENSOR = '''\
def tensor(dtype, digits, size, stride, offset=0):
    """A tensor from the hex digits of the elements in its memory, with its strides."""
    width = 2 * torch.empty(0, dtype=dtype).element_size()
    words = [bytes.fromhex(digits[at : at + width])[::-1] for at in range(0, len(digits), width)]
    memory = torch.frombuffer(bytearray(b"".join(words)), dtype=dtype)
    return memory.to(DEVICE).as_strided(size, stride, offset)'''


def _tensors(kernel: Kernel, measured: Measured) -> dict[str, Tensor]:
    operands = {name: value for name, value in measured.inputs.items() if value is not None}
    calling = getattr(kernel.function, "calling", None)
    operands = calling.received(operands) if calling else operands
    return operands | {"d" + name: value for name, value in measured.upstream.items()}


def _memory(tensor: Tensor) -> Tensor:
    """Returns all elements from the start of the storage to the last one that a tensor reaches."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    # as_strided counts from the beginning of the storage
    return tensor.detach().as_strided((reach + 1 + tensor.storage_offset(),), (1,), 0)


def _operands(kernel: Kernel, case: Case, measured: Measured) -> str:
    """Returns lines that define each operand by its bits."""
    wanted = {operand.name for operand in kernel.differentiable} if case.upstream else set()
    lines = []
    for name, value in _tensors(kernel, measured).items():
        offset = f", offset={value.storage_offset()}" if value.storage_offset() else ""
        digits = spell(_memory(value))
        shape = f"{tuple(value.shape)}, {tuple(value.stride())}{offset}"
        lines.append(f'{name} = tensor({value.dtype}, "{digits}", {shape})')
        if name in wanted:
            lines.append(f"{name}.requires_grad_(True)")
    return "\n".join(lines)


def _call(kernel: Kernel, case: Case, name: str, found: Replay) -> str:
    """Returns lines that call the kernel and take the element, through autograd for a gradient."""
    params = kernel.op.resolve(case.params)
    given = {item: "None" if item in case.absent else item for item in kernel.operands}
    calling = getattr(kernel.function, "calling", None)
    arguments = calling.words(given) if calling else list(given.values())
    arguments += [f"{item}={value!r}" for item, value in params.items() if item in kernel.accepted]
    lines = [
        f"outputs = {name}({', '.join(arguments)})",
        "outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)",
    ]
    if found.result in kernel.outputs:
        lines.append(f"{found.result} = outputs[{kernel.outputs.index(found.result)}]")
    else:
        leaves = [operand.name for operand in kernel.differentiable if operand.name not in case.absent]
        arriving = ", ".join("d" + output for output in kernel.outputs)
        lines += [
            f"pairs = [(y, dy) for y, dy in zip(outputs, ({arriving},)) if y.requires_grad]",
            f"leaves = ({', '.join(leaves)},)",
            "ys, dys = zip(*pairs)",
            "gradients = torch.autograd.grad(ys, leaves, dys, allow_unused=True)",
            f"{found.result} = gradients[{leaves.index(found.result[1:])}]",
        ]
    lines.append(f"element = {found.result}.detach().reshape(-1)[{found.flat_index}]")
    return "\n".join(lines)


def _error(kernel: Kernel, found: Replay) -> str:
    """Returns lines that compute the error and set the exit code."""
    fmt = formats.named(found.dtype)
    lines = [
        f'EXACT = "{found.worst.truth}"  # the real number, 30 significant digits',
        f"ULP = {_power(found.ulp_exponent)}  # the spacing of {fmt.name} at that number",
        f"TOP = {_top(fmt)}  # where infinity stands: one ulp above the largest number",
        # for a sum, the scaled error decides how far off an infinity is
        f"PLAIN = {found.worst.scaled_ulp is None}  # infinity for what is not beyond the largest number has no ulps",
        _SHOWN,
    ]
    shown, judged = f"{value_of(found.worst.ulp):+.6g} ULP", "error"
    if found.worst.scaled_ulp is not None:
        plain = value_of(found.worst.ulp)  # the spacing of the scale is the plain one times a power of two
        ratio = value_of(found.worst.scaled_ulp) / plain if plain and math.isfinite(plain) else 1.0
        lines += [f"of_scale = error * {ratio!r}", 'print(f"of scale  {of_scale:+.6g} ULP")']
        shown, judged = f"{value_of(found.worst.scaled_ulp):+.6g} ULP of scale", "of_scale"
    elif 0.5 < found.judged < (off := abs(value_of(found.worst.ulp))) < math.inf:  # judged by noise beside ULP
        share = (found.judged - 0.5) / (off - 0.5)
        lines.append(f"beside = min(abs(error), 0.5 + (abs(error) - 0.5) * {share!r})  # roundings explain the rest")
        judged = "beside"
    lines += [
        f'same = "the same bits" if pattern == "{found.worst.got_hex}" else "other bits here"',
        f'print(f"reported  {found.worst.got_hex}, {shown}: {{same}}")',
        f"sys.exit(0)  # the kernel promises nothing on {found.unpromised}"
        if found.excused
        else f"sys.exit(not abs({judged}) <= {found.limit!r})  # the kernel's limit; a NaN is not within",
    ]
    return "\n".join(lines)


def _power(exponent: int) -> str:
    return f"Fraction(2) ** {exponent}"


def _top(fmt: Format) -> str:
    number, exponent = int(fmt.overflow), 0
    while number % 2 == 0:
        number, exponent = number // 2, exponent + 1
    return _power(exponent) if number == 1 else f"{number} * {_power(exponent)}"


_SHOWN = """\

number = element.double().item()
pattern = "0x" + bytes(element.cpu().reshape(1).view(torch.uint8).tolist())[::-1].hex()
if EXACT == "nan" or math.isnan(number):
    error = 0.0 if EXACT == "nan" and math.isnan(number) else math.inf
elif EXACT in ("inf", "-inf"):
    error = 0.0 if number == float(EXACT) else math.inf
else:
    got = Fraction(number) if math.isfinite(number) else TOP if number > 0 else -TOP
    least, *greatest = map(Fraction, EXACT.split(" to "))  # two numbers if exact digits cost too much
    exact = min(max(got, least), *greatest) if greatest else min(max(least, -TOP), TOP)
    early = PLAIN and math.isinf(number) and abs(exact) <= Fraction(torch.finfo(element.dtype).max)
    error = math.inf if early else float((got - exact) / ULP)
print(f"got       {number!r} ({pattern})")
print(f"exact     {EXACT}")
print(f"error     {error:+.6g} ULP")"""
