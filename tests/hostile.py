"""A captured directory of another user, who replaces parts of it with links to root's files while root reads.

Also runs in the lab.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from vfioctl.errors import KernelRefused
from vfioctl.kernel.live.host import Live

NOBODY = 65534
SECRET = "secret-of-root"  # noqa: S105 - the text to look for
FLIPPED = ("sys/file", "sys/node", "sys/folder", "sys/folders/one", "sys/steady/file", "sys/steady/dev")


def prepare(place: Path) -> Path:
    """The root of a capture below `place`. Beside it is a folder of root's, in which everything says SECRET."""
    secret, root = place / "secret", place / "root"
    for folder, text in ((secret, SECRET), (root / "sys/folder", "fine"), (root / "sys/folders/one", "fine")):
        (folder / text).mkdir(parents=True)
        (folder / "file").write_text(text)
        (folder / "dev").write_text(text)
        (folder / "link").symlink_to(text)
        (folder / "subsystem").symlink_to(text)
    (root / "sys/steady").mkdir()
    for name in FLIPPED:
        if not (root / name).exists():
            (root / name).write_text("fine")
        target = {"node": "/dev/null", "folder": str(secret), "one": str(secret), "dev": str(secret / "dev")}
        (root / f"{name}.link").symlink_to(target.get(Path(name).name, str(secret / "file")))
    secret.chmod(0o700)
    for each in (root, *root.rglob("*")):
        os.chown(each, NOBODY, NOBODY, follow_symlinks=False)
    return root


@contextmanager
def flipping(root: Path, names: Sequence[str] = FLIPPED) -> Iterator[None]:
    """Meanwhile the owner of the capture lets each name be itself and a link out of it, by turns."""
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.chdir(root)
            while True:
                for name in names:
                    _flip(name)
        os._exit(1)
    try:
        yield
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "the other user has given up"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _flip(name: str) -> None:
    os.rename(name, f"{name}.real")
    os.rename(f"{name}.link", name)
    os.rename(name, f"{name}.link")
    os.rename(f"{name}.real", name)


def accesses(kernel: Live) -> Mapping[str, Callable[[], object]]:
    """Every way to look at a captured directory."""
    return {
        "read": lambda: kernel.read("/sys/file"),
        "read below": lambda: kernel.read("/sys/folder/file"),
        "link": lambda: kernel.link("/sys/folder/link"),
        "children": lambda: kernel.children("/sys/folder"),
        "has": lambda: SECRET if kernel.has(f"/sys/folder/{SECRET}") else "",
        "device number": lambda: f"{SECRET} {kernel.device_number('/sys/node')}",
        "directory": lambda: kernel.directory("/sys/steady", {"file"}),
        "directory below": lambda: kernel.directory("/sys/folder", {"file"}),
        "entries": lambda: kernel.entries("/sys/steady", {"file"}, ("link",)),
        "texts below": lambda: kernel.texts_below("/sys/folders", "file"),
        "texts of files": lambda: kernel.texts_below("/sys", "file"),
        "descendants": lambda: kernel.below("/sys"),
    }


def leaks(kernel: Live, seconds: float) -> dict[str, int]:
    """How often each access saw what is outside, of those that did."""
    seen: dict[str, int] = {}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for name, access in accesses(kernel).items():
            with suppress(KernelRefused):
                if SECRET in repr(access()):
                    seen[name] = seen.get(name, 0) + 1
    return seen
