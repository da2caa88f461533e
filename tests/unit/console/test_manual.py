"""What the manual says: every command and option, every variable that the sources read, every exit code."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs import command_reference
from vfioctl import environment
from vfioctl.app import places
from vfioctl.console.lazy import built
from vfioctl.console.manual.commands import CommandPage, command_page, command_pages, program_page
from vfioctl.console.manual.environment import OF_THE_SYSTEM, OF_VFIOCTL
from vfioctl.console.manual.exit_codes import OTHERS, exit_codes

ROOT = Path(__file__).resolve().parents[3]
GROUP = built(places())
PAGES = {page.name: page for page in command_pages(GROUP)}
READS = {"os.environ.get", "os.environ.pop", "os.environ.setdefault", "os.getenv"}
SET_BY_US = {"GRPC_VERBOSITY", "PATH", "PYDANTIC_DISABLE_PLUGINS", "_VFIOCTL_COMPLETE"}
"""Variables that no user sets."""


def all_pages() -> Iterator[CommandPage]:
    for page in PAGES.values():
        yield page
        yield from page.commands


class TestCommands:
    def test_each_has_a_page(self) -> None:
        assert {page.words[1] for page in PAGES.values()} == set(places())
        assert [page.name for page in program_page(GROUP).commands] == [f"vfioctl {name}" for name in places()]

    def test_a_page_says_what_the_help_says(self) -> None:
        page = command_page(GROUP, "bind")
        assert page.usage == "vfioctl bind [OPTIONS] DEVICE..."
        assert page.summary == places()["bind"].summary
        assert "rolled back" in page.description[-2]
        assert [entry.term for entry in page.arguments] == ["DEVICE"]
        terms = [entry.term for entry in page.options]
        assert {"--driver NAME", "--stop-service UNIT", "-y, --yes", "--dry-run"} <= set(terms)
        assert [entry.term for entry in page.shared][:2] == ["--root DIR", "--host FILE|NAME"]
        assert page.examples[0] == "vfioctl bind gpu1 --dry-run --simulate hgx8"

    def test_the_page_of_a_group_has_those_of_its_commands(self) -> None:
        names = [page.name for page in PAGES["vfioctl claim"].commands]
        assert {"vfioctl claim create", "vfioctl claim release"} <= set(names)
        create = next(page for page in PAGES["vfioctl claim"].commands if page.words[-1] == "create")
        assert "--owner OWNER" in [entry.term for entry in create.options]

    def test_an_unknown_command_has_none(self) -> None:
        with pytest.raises(KeyError):
            command_page(GROUP, "bnid")

    def test_everything_has_its_meaning_and_no_markup(self) -> None:
        for page in all_pages():
            assert page.examples, page.name
            assert all(entry.meaning for entry in (*page.arguments, *page.options, *page.shared)), page.name
            text = " ".join([page.summary, *page.description, *(entry.meaning for entry in page.options)])
            assert "[bold]" not in text
            assert "[/]" not in text

    def test_the_reference_has_each_with_all_its_options(self) -> None:
        text = command_reference.commands()
        for page in all_pages():
            part = text.partition(f"# {page.name}\n")[2].partition("\n#")[0]
            assert page.usage in part
            assert all(f"- `{entry.term}`: " in part for entry in (*page.arguments, *page.options))
            assert all(f"\n{example}\n" in part for example in page.examples)


def variables_of(source: Path) -> Iterator[str]:
    """The names of the variables that a module reads."""
    name = ".".join(source.relative_to(ROOT).with_suffix("").parts)
    for node in ast.walk(ast.parse(source.read_text())):
        wanted: ast.expr | None = None
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
            wanted = node.slice
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in READS:
            wanted = node.args[0] if node.args else None
        elif isinstance(node, ast.keyword) and node.arg == "envvar":
            wanted = node.value
        if isinstance(wanted, ast.Constant):
            yield str(wanted.value)
        elif isinstance(wanted, ast.Name) and wanted.id != "name":
            yield getattr(importlib.import_module(name), wanted.id)


class TestEnvironment:
    def test_every_variable_that_is_read_is_listed(self) -> None:
        read = {name for source in (ROOT / "vfioctl").rglob("*.py") for name in variables_of(source)}
        assert {"VFIOCTL_CONFIG", "VFIOCTL_CONNECT", "TERM", "SUDO_USER"} <= read
        assert read - SET_BY_US <= OF_VFIOCTL.keys() | OF_THE_SYSTEM.keys()
        of_options = {f"VFIOCTL_{name}" for name in ("SIMULATE", "HOST", "ROOT", "LEDGER")}
        assert read | of_options >= OF_VFIOCTL.keys()

    @pytest.mark.parametrize("name", [*OF_VFIOCTL, *OF_THE_SYSTEM])
    def test_a_variable_that_is_listed_is_kept_for_root(self, name: str) -> None:
        assert name in environment._KEPT or name.startswith(environment._KEPT_BEGIN)

    def test_an_option_names_its_variable(self) -> None:
        meanings = {entry.term.split()[0]: entry.meaning for entry in program_page(GROUP).shared}
        options = {name: variable.option for name, variable in OF_VFIOCTL.items() if variable.option.startswith("--")}
        assert options
        assert all(f"({name})" in meanings[option] for name, option in options.items())


class TestExitCodes:
    def test_every_branch_has_its_meaning(self) -> None:
        codes = {code.code: code for code in exit_codes()}
        assert set(codes) == set(range(1, 8))
        assert codes[4].meaning == "someone else has it"
        assert "DeviceInUse" in codes[4].kinds
        assert not {number for number, _ in OTHERS} & set(codes)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("vm/* <b>", r"vm/\* \<b>"), ("`a|b*` | c", r"`a|b*` \| c"), ("VFIOCTL_HOST", "VFIOCTL_HOST"), ("_a_", r"\_a\_")],
)
def test_markdown_takes_nothing_for_markup(text: str, shown: str) -> None:
    assert command_reference.markdown(text) == shown
