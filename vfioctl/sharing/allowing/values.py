"""The values of allow-lists: cgroups, GPU nodes, settings of units, notes. May not do input or output."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from vfioctl.core.frozen import value_class
from vfioctl.errors import BadSpec
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.device_lists import CGROUPS, UnitDevices
from vfioctl.kernel.host_paths import ALLOWED_RUN
from vfioctl.untrusted_text import parse_json

PROGRAM, UNIT, NOTE = "cgroup_devices", "unit_devices", "allow_note"
"""The kinds of resource."""
LONGEST = 255
_NAME = re.compile(r"[^/\x00-\x1f\x7f]{1,255}")
_FIELDS = ("after", "before", "cgroup")


def cgroup_in(text: str) -> str:
    """Return the path of a cgroup, such as `/system.slice/a.service`, with or without the mount before it.

    Raises BadSpec for the root cgroup, and for what can be no path of a cgroup."""
    path = "/" + text.removeprefix(CGROUPS + "/").strip("/") if text != CGROUPS else "/"
    if path == "/":
        raise BadSpec("the root cgroup has every process: no list is set for it", hint="name a cgroup below it")
    if not is_cgroup(path):
        raise BadSpec(f"not the path of a cgroup: {text[:80]!r}", hint="as in /proc/PID/cgroup, after the two colons")
    return path


def is_cgroup(path: str) -> bool:
    """Return whether this is the plain path of a cgroup that is not the root."""
    names = path.split("/")[1:]
    plain = all(_NAME.fullmatch(name) and name not in (".", "..") for name in names)
    encoded = path.encode("utf-8", "surrogateescape")
    return path.startswith("/") and plain and len(encoded) <= LONGEST and path.isprintable()


def above(cgroup: str) -> tuple[str, ...]:
    """Return the cgroups above one, the nearest last, without the root."""
    names = cgroup.strip("/").split("/")
    return tuple("/" + "/".join(names[:count]) for count in range(1, len(names)))


def subject_of(cgroup: str) -> str:
    """Return what changes of a cgroup are about."""
    return f"cgroup:{cgroup}"


class Shared(NamedTuple):
    """Nodes that all GPUs of one driver share."""

    driver: str
    numbers: frozenset[str]


@value_class
class GpuNodes:
    """The numbers of the device nodes of all GPUs of a host, such as `c 195:0`."""

    numbers: Mapping[PciAddress, frozenset[str]]
    drivers: Mapping[PciAddress, str | None]
    shared: tuple[Shared, ...] = ()

    @property
    def every(self) -> frozenset[str]:
        return frozenset().union(*self.numbers.values(), *(shared.numbers for shared in self.shared))

    def allowed(self, gpus: Collection[PciAddress]) -> frozenset[str]:
        """Return the numbers that these GPUs need."""
        drivers = {self.drivers[gpu] for gpu in gpus}
        own = (self.numbers[gpu] for gpu in gpus)
        return frozenset().union(*own, *(shared.numbers for shared in self.shared if shared.driver in drivers))

    def refused(self, gpus: Collection[PciAddress]) -> frozenset[str]:
        """Return the numbers of all other GPUs."""
        return self.every - self.allowed(gpus)

    def open_to(self, refused: Collection[str]) -> tuple[PciAddress, ...]:
        """Return the GPUs of which no node is refused. One without a node is not among them."""
        return tuple(gpu for gpu, own in self.numbers.items() if own and not own & set(refused))


class Setting(NamedTuple):
    """DevicePolicy and DeviceAllow of a unit."""

    policy: str
    entries: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return "\n".join((self.policy, *self.entries))

    @property
    def restricts(self) -> bool:
        """Whether systemd refuses anything for it (systemd.resource-control(5))."""
        return self.policy != "auto" or bool(self.entries)


def setting_in(text: str) -> Setting:
    """Return what `Setting.text` says."""
    policy, *entries = text.split("\n")
    return Setting(policy, tuple(entries))


def setting_of(devices: UnitDevices) -> Setting:
    """Return the setting that a unit has."""
    return Setting(devices.policy, tuple(sorted(devices.allowed)))


class Note(NamedTuple):
    """What vfioctl has set for a unit, and what it had before: the texts of settings."""

    cgroup: str
    before: str
    after: str

    @property
    def text(self) -> str:
        return json.dumps(self._asdict(), sort_keys=True)


def note_in(text: str) -> Note | None:
    """Return what the file of a note says; None if it is not as vfioctl writes it."""
    try:
        document = parse_json(text)
    except ValueError:
        return None
    if not isinstance(document, dict) or sorted(document) != [*_FIELDS]:
        return None
    if not all(isinstance(value, str) for value in document.values()):
        return None
    note = Note(document["cgroup"], document["before"], document["after"])
    return note if is_cgroup(note.cgroup) and note.text == text else None


def note_file(unit: str) -> str:
    """Return the file of the note about a unit."""
    return f"{ALLOWED_RUN}/{unit}"


class Holding(NamedTuple):
    """A process of a cgroup that has a refused node open: refusing it does not take it away."""

    pid: int
    name: str
    cgroup: str
    path: str
    number: str


@value_class
class Allowed:
    """What one cgroup may open of the host's GPUs, and by which mechanism."""

    cgroup: str
    mechanisms: tuple[str, ...]
    """`bpf` and `systemd`: what restricts this cgroup itself, of vfioctl or, for systemd, of anybody."""
    gpus: tuple[PciAddress, ...]
    """those of which no node is refused"""
    refused: tuple[str, ...]
    """the numbers of GPU nodes that are refused"""
    above: Mapping[str, tuple[str, ...]]
    """the numbers of GPU nodes that a cgroup above refuses, by its path"""
    others: tuple[str, ...]
    """the names of other programs, of it or of a cgroup above: they may refuse more"""
    holders: tuple[Holding, ...]
    """processes that have refused nodes open"""
    unread: int
    """processes of the host whose open files could not all be read"""
    unknown: str
    """why nothing is known about processes; empty if they can be read"""

    @property
    def document(self) -> Mapping[str, object]:
        """The JSON form."""
        return {
            **{name: value for name, value in vars(self).items() if name not in ("gpus", "holders")},
            "gpus": [str(gpu) for gpu in self.gpus],
            "holders": [holder._asdict() for holder in self.holders],
        }
