"""Reads a whole host: functions, names, groups, cards, NUMA nodes, NVML. May not write."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from vfioctl.core.marks import Mark
from vfioctl.core.reservations import Reservation, whole_devices
from vfioctl.errors import BadAddress, KernelRefused
from vfioctl.inventory.model.functions import Bar, Function, Inventory, Link, Nvml, ProbeWarning, card_members
from vfioctl.inventory.model.machine import Iommu
from vfioctl.inventory.model.scope import in_order
from vfioctl.inventory.model.values import PciAddress, known_address
from vfioctl.inventory.probe.machine import group_of, node_with, read_groups, read_iommu, read_members, read_nodes
from vfioctl.inventory.probe.pci import Facts
from vfioctl.inventory.probe.scan import Scan, driver_names
from vfioctl.kernel.lenient import failure_of, names_in
from vfioctl.kernel.protocol import PCI_ADDRESS, PCI_DEVICES, PCI_DRIVERS, NvmlAnswer, Reader, Unanswered
from vfioctl.units import Uuid

_MODES = {"0": False, "1": True}
_NO_FACTS = "no facts from the NVIDIA driver"


def read_some(
    kernel: Reader, addresses: Sequence[PciAddress], suspects: Collection[str] = (), *, names: bool = True
) -> Inventory:
    """Return these functions and their VFs, without groups and NUMA nodes. `names`: whether to look up names."""
    wanted = [*addresses, *(vf for address in addresses for vf in _virtual_functions(kernel, address))]
    scan = Scan(kernel, suspects=suspects, only=wanted, names=names, nvml=False)
    facts = scan.results()
    for fact in facts:
        fact["mark"] = None
        fact.pop("iommu_group_type", None)
        fact.pop("local_cpus", None)
    _add_drivers(kernel, facts)
    _add_nodes(kernel, facts)
    return Inventory(
        functions=_made(facts, scan.unread),
        groups=(),
        numa_nodes=(),
        iommu=Iommu(kind=None, translating=False),
        unread=_unread(scan),
    )


def _virtual_functions(kernel: Reader, address: str) -> Iterator[str]:
    try:
        links = kernel.directory(f"{PCI_DEVICES}/{address}", (), ("virtfn",)).links
    except KernelRefused:
        return
    yield from (name for target in links.values() if PCI_ADDRESS.fullmatch(name := target.rpartition("/")[2]))


def assemble(kernel: Reader, scan: Scan, marks: Mapping[str, Mark], reservations: tuple[Reservation, ...]) -> Inventory:
    """Return the inventory of a scan. `warnings` and each function's `unknown` list unreadable facts."""
    facts = scan.results()
    whole = whole_devices(reservations)
    for function in facts:
        function["mark"] = marks.get(function["address"])
        if reservation := whole.get(function["address"]):
            function |= {"claim": reservation.claim, "owner": reservation.owner}
    _add_drivers(kernel, facts)
    _add_nodes(kernel, facts)
    _share_with_vfs(facts)
    members = _add_groups(kernel, facts, scan.unread)
    types = {fact.get("iommu_group"): fact.pop("iommu_group_type", None) for fact in facts}
    about_nvml = list(_add_nvml(facts, scan.nvidia_gpus, scan.nvml())) if scan.nvidia_gpus else []
    nodes, about_nodes = read_nodes(kernel)
    for fact in facts:
        if local_cpus := fact.pop("local_cpus", None):
            fact["numa_node"] = node_with(local_cpus, nodes)
    functions = _made(facts, scan.unread)
    unread = _unread(scan)
    groups = {address: members.get(address, group_of(kernel, address)) for address in unread}
    problems = [*scan.problems, *((subject, f"not read: {why}") for subject, why in scan.unread.items())]
    return Inventory(
        functions=_with_companions(functions),
        groups=read_groups(kernel, functions, types, groups),
        numa_nodes=tuple(nodes),
        iommu=read_iommu(kernel, functions),
        drivers=tuple(names_in(kernel, PCI_DRIVERS)),
        warnings=(*(ProbeWarning(subject=s, text=text) for s, text in problems), *about_nvml, *about_nodes),
        unread=unread,
        reservations=reservations,
    )


def merged(last: Inventory, fresh: Inventory) -> Inventory:
    """Return `last` with the functions of `fresh`, which were read after it, in the place of its own."""
    read = {*fresh.by_address, *fresh.unread}
    ids = {function.iommu_group for function in last.functions if function.address in read} | {*fresh.group_by_id}
    unread = {**{address: why for address, why in last.unread.items() if address not in read}, **fresh.unread}
    kept = tuple(function for function in last.functions if function.address not in read)
    warnings = (warning for warning in last.warnings if warning.subject not in read)
    return replace(
        fresh,
        functions=tuple(sorted((*kept, *fresh.functions), key=lambda function: function.address.order)),
        groups=tuple(sorted((*(g for g in last.groups if g.id not in ids), *fresh.groups), key=lambda group: group.id)),
        unread=dict(sorted(unread.items(), key=lambda item: item[0].order)),
        warnings=tuple({(w.subject, w.text): w for w in (*warnings, *fresh.warnings)}.values()),
    )


def _unread(scan: Scan) -> dict[PciAddress, str]:
    unread = {PciAddress(address): why for address, why in scan.unread.items() if PCI_ADDRESS.fullmatch(address)}
    return dict(sorted(unread.items(), key=lambda item: item[0].order))


