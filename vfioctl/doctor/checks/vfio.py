"""Checks of VFIO: its modules, nodes, drivers and ids. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from vfioctl.binding.model.given_ids import COMMAND_LINE, GivenId, ids_in, ids_in_modprobe, ids_on_command_line
from vfioctl.doctor.model.facts import Facts, ModuleState, addresses_of
from vfioctl.doctor.model.result import Finding, failed, not_applicable, note, passed, unknown
from vfioctl.errors import some_of
from vfioctl.inventory.model.functions import Function, is_vfio_driver

_NODE, _IOMMUFD = "/dev/vfio/vfio", "/dev/iommu"
_EVERYONE, _OF_GROUP = 0o666, 0o660
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
    """Whether ordinary users may open /dev/vfio/vfio, and /dev/iommu if a claim gives somebody a node that needs it:
    each device's own node decides what they get."""
    judged = [_NODE, *([_IOMMUFD] if facts.iommufd_claims and _IOMMUFD in facts.nodes else ())]
    modes = {path: mode for path in judged if (mode := facts.nodes.get(path)) is not None}
    if not modes:
        why = f"the mode of {judged[-1]} is not recorded" if judged[-1] in facts.nodes else f"no {_NODE}"
        yield not_applicable(why)
        return
    closed = [path for path, mode in modes.items() if not _is_open(mode, facts.node_groups.get(path, ""))]
    shown = {path: _permissions(path, mode, facts.node_groups.get(path, "root")) for path, mode in modes.items()}
    if _NODE in closed:
        meaning = "Only root can use devices on VFIO: QEMU as another user fails with permission denied."
        remedy = f'chmod 0666 {_NODE}; for every boot, a udev rule: KERNEL=="vfio", MODE="0666"'
        yield failed(shown[_NODE], meaning, remedy, command=f"chmod 0666 {_NODE}")
    if _IOMMUFD in closed:
        evidence = f"{shown[_IOMMUFD]}; others may open devices of claim {some_of(facts.iommufd_claims)}"
        meaning = "Only root can use them through iommufd: QEMU as another user fails with permission denied."
        remedy = 'give it to a group of theirs; at boot, a udev rule: KERNEL=="iommu", GROUP="GROUP", MODE="0660"'
        finding = note if _NODE in facts.nodes else failed  # with /dev/vfio/vfio there is another way
        yield finding(evidence, meaning, remedy, command=f"chgrp GROUP {_IOMMUFD} && chmod 0660 {_IOMMUFD}")
    if not closed:
        yield passed("; ".join(shown.values()))


def _is_open(mode: int, group: str) -> bool:
    """Return whether others than root may open a node: all, or the members of a group."""
    return mode & _EVERYONE == _EVERYONE or (bool(group) and mode & _OF_GROUP == _OF_GROUP)


def _permissions(path: str, mode: int, group: str) -> str:
    whose = "" if mode & _EVERYONE == _EVERYONE else f" and the group {group}"
    return f"{path} has the mode {mode:04o}{whose}"


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


def vfio_ids(facts: Facts) -> Iterator[Finding]:
    """Whether ids that vfio-pci is given at boot take a device that the host needs. Ids that take several devices, all
    of which are for guests, are usual."""
    for file in facts.modprobe:
        if file.refused:
            yield file.not_told()
    ids, several = list(given_ids(facts)), False
    for source, known in ids:
        taken = taken_by(facts, known)
        if len(taken) > 1:
            several = True
            yield _of_several(source, known, taken)
    if ids and not several:
        yield passed(f"{ids[0][0]}: ids={some_of([known.text for _, known in ids])} takes single devices")
    elif not ids and not any(file.refused for file in facts.modprobe):
        yield not_applicable("no ids= for vfio-pci in /proc/cmdline or modprobe.d")


def _of_several(source: str, known: GivenId, taken: Sequence[Function]) -> Finding:
    evidence = f"{source}: ids={known.text} takes {some_of(addresses_of(taken))}"
    needed = [function for function in taken if not function.on_vfio and (function.driver or function.boot_vga)]
    if needed:
        shown = some_of(f"{f.address} ({f.driver or 'the boot display'})" for f in needed)
        meaning = "At boot vfio-pci takes every device with these ids, also those that the host uses now."
        remedy = f"remove {known.text} there, and bind single devices by their addresses"
        bind = f"vfioctl bind {next((f for f in taken if f not in needed), needed[0]).address}"
        return failed(f"{evidence}; the host uses {shown}", meaning, remedy, command=bind, devices=addresses_of(taken))
    meaning = "At boot vfio-pci takes every device with these ids, also one that is added later."
    remedy = f"nothing, if all of them are for guests; else bind them by address, and remove {known.text} there"
    return note(evidence, meaning, remedy, devices=addresses_of(taken))


def given_ids(facts: Facts) -> Iterator[tuple[str, GivenId]]:
    """Yield the ids that vfio-pci is given at boot, each with the file that says so."""
    options = [(COMMAND_LINE, ids) for ids in ids_on_command_line(facts.command_line.text or "")]
    options += [(file.path, ids) for file in facts.modprobe for ids in ids_in_modprobe(file.text or "")]
    return islice(((source, known) for source, ids in dict.fromkeys(options) for known in ids_in(ids)), _MOST_IDS)


def taken_by(facts: Facts, known: GivenId) -> tuple[Function, ...]:
    """Return the functions that vfio-pci takes because of an id."""
    candidates = facts.by_model.get(known.model, ()) if known.model else facts.inventory.functions
    return tuple(function for function in candidates if known.fits(function))
