"""The check of who has a device first at boot: VFIO, or another driver. May not do input or output."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from vfioctl.console.words import counted
from vfioctl.doctor.checks.vfio import given_ids, taken_by
from vfioctl.doctor.model.facts import Facts, FileText
from vfioctl.doctor.model.result import Finding, failed, not_applicable, note, passed, unknown
from vfioctl.errors import some_of
from vfioctl.inventory.model.functions import Function, is_vfio_driver
from vfioctl.inventory.model.values import PciAddress
from vfioctl.persist.model.persistent import Owner

_LEFT_OUT = "omit_drivers"
"""What dracut is told to leave out of an initramfs."""
_KMS = "kms"
"""The hook of mkinitcpio that puts drivers of GPUs into the initramfs."""
_WORD = re.compile(r"[A-Za-z0-9_-]+")


class Meant(NamedTuple):
    """A function that a boot should give to VFIO."""

    function: Function
    source: str
    """The file that says so."""
    is_own: bool
    """Whether vfioctl restores it: then it takes the function from another driver, if nothing uses it."""


def meant_for_vfio(facts: Facts) -> tuple[Meant, ...]:
    """Return the functions that a boot should give to VFIO, each once."""
    return tuple({meant.function.address: meant for meant in reversed(tuple(_meant(facts)))}.values())[::-1]


def _meant(facts: Facts) -> Iterator[Meant]:
    known = facts.inventory.by_address
    for entry in facts.persistent:
        name = entry.now or entry.name
        if entry.owner in (Owner.VFIOCTL, Owner.DRIVERCTL) and is_vfio_driver(entry.goal) and name in known:
            yield Meant(known[PciAddress(name)], entry.file, entry.owner is Owner.VFIOCTL)
    for source, known_id in given_ids(facts):
        for function in taken_by(facts, known_id):
            yield Meant(function, source, is_own=False)


def first_driver(facts: Facts) -> Iterator[Finding]:
    """Whether another driver has a device before VFIO at boot: it is built into the kernel or in the initramfs, or VFIO
    was loaded too late."""
    meant = meant_for_vfio(facts)
    if facts.switched_off:
        meant = tuple(one for one in meant if not one.is_own)
    if not meant:
        yield not_applicable("no device is meant for VFIO at boot")
        return
    findings = [finding for one in meant for finding in _judged(facts, one)]
    unread = [file for file in facts.initramfs if file.refused]
    if findings:
        yield from findings
    elif unread:
        yield unread[0].not_told()
    else:
        yield passed(f"no other driver is known to come before VFIO for {counted(len(meant), 'device')}")


def _judged(facts: Facts, meant: Meant) -> Iterator[Finding]:
    function, address = meant.function, meant.function.address
    taken = "" if function.on_vfio else function.driver or ""
    comes_first = facts.in_initramfs and meant.is_own and not taken and not facts.outdated_initramfs
    reasons = list(_reasons(facts, function, taken, initramfs=() if comes_first else facts.initramfs))
    why = "; ".join(reasons)
    if taken and not meant.is_own:
        evidence = f"{meant.source} gives {address} to VFIO, and {taken} has it{f': {why}' if why else ''}"
        meaning = "VFIO was loaded after that driver, which keeps the device; or the device was unbound since."
        remedy, command = "bind it at each boot, whoever had it first:", f"vfioctl bind {address} --persistent"
        yield failed(evidence, meaning, remedy, command=command, devices=(address,))
    elif taken and why:
        meaning = "That driver has the device before VFIO at each boot, and it was not taken from it in this one."
        yield failed(f"{address} is on {taken}: {why}", meaning, _remedy(reasons), devices=(address,))
    elif taken:
        meaning = "It could not be told which driver had it first in this boot."
        yield unknown(f"{meant.source}: {address} is on {taken}", meaning, command="vfioctl persist restore --dry-run")
    elif why:
        meaning = "That driver has the device first at each boot. Taking it back fails if something uses it."
        yield note(f"{address}: {why}", meaning, _remedy(reasons), devices=(address,))


def _reasons(facts: Facts, function: Function, taken: str, *, initramfs: Iterable[FileText]) -> Iterator[str]:
    """Yield why another driver comes first, in words. `initramfs`: the settings that count for this function."""
    built_in = facts.built_in.get(function.address, ())
    if built_in:
        yield f"{some_of(built_in)} is built into the kernel"
    native = [name for name in function.available_drivers if not is_vfio_driver(name)]
    drivers = dict.fromkeys(filter(None, (taken, *native)))
    for file in initramfs:
        words = _words(file.text or "")
        if inside := [driver for driver in drivers if driver.replace("-", "_") in words]:
            yield f"{file.path} puts {some_of(inside)} into the initramfs"
        elif function.is_gpu and native and "hooks" in words and _KMS in words:
            yield f"{file.path} puts drivers of GPUs into the initramfs, with the hook {_KMS}"


def _words(text: str) -> frozenset[str]:
    """Return the words of a file's settings, in the spelling of modules."""
    lines = (line.partition("#")[0] for line in text.splitlines())
    settings = " ".join(line for line in lines if _LEFT_OUT not in line)
    return frozenset(word.lower().replace("-", "_") for word in _WORD.findall(settings))


def _remedy(reasons: list[str]) -> str:
    if any("initramfs" in reason for reason in reasons):
        return "run vfioctl install and renew the initramfs: update-initramfs -u or dracut -f; or take the driver out"
    return "nothing to do while `vfioctl persist check` finds it restored; else use a kernel with it as a module"
