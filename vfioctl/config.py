"""Reads the configuration: `/etc/vfioctl/config.toml`, or the file that VFIOCTL_CONFIG names.

::

    [timeouts]           # how long a write to the kernel may take
    default = "30s"
    load = "60s"         # loading a module
    unbind = "1m30s"     # any file, by its name: unbind, drivers_probe, driver_override, reset, ...
    unit = "2m"          # starting or stopping a systemd unit

    [holders]
    believed_users = ["root", "qemu", "libvirt-qemu"]    # whose processes' command lines are believed

Further tables belong to subsystems, whose rows in the table of subsystems name their models; see `vfioctl.settings`."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from vfioctl.errors import BadSpec
from vfioctl.kernel.open_nodes import BELIEVED_USERS
from vfioctl.kernel.timeouts import STEPS as TIMEOUTS
from vfioctl.kernel.timeouts import Timeouts
from vfioctl.kernel.untrusted_files import read_file
from vfioctl.subsystems import SUBSYSTEMS
from vfioctl.units import parse_duration
from vfioctl.untrusted_text import parse_toml, statements_of_toml

CONFIG = Path("/etc/vfioctl/config.toml")
_TABLE, _HOLDERS, _BELIEVED = "timeouts", "holders", "believed_users"
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,255}\$?", re.ASCII)
_LONGEST = 3600.0
_LARGEST = 1 << 20
STEPS = frozenset(TIMEOUTS) | {
    *("bind", "control", "d3cold_allowed", "driver_override", "drivers_probe"),
    *("reset", "reset_method", "reset_subordinate", "unbind", "unbindLock"),
    *("create", "current_vgpu_type", "remove", "sriov_drivers_autoprobe", "sriov_numvfs", "vgpu_params"),
}
"""The steps that have a timeout: files by their names, and those of `vfioctl.kernel.timeouts`."""


class ConfigFile(NamedTuple):
    """The file: its text, and the content of its tables."""

    place: Path = CONFIG
    exists: bool = False
    text: str = ""
    tables: Mapping[str, object] = MappingProxyType({})

    def wrong(self, keys: Sequence[str | int], message: str, hint: str = "") -> BadSpec:
        """Return the error about a key, with the line that sets it."""
        line = line_of(self.text, keys)
        key = ".".join(map(str, keys))
        where = f"{self.place}:{line}" if line else f"{self.place}"
        facts = {"file": str(self.place), "line": line, "key": key, "message": message}
        return BadSpec(f"{where}: {key} {message}", hint=hint, facts=facts)


class Config(NamedTuple):
    """The settings of one host."""

    timeouts: Timeouts = Timeouts()
    believed_users: tuple[str, ...] = BELIEVED_USERS
    """The users, by name or number, whose processes' command lines are believed when they name devices and guests."""
    problem: BadSpec | None = None
    """Why the file cannot be used. Listings then use the defaults; a change raises it."""
    file: ConfigFile | None = None
    """None for a host that has no configuration: a recorded, captured or simulated one."""


def read_config(file: Path | None = None) -> Config:
    """All settings in the file; the defaults where there is no file, or with a problem if it cannot be used."""
    try:
        return config_of(read_file_of(file))
    except BadSpec as error:
        return Config(problem=error)


def config_of(file: ConfigFile) -> Config:
    """The settings in a file that was read."""
    if problem := next(wrong_in(file), None):
        return Config(problem=problem)
    steps = {name: _seconds(duration) for name, duration in table_of(file, _TABLE).items()}
    default, load = steps.pop("default", Timeouts().default), steps.pop("load", Timeouts().load)
    users = tuple(table_of(file, _HOLDERS).get(_BELIEVED, BELIEVED_USERS))
    return Config(timeouts=Timeouts(default, load, steps), believed_users=users, file=file)


def named_config() -> Config:
    """The settings in the file that VFIOCTL_CONFIG names; the defaults if it names none."""
    return read_config() if os.environ.get("VFIOCTL_CONFIG") else Config(file=ConfigFile())


