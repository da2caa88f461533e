"""Rules about PCI controllers: indexes, models, where they are plugged in. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from vfioctl.domain.check.rules.rule import Fault, repeats, warning, with_child
from vfioctl.domain.document.architecture import end_of_hole
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import PciController, attribute, number, size_of, text_in
from vfioctl.inventory.model.values import any_number
from vfioctl.units import exact_size

ROOTS = ("pci-root", "pcie-root")
_PORTS = ("pcie-root-port", "pcie-switch-downstream-port")
_CONVENTIONAL = ("pci-root", "pci-bridge", "pci-expander-bus", "dmi-to-pci-bridge", "pcie-to-pci-bridge", "pcie-root")
PLUGS_INTO = {
    "pci-bridge": (*_CONVENTIONAL, *_PORTS),
    "dmi-to-pci-bridge": ("pcie-root", "pcie-expander-bus"),
    "pcie-root-port": ("pcie-root", "pcie-expander-bus"),
    "pcie-switch-upstream-port": _PORTS,
    "pcie-switch-downstream-port": ("pcie-switch-upstream-port",),
    "pcie-to-pci-bridge": _PORTS,
    "pci-expander-bus": ("pci-root",),
    "pcie-expander-bus": ("pcie-root",),
}
"""The models of controllers that each may be plugged into."""
_MODEL_NAMES = {
    "pci-bridge": ("pci-bridge",),
    "dmi-to-pci-bridge": ("i82801b11-bridge",),
    "pcie-root-port": ("ioh3420", "pcie-root-port"),
    "pcie-switch-upstream-port": ("x3130-upstream",),
    "pcie-switch-downstream-port": ("xio3130-downstream",),
    "pcie-to-pci-bridge": ("pcie-pci-bridge",),
    "pci-expander-bus": ("pxb",),
    "pcie-expander-bus": ("pxb-pcie",),
}
_TARGETS = {"chassisNr": (1, 255), "chassis": (0, 255), "port": (0, 255), "busNr": (1, 254)}
_MOST_INDEX = 255
_ROOT_FUNCTIONS = 30 * 8
"""Of pcie-root: slots 1 to 30, for slot 0 is the host bridge and 31 has what q35 has built in."""


def controller_index(domain: Domain) -> Iterator[Fault]:
    wrong = [each for each in domain.controllers if each.index is None or each.index > _MOST_INDEX]
    for controller in wrong:
        if (text := controller.element.get("index")) is not None:
            yield Fault(controller.element, f"index='{text[:40]}' is no index", f"0 to {_MOST_INDEX}")
    good = ((controller.element, controller.index) for controller in domain.controllers if controller not in wrong)
    for element, index, _ in repeats(good):
        yield Fault(element, f"two PCI controllers have the index {index}", "give each its own")


def controller_model(domain: Domain) -> Iterator[Fault]:
    for controller in domain.controllers:
        element, model = controller.element, controller.model
        allowed, name = _MODEL_NAMES.get(model), attribute(element.find("model"), "name")
        if model and model not in (*ROOTS, *PLUGS_INTO):
            yield Fault(element, f"there is no PCI controller model '{model[:40]}'", "check its spelling")
        elif allowed and name is not None and name not in allowed:
            yield Fault(element, f"a {model} is no {name[:40]}", f"<model name='{allowed[-1]}'/>, or leave it")


def controller_root(domain: Domain) -> Iterator[Fault]:
    wanted = "pcie-root" if domain.is_q35 or domain.is_arm_virt else "pci-root" if domain.is_i440fx else ""
    for controller in domain.controllers:
        element, model = controller.element, controller.model
        if model in ROOTS:
            if controller.index not in (None, 0) and domain.is_x86_or_arm:
                yield Fault(element, f"a {model} has the index {controller.index}", "index='0'")
            if element.find("address") is not None and not domain.machine.startswith("pseries"):
                yield Fault(element, f"a {model} has no address", "remove its <address>")
            if wanted and model != wanted:
                yield Fault(element, f"the machine {domain.machine[:40]} has a {wanted}", f"model='{wanted}'")
        elif controller.index == 0 and model:
            yield Fault(element, f"index 0 is that of the root, not of a {model[:40]}", "another index")


def controller_target(domain: Domain) -> Iterator[Fault]:
    for element, target in with_child((controller.element for controller in domain.controllers), "target"):
        for name, (least, most) in _TARGETS.items():
            text = target.get(name)
            value = number(text) if text and not text.startswith("0x") else _hexadecimal(text)
            if text is not None and (value is None or not least <= value <= most):
                yield Fault(element, f"{name}='{text[:40]}' is out of range", f"{least} to {most}")


def controller_chassis(domain: Domain) -> Iterator[Fault]:
    """QEMU wants another chassis for each port, whatever its `port` is; libvirt's default is the index."""
    ports = [controller for controller in domain.controllers if controller.model in _PORTS]
    for element, value, other in repeats((port.element, _chassis(port)) for port in ports):
        reason = f"chassis {value} is also that of {domain.document.path(other)}"
        yield Fault(element, reason, "give each port its own chassis=, or leave them to libvirt")


