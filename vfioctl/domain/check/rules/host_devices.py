"""Rules about devices of the host. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from xml.etree.ElementTree import Element

from vfioctl.domain.check.rules.controllers import holes_of
from vfioctl.domain.check.rules.rule import Fault, HostFacts, is_ours, is_own, warning
from vfioctl.domain.document.other_domains import written_images
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import address_of, attribute, cpuset, shown, size_of
from vfioctl.errors import BadAddress, some_of
from vfioctl.inventory.model.functions import MANAGED_DMA_DRIVERS, Function
from vfioctl.inventory.model.preconditions import command_for, why_no_vgpu
from vfioctl.inventory.model.values import PciAddress
from vfioctl.units import exact_size


def named_functions(domain: Domain) -> Iterator[tuple[Element, PciAddress]]:
    """Yield the PCI devices of the host that the domain names."""
    for element in domain.passed_through:
        where = element.find("source/address")
        address = address_of(where)
        if where is not None and address and where.get("type", "pci") == "pci":
            with suppress(BadAddress):  # a rule of the document tells
                yield element, PciAddress(str(address))


def _present(domain: Domain, host: HostFacts) -> Iterator[tuple[Element, Function]]:
    by_address = host.capacity.inventory.by_address
    return ((element, by_address[address]) for element, address in named_functions(domain) if address in by_address)


def host_device(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    inventory = host.capacity.inventory
    for element, address in named_functions(domain):
        if address not in inventory.by_address and address not in inventory.unread:
            remedy = "vfioctl inventory --all lists the host's devices"
            yield Fault(element, f"this host has no device {address}", remedy)
    for element, function in _present(domain, host):
        if function.is_bridge:
            yield Fault(element, f"{function.address} is a bridge, which stays with the host", "remove it")
        elif function.mark is not None:
            reason = f"{function.address} is {function.mark.kind}: {function.mark.why}"
            yield Fault(element, reason, "vfioctl recover, or restart the host")


def host_iommu(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    iommu = host.capacity.inventory.iommu
    for element, _ in islice(_present(domain, host), 1):
        if not iommu.translating:
            yield Fault(element, f"the IOMMU is off: {iommu.reason or 'VFIO needs it'}", "turn it on, and restart")


def host_driver(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    """With managed='no' the device is on VFIO, or is a vGPU, before the domain starts."""
    for element, function in _present(domain, host):
        if element.get("managed") == "yes" or function.serves_guests or function.is_bridge:
            continue
        if why := why_no_vgpu(function):
            yield Fault(element, why, command_for(function))
            continue
        current = f"driver {function.driver}" if function.driver else "no driver"
        reason = f"{function.address} has {current}, and managed='no' means that it is on VFIO already"
        yield _unbound(domain, element, reason, f"vfioctl bind {function.address} --with-group")


def host_group(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    """The other members of the IOMMU group are in this guest, on VFIO, or on a driver that does no DMA."""
    inventory = host.capacity.inventory
    elements = {address: element for element, address in named_functions(domain)}
    for element, function in _present(domain, host):
        if inventory.iommu.translating and function.iommu_group is None and "iommu_group" not in function.unknown:
            reason = f"{function.address} is in no IOMMU group: the IOMMU does not cover it"
            yield Fault(element, reason, "remove it: VFIO gives a guest devices of IOMMU groups only")
        missing = [
            other
            for address in inventory.members_of(function.iommu_group)
            if (other := inventory.by_address.get(address)) and not _harmless(other) and address not in elements
        ]
        if missing:
            names = some_of(f"{other.address} (driver {other.driver})" for other in missing)
            reason = f"IOMMU group {function.iommu_group} also has {names}"
            remedy = f"vfioctl bind {function.address} --with-group, or add them to the domain"
            yield _unbound(domain, element, reason, remedy)


def _unbound(domain: Domain, element: Element, reason: str, remedy: str) -> Fault:
    """An error; a warning for a domain whose devices vfioctl binds when it starts."""
    if is_ours(domain):
        return warning(element, reason, f"vfioctl domain start, or {remedy}")
    return Fault(element, reason, remedy)


def _harmless(function: Function) -> bool:
    name = function.driver
    return function.is_bridge or name is None or name in MANAGED_DMA_DRIVERS or function.serves_guests


def host_card(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    """A card moves as a whole: its other functions are not left to the host's drivers."""
    inventory = host.capacity.inventory
    addresses = {address for _, address in named_functions(domain)}
    for element, function in _present(domain, host):
        left = [address for address in inventory.card_of(function.address) if address not in addresses]
        other = [address for address in left if not _harmless(inventory.by_address[address])]
        if other and not function.is_vf and inventory.by_address[other[0]].iommu_group != function.iommu_group:
            reason = f"{some_of(other)} of the same card stays with the host"
            yield warning(element, reason, "give the guest the whole card: a reset affects all of it")


