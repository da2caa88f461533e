"""Turns virtual functions of a simulated host on and off. Each rule is named after the kernel function it mirrors.
Sources: drivers/pci/iov.c, drivers/vfio/pci/vfio_pci_core.c of Linux 6.1, and observations of a real kernel with an
nvme. The attributes of a VF are kept while it is off, so that the next VF with its address has the same ones."""

from __future__ import annotations

import errno as errnos
import json
import posixpath
import re
from contextlib import suppress

from vfioctl.kernel.protocol import IOMMU_GROUPS, PCI_DEVICES
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated import class_devices, drivers, groups
from vfioctl.kernel.simulated.capacity import facts_of, instances_of, number_at, virtual_functions
from vfioctl.kernel.simulated.faults import Refusal, WouldBlock, kstrtoul
from vfioctl.untrusted_text import parse_json

NVIDIA = "nvidia"
# Drivers without sriov_configure. vfio-pci has one only with enable_sriov; gim creates its VFs when it is loaded.
_WITHOUT_CONFIGURE = ("gim",)
_VF_BARS, _BARS = 7, 6
_SAME_AS_PF = (
    *("class", "revision", "subsystem_device", "subsystem_vendor"),
    *("local_cpulist", "numa_node", "power/control", "power_state"),
)


def sriov_numvfs_store(tree: Tree, path: str, value: str) -> None:
    physical = posixpath.dirname(path)
    try:
        count = kstrtoul(value, bits=16)
    except Refusal:
        raise Refusal(errnos.EINVAL) from None  # sriov_numvfs_store returns EINVAL for every failure of kstrtou16
    if count > number_at(tree, f"{physical}/sriov_totalvfs"):
        raise Refusal(errnos.ERANGE)
    now = number_at(tree, path)
    if count == now:
        return
    driver = groups.driver_of(tree, physical)
    if driver is None or not _has_configure(tree, driver):
        raise Refusal(errnos.ENOENT)
    if driver == NVIDIA:
        # Reports differ on whether this write works. Refusing it keeps plans from relying on it.
        raise Refusal(errnos.EPERM)
    if count and now:
        raise Refusal(errnos.EBUSY)
    if count:
        sriov_enable(tree, physical, count)
    else:
        sriov_disable(tree, physical)


def _has_configure(tree: Tree, driver: str) -> bool:
    if groups.is_vfio(driver):
        return tree.files.get("/sys/module/vfio_pci/parameters/enable_sriov", "N") == "Y"
    return driver not in _WITHOUT_CONFIGURE


def sriov_enable(tree: Tree, physical: str, count: int) -> list[str]:
    """Creates VFs. Drivers bind them if `sriov_drivers_autoprobe` allows it; VFs of a PF on vfio-pci get vfio-pci."""
    functions = [pci_iov_add_virtfn(tree, physical, number) for number in range(count)]
    tree.put(f"{physical}/sriov_numvfs", str(count))
    owner = groups.driver_of(tree, physical) or ""
    for function in functions:
        if groups.is_vfio(owner):  # vfio_pci_bus_notifier
            drivers.driver_set_override(tree, function, owner)
        with suppress(Refusal):
            drivers.device_attach(tree, function)
    return functions


def sriov_disable(tree: Tree, physical: str) -> None:
    """Removes the VFs from the first to the last, the links of each first. Raises WouldBlock at a VF that is held."""
    facts = facts_of(tree, physical)
    begun = [facts["going"]] if "going" in facts else []
    for entry in (*begun, *virtual_functions(tree, physical)):
        function, _, driver = entry.partition(" ")
        _unlink(tree, physical, function)
        is_held = groups.opened(tree, function)
        if bound := groups.driver_of(tree, function):
            facts["going"] = f"{function} {bound}"
            drivers.device_driver_detach(tree, function)
            if is_held:
                raise WouldBlock(function)
        elif driver:
            drivers.device_remove(tree, function, driver)
        _remove(tree, function)
        facts.pop("going", None)
    tree.put(f"{physical}/sriov_numvfs", "0")


def remove_vfs_of(tree: Tree, device: str, driver: str) -> None:
    """NVIDIA's driver removes the VFs when it is unbound from the PF; others leave them ("left SR-IOV enabled")."""
    if driver == NVIDIA and f"{device}/sriov_numvfs" in tree.files:
        sriov_disable(tree, device)


def sriov_manage(tree: Tree, address: str, *, on: bool) -> str:
    """NVIDIA's tool: turns all VFs on or off, each on the driver nvidia. Returns its output; it may do nothing."""
    physical = tree.resolve(f"{PCI_DEVICES}/{address}")
    if groups.driver_of(tree, physical) != NVIDIA or not number_at(tree, f"{physical}/sriov_totalvfs"):
        return f"Error: GPU {address} is not on the driver nvidia, or has no VFs"
    functions = virtual_functions(tree, physical)
    if any(kind for function in functions for kind in instances_of(tree, function)):
        return f"GPU {address} has vGPUs; nothing was done"
    if on == bool(functions):
        return f"VFs of GPU {address} are {'enabled' if on else 'disabled'} already"
    if not on:
        sriov_disable(tree, physical)
        return f"Disabling VFs on {address}"
    for function in sriov_enable(tree, physical, number_at(tree, f"{physical}/sriov_totalvfs")):
        if groups.driver_of(tree, function) is None:
            drivers.really_probe(tree, function, NVIDIA)
    return f"Enabling VFs on {address}"