def _chassis(port: PciController) -> int | None:
    text = attribute(port.element.find("target"), "chassis")
    return port.index if text is None else any_number(text)


def _hexadecimal(text: str | None) -> int | None:
    try:
        return int(text or "", 16) if len(text or "") < 10 else None
    except ValueError:
        return None


def controller_place(domain: Domain) -> Iterator[Fault]:
    """A controller is plugged into one that accepts it, and that libvirt creates before it."""
    for controller in domain.controllers:
        if controller.address is None or controller.model not in PLUGS_INTO:
            continue
        upper = domain.model_of_bus.get(controller.address.bus)
        if upper and upper not in PLUGS_INTO[controller.model]:
            allowed = " or ".join(PLUGS_INTO[controller.model][:2])
            yield Fault(controller.element, f"a {controller.model} on a {upper}", f"plug it into a {allowed}")
        if controller.index is not None and controller.address.bus >= controller.index:
            reason = f"it has index {controller.index}, and is on bus {controller.address.bus}"
            yield Fault(controller.element, reason, "give it an index above that of the bus it is on")


def expander_bus(domain: Domain) -> Iterator[Fault]:
    """Expander buses need the right machine, and a NUMA cell that the guest has."""
    cells = {cell.id for cell in domain.cells}
    for controller in domain.controllers:
        element, has_no = controller.element, f"{domain.machine[:40]} has no {controller.model}"
        if controller.model == "pcie-expander-bus" and domain.machine and not (domain.is_q35 or domain.is_arm_virt):
            yield Fault(element, has_no, "the machine q35, or virt on Arm")
        if controller.model == "pci-expander-bus" and domain.machine and not domain.is_i440fx:
            yield Fault(element, has_no, "pcie-expander-bus on q35")
        node = element.find("target/node")
        if node is None:
            if controller.is_expander and len(cells) > 1:
                remedy = "<target><node>0</node></target>"
                yield warning(element, "the guest sees no NUMA node for the devices below it", remedy)
        elif not controller.is_expander and not domain.machine.startswith("pseries"):
            yield Fault(node, "only an expander bus has a node", "remove it")
        elif controller.cell not in cells:
            yield Fault(node, f"the guest has no cell {text_in(node)[:40]}", "the id of a NUMA cell of the guest")


def pci_hole(domain: Domain) -> Iterator[Fault]:
    for controller, element in holes_of(domain):
        size = size_of(element)
        if size is None:
            yield Fault(element, f"'{text_in(element)[:40]}' is no size", "a number, with unit='GiB'")
        if controller.model == "pci-root" and domain.machine and not domain.is_i440fx:
            yield Fault(element, f"{domain.machine[:40]} has no pcihole64 on pci-root", "put it on pcie-root of q35")
        elif controller.model == "pcie-root" and domain.machine and not domain.is_q35:
            yield Fault(element, f"{domain.machine[:40]} has no pcihole64", "only q35 and i440fx have it")
        elif controller.model and controller.model not in ROOTS:
            yield Fault(element, f"a {controller.model[:40]} has no pcihole64", "put it on the root, index='0'")
        elif size is not None and size >= 1 << 52:
            yield Fault(element, "it is more than an x86 CPU can address", "check the unit: it is KiB if none is given")
    width = domain.one("cpu/maxphysaddr")
    if width is not None and (bits := number(width.get("bits") or width.get("limit"))) is not None:
        yield from beyond(domain, bits, "the guest's CPU has")


def holes_of(domain: Domain) -> Iterator[tuple[PciController, Element]]:
    """Yield the controllers of which the document names the size of the 64-bit hole, and the element that names it."""
    for controller in domain.controllers:
        if (element := controller.element.find("pcihole64")) is not None:
            yield controller, element


def beyond(domain: Domain, bits: int, who: str) -> Iterator[Fault]:
    """Yield q35's 64-bit hole if it ends above what a CPU with so many address bits can address. `who`: that CPU."""
    most = max(domain.memory or 0, size_of(domain.one("maxMemory")) or 0)
    for _, element in holes_of(domain) if domain.is_q35 else ():
        size = size_of(element)
        needed = (end_of_hole(most, size) - 1).bit_length() if size is not None and size < 1 << 52 else 0
        if needed > bits:
            reason = f"above {exact_size(most)} of memory it needs {needed} address bits, and {who} {bits}"
            yield Fault(element, reason, "a smaller hole, for fewer devices, or less memory: QEMU does not start")


def controller_room(domain: Domain) -> Iterator[Fault]:
    """Root ports that have to be on pcie-root and find no function there."""
    ports = [
        controller.element
        for controller in domain.controllers
        if controller.model == "pcie-root-port" and (controller.address is None or controller.address.bus == 0)
    ]
    slots = {address.slot for element, address in domain.placed if address.bus == 0 and element.tag != "controller"}
    room = _ROOT_FUNCTIONS - 8 * len(slots)
    if domain.is_q35 and len(ports) > room:
        reason = f"{len(ports)} root ports, and pcie-root has room for {room}"
        yield Fault(ports[room], reason, "put some below a pcie-expander-bus or a switch")
