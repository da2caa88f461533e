"""Identifies who runs this process, for the journal, and whether such a process still runs. Writes nothing."""

from __future__ import annotations

import os
import pwd
import shlex
import sys
from datetime import datetime
from typing import TYPE_CHECKING

from vfioctl.kernel.lock_holder import holds_lock

if TYPE_CHECKING:
    from vfioctl.core.change import Caller

LONGEST = 1000
"""Maximum length in characters of what is recorded of a command line, and of a user's name."""
_CUT = " ..."


def this_process() -> Caller:
    """Return the user, the user who called sudo, the process id and the command line of this process."""
    from vfioctl.core.change import Caller  # imported late: listings ask only whether a process runs

    command = shlex.join(getattr(sys, "argv", ()))  # an embedded interpreter may have none
    sudo_user = _recordable(os.environ.get("SUDO_USER", ""))
    return Caller(user=_user(), sudo_user=sudo_user, pid=os.getpid(), command=_recordable(command))


def is_running(pid: int) -> bool:
    """Return whether there is a process with this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def is_making(pid: int | None, began: str, lock: int) -> bool:
    """Return whether this process is still making the newest change, which began then.

    `lock`: the inode of the host's lock.

    False if in doubt, as for a process of another PID namespace: "interrupted" only sends people to `recover`, which
    waits for the lock, while "under way" would have them wait for a process that is gone."""
    try:
        since = datetime.fromisoformat(began).timestamp()
    except (ValueError, OverflowError):
        return False
    return pid is not None and pid > 0 and holds_lock(pid, lock, since=since)


def _user() -> str:
    number = os.getuid()
    try:
        return _recordable(pwd.getpwuid(number).pw_name)
    except KeyError:  # as in a container without the host's user database
        return str(number)


def _recordable(text: str) -> str:
    """Bound the text, and write bytes that are no UTF-8 as escapes: SQLite accepts only valid text."""
    whole = text.encode("utf-8", "backslashreplace").decode()
    return whole if len(whole) <= LONGEST else whole[: LONGEST - len(_CUT)] + _CUT
