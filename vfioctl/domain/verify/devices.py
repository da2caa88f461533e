"""Compares QEMU's command line, and the definition, with the devices of a document. May not do input or output."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from vfioctl.claims.model.handed import devices_of
from vfioctl.domain.model.verification import Area, VerifiedFact, judged
from vfioctl.domain.verify.subject import Subject, listed, number, numbers

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_LONGEST = 64 << 10
"""Characters of an argument that are read."""
_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])", re.ASCII | re.IGNORECASE)


def device_facts(
    subject: Subject, arguments: Iterable[str], groups: Mapping[str, str], opened: Callable[[], Collection[str]]
) -> Iterator[VerifiedFact]:
    """Yield a fact for each device of the host that the document hands over: QEMU has it.

    A device that was attached while QEMU ran is not on its command line: then QEMU has the device's group open, and no
    other device of it. `groups`: the IOMMU group of each device. `opened`: asks which groups QEMU has open.
    """
    given = set(devices_given(arguments))
    known = {groups.get(device) for device in given}
    remedy = f"stop {subject.name} and start it again"
    for device in devices_of(subject.root):
        found = "there" if device in given else "not there"
        if device not in given and groups.get(device, "") not in {"", *known} and groups[device] in opened():
            found = f"attached while it runs: group {groups[device]} is open"
        has = found != "not there"
        yield judged(Area.DEVICES, f"{device} on QEMU's command line", "there", found, remedy, ok=has)


def devices_given(arguments: Iterable[str]) -> Iterator[str]:
    """Yield the PCI addresses and the UUIDs of mediated devices on a command line of QEMU."""
    for option, value in pairwise(arguments):
        if option == "-device":
            given = settings(value)
            if given.get("driver", "").startswith("vfio-"):
                yield from filter(None, map(_named, (given.get("host", ""), given.get("sysfsdev", ""))))


def settings(value: str) -> dict[str, str]:
    """Return what an argument of QEMU says, in JSON or as driver,key=value; nothing if it is neither."""
    text = value[:_LONGEST]
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return {}
        return {key: str(each) for key, each in found.items() if isinstance(each, str | int)}
    parts = text.replace(",,", "\0").split(",")  # QEMU writes a comma in a value twice
    pairs = (part.partition("=") for part in [f"driver={parts[0]}", *parts[1:]])
    return {key: each.replace("\0", ",") for key, _, each in pairs}


def _named(text: str) -> str:
    name = text.rpartition("/")[2].lower()
    if found := _ADDRESS.fullmatch(name):
        domain, bus, slot, function = found.groups()
        return f"{domain or '0':0>4}:{bus:0>2}:{slot:0>2}.{function}"
    return name


def definition_facts(subject: Subject, defined: Element) -> Iterator[VerifiedFact]:
    """Yield what the document of the next start says of devices, pins and nodes, compared with the one that runs."""
    remedy = f"the definition counts from the next start; {subject.virsh} edit {subject.name} changes it"
    for what, wanted, found in (
        ("devices of the definition", " ".join(devices_of(defined)), " ".join(devices_of(subject.root))),
        ("pins of the definition", _pins(defined), _pins(subject.root)),
        ("NUMA nodes of the definition", _nodes(defined), _nodes(subject.root)),
    ):
        yield judged(Area.DEFINITION, what, wanted or "none", found or "none", remedy, ok=wanted == found)


def _pins(root: Element) -> str:
    pins = (
        (number(each.get("vcpu")), listed(numbers(each.get("cpuset", "")))) for each in root.iterfind("cputune/vcpupin")
    )
    return ", ".join(f"{vcpu} to {cpus}" for vcpu, cpus in sorted(pin for pin in pins if pin[0] is not None))


def _nodes(root: Element) -> str:
    found = [(each.get("cellid", ""), listed(numbers(each.get("nodeset", "")))) for each in root.iterfind("numatune/*")]
    return ", ".join(f"cell {cell}: {nodes}" if cell else nodes for cell, nodes in sorted(found))
