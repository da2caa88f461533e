"""The kubelet of the lab is built once, outside the tree; a build that fails leaves nothing and says why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.lab.outside import kubelet
from tests.lab.outside.requirements import LabError

ARCHIVES = "Debian|main|http://deb.debian.org/debian/|bookworm\n"
OTHERS = "Google|main|https://example.org/apt/|cloud-sdk\nDebian|contrib|http://deb.debian.org/debian/|bookworm\n"


class Tools:
    """In place of apt-get, dpkg-source and go. `description`: the file that apt-get fetches."""

    def __init__(self, description: str = "kubernetes_1.20.5+really1.20.2-1.1.dsc", archives: str = ARCHIVES) -> None:
        self.description, self.archives = description, archives
        self.commands: list[list[str]] = []
        self.sources = ""

    def ran(self, command: list[str], folder: Path, _seconds: float, settings: Mapping[str, str] | None = None) -> str:
        self.commands.append(command)
        if command[1] == "indextargets":
            return OTHERS + self.archives
        if "update" in command:
            self.sources = (folder / "sources.list").read_text()
        if "source" in command:
            (folder / self.description).touch()
        if command[0] == "nice":
            assert settings
            assert settings["GOPROXY"] == "off"
            Path(command[command.index("-o") + 1]).write_text("a kubelet")
        return ""


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Tools:
    made = Tools()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kubelet, "_ran", made.ran)
    monkeypatch.setattr(kubelet, "BUILT_WITH", {"sh": "dash"})
    return made


def left() -> set[str]:
    return {path.name for path in kubelet.cache().iterdir()}


def test_it_is_built_once(tools: Tools, tmp_path: Path) -> None:
    program = kubelet.kubelet()
    assert program == tmp_path / "vfioctl/kubelet-1.20.2/kubelet"
    assert program.read_text() == "a kubelet"
    assert left() == {"kubelet", "lock"}
    assert tools.sources == f"deb-src [signed-by={kubelet.KEYRING}] http://deb.debian.org/debian/ bookworm main\n"
    count = len(tools.commands)
    assert kubelet.kubelet() == program
    assert len(tools.commands) == count


def test_what_a_killed_build_left_is_removed(tools: Tools) -> None:
    (kubelet.cache() / "building-1/go").mkdir(parents=True)
    kubelet.kubelet()
    assert left() == {"kubelet", "lock"}


@pytest.mark.parametrize(
    ("description", "archives", "words"),
    [
        ("kubernetes_1.33.4-1.dsc", ARCHIVES, r"needs kubernetes 1\.20\.2 .* found kubernetes_1\.33\.4-1\.dsc"),
        ("kubernetes_1.20.5+really1.20.2-1.1.dsc", "", "apt knows no archive of Debian"),
    ],
)
def test_a_build_that_fails_leaves_nothing(tools: Tools, description: str, archives: str, words: str) -> None:
    tools.description, tools.archives = description, archives
    with pytest.raises(LabError, match=words):
        kubelet.kubelet()
    assert left() == {"lock"}


def test_missing_packages_are_named(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubelet, "BUILT_WITH", {"no-such-compiler": "golang-1.19-go"})
    with pytest.raises(LabError, match=r"^missing Debian packages: apt-get install golang-1\.19-go$"):
        kubelet.kubelet()
    assert tools.commands == []
