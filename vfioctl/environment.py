"""The process environment: what vfioctl sets when root starts it, and what every command that it starts gets.

May not import anything else of vfioctl, so that --version stays fast."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
"""Where commands are found, whoever calls vfioctl. Not in /usr/local: groups other than root may write there."""
OF_COMMANDS: Mapping[str, str] = {"PATH": PATH, "LC_ALL": "C"}
"""The whole environment of the commands that vfioctl starts, such as modprobe: nothing of the caller's."""

_UMASK = 0o022
_KEPT = frozenset({"HOME", "XDG_STATE_HOME", "SHELL", "TZ", "LANG", "TERM", "COLORTERM", "COLUMNS", "LINES"})
_KEPT_BEGIN = (
    *("VFIOCTL_", "SUDO_", "PYDANTIC_DISABLE_PLUGINS"),
    *("_VFIOCTL_", "_TYPER_", "COMP_"),
    *("LC_", "NO_COLOR", "FORCE_COLOR", "TTY_"),
    *("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "JOURNAL_STREAM"),  # of systemd, for services
)
_HIGHEST = 1 << 20
"""The kernel's usual maximum for descriptors (fs.nr_open), where /proc does not show which are open."""


def prepare_for_root(words: Sequence[str]) -> None:
    """Set the umask, drop variables that vfioctl does not use, and close the descriptors that the caller left open.

    `words`: the command line. Descriptors that it names, as `vfioctl apply <(...)` does, stay open for this process."""
    os.umask(_UMASK)
    for name in [*os.environ]:
        if name not in _KEPT and not name.startswith(_KEPT_BEGIN):
            del os.environ[name]
    os.environ["PATH"] = PATH
    close_inherited(keep=named_descriptors([*words, *os.environ.values()]))


def named_descriptors(words: Iterable[str]) -> frozenset[int]:
    """Return the descriptors that words name as /dev/fd/N or /proc/self/fd/N."""
    tails = (word.partition("/fd/")[2].partition("/")[0] for word in words)
    return frozenset(int(tail) for tail in tails if tail.isascii() and tail.isdecimal() and len(tail) < 9)


def close_inherited(*, keep: Iterable[int]) -> None:
    """Close the descriptors above 2 that this program was started with. Those to keep are not given to commands.

    They are the inheritable ones: Python, and libraries of today, open all theirs with O_CLOEXEC."""
    kept = frozenset(keep)
    for fd in open_descriptors():
        with suppress(OSError):  # the one that read the directory
            if fd > 2 and os.get_inheritable(fd):
                if fd in kept:
                    os.set_inheritable(fd, False)  # noqa: FBT003 - so it is declared
                else:
                    os.close(fd)


def close_all_but(fd: int) -> None:
    """Close all descriptors above 2 but one, however many the limit of the process allows."""
    highest = max((*open_descriptors(), fd))
    os.closerange(3, fd)
    os.closerange(fd + 1, highest + 1)


def open_descriptors() -> Sequence[int]:
    """Return the open descriptors, and perhaps a few that are not; all that can be if /proc cannot be read."""
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return range(_HIGHEST)
