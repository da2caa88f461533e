"""Every regex of the package takes time in proportion to what it reads, whatever a hostile text repeats.

The regexes are found in the sources, so that a new one is tested too.
"""

from __future__ import annotations

import ast
import collections
import importlib
import itertools
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from vfioctl.core.registry import Registry
from vfioctl.kernel import host_paths
from vfioctl.kernel.protocol import PCI_ADDRESS
from vfioctl.kernel.simulated import rules
from vfioctl.subsystems import SUBSYSTEMS
from vfioctl.vgpu.resources import files

Text = Any
"""str or bytes, as the regex."""
ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = ("compile", "match", "search", "fullmatch", "split", "findall", "finditer", "sub", "subn")
SIZES = (2048, 8192)
LONGEST_SAMPLE = 20
GROWTH = 9.0
"""From one size to the next, time in proportion grows to 4 times, and quadratic time to 16 times."""
FLOOR = 0.01
"""Seconds of CPU time below which a growth is chance. A linear regex needs less than that for the largest size."""
HOPELESS = 20.0
"""Seconds of CPU time after which a regex is given up: it is worse than quadratic."""


class Regex(NamedTuple):
    """A regex and a method that the package calls on it."""

    where: str
    pattern: str | bytes
    flags: int
    method: str

    def __str__(self) -> str:
        return f"{self.where} {self.method} {self.pattern!r}"


# -- finding them --------------------------------------------------------------------------------------


class Call(NamedTuple):
    where: str
    module: str
    function: str
    pattern: ast.expr
    flags: ast.expr | None
    name: str
    """The name that the compiled regex gets; empty without one."""


