"""The one reader of a domain's document, for building, checking, defining and starting. Each part is read when needed;
a missing or malformed one is None or left out (`domain.check` says why). May not judge, nor do input or output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from itertools import count, islice
from typing import TYPE_CHECKING, NamedTuple
from xml.etree.ElementTree import Element

from vfioctl.claims.model.passthrough_devices import devices_of
from vfioctl.domain.document.values import (
    GuestAddress,
    PciController,
    address_of,
    attribute,
    canonical_uuid,
    cpuset,
    is_element,
    number,
    scaled,
    size_of,
    text_in,
)
from vfioctl.domain.document.xml import Document, parse
from vfioctl.errors import BadDocument

if TYPE_CHECKING:
    from vfioctl.domain.document.mark import Mark

MOST = 8192
"""Elements of one kind that are looked at, which is more than QEMU can have of any."""
_X86, _ARM = ("x86_64", "i686"), ("aarch64", "armv7l", "armv6l")
_PASSED_THROUGH = (("hostdev", "pci"), ("interface", "hostdev"))
_LEVELS = 32
"""More than a guest can have: a document with cycles has no end."""


AGENT_CHANNEL = "devices/channel/target[@name='org.qemu.guest_agent.0']"
"""The path of the channel to which qemu-guest-agent listens."""


class Cell(NamedTuple):
    """A NUMA cell of the guest. `cpus`, `memory` (bytes): None if they are missing or malformed."""

    element: Element
    id: int | None
    cpus: frozenset[int] | None
    memory: int | None


def read_domain(text: str | bytes) -> Domain:
    """Return the domain that a document describes. Raises BadDocument if it is not XML, or not a domain."""
    document = parse(text)
    if document.root.tag != "domain":
        raise BadDocument(f"the document is no domain: it begins with <{str(document.root.tag)[:40]}>")
    return Domain(document)


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
        element = self.root.find(path)
        return self.root if element is None else element

    @cached_property
    def name(self) -> str:
        return self.root.findtext("name", "")

    @cached_property
    def uuid(self) -> str:
        """As libvirt writes it; the text of the document if it is malformed, empty if there is none."""
        return canonical_uuid(self.root.findtext("uuid", ""))

    @cached_property
    def mark(self) -> Mark:
        """What vfioctl wrote into its metadata."""
        from vfioctl.domain.document.mark import read_mark  # a check needs none

        return read_mark(self.root)

    @cached_property
    def arch(self) -> str:
        """Such as x86_64; empty if libvirt chooses it."""
        return attribute(self.one("os/type"), "arch") or ""

    @cached_property
    def machine(self) -> str:
        """Such as pc-q35-8.2; empty if it is not known, which it is for QEMU on x86."""
        name = attribute(self.one("os/type"), "machine")
        return name or ("pc" if self.arch in _X86 and self.root.get("type") in ("kvm", "qemu") else "")

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
        feature = self.one(f"features/{name}")
        return feature is not None and feature.get("state", "on") == "on"

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
                cell,
                number(cell.get("id", str(place))),
                cpuset(cell.get("cpus")),
                scaled(cell.get("memory"), cell.get("unit")),
            )
            for place, cell in enumerate(self.all("cpu/numa/cell"))
        )

    @cached_property
    def memory(self) -> int | None:
        """In bytes; None if it is not given, or not readable."""
        return size_of(self.one("memory"))

    @cached_property
    def pins(self) -> Mapping[int, frozenset[int]]:
        """The host's CPUs of each vCPU that is pinned."""
        return self._pins("vcpupin", "vcpu")

    @cached_property
    def iothread_pins(self) -> Mapping[int, frozenset[int]]:
        """The same for I/O threads."""
        return self._pins("iothreadpin", "iothread")

    def _pins(self, name: str, key: str) -> Mapping[int, frozenset[int]]:
        pairs = ((number(pin.get(key)), cpuset(pin.get("cpuset"))) for pin in self.all(f"cputune/{name}"))
        return {thread: cpus for thread, cpus in pairs if thread is not None and cpus}

    @cached_property
    def emulator_pin(self) -> frozenset[int] | None:
        return cpuset(self.at("cputune/emulatorpin").get("cpuset"))

    @cached_property
    def other_cpus(self) -> frozenset[int] | None:
        """The host's CPUs of threads without a pin of their own; None: any (libvirt's formatdomain, CPU Allocation)."""
        return cpuset(self.at("vcpu").get("cpuset"))

    @cached_property
    def exclusive_cpus(self) -> tuple[int, ...]:
        """The host's CPUs to which exactly one vCPU is pinned, and to no other CPU."""
        threads = Counter(cpu for cpus in self.pins.values() for cpu in cpus)
        alone = {min(cpus) for cpus in self.pins.values() if len(cpus) == 1}
        return tuple(sorted(cpu for cpu in alone if threads[cpu] == 1))

    @cached_property
    def shared_cpus(self) -> tuple[frozenset[int], ...]:
        """The host's CPUs of the emulator, of I/O threads, and of vCPUs without a pin of their own."""
        is_open = not self.emulator_pin or len(self.pins) < (self.vcpus or 0)
        sets = (self.emulator_pin, *self.iothread_pins.values(), self.other_cpus if is_open else None)
        return tuple(filter(None, sets))

    @cached_property
    def memnodes(self) -> Mapping[int | None, frozenset[int] | None]:
        """The host's NUMA nodes that the memory of each cell is on, by the id of the cell."""
        return {number(node.get("cellid")): cpuset(node.get("nodeset")) for node in self.all("numatune/memnode")}

    @cached_property
    def host_nodes(self) -> frozenset[int]:
        """All NUMA nodes of the host that its memory may be on."""
        return frozenset[int]().union(*(cpuset(element.get("nodeset")) or () for element in self.all("numatune/*")))

    @cached_property
    def iothreads(self) -> frozenset[int]:
        """The ids of the I/O threads."""
        named = {number(thread.get("id")) for thread in self.all("iothreadids/iothread")}
        most = min(number(text_in(self.one("iothreads"))) or 0, 1 << 12)
        ids = {id_ for id_ in named if id_ is not None}
        unnamed = (candidate for candidate in count(1) if candidate not in ids)
        return frozenset((*ids, *islice(unnamed, max(0, most - len(ids)))))

    @cached_property
    def devices(self) -> tuple[Element, ...]:
        devices = self.one("devices")
        return () if devices is None else tuple(child for child in devices if is_element(child))

    @cached_property
    def host_devices(self) -> tuple[str, ...]:
        """The addresses of the host's functions and the UUIDs of mediated devices that the guest gets."""
        return tuple(devices_of(self.root))

    @cached_property
    def hostdevs(self) -> tuple[Element, ...]:
        """Host devices of the mode subsystem, which is the default."""
        hostdevs = (device for device in self.devices if device.tag == "hostdev")
        return tuple(hostdev for hostdev in hostdevs if hostdev.get("mode", "subsystem") == "subsystem")

    def hostdevs_of(self, kind: str) -> tuple[Element, ...]:
        return tuple(hostdev for hostdev in self.hostdevs if hostdev.get("type") == kind)

    @cached_property
    def passed_through(self) -> tuple[Element, ...]:
        """What gives a PCI function to the guest: hostdevs, and network interfaces of that type."""
        return tuple(device for device in self.devices if (device.tag, device.get("type")) in _PASSED_THROUGH)

    @cached_property
    def placed(self) -> tuple[tuple[Element, GuestAddress], ...]:
        """The devices that have a PCI address in the guest. A console has that of its serial port."""
        pairs = ((device, device.find("address")) for device in self.devices if device.tag != "console")
        placed = ((device, address_of(where)) for device, where in pairs if attribute(where, "type") == "pci")
        return tuple((device, address) for device, address in placed if address and not address.is_empty)

    @cached_property
    def address_by_device(self) -> Mapping[int, GuestAddress]:
        """By `id` of the device's element."""
        return {id(device): address for device, address in self.placed}

    @cached_property
    def controllers(self) -> tuple[PciController, ...]:
        """The PCI controllers, in the order of the document."""
        addresses = self.address_by_device
        return tuple(
            PciController(device, number(device.get("index")), device.get("model", ""), addresses.get(id(device)))
            for device in self.devices
            if device.tag == "controller" and device.get("type") == "pci"
        )

    @cached_property
    def controller_of_bus(self) -> Mapping[int, PciController]:
        """The PCI controllers by their index."""
        return {controller.index: controller for controller in self.controllers if controller.index is not None}

    def expander_of(self, bus: int | None) -> PciController | None:
        """Return the expander bus that a bus is, or is below."""
        for _ in range(_LEVELS):
            controller = None if bus is None else self.controller_of_bus.get(bus)
            if controller is None or controller.is_expander:
                return controller
            bus = controller.address.bus if controller.address else None
        return None

    @cached_property
    def model_of_bus(self) -> Mapping[int, str]:
        """The model of the controller of each index; that of index 0 follows from the machine."""
        root = "pcie-root" if self.is_q35 or self.is_arm_virt else "pci-root" if self.is_i440fx else ""
        known = {index: controller.model for index, controller in self.controller_of_bus.items()}
        return ({0: root} if root else {}) | known
