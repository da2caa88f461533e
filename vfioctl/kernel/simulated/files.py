"""The files of simulated hosts: the host itself, its state at boot (what a reboot leaves), its ledger."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from vfioctl.errors import BadDocument, NotPermitted
from vfioctl.kernel.files import write_into
from vfioctl.kernel.recorded.bundled import bundled_hosts, file_of, is_name
from vfioctl.kernel.recorded.tree import ROOTS, Tree
from vfioctl.kernel.trusted import KEEP_TO_ROOT, PRIVATE_DIRECTORY, PUBLIC_FILE, Untrusted, opened_directory

KEPT_ROOTS = tuple(root for root in ROOTS if root.startswith(("/etc/", "/usr/")))
"""Directories on the disk. Everything else is the kernel's, and begins anew."""
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def simulated_file(name: str) -> Path:
    """Return the file of a simulated host. A bundled host is copied there when it is first used. Raises NotPermitted,
    for root also if another user could change the file's directory, and so make root write elsewhere."""
    if not is_name(name):
        _refuse_untrusted(Path(name))
        return Path(name)
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    file = state / "vfioctl" / "simulated" / f"{name}.host"
    _refuse_untrusted(file)
    if not os.path.exists(file):  # of an unreadable directory _copy raises the error
        _copy(file_of(name), file)
    return file


def reset_simulated(name: str) -> Path:
    """Reset a simulated bundled host and its ledger to the start. Raises BadDocument, NotPermitted."""
    if name not in bundled_hosts():
        known = f"the bundled hosts are {', '.join(bundled_hosts())}"
        raise BadDocument(f"{name[:80]!r} is not a bundled host", hint=known)
    file = simulated_file(name)
    _copy(bundled_hosts()[name], file)
    boot_file(file).unlink(missing_ok=True)
    ledger = ledger_of(file)
    for ending in ("", "-wal", "-shm", ".lock"):
        ledger.with_name(ledger.name + ending).unlink(missing_ok=True)
    return file


def ledger_of(file: Path) -> Path:
    """Return the ledger of a host's file, beside it: another host never uses this machine's ledger."""
    return file.with_name(f"{file.name}.ledger.db")


def boot_file(file: Path) -> Path:
    """Return the copy of a simulated host's file from before its first change, to which a reboot goes back."""
    return file.with_name(f"{file.name}.boot")


def rebooted(tree: Tree, at_boot: Tree, *, boot_id: str) -> Tree:
    """Return the host after a reboot: its state at boot, with the files on the disk as they are now."""
    for root in KEPT_ROOTS:
        at_boot.remove(root.rstrip("/"))
    for path in sorted(path for path in tree.directories if f"{path}/".startswith(KEPT_ROOTS)):
        at_boot.put_directory(path)
    for path in (path for path in tree.files if path.startswith(KEPT_ROOTS)):
        at_boot.put(path, tree.files[path])
    for path in (path for path in tree.links if path.startswith(KEPT_ROOTS)):
        at_boot.put_link(path, tree.links[path])
    at_boot.put(BOOT_ID, boot_id)
    return at_boot


def stamp_of(file: Path) -> tuple[int, int]:
    """Return what differs after the file was replaced."""
    try:
        status = file.stat()
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


def replace(file: Path, text: str) -> None:
    """Replace the file's text atomically, or create the file and its directory. Raises Untrusted, OSError."""
    with opened_directory(str(file.parent), make=PRIVATE_DIRECTORY) as directory:
        write_into(directory, file.name, text.encode(), mode=PUBLIC_FILE)


def _refuse_untrusted(file: Path) -> None:
    """Raise NotPermitted for root if another user could change the directory of a simulated host's file."""
    try:
        with suppress(FileNotFoundError, NotADirectoryError, ValueError), opened_directory(str(file.parent)):
            pass
    except Untrusted as error:
        why = f"the simulated host {str(file)[:200]} is refused for root: {error.strerror}"
        raise NotPermitted(why, hint=KEEP_TO_ROOT) from None
    except OSError as error:
        raise BadDocument(f"{str(file)[:200]} cannot be read: {error.strerror}") from None


def _copy(original: Path, file: Path) -> None:
    try:
        replace(file, original.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotPermitted(f"{file} cannot be written: {error.strerror}", hint="set XDG_STATE_HOME") from None