def pci_iov_add_virtfn(tree: Tree, physical: str, number: int) -> str:
    """Creates VF `number`, with a group of its own if there is an IOMMU, and without a driver."""
    address = _address(tree, physical, number)
    function = f"{posixpath.dirname(physical)}/{address}"
    kept = parse_json(facts_of(tree, function).pop("function", "{}"))
    for path, fact in kept.items():
        class_devices.put_back(tree, path, fact)
    if not kept:
        _put_attributes(tree, physical, function)
    tree.put(f"{function}/driver_override", drivers.NO_OVERRIDE)
    tree.put(f"{function}/enable", "0")
    groups.link(tree, f"{PCI_DEVICES}/{address}", function)
    if group := groups.group_of(tree, physical):
        groups.iommu_group_alloc(tree, function, kind=tree.files.get(f"{IOMMU_GROUPS}/{group}/type", "identity"))
    if f"{function}/iommu" in tree.links:
        groups.link(tree, f"{tree.resolve(f'{function}/iommu')}/devices/{address}", function)
    groups.link(tree, f"{function}/physfn", physical)
    groups.link(tree, f"{physical}/virtfn{number}", function)
    if f"{physical}/sriov_admin/vf{number + 1}" in tree.directories:
        groups.link(tree, f"{physical}/sriov_admin/vf{number + 1}/device", function)
    return function


def _put_attributes(tree: Tree, physical: str, function: str) -> None:
    """Gives a VF the attributes that every VF has, most of them those of its PF."""
    texts = {name: tree.files[f"{physical}/{name}"] for name in _SAME_AS_PF if f"{physical}/{name}" in tree.files}
    vendor, device = (tree.files.get(f"{physical}/{name}", "0x0000") for name in ("vendor", "device"))
    device = f"0x{own}" if (own := tree.files.get(f"{physical}/sriov_vf_device")) else device
    modalias = tree.files.get(f"{physical}/modalias", "")
    own_modalias = re.sub(r"d[0-9A-F]{8}(?=sv)", f"d{int(device, 16):08X}", modalias)
    texts |= {"vendor": vendor, "device": device, "modalias": own_modalias, "d3cold_allowed": "1"}
    texts |= {"resource": _resource(tree, physical, function), "reset_method": "flr"}
    for name, text in texts.items():
        tree.put(f"{function}/{name}", text)
    tree.put_refused(f"{function}/reset", errnos.EACCES)  # write-only
    groups.link(tree, f"{function}/subsystem", "/sys/bus/pci")
    if f"{physical}/iommu" in tree.links:
        groups.link(tree, f"{function}/iommu", tree.resolve(f"{physical}/iommu"))
    if known := tree.properties.get(f"hwdb:{modalias}"):
        tree.properties.setdefault(f"hwdb:{own_modalias}", dict(known))
    if native := facts_of(tree, physical).get("native"):
        facts_of(tree, function).setdefault("native", native)


def _resource(tree: Tree, physical: str, function: str) -> str:
    """The VF's share of the space that the PF has for all VFs (pci_iov_resource_size)."""
    lines = tree.files.get(f"{physical}/resource", "").split("\n")
    offset, stride = _placing(tree, physical)
    number = (_routing_id(function) - _routing_id(physical) - offset) // stride
    shares = []
    for line in lines[_VF_BARS : _VF_BARS + _BARS]:
        start, end, flags = (int(word, 16) for word in line.split())
        size = (end - start + 1) // max(1, number_at(tree, f"{physical}/sriov_totalvfs")) if end else 0
        at = start + number * size
        shares.append((at, at + size - 1, flags) if size else (0, 0, 0))
    rows = [*shares, *[(0, 0, 0)] * (len(lines) - len(shares))]
    return "\n".join(" ".join(f"0x{word:016x}" for word in row) for row in rows)


def _unlink(tree: Tree, physical: str, function: str) -> None:
    for name in tuple(tree.directories[physical]):
        if name.startswith("virtfn") and tree.resolve(f"{physical}/{name}") == function:
            tree.remove(f"{physical}/{name}")
            tree.remove(f"{physical}/sriov_admin/vf{int(name[6:]) + 1}/device")
    tree.remove(f"{function}/physfn")


def _remove(tree: Tree, function: str) -> None:
    """pci_stop_and_remove_bus_device."""
    address = posixpath.basename(function)
    groups.iommu_group_remove_device(tree, function)
    if f"{function}/iommu" in tree.links:
        tree.remove(f"{tree.resolve(f'{function}/iommu')}/devices/{address}")
    tree.remove(f"{PCI_DEVICES}/{address}")
    facts_of(tree, function)["function"] = json.dumps(class_devices.taken(tree, function))


def _address(tree: Tree, physical: str, number: int) -> str:
    """The address of VF `number` (pci_iov_virtfn_bus, pci_iov_virtfn_devfn)."""
    offset, stride = _placing(tree, physical)
    routing = _routing_id(physical) + offset + number * stride
    domain = posixpath.basename(physical).split(":")[0]
    return f"{domain}:{routing >> 8 & 0xFF:02x}:{routing >> 3 & 0x1F:02x}.{routing & 7}"


def _placing(tree: Tree, physical: str) -> tuple[int, int]:
    """Offset and stride; 1 and 1, the most common values, if they were not recorded."""
    return number_at(tree, f"{physical}/sriov_offset") or 1, number_at(tree, f"{physical}/sriov_stride") or 1


def _routing_id(function: str) -> int:
    bus, device, number = re.split(r"[:.]", posixpath.basename(function))[1:]
    return int(bus, 16) << 8 | int(device, 16) << 3 | int(number)
