"""Makes targets for kernels and functions of a running program, so that worker processes can import them.

The target of a kernel that a file declares is this file. For others this module writes a file into the cache:

* A function of a notebook's cell goes there with the functions, constants and imports that its source names. The
  constants have their present values, as if these cells ran again now.
* A function of a module is imported from the module and declared in the file.

The name of the file has a digest of its text, so that `verify replay` finds it. A value that cannot be written down,
such as a tensor of a cell, is a UsageError.
"""

import ast
import functools
import hashlib
import inspect
import linecache
import os
import symtable
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from verify.declare.declaration import Kernel
from verify.errors import UsageError
from verify.records.files import write_atomically
from verify.records.part_store import cache

MAIN = "__main__"
PLAIN = (bool, int, float, complex, str, bytes, type(None))
OWN_FILE = "%%writefile kernels.py as the first line of the cell, then verify.run('kernels.py')"


def target_of(function: Callable[..., Any], declaration: Mapping[str, Any]) -> str:
    """Returns a target that workers can import, for a kernel, or for a function and its declaration."""
    if isinstance(function, Kernel):
        if declaration:
            raise TypeError(f"{', '.join(declaration)}: the kernel {function.name!r} is declared already")
        if function.file and Path(function.file).is_file():
            module, path = function.module, Path(function.file).resolve()
            if "." in module and not module.startswith("verify_target_"):  # it may import from its own package
                return f"{module}::{function.name}"
            return f"{os.path.relpath(path) if path.is_relative_to(Path.cwd()) else path}::{function.name}"
        text = _File()
        name = text.definition(function)
        return f"{text.written(name)}::{function.name}"
    if not {"like", "op"} & set(declaration):
        raise UsageError(
            f"{_called(function)} is no declared kernel: like= or op= must define what it computes; received "
            f"{', '.join(declaration) or 'neither'}",
            hint="verify.run(function, like=torch.nn.functional.gelu), or @verify.kernel(...) above the function",
        )
    name = str(declaration.get("name") or getattr(function, "__name__", "kernel"))
    text = _File()
    said = ", ".join(f"{key}={text.expression(value, key)}" for key, value in declaration.items() if key != "name")
    text.lines.append(f"declared = _verify.kernel({said}, name={name!r})({text.expression(function, 'the function')})")
    return f"{text.written(name)}::{name}"


class _File:
    """Collects the text of a module. Each statement follows the statements that it needs."""

    def __init__(self) -> None:
        # Import folders of this process that a worker may lack: not Python's own, and not the current one.
        own, folders = (sys.prefix, sys.base_prefix, sys.exec_prefix), map(os.path.abspath, sys.path)
        paths = [each for each in folders if os.path.isdir(each) and not each.startswith(own) and each != os.getcwd()]
        self.lines: list[str] = []
        if paths:
            self.lines += ["import sys", f"sys.path += [each for each in {paths!r} if each not in sys.path]"]
        self.done: set[str] = set()
        self._imported("verify")

    def written(self, name: str) -> Path:
        """Writes the file unless it exists, and returns its path."""
        text = "\n".join([f'"""Written by verify for {_word(name)}, which no file declares."""', *self.lines, ""])
        path = cache("cells") / f"{_word(name)}_{hashlib.sha256(text.encode()).hexdigest()[:12]}.py"
        if not path.exists():
            write_atomically(path, text.encode())
        return path

    def expression(self, value: Any, what: str) -> str:
        """Returns an expression for a value. Adds the statements that it needs."""
        if isinstance(value, PLAIN) and repr(value) not in ("nan", "inf", "-inf"):
            return repr(value)
        if isinstance(value, ModuleType) and value.__name__ != MAIN:
            return self._imported(value.__name__)
        if type(value) in (list, tuple):
            inner = "".join(f"{self.expression(each, what)}, " for each in value)
            return f"[{inner}]" if type(value) is list else f"({inner})"
        if type(value) is dict:
            return "{" + ", ".join(f"{k!r}: {self.expression(v, what)}" for k, v in value.items()) + "}"
        if isinstance(value, functools.partial):
            given = [self.expression(each, what) for each in (value.func, *value.args)]
            given += [f"{name}={self.expression(each, what)}" for name, each in value.keywords.items()]
            return f"{self._imported('functools')}.partial({', '.join(given)})"
        if (place := _place(value)) is not None:
            return f"{self._imported(place[0])}.{place[1]}"
        if type(value).__module__.startswith("triton.language") and isinstance(getattr(value, "value", None), PLAIN):
            return f"{self._imported('triton.language')}.constexpr({value.value!r})"
        return self.definition(value, what)

    def _imported(self, module: str) -> str:
        alias = "_" + module.replace(".", "_")
        if alias not in self.done:
            self.done.add(alias)
            self.lines.append(f"import {module} as {alias}")
        return alias

    def definition(self, value: Any, what: str = "") -> str:
        """Adds the def or class statement of a value, after the statements that it needs. Returns its name."""
        about, inner = what or _called(value), _undecorated(value)
        if inner is None:
            text = f"{about} is a {type(value).__name__}: it cannot be written down for a worker"
            raise UsageError(text, hint=OWN_FILE)
        node, source, scope = _statement(inner, about)
        if inner is not value and not node.decorator_list:
            made = f"{about} was made of the function {node.name} by a call, which a worker cannot repeat"
            raise UsageError(made, hint=OWN_FILE)
        if node.name not in self.done:
            self.done.add(node.name)
            for name in _names(source):
                if name in scope and name not in self.done:
                    self._global(name, scope[name])
            self.lines.append(source)
        return node.name

    def _global(self, name: str, value: Any) -> None:
        """Adds the statements that give a name its present value."""
        text = self.expression(value, name)
        self.done.add(name)
        if text != name:
            self.lines.append(f"{name} = {text}")


