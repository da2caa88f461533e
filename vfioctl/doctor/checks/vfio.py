"""Checks of VFIO: its modules, nodes, drivers and ids. May not do input or output."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from vfioctl.doctor.model.facts import Facts, ModuleState
from vfioctl.doctor.model.result import Finding, failed, not_applicable, note, passed, unknown
from vfioctl.errors import some_of
from vfioctl.inventory.model.functions import Function, is_vfio_driver

_NODE, _IOMMUFD = "/dev/vfio/vfio", "/dev/iommu"
_EVERYONE = 0o666
_IDS_OPTION = re.compile(r"vfio[-_]pci\.ids=(\S+)")
_IDS_LINE = re.compile(r"^[ \t]*options[ \t]+vfio[-_]pci[ \t](.*)$", re.MULTILINE)
_ID = re.compile(
    r"([0-9a-f]{1,4}):([0-9a-f]{1,4})(?::([0-9a-f]{1,8}))?(?::([0-9a-f]{1,8}))?(?::[0-9a-f:]{1,18})?", re.ASCII
)
_ANY = 0xFFFFFFFF
"""PCI_ANY_ID."""
_MOST_IDS = 256
_LACKS_MEMORY = "The guest may lack what the variant offers, such as the memory of the GPU."
_LACKS_MIGRATION = "The guest lacks what the variant offers, such as migration."


def vfio_pci(facts: Facts) -> Iterator[Finding]:
    """Whether the running kernel has vfio-pci."""
    release = facts.release or "the running kernel"
    state = facts.vfio_pci
    if state is ModuleState.MISSING:
        evidence = f"no vfio-pci in modules.dep and modules.builtin of {release}"
        remedy = f"install the kernel's other modules: linux-modules-extra-{release} or kernel-modules-extra"
        yield failed(evidence, "No device can be bound to VFIO: the kernel has no vfio-pci.", remedy)
    elif state is ModuleState.UNKNOWN:
        evidence = f"no vfio-pci in /sys/bus/pci/drivers, and no /lib/modules/{release}"
        remedy = "after an update of the kernel, reboot; in a container, mount /lib/modules"
        yield unknown(evidence, "It could not be told whether the kernel has vfio-pci.", remedy)
    else:
        yield passed(f"vfio-pci is {state}")


def vfio_node(facts: Facts) -> Iterator[Finding]:
    """Whether there is a node through which VFIO is opened."""
    if not (facts.vfio_is_loaded and facts.has_dev):
        yield not_applicable("vfio-pci is not loaded" if facts.has_dev else "no /dev was captured")
    elif facts.nodes:
        yield passed(" and ".join(facts.nodes))
    else:
        meaning = "No program can use a device on VFIO."
        remedy = "load VFIO; in a container, give it /dev/vfio"
        yield failed(f"no {_NODE}, no {_IOMMUFD}", meaning, remedy, command="modprobe vfio")


def vfio_node_mode(facts: Facts) -> Iterator[Finding]:
    """Whether ordinary users may open /dev/vfio/vfio: each group's own node decides what they get."""
    mode = facts.nodes.get(_NODE)
    if mode is None:
        yield not_applicable(f"no {_NODE}" if _NODE not in facts.nodes else f"the mode of {_NODE} is not recorded")
    elif mode & _EVERYONE == _EVERYONE:
        yield passed(f"{_NODE} has the mode {mode:04o}")
    else:
        meaning = "Only root can use devices on VFIO: QEMU as another user fails with permission denied."
        remedy = f'chmod 0666 {_NODE}; for every boot, a udev rule: KERNEL=="vfio", MODE="0666"'
        yield failed(f"{_NODE} has the mode {mode:04o}", meaning, remedy, command=f"chmod 0666 {_NODE}")


