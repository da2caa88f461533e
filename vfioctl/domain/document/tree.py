"""Edits the XML of a domain by path. May not know what it means; keeps everything else."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree.ElementTree import Element, SubElement

_ORDER: Mapping[str, tuple[str, ...]] = {
    "domain": (
        *("name", "uuid", "genid", "title", "description", "metadata", "maxMemory", "memory", "currentMemory"),
        *("memtune", "memoryBacking", "vcpu", "vcpus", "iothreads", "iothreadids", "cputune", "numatune", "resource"),
        *("sysinfo", "os", "features", "cpu", "clock", "on_poweroff", "on_reboot", "on_crash", "pm", "devices"),
        *("seclabel", "launchSecurity"),
    ),
    "memoryBacking": ("hugepages", "nosharepages", "locked", "source", "access", "allocation", "discard"),
    "cputune": (
        *("shares", "global_period", "global_quota", "period", "quota", "emulator_period", "emulator_quota"),
        *("iothread_period", "iothread_quota", "vcpupin", "emulatorpin", "iothreadpin"),
        *("vcpusched", "iothreadsched", "emulatorsched", "cachetune", "memorytune"),
    ),
    "cpu": ("model", "vendor", "topology", "cache", "maxphysaddr", "feature", "numa"),
    "devices": (
        *("emulator", "disk", "controller", "interface", "serial", "console", "channel", "input", "tpm", "graphics"),
        *("video", "hostdev", "memballoon"),
    ),
    "os": ("type", "loader", "nvram", "firmware", "boot"),
}
"""The order in which libvirt writes elements."""


def child(parent: Element, name: str, attributes: Mapping[str, object] | None = None, text: str = "") -> Element:
    """Return the first child of this name, made in its place if it is missing, with these attributes and this text."""
    element = parent.find(name)
    if element is None:
        element = Element(name)
        parent.insert(_place(parent, name), element)
    for key, value in (attributes or {}).items():
        element.set(key, str(value))
    if text:
        element.text = text
    return element


def add(parent: Element, name: str, attributes: Mapping[str, object] | None = None, text: str = "") -> Element:
    """Return a new last child."""
    made = SubElement(parent, name, {key: str(value) for key, value in (attributes or {}).items()})
    made.text = text or None
    return made


def insert(parent: Element, made: Element) -> None:
    """Insert an element after its like, or where libvirt has it."""
    parent.insert(_place(parent, str(made.tag)), made)


def remove(parent: Element, path: str) -> None:
    """Remove all elements at a path below the parent."""
    above, _, name = path.rpartition("/")
    for element in parent.findall(above) if above else [parent]:
        for child in element.findall(name):
            element.remove(child)


def _place(parent: Element, name: str) -> int:
    """Return the index behind the last element that libvirt writes before this one, or that has the same name."""
    order = _ORDER.get(str(parent.tag), ())
    if name not in order:
        return len(parent)
    before = set(order[: order.index(name) + 1])
    indexes = [index for index, child in enumerate(parent) if child.tag in before]
    return indexes[-1] + 1 if indexes else 0
