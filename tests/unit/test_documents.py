"""What the documents show is what happens; what they link to is there; what is generated is current."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from docs import examples, generate
from tests.hosts.generate import texts
from tests.hosts.machines import HOSTS
from tests.unit.conftest import program_in
from vfioctl.subsystems import SUBSYSTEMS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = {str(path.relative_to(ROOT)): path for path in examples.documents()}
GENERATED = generate.generated()
COMPARED = [
    line
    for line in re.findall(r"`((?:VFIOCTL_FAULTS=\S+ )?vfioctl [^`]+)`", (ROOT / "docs/comparison.md").read_text())
    if "hang" not in line  # it waits for its timeout; tests/unit/binding/test_faults.py has it
]
# shell examples are always sessions: a bare script could not show what it prints
LANGUAGES = {"", "console", "python", "text", "json", "toml", "xml", "yaml"}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_examples_hold(name: str) -> None:
    told = [
        "\n".join(
            [
                f"{name}, block at line {block.line}, status {answer.status}",
                command.text if command else "python",
                "--- shown",
                *(command.shown if command else ()),
                "--- printed",
                *answer.lines,
            ]
        )
        for block, command, answer in examples.wrong(DOCUMENTS[name])
    ]
    assert not told, "\n\n".join(told)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_block_is_of_a_kind_that_is_checked(name: str) -> None:
    text = DOCUMENTS[name].read_text()
    found = examples.blocks(DOCUMENTS[name])
    assert {block.language for block in found} <= LANGUAGES
    assert len(found) * 2 == len(re.findall(r"^```", text, re.MULTILINE))
    assert all(bool(block.commands) is (block.language == "console") for block in found)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    document = DOCUMENTS[name]
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", document.read_text())
    assert not [link for link in links if not (document.parent / link).exists()]


def test_every_document_can_be_reached_from_the_index() -> None:
    index = (ROOT / "docs/README.md").read_text()
    pages = [path.relative_to(ROOT / "docs") for path in DOCUMENTS.values() if path.is_relative_to(ROOT / "docs")]
    assert not [str(page) for page in pages if page != Path("README.md") and f"({page})" not in index]


def test_the_menu_of_the_site_has_every_page() -> None:
    text = (ROOT / "docs/mkdocs.yml").read_text()
    listed = set(re.findall(r"- (?:[^:\n]+: )?(\S+\.md)$", text[text.index("nav:\n") :], re.MULTILINE))
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= listed
    assert all((ROOT / page).is_file() for page in listed)


def test_the_readme_lists_every_command() -> None:
    table = re.findall(r"^\| (`vfioctl .*?) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    listed = {word for cell in table for word in re.findall(r"`vfioctl (\w+)", cell)}
    assert listed == {command for row in SUBSYSTEMS for command in row.commands}


def test_the_architecture_names_every_subsystem_with_its_commands() -> None:
    table = re.findall(r"^\| `(\w+)` \|.*\|([^|\n]*)\|$", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE)
    listed = {name: set(re.findall(r"`(\w+)`", commands)) for name, commands in table}
    assert listed == {"placement": set[str]()} | {row.name: set(row.commands) for row in SUBSYSTEMS}


def test_the_messages_in_the_troubleshooting_page_exist() -> None:
    headings = re.findall(r"^### (.+)$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
    sources = "\n".join(path.read_text() for path in (ROOT / "vfioctl").rglob("*.py"))
    parts = [part.strip(" ()") for heading in headings for part in heading.split("…")]
    assert len(headings) > 15
    assert not [part for part in parts if part not in sources]


@pytest.mark.parametrize("line", COMPARED)
def test_what_the_comparison_says_can_be_seen(line: str, tmp_path: Path) -> None:
    program_in(tmp_path)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == (5 if "EIO" in line else 0), done.stderr


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.name)
def test_generated_parts_are_current(path: Path) -> None:
    assert path.is_file(), "make documents"
    assert path.read_text() == GENERATED[path], "make documents"


def test_bundled_hosts_are_current() -> None:
    wanted = texts()
    found = {path: path.read_text(encoding="utf-8") for path in HOSTS.glob("*.host")}
    recorded = {path for path, text in found.items() if not text.startswith("#vfioctl-host 1 synthetic\n")}
    differing = [path.name for path in found.keys() | wanted.keys() if found.get(path) != wanted.get(path)]
    assert sorted(differing) == sorted(path.name for path in recorded), "python tests/hosts/generate.py"
    assert not recorded & wanted.keys()


@pytest.mark.parametrize(
    ("shown", "lines", "same"),
    [
        (["a", "b"], ["a", "b"], True),
        (["a"], ["a", "b"], False),
        (["a", "..."], ["a"], True),
        (["...", "c"], ["a", "b", "c"], True),
        (["took ... s"], ["took 0.3 s"], True),
        (["took ... s"], ["took", " s"], False),
        (["a.c"], ["abc"], False),
    ],
)
def test_dots_stand_for_anything(shown: list[str], lines: list[str], *, same: bool) -> None:
    assert examples.matches(shown, lines) is same


def test_the_security_page_names_tests_that_there_are() -> None:
    page = (ROOT / "SECURITY.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    assert len(named) > 100
    assert not [name for name, _ in named if not (ROOT / name).is_file()]
    texts = {name: (ROOT / name).read_text() for name, _ in named}
    assert not [(name, test) for name, test in named if test and f"def {test}(" not in texts[name]]
    tables = page.partition("## What vfioctl guarantees")[2].split("|---|")[1:]
    rows = [row for table in tables for row in table.partition("\n\n")[0].splitlines()[1:]]
    assert len(rows) > 40
    assert not [row for row in rows if "::test_" not in row]


WRITES = re.compile(
    r"O_WRONLY|O_RDWR|O_CREAT|\bopen\([^)\n]*[\"'][wax]b?[\"']|memfd_create|\bsocket\.socket\(|socketpair|sqlite3\.connect"
    r"|\bos\.(?:mk\w+|rename|replace|link|symlink|unlink|remove|rmdir|f?chmod|f?chown|utime|f?truncate)\("
    r"|\.(?:unlink|mkdir|touch|write_text|write_bytes|symlink_to|rmdir)\(|\bshutil\.(?:copy|move|rmtree)|tempfile"
)


def test_the_security_page_names_every_module_that_writes() -> None:
    """One that is missing here is a writer that nobody has looked at: add a row, with the test of its treatment."""
    page = (ROOT / "SECURITY.md").read_text().partition("These are all the writers.")[2].partition("\n\nThe conf")[0]
    modules = {str(file.relative_to(ROOT / "vfioctl")): file.read_text() for file in (ROOT / "vfioctl").rglob("*.py")}
    writers = {name for name, text in modules.items() if WRITES.search(text)} - {
        "console/output.py",  # it opens /dev/null in the place of a stdout that is gone
    }
    assert writers == set(re.findall(r"`([\w/]+\.py)`", page.replace("tests/", "")))
