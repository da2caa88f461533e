"""Rules about bus numbers: what is below an expander bus must fit before the next one. May not do input or output.

libvirt does not check it, and QEMU starts. The firmware then has no number for some buses, and the guest does not see
what is on them. Source: QEMU's docs/pcie.txt, section 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vfioctl.domain.check.rules.controllers import PLUGS_INTO, ROOTS
from vfioctl.domain.check.rules.fault import Fault, repeats
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import PciController

_ALL = 256
_LEVELS = 32
_SWITCH_PORTS = 32


def numbers(domain: Domain) -> Iterator[Fault]:
    for element, bus, _ in repeats((expander.element, expander.bus_number) for expander in _expanders(domain)):
        yield Fault(element, f"two expander buses have busNr {bus}", "give each its own, from the top down")


def space(domain: Domain) -> Iterator[Fault]:
    expanders = _expanders(domain)
    starts = _starts(expanders)
    below = _children(domain)
    firsts = sorted(set(starts.values()))
    for expander in expanders:
        start = starts[id(expander.element)]
        end = next((first for first in firsts if first > start), _ALL)
        needed = 1 + _below(expander.index, below) + (expander.model == "pci-expander-bus")
        if start + needed > end:
            chosen_by = "" if expander.bus_number is not None else ", which libvirt chooses"
            reason = f"it needs {needed} bus numbers from {start}{chosen_by}, and only {end - start} are free"
            yield Fault(expander.element, reason, f"a busNr of at most {max(1, end - needed)}")
    if firsts and 1 + _below(0, below) > firsts[0]:
        reason = f"what is on the root needs {1 + _below(0, below)} bus numbers, and an expander bus has {firsts[0]}"
        yield Fault(domain.at("devices"), reason, "expander buses from the top down: a higher busNr")


def _expanders(domain: Domain) -> list[PciController]:
    return [controller for controller in domain.controllers if controller.is_expander]


def _starts(expanders: list[PciController]) -> Mapping[int, int]:
    """The number of each, by `id` of its element; libvirt chooses missing ones, two below the lowest so far."""
    starts = {id(expander.element): bus for expander in expanders if (bus := expander.bus_number) is not None}
    for expander in expanders:
        if id(expander.element) not in starts:
            starts[id(expander.element)] = max(1, min([*starts.values(), _ALL]) - 2)
    return starts


def _children(domain: Domain) -> Mapping[int, list[PciController]]:
    """The bridges on each bus. Those without an address are where libvirt puts them: on the first that takes them."""
    children: dict[int, list[PciController]] = {}
    for controller in domain.controllers:
        if controller.is_expander or controller.model in ROOTS or controller.model not in PLUGS_INTO:
            continue
        bus = controller.address.bus if controller.address else _chosen(domain, controller, children)
        children.setdefault(bus, []).append(controller)
    return children


def _chosen(domain: Domain, controller: PciController, children: Mapping[int, list[PciController]]) -> int:
    if controller.model == "pcie-switch-downstream-port":
        for port in domain.controllers:
            is_upper = port.model == "pcie-switch-upstream-port" and port.index is not None
            if is_upper and len(children.get(port.index or 0, ())) < _SWITCH_PORTS:
                return port.index or 0
    return 0


def _below(index: int | None, children: Mapping[int, list[PciController]]) -> int:
    """The number of buses below one, each once, whatever a document with cycles says."""
    seen: set[int] = set()
    level, count = [-1 if index is None else index], 0
    for _ in range(_LEVELS):
        below = [child for bus in level if bus not in seen for child in children.get(bus, ())]
        seen.update(level)
        count += len(below)
        level = list({controller.index for controller in below if controller.index is not None})
    return count