def _calls(source: Path) -> Iterator[Call]:
    tree = ast.parse(source.read_text())
    module = ".".join(source.relative_to(ROOT).with_suffix("").parts)
    named = {id(value): name for node in ast.walk(tree) for name, value in _assigned(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _of_re(node.func):
            function = node.func.attr  # type: ignore[attr-defined] # _of_re
            where = f"{source.relative_to(ROOT)}:{node.lineno}"
            yield Call(where, module, function, node.args[0], _flags_of(node, function), named.get(id(node), ""))


def _of_re(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id == "re"
        and function.attr in FUNCTIONS
    )


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target, value = node.targets[0], node.value
        pairs = zip(target.elts, value.elts, strict=False) if _are_tuples(target, value) else [(target, value)]  # type: ignore[attr-defined]
        yield from ((each.id, found) for each, found in pairs if isinstance(each, ast.Name))


def _are_tuples(*nodes: ast.expr) -> bool:
    return all(isinstance(node, ast.Tuple) for node in nodes)


def _flags_of(node: ast.Call, function: str) -> ast.expr | None:
    named = [keyword.value for keyword in node.keywords if keyword.arg == "flags"]
    place = {"compile": 1, "sub": 4, "subn": 4, "split": 3}.get(function, 2)
    return named[0] if named else node.args[place] if len(node.args) > place else None


def _value(call: Call, expression: ast.expr | None) -> Any:
    """What the expression is in its module. Raises NameError and the like where it depends on more than that."""
    if expression is None:
        return 0
    code = compile(ast.Expression(expression), call.where, "eval")
    return eval(code, dict(vars(importlib.import_module(call.module))))  # noqa: S307 - our own sources


SOURCES = sorted((ROOT / "vfioctl").rglob("*.py"))
CALLS = [call for source in SOURCES for call in _calls(source)]


@cache
def _used() -> Mapping[str, frozenset[str]]:
    """The methods that the package uses anywhere of each name."""
    found: dict[str, set[str]] = {}
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in FUNCTIONS:
                whose = node.value.attr if isinstance(node.value, ast.Attribute) else ast.unparse(node.value)
                found.setdefault(whose, set()).add(node.attr)
    return {name: frozenset(methods) for name, methods in found.items()}


def _resources() -> Iterator[tuple[str, str]]:
    """The regexes by which resources know their paths and values; `{}` is the subject."""
    for resource in Registry(SUBSYSTEMS)._resources.values():
        for attribute in ("path", "value"):
            if isinstance(pattern := getattr(resource, attribute, None), str) and pattern:
                yield type(resource).__name__, pattern.replace("{}", re.escape("0000:01:00.0"))


FROM_DATA: Mapping[str, Iterable[str]] = {
    "above": [rf"/sys/bus/pci/devices/{PCI_ADDRESS.pattern}/reset_subordinate"],
    "form": [pattern for _, pattern in _resources()],
    "self.value": [pattern for _, pattern in _resources()],
    "form.replace('{}', re.escape(change.subject))": [
        form.replace("{}", "x")
        for form in (
            *(files._DEFINITION_OF_MDEV, files._DEFINITION_OF_FUNCTION),
            *(files._PARAMETER_OF_MDEV, files._PARAMETER_OF_VF),
        )
    ],
    r"f'^ *([0-9]{{1,4}}) {re.escape(name)}$'": [r"^ *([0-9]{1,4}) nvidia$"],
    "re.sub('<[a-z]+>', lambda match: _FORMS[match[0]], re.escape(name))": [
        *host_paths._FORMS.values(),
        rf"driver{re.escape('.')}{host_paths._FORMS['<number>']}",
    ],
    r"f'\\n(?!{deeper})'": ["\n(?!\t)", "\n(?!\t\t)"],
    "f'(?<![\\\\w-])(?:{words})(?![\\\\w-])'": [r"(?<![\w-])(?:web1|gpu\-host\-7)(?![\w-])"],
    "line": [r"^alias (?:pci|vfio_pci):\S+ nouveau$"],
    "any_base if base == 0 else decimal": [r"\+?([0-9]+)", r"\+?(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)"],
    "pattern": [*rules._ATTRIBUTES, *rules._WRITE_ONLY],
}
"""Examples for the regexes that are made of more than constants, by the expression that makes them."""


def _regexes() -> Iterator[Regex]:
    for call in CALLS:
        try:
            patterns, flags = [_value(call, call.pattern)], _value(call, call.flags)
        except NameError:
            patterns, flags = [*FROM_DATA[ast.unparse(call.pattern)]], re.NOFLAG
        methods = (
            (call.name and _used().get(call.name)) or {"match", "search", "fullmatch"}
            if call.function == "compile"
            else {call.function}
        )
        for pattern, method in itertools.product(patterns, sorted(methods)):
            yield Regex(call.where, pattern, int(flags), method)


# -- timing them ---------------------------------------------------------------------------------------


def pumps(regex: re.Pattern[Any], sample: Text) -> Iterator[tuple[Text, Text, Text]]:
    """Beginnings, repeated parts and ends, made of a text that matches and of single characters: near matches."""
    nothing, wrong = sample[:0], "\0\n"
    letters = sorted({*"0a-/ \n", *(regex.pattern if isinstance(regex.pattern, str) else regex.pattern.decode())})
    for letter in letters:
        part, end = _alike(letter, sample), _alike(wrong, sample)
        for begin in {nothing, sample}:
            yield begin, part, end
    for size in {1, 2, 3, len(sample)} - {0}:
        for at in range(len(sample) - size + 1):
            yield sample[:at], sample[at : at + size], _alike(wrong, sample)
            yield nothing, sample[at : at + size], nothing


def _alike(text: str, sample: Text) -> Text:
    return text.encode() if isinstance(sample, bytes) else text


def seconds(regex: re.Pattern[Any], method: str, text: Text) -> float:
    """The CPU time of one call, which other programs on the machine hardly change."""
    call: Callable[..., object] = getattr(regex, method)
    arguments = (text[:0], text) if method in ("sub", "subn") else (text,)
    begin = time.process_time()
    found = call(*arguments)
    if method == "finditer":
        collections.deque(found, maxlen=0)  # type: ignore[call-overload] # an iterator
    return time.process_time() - begin


def grows_too_fast(regex: re.Pattern[Any], method: str, begin: Text, part: Text, end: Text) -> bool:
    """Whether the time grows faster than the text. Measured again where it seems so: chance does not repeat itself."""

    def best(size: int, attempts: int) -> float:
        text = begin + part * (size // len(part)) + end
        return min(seconds(regex, method, text) for _ in range(attempts))

    with given_up(f"{regex.pattern!r} {method} {begin!r} {part!r} {end!r}"):
        if best(SIZES[-1], 1) < FLOOR:
            return False
        return all(best(SIZES[-1], 2) > max(FLOOR, GROWTH * best(SIZES[-2], 3)) for _ in range(3))


@contextmanager
def given_up(told: str) -> Iterator[None]:
    """Fail when it takes hopelessly long: a regex hears signals."""
    before = signal.signal(signal.SIGVTALRM, lambda *_: pytest.fail(f"worse than quadratic: {told}"))
    signal.setitimer(signal.ITIMER_VIRTUAL, HOPELESS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def slow_for(regex: re.Pattern[Any], method: str, sample: Text) -> tuple[Text, Text, Text] | None:
    return next((pump for pump in pumps(regex, sample) if grows_too_fast(regex, method, *pump)), None)


REGEXES = sorted(set(_regexes()), key=str)


def test_regexes_are_found() -> None:
    assert len(REGEXES) > len(CALLS) > 100
    assert not [node for source in SOURCES for node in ast.walk(ast.parse(source.read_text())) if _hides_re(node)]


def _hides_re(node: ast.AST) -> bool:
    """Whether an import gives `re` or a part of it another name, under which it would not be found."""
    if isinstance(node, ast.ImportFrom):
        return node.module == "re"
    return isinstance(node, ast.Import) and any(alias.name == "re" and alias.asname for alias in node.names)


def _short(regex: re.Pattern[Any]) -> re.Pattern[Any]:
    """The regex without repetitions of thousands, whose samples would take long to make."""
    return (
        re.compile(re.sub("65536|1000", "40", regex.pattern), regex.flags) if isinstance(regex.pattern, str) else regex
    )


@pytest.mark.parametrize("regex", REGEXES, ids=str)
def test_takes_time_in_proportion(regex: Regex) -> None:
    compiled = re.compile(regex.pattern, regex.flags)

    @settings(
        max_examples=2, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck]
    )
    @given(st.from_regex(_short(compiled)))
    def try_samples(sample: Text) -> None:
        assert not slow_for(compiled, regex.method, sample[:LONGEST_SAMPLE])

    try_samples()


@pytest.mark.parametrize(
    ("pattern", "method", "sample"),
    [
        (r"\s+$", "search", " "),
        (r".*-.*x", "fullmatch", "-x"),
        (r"(?:[^/]+/)*?ab", "search", "a/ab"),
        (r"b(.+)end", "search", "b end"),
        (rb"a*b", "search", b"ab"),
    ],
)
def test_quadratic_ones_are_noticed(pattern: Text, method: str, sample: Text) -> None:
    assert slow_for(re.compile(pattern), method, sample)


def test_exponential_ones_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "HOPELESS", 0.5)
    with pytest.raises(pytest.fail.Exception, match="worse than quadratic"):
        slow_for(re.compile(r"(a+)+b"), "fullmatch", "ab")


def test_a_regex_of_a_new_module_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ROOT / "vfioctl" / "kernel" / "new.py"
    text = (
        'import re\n_A, _B = re.compile("a"), re.compile("b", re.M)\ndef f(x): return re.sub(r"c+", "", x, 0, re.I)\n'
    )
    monkeypatch.setattr(Path, "read_text", lambda _: text)
    found = [(call.function, call.name, ast.unparse(call.pattern), call.flags is not None) for call in _calls(source)]
    assert found == [("compile", "_A", "'a'", False), ("compile", "_B", "'b'", True), ("sub", "", "'c+'", True)]
