"""The hosts that come with vfioctl, and the files of simulated hosts. Touches no device."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from vfioctl.errors import BadDocument, NotPermitted
from vfioctl.kernel.trusted import KEEP_TO_ROOT, Untrusted, opened_directory

_PACKAGE = Path(__file__).parents[2]


def bundled_hosts() -> Mapping[str, Path]:
    """The hosts that come with vfioctl, by name: in the package, or in the tests of a source checkout."""
    for home in (_PACKAGE / "hosts", _PACKAGE.parent / "tests" / "hosts"):
        if home.is_dir():
            return {file.stem: file for file in sorted(home.glob("*.host"))}
    return {}


def simulated_file(name: str) -> Path:
    """The file of a simulated host. A bundled host is copied there when it is first used.

    Raises NotPermitted, for root also if another user could change the file's directory: what root writes there, it
    could be made to write elsewhere.
    """
    if not _is_name(name):
        refuse_untrusted(Path(name))
        return Path(name)
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    file = state / "vfioctl" / "simulated" / f"{name}.host"
    refuse_untrusted(file)
    if not os.path.exists(file):  # an unreadable directory is told by _copy
        original = file_of(name)
        _copy(original, file)
    return file


def refuse_untrusted(file: Path) -> None:
    """Raises NotPermitted for root if another user could change the directory of a simulated host's file."""
    try:
        with suppress(FileNotFoundError, NotADirectoryError, ValueError), opened_directory(str(file.parent)):
            pass
    except Untrusted as error:
        why = f"the simulated host {str(file)[:200]} is refused for root: {error.strerror}"
        raise NotPermitted(why, hint=KEEP_TO_ROOT) from None
    except OSError as error:
        raise BadDocument(f"{str(file)[:200]} cannot be read: {error.strerror}") from None


def reset_simulated(name: str) -> Path:
    """Resets a simulated bundled host and its ledger to the start. Raises BadDocument, NotPermitted."""
    if name not in bundled_hosts():
        raise BadDocument(
            f"{name[:80]!r} is not a bundled host", hint=f"the bundled hosts are {', '.join(bundled_hosts())}"
        )
    file = simulated_file(name)
    _copy(bundled_hosts()[name], file)
    boot_file(file).unlink(missing_ok=True)
    ledger = beside(file)
    for ending in ("", "-wal", "-shm", ".lock"):
        ledger.with_name(ledger.name + ending).unlink(missing_ok=True)
    return file


def beside(file: Path) -> Path:
    """The ledger beside a host's file: another host never uses this machine's ledger."""
    return file.with_name(f"{file.name}.ledger.db")


def boot_file(file: Path) -> Path:
    """The copy of a simulated host's file from before its first change: what a reboot leads back to."""
    return file.with_name(f"{file.name}.boot")


def _copy(original: Path, file: Path) -> None:
    from vfioctl.kernel.simulated.host import replace

    try:
        replace(file, original.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotPermitted(f"{file} cannot be written: {error.strerror}", hint="set XDG_STATE_HOME") from None


def _is_name(name: str) -> bool:
    looks_so = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}", name, re.ASCII) is not None
    return looks_so and (name in bundled_hosts() or not Path(name).exists())


def file_of(name: str) -> Path:
    """The file of a bundled host by its name, or the path that was given. Raises BadDocument."""
    if not _is_name(name):
        return Path(name)
    if name not in bundled_hosts():
        raise BadDocument(
            f"there is no host file and no bundled host {name!r}",
            hint=f"the bundled hosts are {', '.join(bundled_hosts())}",
        )
    return bundled_hosts()[name]
