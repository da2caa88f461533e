"""Changes the engine and the planning code in one place at a time, and counts which changes the tests notice.

`python -m tests.checks.mutants [--sample N] [--seed N] [--jobs N] [MODULE ...]`. cosmic-ray makes the mutants; each is
tested on a copy of the repository, in a process of its own. Fails below 90 %.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, cast

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator

REPO = Path(__file__).resolve().parents[2]
ACCEPTED = Path(__file__).with_suffix(".txt")
"""Survivors that change nothing that can be seen: one a line, with the reason after #."""
NEEDED = 90
SECONDS = 180
"""For the tests of one mutant; a mutant that takes longer counts as noticed."""
TESTS = {
    "vfioctl/core": (
        "core/test_[!r]*.py",  # without the races, which take as long as all others
        "core/test_re*.py",
        "binding/test_undo.py",
        "binding/test_cli.py",
        "vgpu/test_restore.py",
        "commands/test_history.py",
        "claims/test_ledger.py",
        "domain/test_provisioning.py",
    ),
    "vfioctl/binding/plan": (
        "binding/test_plan*.py",
        "binding/test_undo.py",
        "binding/test_release.py",
        "binding/test_cli*.py",
    ),
    "vfioctl/binding/resources": (
        "binding/test_steps.py",
        "core/test_resources.py",
        "binding/test_release.py",
        "binding/test_undo.py",
    ),
    "vfioctl/vgpu/plan": ("vgpu/test_plan*.py", "vgpu/test_taken.py", "vgpu/test_cli.py", "vgpu/test_restore.py"),
    "vfioctl/vgpu/placement": (
        "vgpu/test_reserved.py",
        "vgpu/test_placement.py",
        "vgpu/test_plan.py",
        "vgpu/test_api.py",
    ),
    "vfioctl/vgpu/placement/capacity.py": ("vgpu/test_capacity.py", "vgpu/test_placement.py", "vgpu/test_probe.py"),
    "vfioctl/vgpu/resources": (
        "vgpu/test_resources.py",
        "core/test_resources.py",
        "vgpu/test_persistent.py",
        "vgpu/test_cli.py",
        "vgpu/test_restore.py",
        "vgpu/test_plan.py",
    ),
}
"""The tests of each part, the fastest first: the first failure ends a mutant."""


OPERATORS = (
    "AddNot",
    "ExceptionReplacer",
    "NumberReplacer",
    "RemoveDecorator",
    "ReplaceAndWithOr",
    "ReplaceBinaryOperator_Add_Sub",
    "ReplaceBinaryOperator_BitAnd_BitOr",
    "ReplaceBinaryOperator_BitOr_BitAnd",
    "ReplaceBinaryOperator_FloorDiv_Mul",
    "ReplaceBinaryOperator_Mod_Mul",
    "ReplaceBinaryOperator_Mul_FloorDiv",
    "ReplaceBinaryOperator_Sub_Add",
    "ReplaceBreakWithContinue",
    "ReplaceComparisonOperator_Eq_NotEq",
    "ReplaceComparisonOperator_GtE_Gt",
    "ReplaceComparisonOperator_Gt_GtE",
    "ReplaceComparisonOperator_IsNot_Is",
    "ReplaceComparisonOperator_Is_IsNot",
    "ReplaceComparisonOperator_LtE_Lt",
    "ReplaceComparisonOperator_Lt_LtE",
    "ReplaceComparisonOperator_NotEq_Eq",
    "ReplaceContinueWithBreak",
    "ReplaceFalseWithTrue",
    "ReplaceOrWithAnd",
    "ReplaceTrueWithFalse",
    "ReplaceUnaryOperator_Delete_Not",
    "ZeroIterationForLoop",
)
"""One operator of cosmic-ray for each kind of mistake: its eleven others for each `+` are noticed by any test."""

_QUOTE = re.compile(r"\[: \d+\](!r)?\}")
"""A changed length of a quoted text, as cosmic-ray writes it: with a space."""


class Mutant(NamedTuple):
    """One change of one module."""

    module: str
    line: int
    operator: str
    occurrence: int
    code: str

    def __str__(self) -> str:
        lines = self.code.splitlines()
        changed = lines[min(self.line, len(lines)) - 1].strip()  # without a decorator the code is shorter
        return f"{self.module}: {self.operator}: {changed}"


