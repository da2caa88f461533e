"""The parts of a domain's XML that rules look at. May not judge them, nor do input or output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from xml.etree.ElementTree import Element

from vfioctl.domain.document.values import (
    GuestAddress,
    address_of,
    cpuset,
    is_element,
    number,
    scaled,
    size_of,
    text_in,
)
from vfioctl.domain.document.xml import Document

MOST = 8192
"""Elements of one kind that are looked at, which is more than QEMU can have of any."""
_X86, _ARM = ("x86_64", "i686"), ("aarch64", "armv7l", "armv6l")


class Cell(NamedTuple):
    """A NUMA cell of the guest. `cpus`, `memory` (bytes): None if they are not given, or not readable."""

    element: Element
    id: int | None
    cpus: frozenset[int] | None
    memory: int | None


@dataclass(frozen=True)
class PciController:
    """A PCI controller. `index`: None if libvirt chooses it. `address`: where it is plugged in, likewise."""

    element: Element
    index: int | None
    model: str
    address: GuestAddress | None


class Domain:
    """A document, seen as a domain."""

    def __init__(self, document: Document, version: tuple[int, ...] | None = None) -> None:
        self.document, self.root, self.version = document, document.root, version

    def one(self, path: str) -> Element | None:
        return self.root.find(path)

    def all(self, path: str) -> list[Element]:
        """Return the elements with this path, at most MOST."""
        return self.root.findall(path)[:MOST]

    def at(self, path: str) -> Element:
        """Return the element, or the root if there is none: where to say that something is missing."""
        found = self.root.find(path)
        return self.root if found is None else found

    # -- the machine -------------------------------------------------------------------------------

    @cached_property
    def arch(self) -> str:
        """Such as x86_64; empty if libvirt chooses it."""
        return self.at("os/type").get("arch", "") if self.one("os/type") is not None else ""

    @cached_property
    def machine(self) -> str:
        """Such as pc-q35-8.2; empty if it is not known, which it is for QEMU on x86."""
        kind = self.one("os/type")
        given = "" if kind is None else kind.get("machine", "")
        return given or ("pc" if self.arch in _X86 and self.root.get("type") in ("kvm", "qemu") else "")

    @property
    def is_x86(self) -> bool:
        return self.arch in _X86 or (not self.arch and (self.is_q35 or self.is_i440fx))

    @property
    def is_x86_or_arm(self) -> bool:
        """Whether PCI is as on a PC: one root, and function 0 in each slot. Elsewhere there are more, or no slots."""
        return not self.arch or self.arch in _X86 or self.arch in _ARM

    @property
    def is_q35(self) -> bool:
        return self.machine == "q35" or self.machine.startswith("pc-q35-")

    @property
    def is_i440fx(self) -> bool:
        return self.machine == "pc" or self.machine.startswith(("pc-i440fx-", "pc-0.", "pc-1."))

    @property
    def is_arm_virt(self) -> bool:
        is_arm = not self.arch or self.arch in _ARM
        return is_arm and (self.machine == "virt" or self.machine.startswith("virt-"))

    def has_feature(self, name: str) -> bool:
        found = self.one(f"features/{name}")
        return found is not None and found.get("state", "on") == "on"

    # -- CPUs and memory ---------------------------------------------------------------------------

    @cached_property
    def vcpus(self) -> int | None:
        """The most that it can have; None if that is no number."""
        element = self.one("vcpu")
        return 1 if element is None else number(text_in(element))

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """In the order of the document; one without an id has its place as its id."""
        return tuple(
            Cell(
                each,
                number(each.get("id", str(place))),
                cpuset(each.get("cpus")),
                scaled(each.get("memory"), each.get("unit")) if each.get("memory") else None,
            )
            for place, each in enumerate(self.all("cpu/numa/cell"))
        )

    @cached_property
    def memory(self) -> int | None:
        """In bytes; None if it is not given, or not readable."""
        return size_of(self.one("memory"))

    @cached_property
    def iothreads(self) -> frozenset[int]:
        """The ids of the I/O threads."""
        named = {number(each.get("id")) for each in self.all("iothreadids/iothread")} - {None}
        count = min(number(text_in(self.one("iothreads"))) or 0, 1 << 12)
        ids = {each for each in named if each is not None}
        candidate = 1
        while len(ids) < count:
            ids.add(candidate)
            candidate += 1
        return frozenset(ids)

    # -- devices -----------------------------------------------------------------------------------

    @cached_property
    def devices(self) -> tuple[Element, ...]:
        found = self.one("devices")
        return () if found is None else tuple(each for each in found if is_element(each))

    @cached_property
    def hostdevs(self) -> tuple[Element, ...]:
        """Host devices of the mode subsystem, which is the default."""
        return tuple(
            each for each in self.devices if each.tag == "hostdev" and each.get("mode", "subsystem") == "subsystem"
        )

    def hostdevs_of(self, kind: str) -> tuple[Element, ...]:
        return tuple(each for each in self.hostdevs if each.get("type") == kind)

    @cached_property
    def passed_through(self) -> tuple[Element, ...]:
        """What gives a PCI function to the guest: hostdevs, and network interfaces of that type."""
        return tuple(
            each
            for each in self.devices
            if each.get("type") == ("pci" if each.tag == "hostdev" else "hostdev")
            and each.tag in ("hostdev", "interface")
        )

    @cached_property
    def placed(self) -> tuple[tuple[Element, GuestAddress], ...]:
        """The devices that have a PCI address in the guest. A console has that of its serial port."""
        pairs = ((each, each.find("address")) for each in self.devices if each.tag != "console")
        found = ((each, address_of(where)) for each, where in pairs if where is not None and where.get("type") == "pci")
        return tuple((each, address) for each, address in found if address and not address.is_empty)

    @cached_property
    def address_by_device(self) -> Mapping[int, GuestAddress]:
        """By `id` of the device's element."""
        return {id(each): address for each, address in self.placed}

    @cached_property
    def controllers(self) -> tuple[PciController, ...]:
        """The PCI controllers, in the order of the document."""
        return tuple(
            PciController(each, number(each.get("index")), each.get("model", ""), self.address_by_device.get(id(each)))
            for each in self.devices
            if each.tag == "controller" and each.get("type") == "pci"
        )

    @cached_property
    def model_of_bus(self) -> Mapping[int, str]:
        """The model of the controller of each index; that of index 0 follows from the machine."""
        root = "pcie-root" if self.is_q35 or self.is_arm_virt else "pci-root" if self.is_i440fx else ""
        known = {each.index: each.model for each in self.controllers if each.index is not None}
        return ({0: root} if root else {}) | known
