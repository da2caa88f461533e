"""Who may import whom, read from the sources: what docs/architecture.md draws is what holds."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "vfioctl"

# Each part, and what of vfioctl it may import besides itself.
ALLOWED: dict[str, tuple[str, ...]] = {
    "errors": (),
    "signals": (),
    "kernel": ("errors", "signals"),
    "config": ("errors", "kernel.timeouts"),
    "core": ("errors", "signals", "kernel.protocol", "kernel.lenient", "inventory", "binding", "vgpu"),
    "inventory": ("errors", "kernel", "core", "console", "vgpu"),
    "binding": ("errors", "kernel", "core", "console", "inventory", "vgpu", "host"),
    "vgpu": ("errors", "kernel", "core", "console", "inventory", "binding", "host"),
    "host": ("errors", "config", "kernel", "core", "inventory", "binding", "vgpu"),
    "console": ("errors", "core", "inventory", "binding", "vgpu", "host", "kernel.recorded.bundled"),
    "commands": ("errors", "core", "console", "host", "kernel.recorded.bundled"),
    "app": ("errors", "console"),
}
# A plan is made of values only: the same question gives the same plan.
IMPURE = {"os", "subprocess", "time", "random", "uuid", "datetime", "pathlib", "io", "socket", "secrets", "tempfile"}
# At home in one module each, and imported only when needed: they are slow, or absent on many hosts.
OPTIONAL = {"pyudev", "pynvml", "libvirt", "textual", "grpc"}
# What only the parts that print may know.
FOR_PRINTING = {
    "rich": {"render", "render.py", "cli", "console", "tui"},
    "typer": {"cli", "console", "commands", "completion.py"},
    "click": {"cli"},
}


class Import:
    """One import of one module: by whom, from where, and whether it runs when the importer is loaded."""

    def __init__(self, importer: Path, target: str, line: int, *, at_once: bool) -> None:
        self.importer, self.target, self.line, self.at_once = importer, target, line, at_once

    @property
    def part(self) -> str:
        return self.importer.relative_to(PACKAGE).parts[0].removesuffix(".py")

    @property
    def library(self) -> str:
        return self.target.split(".")[0]

    def __str__(self) -> str:
        return f"{self.importer.relative_to(PACKAGE.parent)}:{self.line} imports {self.target}"


def _imports() -> Iterator[Import]:
    for source in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(source.read_text())
        lazy = {id(node) for block in ast.walk(tree) if _is_lazy(block) for node in ast.walk(block)}
        for node in ast.walk(tree):
            for target in _targets(node, source):
                yield Import(source, target, getattr(node, "lineno", 0), at_once=id(node) not in lazy)


def _is_lazy(node: ast.AST) -> bool:
    for_types = isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
    return for_types or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def _targets(node: ast.AST, source: Path) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    start = node.module or ""
    if node.level:
        folder = source.parents[node.level - 1].relative_to(PACKAGE.parent)
        start = ".".join([*folder.parts, *filter(None, [node.module])])
    # `from vfioctl.kernel import seam` names a module as well as `import vfioctl.kernel.protocol` does
    modules = [f"{start}.{alias.name}" for alias in node.names if _is_module(f"{start}.{alias.name}")]
    return modules if len(modules) == len(node.names) else [start, *modules]


def _is_module(name: str) -> bool:
    place = PACKAGE.parent.joinpath(*name.split("."))
    return place.is_dir() or place.with_suffix(".py").is_file()


IMPORTS = list(_imports())


def test_every_part_is_known() -> None:
    parts = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if path.suffix == ".py" or _has_sources(path)}
    assert parts - {"__init__", "__main__"} <= set(ALLOWED), "say in ALLOWED what a new part may import"


def _has_sources(path: Path) -> bool:
    return path.is_dir() and any(path.rglob("*.py"))


@pytest.mark.parametrize("part", ALLOWED)
def test_a_part_imports_only_what_lies_below_it(part: str) -> None:
    own = [found for found in IMPORTS if found.part == part and found.target.startswith("vfioctl.")]
    wrong = [str(found) for found in own if not _may(part, found.target.removeprefix("vfioctl."))]
    assert not wrong


def _may(part: str, target: str) -> bool:
    return any(target == allowed or target.startswith(f"{allowed}.") for allowed in (part, *ALLOWED[part]))


def test_plan_is_pure() -> None:
    wrong = [str(found) for found in IMPORTS if "plan" in found.importer.parts and found.library in IMPURE]
    assert not wrong


@pytest.mark.parametrize("library", sorted(OPTIONAL))
def test_an_optional_library_is_at_home_in_one_module_and_imported_when_needed(library: str) -> None:
    uses = [found for found in IMPORTS if found.library == library]
    assert len({found.importer for found in uses}) <= 1, [str(found) for found in uses]
    assert not [str(found) for found in uses if found.at_once]


@pytest.mark.parametrize("library", sorted(FOR_PRINTING))
def test_only_what_prints_knows_how(library: str) -> None:
    wrong = [
        str(found)
        for found in IMPORTS
        if found.library == library and not FOR_PRINTING[library] & set(found.importer.parts)
    ]
    assert not wrong


def test_saying_the_version_loads_nothing_heavy() -> None:
    program = (
        "import sys\nfrom vfioctl.app import main\nsys.argv = ['vfioctl', '--version']\n"
        "try:\n    main()\nfinally:\n    print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    loaded = set(done.stdout.split())
    assert "vfioctl" in loaded, done.stderr
    assert not loaded & {"pydantic", "rich", "sqlite3", *OPTIONAL}