def main(arguments: Sequence[str]) -> int:
    """Test the mutants and return 0 if enough of them are noticed."""
    options = _parsed(arguments)
    mutants = [mutant for module in modules(options.modules) for mutant in of_module(module)]
    tested = random.Random(options.seed).sample(mutants, min(options.sample or len(mutants), len(mutants)))
    print(f"{len(mutants)} mutants, {len(tested)} of them tested", flush=True)
    if failing := already_failing({part_of(mutant.module) for mutant in tested}):
        print(f"the tests of {', '.join(failing)} fail without any change: they would notice every mutant")
        return 2
    accepted = {line.rpartition("  #")[0] for line in ACCEPTED.read_text(encoding="utf-8").splitlines()[1:]}
    if not options.modules and (unknown := accepted - {str(mutant) for mutant in mutants}):
        print(*(f"{ACCEPTED.name}: no such mutant: {line}" for line in sorted(unknown)), sep="\n")
        return 2
    survivors = []
    for mutant in surviving(tested, options.jobs):
        survivors.append(str(mutant))
        print(f"survived: {mutant.module}:{mutant.line}: {mutant}", flush=True)
    unexplained = [survivor for survivor in survivors if survivor not in accepted]
    counted = len(tested) - (len(survivors) - len(unexplained))
    noticed = 100 * (counted - len(unexplained)) / max(counted, 1)
    print(f"{noticed:.1f} % of {counted} noticed; {len(survivors) - len(unexplained)} accepted survivors left out")
    return 0 if noticed >= NEEDED else 1


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, default=0, help="how many mutants (all)")
    parser.add_argument("--seed", type=int, default=1, help="chooses the sample")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="tested at once")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="only these files")
    return parser.parse_args(arguments)


def modules(wanted: Sequence[str]) -> list[str]:
    """The files to change, relative to the repository."""
    files = {file for part in TESTS for file in (REPO / part).rglob("*.py")}
    names = sorted(str(file.relative_to(REPO)) for file in files)
    return [name for name in names if not wanted or name in wanted]


def of_module(module: str) -> Iterator[Mutant]:
    """All mutants of a file, but those of annotations, which nothing evaluates, and of how much a message quotes."""
    code = (REPO / module).read_text(encoding="utf-8")
    tree, meaning = get_ast(code), _meaning(code)
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        positions = [start for node in ast_nodes(tree) for start, _ in operator.mutation_positions(node)]
        for occurrence, (line, _) in enumerate(positions):
            changed = _changed(code, operator, occurrence)
            if changed is not None and _meaning(changed) != meaning:
                mutant = Mutant(module, line, name, occurrence, changed)
                if not _QUOTE.search(str(mutant)):
                    yield mutant


def _changed(code: str, operator: Operator, occurrence: int) -> str | None:
    try:
        return cast("str | None", mutate_code(code, operator, occurrence))
    except AttributeError:  # cosmic-ray cannot replace an exception with a dotted name
        return None


class _WithoutAnnotations(ast.NodeTransformer):
    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        node.annotation = ast.Constant(None)
        self.generic_visit(node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self.generic_visit(node)
        return node


def _meaning(code: str) -> str:
    try:
        return ast.dump(_WithoutAnnotations().visit(ast.parse(code)))
    except SyntaxError:
        return ""


def already_failing(parts: Iterable[str]) -> list[str]:
    """The parts whose tests fail on the unchanged code."""
    with _folder() as folder:
        copy = _copy(folder / "unchanged")
        return [part for part in sorted(parts) if _fails(_tests_of(part, copy), copy)]


def part_of(module: str) -> str:
    """The key of TESTS that a module belongs to: the longest, as a module may have tests of its own."""
    return max((part for part in TESTS if module.startswith(part)), key=len)


def surviving(mutants: Sequence[Mutant], jobs: int) -> Iterator[Mutant]:
    """The mutants that no test notices, as they are found."""
    with _folder() as folder, ThreadPoolExecutor(jobs) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            copies.put(_copy(folder / str(number)))

        def noticed(mutant: Mutant) -> bool:
            copy = copies.get()
            try:
                return _noticed(mutant, copy)
            finally:
                copies.put(copy)

        for mutant, killed in zip(mutants, pool.map(noticed, mutants), strict=True):
            if not killed:
                yield mutant


@contextmanager
def _folder() -> Iterator[Path]:
    """A place for copies that other users can read: some tests run commands as nobody."""
    with tempfile.TemporaryDirectory(prefix="vfioctl-mutants-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def _copy(place: Path) -> Path:
    def ignored(folder: str, names: list[str]) -> set[str]:
        made = {"dist", "build"} if Path(folder) == REPO else set()
        return {name for name in names if name.startswith(".") or name == "__pycache__" or name in made}

    return shutil.copytree(REPO, place, ignore=ignored, symlinks=True)


def _noticed(mutant: Mutant, copy: Path) -> bool:
    file = copy / mutant.module
    original = file.read_text(encoding="utf-8")
    file.write_text(mutant.code, encoding="utf-8")
    try:
        return _fails(_tests_of(part_of(mutant.module), copy), copy)
    finally:
        file.write_text(original, encoding="utf-8")


def _tests_of(part: str, copy: Path) -> list[str]:
    return [str(file) for pattern in TESTS[part] for file in sorted((copy / "tests/unit").glob(pattern))]


def _fails(tests: Sequence[str], copy: Path) -> bool:
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not alone", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    with subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            return process.wait(SECONDS) != 0
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
