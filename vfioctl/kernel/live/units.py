"""Reads, starts and stops systemd units with systemctl. Changes run in a worker."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from vfioctl.kernel import files

_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9:_.@-]|\\x[0-9a-f]{2})*\.(?:service|socket|target|timer|path)", re.ASCII)
_LONGEST = 255
"""Characters of a unit's name: UNIT_NAME_MAX of systemd without its terminating zero."""
_TIMEOUT = 10.0


def is_unit(name: str) -> bool:
    """Whether this is a valid name of a unit that can be started and stopped."""
    return len(name) <= _LONGEST and _NAME.fullmatch(name) is not None


def states(names: Sequence[str]) -> Mapping[str, str]:
    """The ActiveState of each unit that systemd knows; empty on a machine without systemd."""
    wanted = [name for name in names if is_unit(name)]
    if not wanted:
        return {}
    try:
        done = systemctl("show", "--property=Names,LoadState,ActiveState", "--", *wanted, timeout=_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    known = dict(_states(done.stdout))
    return {name: known[name] for name in wanted if name in known}


def _states(text: str) -> Iterator[tuple[str, str]]:
    """States by every name of a unit: callers may use an alias such as `display-manager.service`."""
    for paragraph in text.split("\n\n"):
        facts = dict(line.partition("=")[::2] for line in paragraph.splitlines())
        state = facts.get("ActiveState")
        if state and facts.get("LoadState") != "not-found":
            yield from ((name, state) for name in facts.get("Names", "").split())


def set_active(name: str, active: bool) -> tuple[int, str]:  # noqa: FBT001 - a worker gets positional arguments
    """Starts or stops a unit. Returns systemctl's exit code and the end of its stderr."""
    if not is_unit(name):
        return 2, f"{name[:80]!r} is not the name of a unit that can be started or stopped"
    try:
        if active:  # systemd does not start a unit that failed too often; without failures this does nothing
            systemctl("reset-failed", "--", name)
        done = systemctl("start" if active else "stop", "--", name)
    except OSError as error:
        return 127, f"systemctl: {error.strerror}"
    return done.returncode, done.stderr.strip()[-500:]


def systemctl(verb: str, *words: str, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    return files.completed(["systemctl", "--no-pager", "--no-ask-password", verb, *words], timeout=timeout)
