"""The house rules that can be counted. When one fails, it prints the worst offenders."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONGEST_MODULE = 300
LONGEST_FUNCTION = 60
# Longer, each with its reason.
ALLOWED_TO_BE_LONG = {"vfioctl/host.py": "an attribute for each subsystem"}
# Words that say nothing about what a thing does.
EMPTY_WORDS = {"helper", "helpers", "util", "utils", "manager", "base", "misc", "common"}

SOURCES = sorted((ROOT / "vfioctl").rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in SOURCES]


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_modules_are_short() -> None:
    lengths = sorted(((_lines(path), name) for path, name in zip(SOURCES, NAMES, strict=True)), reverse=True)
    print("longest modules:", *(f"{length:5} {name}" for length, name in lengths[:10]), sep="\n")
    too_long = [name for length, name in lengths if length > LONGEST_MODULE and name not in ALLOWED_TO_BE_LONG]
    assert not too_long
    assert not [name for name in ALLOWED_TO_BE_LONG if name not in NAMES or _lines(ROOT / name) <= LONGEST_MODULE]


def test_functions_are_short() -> None:
    lengths = sorted(
        ((node.end_lineno or 0) - node.lineno + 1, f"{name}:{node.lineno} {node.name}")
        for path, name in zip(SOURCES, NAMES, strict=True)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    )
    print("longest functions:", *(f"{length:5} {name}" for length, name in lengths[:-11:-1]), sep="\n")
    assert not [name for length, name in lengths if length > LONGEST_FUNCTION]


def test_a_module_says_what_it_is() -> None:
    assert not [name for name in NAMES if not ast.get_docstring(ast.parse((ROOT / name).read_text()))]


def test_names_say_what_a_thing_does() -> None:
    wrong = [
        f"{name} {defined}"
        for path, name in zip(SOURCES, NAMES, strict=True)
        for defined in (path.stem, *_defined(ast.parse(path.read_text())))
        if EMPTY_WORDS.intersection(_words(defined))
    ]
    assert not wrong


def _defined(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def test_only_the_command_line_prints_and_exits() -> None:
    wrong = [
        f"{name}:{node.lineno} {ast.unparse(node)[:60]}"
        for path, name in zip(SOURCES, NAMES, strict=True)
        if not name.startswith(("vfioctl/cli/", "vfioctl/tui/"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"print", "exit", "sys.exit", "quit"}
    ]
    assert not wrong


def test_ignored_rules_have_their_reason() -> None:
    bare = re.compile(r"# (noqa|type: ignore)(?!(: |\[)[\w-]+(, ?[\w-]+)*\]? {0,2}(#|-|—|:) ?\S)")
    wrong = [
        f"{name}:{number} {line.strip()}"
        for path, name in zip(SOURCES, NAMES, strict=True)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if bare.search(line)
    ]
    assert not wrong, "write the reason beside it: # noqa: RULE - why"
