"""A text of 40 characters or more is compared by one test: a change of a message changes one place in tests/."""

from __future__ import annotations

import ast
from pathlib import Path

HERE = Path(__file__).parent
LONG = 40
MOST = 6  # pairs of tests that compare the same text; lower the number when a pair goes


def compared(function: ast.FunctionDef) -> set[str]:
    """Returns the long literals of a test's assertions, of its match= and of its parameters; not scripts for a page."""
    parts: list[ast.expr] = [*function.decorator_list]
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            parts.append(node.test)
        elif isinstance(node, ast.keyword) and node.arg == "match":
            parts.append(node.value)
    texts = [node.value for part in parts for node in ast.walk(part) if isinstance(node, ast.Constant)]
    plain = [text.replace("\\", "") for text in texts if isinstance(text, str)]
    return {text for text in plain if len(text) >= LONG and "document." not in text}


def compared_twice(sources: dict[str, str]) -> list[str]:
    """Returns a line for each two tests in `sources` (by path) if a text of one contains a text of the other."""
    found: list[tuple[str, str]] = []
    for path, source in sources.items():
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found += [(f"{path}::{node.name}", text) for text in sorted(compared(node))]
    return [
        f"{test} and {other}: {min(text, more, key=len)}"
        for place, (test, text) in enumerate(found)
        for other, more in found[place + 1 :]
        if test != other and (text in more or more in text)
    ]


def test_a_long_text_is_compared_by_one_test() -> None:
    sources = {str(path.relative_to(HERE)): path.read_text() for path in sorted(HERE.rglob("test_*.py"))}
    twice = compared_twice(sources)
    assert len(twice) <= MOST, "compare the text in one test and a short part in the other:\n" + "\n".join(twice)


def test_a_text_that_two_tests_compare_is_found() -> None:
    text = "a message of more than forty characters, as users meet it"
    first = f'def test_a():\n    assert str(error) == "{text}"\n'
    second = f'def test_b():\n    with pytest.raises(UsageError, match="{text[:45]}"):\n        pass\n'
    short = f'def test_c():\n    assert "{text[:20]}" in str(error)\n'
    assert compared_twice({"one.py": first, "two.py": second, "three.py": short}) == [
        f"one.py::test_a and two.py::test_b: {text[:45]}"
    ]
