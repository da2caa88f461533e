"""A captured directory of another user on the lab's kernel: root reads nothing outside of it, and is not blocked."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import hostile
from tests.conftest import memory
from tests.lab.inside.command import vfioctl
from vfioctl.kernel import paths as inside
from vfioctl.kernel.captured.host import Captured

SECONDS = 5.0


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that other users may enter."""
    with memory() as folder:
        folder.chmod(0o755)
        yield folder


def test_links_that_their_owner_replaces_lead_nowhere(place: Path) -> None:
    root = hostile.prepare(place)
    with hostile.flipping(root):
        assert hostile.leaks(Captured(str(root)), SECONDS) == {}


def test_nor_do_they_without_openat2(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def openat2(*_: object) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(inside, "openat2", openat2)
    root = hostile.prepare(place)
    with hostile.flipping(root):
        assert hostile.leaks(Captured(str(root)), SECONDS) == {}


def test_the_commands_say_nothing_of_what_is_outside(place: Path) -> None:
    root = hostile.prepare(place)
    with hostile.flipping(root):
        for line in ("inventory --all --json", "snapshot", "holders 01:00.0"):
            done = vfioctl(place / "ledger.db", *line.split(), "--root", str(root))
            assert hostile.SECRET not in done.stdout + done.stderr
            assert "Traceback" not in done.stderr
