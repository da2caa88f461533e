"""Reads the configuration: `/etc/vfioctl/config.toml`, or the file that VFIOCTL_CONFIG names.

::

    [timeouts]           # how long a write to the kernel may take, in seconds
    default = 30
    load = 60            # loading a module
    unbind = 90          # any file, by its name: unbind, drivers_probe, driver_override, reset, ...
    unit = 120           # starting or stopping a systemd unit

    [holders]
    believed_users = ["root", "qemu", "libvirt-qemu"]    # whose processes' command lines are believed

The table `[timeouts]` was called `[deadlines]` before; that name is still read, but not together with the new one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from vfioctl.errors import BadSpec
from vfioctl.kernel.open_nodes import BELIEVED_USERS
from vfioctl.kernel.outside import read_file
from vfioctl.kernel.timeouts import Timeouts

CONFIG = Path("/etc/vfioctl/config.toml")
_TABLE, _OLD_TABLE, _HOLDERS, _BELIEVED = "timeouts", "deadlines", "holders", "believed_users"
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,255}\$?", re.ASCII)
_LONGEST = 3600.0
_LARGEST = 1 << 20
_STEPS = {
    "default",
    "load",
    "unit",
    "bind",
    "control",
    "d3cold_allowed",
    "driver_override",
    "drivers_probe",
    "reset",
    "reset_method",
    "reset_subordinate",
    "unbind",
    "unbindLock",
    "create",
    "current_vgpu_type",
    "remove",
    "sriov-manage",
    "sriov_drivers_autoprobe",
    "sriov_numvfs",
    "vgpu_params",
}


class Config(NamedTuple):
    """The settings of one host."""

    timeouts: Timeouts = Timeouts()
    believed_users: tuple[str, ...] = BELIEVED_USERS
    """The users, by name or number, whose processes' command lines are believed when they name devices and guests."""
    problem: BadSpec | None = None
    """Why the file cannot be used. Listings then use the defaults; a change raises it."""


def read_config(file: Path | None = None) -> Config:
    """All settings in the file; the defaults where there is no file, or with a problem if it cannot be used."""
    try:
        place, document = _document(file)
        believed = _believed(place, document.get(_HOLDERS, {}))
        return Config(timeouts=_timeouts(place, *_table(place, document)), believed_users=believed)
    except BadSpec as error:
        return Config(problem=error)


def read_timeouts(file: Path | None = None) -> Timeouts:
    """The timeouts in the file; the defaults where there is no file. Raises BadSpec."""
    place, document = _document(file)
    return _timeouts(place, *_table(place, document))


def _document(file: Path | None) -> tuple[Path, Mapping[str, object]]:
    """The file's place and content; empty where there is no file. Raises BadSpec."""
    named = file or (Path(os.environ["VFIOCTL_CONFIG"]) if os.environ.get("VFIOCTL_CONFIG") else None)
    place = named or CONFIG
    # not Path.exists: it raises where an ordinary user may not enter the directory
    if (named is None and not os.path.exists(place)) or str(place) == os.devnull:
        return place, {}
    import tomllib

    try:
        return place, tomllib.loads(read_file(place, _LARGEST).decode())
    except RecursionError:
        raise BadSpec(f"{place} is not TOML: it is nested too deeply") from None
    except OSError as error:
        raise BadSpec(f"{place} cannot be read: {error.strerror}") from None
    except ValueError as error:  # TOML and UTF-8 alike
        raise BadSpec(f"{place} is not TOML: {error}") from None


def _table(place: Path, document: Mapping[str, object]) -> tuple[str, object]:
    """The name of the table of timeouts in this file, and its content."""
    if unknown := sorted(set(document) - {_TABLE, _OLD_TABLE, _HOLDERS}):
        raise BadSpec(
            f"{place} has unknown settings: {', '.join(unknown)}", hint=f"the tables are [{_TABLE}] and [{_HOLDERS}]"
        )
    if _TABLE in document and _OLD_TABLE in document:
        raise BadSpec(
            f"{place} has both [{_TABLE}] and [{_OLD_TABLE}], its old name",
            hint=f"move all settings to [{_TABLE}]",
        )
    name = _OLD_TABLE if _OLD_TABLE in document else _TABLE
    return name, document.get(name, {})


def _timeouts(place: Path, table: str, given: object) -> Timeouts:
    if not isinstance(given, dict):
        raise BadSpec(f"{place}: {table} must be a table: [{table}]")
    for name, seconds in given.items():
        if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds <= _LONGEST:
            raise BadSpec(f"{place}: {table}.{name} must be a number of seconds, more than 0 and at most {_LONGEST:g}")
    if unknown := sorted(set(given) - _STEPS):
        names = ", ".join(sorted(_STEPS))
        raise BadSpec(f"{place}: there is no timeout called {', '.join(unknown)}", hint=f"the timeouts are {names}")
    known = {name: float(seconds) for name, seconds in given.items()}
    default = known.pop("default", Timeouts().default)
    return Timeouts(default=default, load=known.pop("load", Timeouts().load), steps=known)


def _believed(place: Path, table: object) -> tuple[str, ...]:
    if not isinstance(table, dict):
        raise BadSpec(f"{place}: {_HOLDERS} must be a table: [{_HOLDERS}]")
    if unknown := sorted(set(table) - {_BELIEVED}):
        raise BadSpec(f"{place}: [{_HOLDERS}] has unknown settings: {', '.join(unknown)}", hint=f"it has {_BELIEVED}")
    users = table.get(_BELIEVED, BELIEVED_USERS)
    if not isinstance(users, list | tuple) or not all(isinstance(u, str) and _USER.fullmatch(u) for u in users):
        raise BadSpec(f"{place}: {_HOLDERS}.{_BELIEVED} must be a list of users' names, or numbers as text")
    return tuple(users)
