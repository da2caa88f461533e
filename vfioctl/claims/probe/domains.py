"""Asks libvirt which domains it has, and which devices those that run have. May not write.

libvirt is asked in a worker, which is abandoned if it does not answer: a daemon may hang.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.kernel.libvirt import SECONDS, running
from vfioctl.kernel.protocol import Unanswered, per_subject

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from vfioctl.kernel.protocol import Reader

URI = "qemu:///system"
_SOCKETS = tuple(f"/run/libvirt/{name}-sock{ro}" for name in ("libvirt", "virtqemud") for ro in ("", "-ro"))
_LONGEST_XML = 4 << 20
_HEX = re.compile(r"(?:0x)?([0-9a-fA-F]{1,8})", re.ASCII)


class Domain(NamedTuple):
    """A running domain, and the addresses and UUIDs of its devices."""

    name: str
    devices: tuple[str, ...]


class Domains(NamedTuple):
    """What libvirt says. `unknown`: why it cannot be asked; empty if it answered, or if this host has none."""

    running: tuple[Domain, ...] = ()
    unknown: str = ""


def read_domains(kernel: Reader) -> Domains:
    """Return the running domains. A host without libvirt's socket has none."""
    if not any(kernel.has(path) for path in _SOCKETS):
        return Domains()
    ((_, said),) = kernel.survey(ask, [URI], timeout=SECONDS)
    if isinstance(said, Unanswered):
        return Domains(unknown=f"libvirt cannot be asked: {said.reason}")
    running, why = said
    found = tuple(Domain(name, tuple(devices)) for name, devices in running)
    return Domains(found, f"libvirt cannot be asked: {why}" if why else "")


@per_subject
def ask(kernel: Reader, uri: str) -> tuple[list[tuple[str, list[str]]], str]:
    """Return each running domain's name and devices, and why libvirt could not be asked."""
    del kernel
    return running(uri, devices_in)


def devices_in(xml: str) -> list[str]:
    """Return the PCI addresses and mediated devices that a domain's XML hands to its guest."""
    import xml.etree.ElementTree as ET

    if len(xml) > _LONGEST_XML or "<!DOCTYPE" in xml:
        return []
    try:
        root = ET.fromstring(xml)  # noqa: S314 - libvirt wrote it, without a DTD
    except ET.ParseError:
        return []
    return list(dict.fromkeys(_named(root)))


def _named(root: Element) -> Iterator[str]:
    for source in root.iterfind("./devices/hostdev[@mode='subsystem']/source/address"):
        if uuid := source.get("uuid"):
            yield uuid.lower()
        else:
            yield from _pci(source)
    for source in root.iterfind("./devices/interface[@type='hostdev']/source/address"):
        yield from _pci(source)


def _pci(source: Element) -> Iterator[str]:
    parts = [_HEX.fullmatch(source.get(name, "")) for name in ("domain", "bus", "slot", "function")]
    if all(parts):
        domain, bus, slot, function = (int(part[1], 16) for part in parts if part)
        yield f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"