def variant_driver(facts: Facts) -> Iterator[Finding]:
    """Whether a device is on vfio-pci although the kernel has a variant for it."""
    on_vfio = [function for function in facts.devices if function.on_vfio]
    plain = [function for function in on_vfio if function.driver == "vfio-pci" and _variant(function)]
    for is_physical_gpu in (True, False):
        found = tuple(f for f in plain if (f.is_gpu and not f.is_vf) is is_physical_gpu)
        if not found:
            continue
        evidence = some_of(f"{f.address} is on vfio-pci, and {_variant(f)} fits" for f in found)
        remedy = f"unbind it, and bind it again, which takes the variant: vfioctl bind {found[0].address}"
        command = f"vfioctl unbind {found[0].address}"
        addresses = tuple(f.address for f in found)
        if is_physical_gpu:
            yield failed(evidence, _LACKS_MEMORY, remedy, command=command, devices=addresses)
        else:
            yield note(evidence, _LACKS_MIGRATION, remedy, command=command, devices=addresses)
    if not plain:
        yield passed("every device on VFIO has its best driver") if on_vfio else not_applicable("no device is on VFIO")


def _variant(function: Function) -> str:
    variants = (name for name in function.available_drivers if is_vfio_driver(name) and name != "vfio-pci")
    return next((name for name in variants if name.replace("_", "-") != "vfio-pci"), "")


class _Id(NamedTuple):
    """One id of the option ids=, as vfio-pci reads it (drivers/vfio/pci/vfio_pci.c, vfio_pci_fill_ids)."""

    source: str
    text: str
    model: tuple[str, str]
    subsystem: tuple[str, str]
    """Empty texts stand for any."""

    def fits(self, function: Function) -> bool:
        have = (function.subsystem_vendor_id, function.subsystem_device_id)
        return all(wanted in ("", known) for wanted, known in zip(self.subsystem, have, strict=True))


def vfio_ids(facts: Facts) -> Iterator[Finding]:
    """Whether ids that vfio-pci is given at boot take more devices than one."""
    for file in facts.modprobe:
        if file.refused:
            yield file.not_told()
    ids = list(_ids(facts))
    twins = 0
    for known in ids:
        taken = tuple(f.address for f in facts.by_model.get(known.model, ()) if known.fits(f))
        if len(taken) > 1:
            twins += 1
            evidence = f"{known.source}: ids={known.text} takes {some_of(taken)}"
            meaning = "At boot vfio-pci takes every device with these ids, also one that the host needs."
            remedy = f"remove {known.text} there, and bind single devices by their addresses"
            yield failed(evidence, meaning, remedy, command=f"vfioctl bind {taken[0]}", devices=taken)
    if ids and not twins:
        yield passed(f"{ids[0].source}: ids={some_of([known.text for known in ids])} takes single devices")
    elif not ids and not any(file.refused for file in facts.modprobe):
        yield not_applicable("no ids= for vfio-pci in /proc/cmdline or modprobe.d")


def _ids(facts: Facts) -> Iterator[_Id]:
    options = [("/proc/cmdline", text) for text in _IDS_OPTION.findall(facts.command_line.text or "")]
    for file in facts.modprobe:
        words = [word for line in _IDS_LINE.findall(file.text or "") for word in line.split()]
        options += [(file.path, word.removeprefix("ids=")) for word in words if word.startswith("ids=")]
    texts = (
        (source, text.strip('"')) for source, option in options for text in option.split(",", _MOST_IDS)[:_MOST_IDS]
    )
    for source, text in islice(dict.fromkeys(texts), _MOST_IDS):
        if match := _ID.fullmatch(text.lower()):
            vendor, device, *subsystem = (_four_digits(part) for part in match.groups())
            yield _Id(source, text, (vendor, device), (subsystem[0], subsystem[1]))


def _four_digits(digits: str | None) -> str:
    """Return an id as sysfs has it; empty for any (PCI_ANY_ID)."""
    return "" if digits is None or int(digits, 16) == _ANY else f"{int(digits, 16):04x}"