def _add_groups(kernel: Reader, facts: list[Facts], unread: Collection[str]) -> Mapping[str, int]:
    """Add groups that functions do not name. Return the groups by member, if a function lacks one or is unread."""
    groupless = [fact for fact in facts if fact.get("iommu_group") is None]
    groups = read_members(kernel) if unread or groupless else {}
    for function in groupless:
        if function["address"] in groups:
            function["iommu_group"] = groups[function["address"]]
    return groups


def _add_drivers(kernel: Reader, facts: list[Facts]) -> None:
    names = driver_names(kernel, (module for fact in facts for module in fact.get("modules", ())))
    for fact in facts:
        del fact["modalias"]
        fact["available_drivers"] = tuple(dict.fromkeys(names[module] for module in fact.pop("modules", ())))


def _add_nodes(kernel: Reader, facts: list[Facts]) -> None:
    nodes = frozenset(names_in(kernel, "/dev/vfio"))
    for fact in facts:
        if str(fact.get("iommu_group")) in nodes:
            fact["vfio_group"] = f"/dev/vfio/{fact['iommu_group']}"


def _share_with_vfs(facts: list[Facts]) -> None:
    shared: dict[str, Facts] = {
        pf["address"]: {key: pf[key] for key in ("link", "upstream") if key in pf} for pf in facts if "virtfns" in pf
    }
    for fact in facts:
        if "physfn" in fact:
            fact.update(shared.get(fact["physfn"], {}))


def _add_nvml(facts: list[Facts], gpus: Collection[str], answer: NvmlAnswer) -> Iterator[ProbeWarning]:
    """Add what NVML says of each of these GPUs, or why it says nothing. Yield one warning if it knows none of them."""
    if isinstance(answer, Unanswered):
        yield ProbeWarning(subject="NVML", text=f"{_NO_FACTS}: {answer.reason}")
    for fact in facts:
        if fact["address"] in gpus and fact.get("driver") == "nvidia":
            said = {"error": answer.reason} if isinstance(answer, Unanswered) else answer[fact["address"]]
            if known := _nvml(said):
                fact["nvml"] = known
            if "error" in said:
                fact["unknown"]["nvml"] = said["error"]
            if "error" in said and not isinstance(answer, Unanswered):
                yield ProbeWarning(subject=fact["address"], text=f"{_NO_FACTS}: {said['error']}")


def _nvml(said: Mapping[str, str]) -> Facts:
    facts: Facts = {key: said[key] for key in ("name", "uuid", "compute_mode") if key in said}
    facts |= {key: _MODES[said[key]] for key in ("persistence_mode", "mig_mode") if said.get(key) in _MODES}
    if re.fullmatch(r"[0-9]{1,18}", said.get("memory_bytes", ""), re.ASCII):
        facts["memory_bytes"] = int(said["memory_bytes"])
    return facts


def _made(facts: list[Facts], unread: dict[str, str]) -> tuple[Function, ...]:
    """Return the functions with these facts; add those that cannot be made to `unread`."""
    functions = []
    for fact in facts:
        address = str(fact["address"])
        try:
            functions.append(function_of(fact))
        except BadAddress as error:
            unread[address] = error.message
        except Exception as error:  # noqa: BLE001 - one function whose values cannot be made must not hide the others
            unread[address] = failure_of(error)
    return tuple(functions)


def _with_companions(functions: tuple[Function, ...]) -> tuple[Function, ...]:
    """Return each function with its companions: same card or same group, and no bridge."""
    groups: dict[int, list[PciAddress]] = {}
    for function in functions:
        if function.iommu_group is not None and not function.is_bridge:
            groups.setdefault(function.iommu_group, []).append(function.address)
    together: dict[PciAddress, set[PciAddress]] = {}
    for members in (*{*card_members(functions).values()}, *groups.values()):
        for member in members if len(members) > 1 else ():
            together.setdefault(member, set()).update(members)
    return tuple(
        replace(function, companions=in_order(together[function.address] - {function.address}))
        if function.address in together
        else function
        for function in functions
    )


def function_of(facts: Facts) -> Function:
    """Return the function with these facts. Raises BadAddress if its directory is not named as a function's."""
    for name, made in _MADE.items():
        if name in facts:
            facts[name] = made(facts[name])
    return Function(**facts)


def _addresses(texts: Iterable[str]) -> tuple[PciAddress, ...]:
    return tuple(map(known_address, texts))


@lru_cache(maxsize=4096)  # all VFs of a PF have the same
def _bars(bars: tuple[tuple[int, int, str, bool], ...]) -> tuple[Bar, ...]:
    return tuple(Bar(index=n, size=size, kind=kind, prefetchable=prefetchable) for n, size, kind, prefetchable in bars)


@lru_cache(maxsize=4096)
def _link(link: tuple[float | None, int | None, float | None, int | None]) -> Link:
    speed, width, max_speed, max_width = link
    return Link(speed=speed, width=width, max_speed=max_speed, max_width=max_width)


_MADE: Mapping[str, Callable[..., object]] = {
    "address": known_address,
    "bars": _bars,
    "link": _link,
    "physfn": known_address,
    "virtfns": _addresses,
    "mdevs": lambda texts: tuple(map(Uuid, texts)),
    "suppliers": _addresses,
    "consumers": _addresses,
    "upstream": lambda text: None if text is None else known_address(text),
    "nvml": lambda facts: Nvml(**facts),
}
"""How fields that are more than texts, numbers and tuples of these are made."""
