"""`vfioctl man`: as plain text in a pipe, by man(1) on a terminal; the source of a page has no line that roff obeys."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.command_reference import manual_pages
from tests.unit.conftest import Run
from vfioctl.commands import man
from vfioctl.console.manual.roff import escaped, roff
from vfioctl.console.manual.text import text

PAGES = {page.name: page for page in manual_pages()}
REQUESTS = {".TH", ".SH", ".SS", ".PP", ".TP", ".nf", ".fi", ".RS", ".RE", ".nh", ".ad"}


def program(folder: Path, script: str) -> None:
    """A program in the place of man(1)."""
    file = folder / "man"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


class TestCommand:
    def test_in_a_pipe_it_is_plain_text(self, run: Run) -> None:
        answer = run("man bind")
        assert answer.code == 0
        assert answer.out.startswith("NAME\n       vfioctl-bind - bind devices to vfio-pci")
        assert "       --allow-boot-vga\n              Also bind the GPU" in answer.out
        assert "vfioctl bind gpu1 --dry-run --simulate hgx8" in answer.out

    def test_without_a_command_it_is_that_of_the_program(self, run: Run) -> None:
        answer = run("man")
        assert "vfioctl-unbind(1)" in answer.out
        assert "VFIOCTL_SIMULATE" in answer.out
        assert "/var/lib/vfioctl/ledger.db" in answer.out

    def test_an_unknown_command_is_refused(self, run: Run) -> None:
        answer = run("man bnid")
        assert answer.code == 2
        assert "there is no command bnid" in answer.err
        assert "the nearest is bind" in answer.err

    def test_on_a_terminal_man_shows_it(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        program(tmp_path, f'echo "$@" > {tmp_path}/words; /bin/cat > {tmp_path}/page')
        monkeypatch.setattr(man, "PATH", str(tmp_path))
        assert man._shown_by_man(PAGES["vfioctl-bind"])
        assert (tmp_path / "words").read_text() == "-l -\n"
        assert (tmp_path / "page").read_text() == roff(PAGES["vfioctl-bind"])

    @pytest.mark.parametrize("script", ["exit 1", "exec < /dev/null; exit 3"])
    def test_if_man_fails_the_text_is_printed(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str
    ) -> None:
        program(tmp_path, script)
        monkeypatch.setattr(man, "PATH", str(tmp_path))
        assert not man._shown_by_man(PAGES["vfioctl-bind"])

    def test_without_man_the_text_is_printed(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(man, "PATH", str(tmp_path))
        assert not man._shown_by_man(PAGES["vfioctl-bind"])


class TestPages:
    @pytest.mark.parametrize("name", PAGES)
    def test_roff_has_only_requests_that_are_meant(self, name: str) -> None:
        for line in roff(PAGES[name]).splitlines():
            assert line.isascii()
            assert not line.startswith("'")
            assert not line.startswith(".") or line.split()[0] in REQUESTS, line
            assert not re.search(r"\\(?![e\-&(\[f])", line), line

    @pytest.mark.parametrize("name", PAGES)
    @pytest.mark.parametrize("width", [40, 80])
    def test_the_text_fits(self, name: str, width: int) -> None:
        page = text(PAGES[name], width)
        assert page.startswith("NAME\n")
        wide = [line for line in page.splitlines() if len(line) > width]
        # command lines and terms stay whole, and a word that is longer than the line
        assert all(line.startswith(" " * 7) for line in wide)
        assert all(len(line.split()) == 1 for line in wide if line.startswith(" " * 14))

    def test_what_a_text_has_is_no_request(self) -> None:
        assert escaped(".so /etc/passwd") == "\\&.so /etc/passwd"
        assert escaped("'a") == "\\(aqa"
        assert escaped("a\\fB-b…") == "a\\efB\\-b\\[u2026]"
        assert escaped("") == ""