def _word(text: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in text)[:60]


def _called(value: Any) -> str:
    return str(getattr(value, "__name__", None) or getattr(value, "name", None) or type(value).__name__)


def _place(value: Any) -> tuple[str, str] | None:
    """Returns the module and the name of a value that any process can import. None for other values."""
    inner = _undecorated(value)
    names = [getattr(each, key, None) for each in (value, inner) for key in ("__qualname__", "__name__")]
    names += [str(value).rpartition(".")[2]] if type(value).__name__ == "dtype" else []
    own = [getattr(each, "__module__", None) for each in (value, inner)]
    for module in (*own, "torch", "torch.nn.functional"):
        for name in names if module in sys.modules and module != MAIN else ():
            found: Any = sys.modules[str(module)]
            for part in str(name).split("."):
                found = getattr(found, part, None)
            if found is value and value is not None:
                return str(module), str(name)
    return None


def _undecorated(value: Any) -> Any:
    """Returns the function or class behind decorators such as triton.jit, or None."""
    for _ in range(8):
        if isinstance(value, FunctionType | type):
            return inspect.unwrap(value) if isinstance(value, FunctionType) else value
        value = getattr(value, "function", None) or getattr(value, "fn", None) or getattr(value, "__wrapped__", None)
    return None


def _statement(value: Any, about: str) -> tuple[ast.FunctionDef | ast.ClassDef, str, Mapping[str, Any]]:
    """Returns the statement at the top of a cell or file that defines a function or class, its source and globals."""
    inner = [value] if isinstance(value, FunctionType) else vars(value).values()
    for function in (getattr(each, "__func__", each) for each in inner):
        if not isinstance(function, FunctionType) or function.__module__ != value.__module__:
            continue
        code = function.__code__
        lines = linecache.getlines(code.co_filename)
        try:
            tree = ast.parse("".join(lines))
        except SyntaxError:
            continue
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == value.__name__:
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                if first <= code.co_firstlineno <= (node.end_lineno or first):
                    return node, "".join(lines[first - 1 : node.end_lineno]).rstrip("\n"), function.__globals__
    raise UsageError(f"{about} has no source at the top of a cell or file: no worker can import it", hint=OWN_FILE)


def _names(source: str) -> list[str]:
    """Returns the global names that a statement reads, also in its inner functions."""
    found: dict[str, None] = {}

    def walk(table: symtable.SymbolTable) -> None:
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (symbol.is_global() or table.get_type() == "module"):
                found[symbol.get_name()] = None
        for inner in table.get_children():
            walk(inner)

    walk(symtable.symtable(source, "cell", "exec"))
    return list(found)
