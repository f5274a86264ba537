"""Reads problems in the format of BackendBench: a text file with calls of PyTorch's operators.

    Operator: aten.add.Tensor
    cnt: 3, ((T([8, 16], f16), T([16], f16)), {'alpha': 2})

The solution is a file `OP_implementation*.py` or a folder with one. It defines a function `OP_kernel_impl`. If the text
file lists several operators, the problem names one: `FILE.txt::add.Tensor`. A call with a tensor of integers is left
out, because nothing says which integers are valid.
"""

import ast
import shutil
from pathlib import Path
from typing import Any

from verify.errors import UsageError
from verify.referee.formats import copied
from verify.referee.plan import Plan

PLACES = ("device", "layout", "pin_memory")  # keywords that say where a result lies
KINDS = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}


def place(problem: str, solution: Path, scratch: Path) -> str:
    """Copies a solution to scratch/solution.py and returns that file's name.

    Of a folder, copies all files. The first OP_implementation*.py becomes solution.py.
    """
    if not solution.is_dir():
        return copied(problem, solution, scratch)
    found = sorted(solution.glob("*_implementation*.py"))
    if not found:
        raise UsageError(f"{solution}: a solution of an operator has a file OP_implementation.py; received none")
    shutil.copytree(solution, scratch, dirs_exist_ok=True)
    return copied(problem, found[0], scratch)


def problems(plan: Plan) -> list[Any]:
    """Returns problems for the calls of the operator that the plan names."""
    import torch

    from verify.referee.messages import Entry
    from verify.referee.problem import problems_of

    path, _, wanted = plan.problem.partition("::")
    name, lines = _operator(Path(path), wanted)
    base, _, overload = name.partition(".")
    function = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
    if function is None:
        raise UsageError(f"{path}: an operator is one of PyTorch's, such as add.Tensor; received {name!r}")
    names = tuple(f"{each}_kernel_impl" for each in (name.replace(".", "__"), base))
    generator = torch.Generator().manual_seed(plan.seed)
    calls = list[list[Any]]()
    for line in lines:
        try:
            given, keywords = _value(ast.parse(line, mode="eval").body, generator)
        except LookupError:  # a tensor of integers
            continue
        except (SyntaxError, ValueError, TypeError, AttributeError) as error:
            said = "a call is (ARGUMENTS, KEYWORDS) of numbers, names of torch and T(shape, kind)"
            raise UsageError(f"{path}: {said}; received {line[:200]!r} ({error})") from None
        calls.append([*given, {key: value for key, value in keywords.items() if key not in PLACES}])
    if not calls:
        raise UsageError(f"{path} lists no call of {name} whose tensors are all floating-point numbers")
    return problems_of(function, calls, Entry(names, {}, named=True))


def _operator(path: Path, wanted: str) -> tuple[str, list[str]]:
    """Returns the full name of an operator and its calls, one text each.

    `wanted` is a name with or without its overload. If it is "", the file must list one operator only.
    """
    listed, calls = dict[str, list[str]](), list[str]()
    for line in path.read_text().splitlines():
        if line.startswith("Operator: aten."):
            calls = listed.setdefault(line.removeprefix("Operator: aten.").strip(), [])
        elif line.startswith("cnt:"):
            calls.append(line.partition(",")[2].strip())
    names = [name for name in listed if wanted in (name, name.partition(".")[0], "")]
    if len(names) != 1:
        raise UsageError(f"{path} has the operators {', '.join(listed)}; one is judged", hint=f"{path}::OP")
    return names[0], listed[names[0]]


def _value(node: ast.expr, generator: Any) -> Any:
    """Returns the value that an expression of a call denotes. For `T(shape, kind)` draws a tensor of normal numbers.

    Raises LookupError if the kind is not a floating-point format.
    """
    import torch

    match node:
        case ast.Call(ast.Name("T"), [shape, ast.Name(kind), *_]):
            return torch.randn(ast.literal_eval(shape), generator=generator).to(getattr(torch, KINDS[kind]))
        case ast.Tuple(items):
            return tuple(_value(each, generator) for each in items)
        case ast.List(items):
            return [_value(each, generator) for each in items]
        case ast.Dict(keys, items):
            pairs = zip(keys, items, strict=True)
            return {ast.literal_eval(key): _value(each, generator) for key, each in pairs if key}
        case ast.Name(kind) | ast.Attribute(ast.Name("torch"), kind):
            return getattr(torch, KINDS.get(kind, kind))
    return ast.literal_eval(node)
