"""A view of this machine's root file system, whose changes are kept apart: for what installs and removes packages.

Needs root. Commands run in it with chroot, in a mount namespace of its own; nothing of this machine changes."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_MOUNT = """
set -e
mount -t tmpfs tmpfs "$0"
mkdir "$0/upper" "$0/work" "$0/root"
mount -t overlay -o lowerdir=/,upperdir="$0/upper",workdir="$0/work" overlay "$0/root"
mount --bind /dev "$0/root/dev"
mount -t proc proc "$0/root/proc"
mount -t tmpfs tmpfs "$0/root/tmp"
mount -t tmpfs -o mode=0755 tmpfs "$0/root/run"
echo mounted
exec sleep infinity
"""
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/run", "LC_ALL": "C"}


class Overlay:
    """The view. `holder`: a process in its mount namespace."""

    def __init__(self, holder: int, folder: Path) -> None:
        self._holder, self._inside = holder, Path(f"/proc/{holder}/root{folder}")
        self._folder = folder
        self.root = self._inside / "root"
        """The root file system, as other processes reach it."""
        self.upper = self._inside / "upper"
        """What differs from this machine's."""

    def run(self, line: str, *, environment: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        """Run a line of shell in it, without input."""
        return subprocess.run(
            ["nsenter", f"--target={self._holder}", "--mount", "chroot", f"{self._folder}/root", "sh", "-c", line],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**_ENVIRONMENT, **(environment or {})},
        )

    def says(self, line: str) -> str:
        """Return what a line prints, which must succeed."""
        done = self.run(line)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout

    def changed(self) -> set[str]:
        """Return the paths of all that was added, changed or removed: files and links, and directories that are new."""
        paths = ((path, "/" + str(path.relative_to(self.upper))) for path in self.upper.rglob("*"))
        return {name for path, name in paths if not (path.is_dir() and not path.is_symlink() and Path(name).is_dir())}


@contextmanager
def overlay(folder: Path) -> Iterator[Overlay]:
    """Make a view, whose changes are gone at its end. `folder`: empty."""
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _MOUNT, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "mounted\n", "needs root, and a kernel with overlayfs"
            yield Overlay(holder.pid, folder)
        finally:
            holder.kill()
            holder.wait()