def host_device_claimed(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    taken = host.capacity.taken.whole
    named = [(element, str(address)) for element, address in named_functions(domain)]
    for element, subject in (*named, *named_mdevs(domain)):
        if subject in host.capacity.taken.shares:
            yield Fault(element, *_shared(subject, host))
        elif subject in taken and not is_own(domain, taken[subject][1]):
            claim, owner = taken[subject]
            reason = f"{subject} belongs to claim {claim} of {owner}"
            remedy = f"vfioctl claim transfer {claim} --to vm/NAME gives it to the domain"
            if owner.kind == "user" and not is_ours(domain):  # the hook does not refuse its start
                yield warning(element, reason, remedy)
            else:
                yield Fault(element, reason, f"{remedy}, if {owner} agrees")


def _shared(subject: str, host: HostFacts) -> tuple[str, str]:
    """Return who has shares of a GPU, and the remedy: a domain cannot take them over."""
    taken = host.capacity.taken
    claims = (*([taken.whole[subject]] if subject in taken.whole else ()), *taken.shared.get(subject, ()))
    owners = some_of([f"{owner} ({claim})" for claim, owner in claims])
    return (
        f"{subject} stays with the host for {owners}",
        f"vfioctl claim release {claims[0][0]} ends a share, when its owner is done",
    )


def host_device_busy(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    named = [(element, str(address)) for element, address in named_functions(domain)]
    for element, subject in (*named, *named_mdevs(domain)):
        if subject in host.holders:
            remedy = f"vfioctl holders {subject} says who has it, and what makes them release it"
            yield Fault(element, f"{subject} is in use: {host.holders[subject]}", remedy)


def named_mdevs(domain: Domain) -> Iterator[tuple[Element, str]]:
    """Yield the mediated devices that the domain names, by their UUIDs."""
    for element in domain.hostdevs_of("mdev"):
        if uuid := attribute(element.find("source/address"), "uuid"):
            yield element, uuid.strip().lower()


def host_mdev(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    for element, uuid in named_mdevs(domain):
        if uuid not in host.mdevs and len(uuid) == 36:
            yield Fault(element, f"this host has no mediated device {uuid}", "vfioctl vgpu create, or vgpu list")


def host_device_node(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    """The guest's memory is on the node of its device, and the guest knows."""
    if len(host.nodes) < 2:
        return
    homes, default = domain.memnodes, cpuset(attribute(domain.one("numatune/memory"), "nodeset"))
    all_homes = frozenset[int]().union(*filter(None, (*homes.values(), default)))
    empty = {cell.id for cell in domain.cells if cell.memory == 0}
    for element, function in _present(domain, host):
        address = domain.address_by_device.get(id(element))
        expander = domain.expander_of(address.bus if address else None)
        cell = expander.cell if expander else None
        if cell is not None and cell in empty:
            # it stands for a node on which the guest has no memory, which the document does not name
            better = [home for home, at in homes.items() if at and len(at) == 1 and function.numa_node in at]
            if better:
                reason = f"{function.address} is on node {function.numa_node}, in cell {cell}, which has no memory"
                yield warning(element, reason, f"an expander bus of cell {better[0]}, whose memory is on that node")
            continue
        nodes = all_homes if cell is None else homes.get(cell, default)
        if nodes and nodes <= host.nodes.keys() and function.numa_node not in (None, *nodes):
            shown_to = f"cell {cell}, whose memory" if cell is not None else "a guest whose memory"
            reason = f"{function.address} is on node {function.numa_node}, in {shown_to} is on node {shown(nodes)}"
            yield warning(element, reason, "memory of its node, below an expander bus of that cell")


def host_pci_hole(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    """The window for 64-bit BARs holds those of all devices, if the domain names its size."""
    needed = sum(function.prefetchable_64 for _, function in _present(domain, host))
    for _, element in holes_of(domain):
        if (size := size_of(element)) is not None and size < needed:
            reason = f"the devices' BARs need {exact_size(needed)}, and pcihole64 is {exact_size(size)}"
            yield warning(element, reason, "a larger power of two, with room for their alignment")


def host_disk_image(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    """No other domain writes to an image of this one, whether it runs or not: both may run one day."""
    disks = {image: disk for disk, image in written_images(domain)}
    for image, shares in host.images.items():
        remedy = "an image of its own, or <readonly/> or <shareable/> for both"
        yield Fault(disks[image], f"{image[:200]} {shares}: what both write destroys it", remedy)
    for image, reason in host.unread_images.items():
        yield warning(disks.get(image, domain.at("devices")), reason, "run vfioctl as root, or repair the image")