def read_file_of(file: Path | None = None) -> ConfigFile:
    """The file, with whatever tables it has; empty where there is none. Raises BadSpec if it cannot be read."""
    named = file or (Path(os.environ["VFIOCTL_CONFIG"]) if os.environ.get("VFIOCTL_CONFIG") else None)
    place = named or CONFIG
    # not Path.exists: it raises where an ordinary user may not enter the directory
    if (named is None and not os.path.exists(place)) or str(place) == os.devnull:
        return ConfigFile(place)
    try:
        text = read_file(place, _LARGEST).decode()
        return ConfigFile(place, exists=True, text=text, tables=parse_toml(text))
    except OSError as error:
        raise BadSpec(f"{place} cannot be read: {error.strerror}") from None
    except ValueError as error:  # TOML and UTF-8 alike
        match = re.search(r"\bline ([0-9]+)", str(error))
        facts = {"file": str(place), "line": int(match[1]) if match else None, "key": "", "message": str(error)}
        raise BadSpec(f"{place} is not TOML: {error}", facts=facts) from None


def subsystem_tables() -> Mapping[str, str]:
    """The tables of subsystems, each with the location of its model."""
    return {row.name: row.settings for row in SUBSYSTEMS if row.settings}


def line_of(text: str, keys: Sequence[str | int]) -> int | None:
    """The line on which a key, or the nearest table or list above it, is set; None if none of them is there."""
    best, line = 0, None
    table: tuple[str | int, ...] = ()
    entries: Counter[tuple[str, ...]] = Counter()
    for begin, statement in statements_of_toml(text):
        document = parse_toml(statement)
        if statement.lstrip().startswith("["):
            names, document = _names(document), {}
            table = (*names, entries[names]) if statement.lstrip().startswith("[[") else names
            entries[names] += 1
        depth = _depth(document, keys[len(table) :]) + len(table) if table == tuple(keys[: len(table)]) else 0
        if table[: len(keys)] == tuple(keys):
            depth = len(keys)
        if depth > best:
            best, line = depth, begin
    return line


def _names(header: object) -> tuple[str, ...]:
    """The names in the header of a table, as `claims` and `modes` in `[claims.modes]`, or in `[[claims.modes]]`."""
    if not isinstance(header, dict) or not header:
        return ()
    name = next(iter(header))
    return (name, *_names(header[name]))


def _depth(value: object, keys: Sequence[str | int]) -> int:
    if keys and isinstance(value, dict) and keys[0] in value:
        return 1 + _depth(value[keys[0]], keys[1:])
    if keys and isinstance(value, list) and isinstance(keys[0], int) and keys[0] < len(value):
        return 1 + _depth(value[keys[0]], keys[1:])
    return 0


def wrong_in(file: ConfigFile) -> Iterator[BadSpec]:
    """Yield the errors of a file, but those of the tables of subsystems."""
    names = (_TABLE, _HOLDERS, *subsystem_tables())
    for name in sorted(set(file.tables).difference(names)):
        yield file.wrong([name], "is no table", f"the tables are {', '.join(f'[{name}]' for name in names)}")
    for name in (_TABLE, _HOLDERS):
        if not isinstance(file.tables.get(name, {}), dict):
            yield file.wrong([name], f"must be a table: [{name}]")
    for name, duration in table_of(file, _TABLE).items():
        if name not in (steps := ("default", "load", *sorted(STEPS))):
            yield file.wrong([_TABLE, name], "is no timeout", f"the timeouts are {', '.join(steps)}")
        elif not 0 < _seconds(duration) <= _LONGEST:
            yield file.wrong([_TABLE, name], 'must be a duration with a unit, such as "30s", and at most "1h"')
    for name, users in table_of(file, _HOLDERS).items():
        if name != _BELIEVED:
            yield file.wrong([_HOLDERS, name], "is not known", f"[{_HOLDERS}] has {_BELIEVED}")
        elif not isinstance(users, list) or not all(isinstance(u, str) and _USER.fullmatch(u) for u in users):
            yield file.wrong([_HOLDERS, name], "must be a list of users' names, or numbers as text")


def _seconds(duration: object) -> float:
    try:
        return parse_duration(duration) if isinstance(duration, str) else 0
    except BadSpec:
        return 0


def table_of(file: ConfigFile, name: str) -> dict[str, Any]:
    """Return a table of the file; an empty one if the file has none."""
    table = file.tables.get(name, {})
    return table if isinstance(table, dict) else {}
