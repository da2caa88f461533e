"""Checks of what each boot restores. Each is pure."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from vfioctl.doctor.model.facts import Facts
from vfioctl.doctor.model.result import Finding, failed, not_applicable, note, passed, unknown
from vfioctl.kernel.host_paths import DEVICES
from vfioctl.persist.model.persistent import Owner, Persistent, State

_WHAT = {
    State.MOVED: "It is at another address than its definition has.",
    State.ABSENT: "The last boot did not restore it, or it was changed since.",
    State.FAILED: "A boot cannot restore it, and takes nothing in its place.",
}


def persistent(facts: Facts) -> Iterator[Finding]:
    """Whether what a boot restores is there."""
    if facts.persist_problem:
        yield unknown(facts.persist_problem, "What a boot restores is not known.", "run it as root")
        return
    own = [entry for entry in facts.persistent if entry.owner is Owner.VFIOCTL]
    if not own:
        yield not_applicable("nothing is persistent")
        return
    if facts.switched_off:
        meaning = "Persistent devices keep their own drivers at boot."
        yield note(facts.switched_off, meaning, "remove it", command="vfioctl persist restore")
    for entry in own:
        if not entry.is_well:
            remedy, command = _mended(entry)
            yield failed(f"{entry.file}: {entry.why or entry.state}", _WHAT[entry.state], remedy, command=command)
    if all(entry.is_well for entry in own) and not facts.switched_off:
        yield passed("vfioctl persist list: all of it is there")


def _mended(entry: Persistent) -> tuple[str, str]:
    """Return what to do about an entry, and the command for it."""
    if entry.state is State.MOVED:
        return "", f"vfioctl bind {entry.now} --persistent"
    if entry.state is State.ABSENT:
        return "", "vfioctl persist restore --dry-run"
    is_device = entry.file.startswith(f"{DEVICES}/")
    renew = f"vfioctl bind {quote(entry.name)} --persistent defines anew what is there now; " if is_device else ""
    return f"{renew}if it is gone for good:", f"vfioctl persist remove {quote(entry.name)}"


def boot_files(facts: Facts) -> Iterator[Finding]:
    """Whether the udev rule, the units and the script that restore at boot are installed and current, and so is the
    initramfs."""
    if not any(entry.owner is Owner.VFIOCTL for entry in facts.persistent):
        yield (
            _outdated(facts.outdated_initramfs) if facts.outdated_initramfs else not_applicable("nothing is persistent")
        )
    elif facts.not_installed:
        names, meaning = ", ".join(facts.not_installed), "The next boot does not restore what is persistent."
        if not facts.has_package:
            yield failed(f"missing, or of another release: {names}", meaning, command="vfioctl install")
        elif all(name.startswith("/usr/") for name in facts.not_installed):
            evidence = f"of another release than this vfioctl: {names}"
            yield failed(evidence, "The next boot does as that release does.", "install one release only")
        else:
            evidence = f"beside the package of this system, and first in turn, or turned off: {names}"
            yield failed(evidence, meaning, command="vfioctl install")
    elif facts.outdated_initramfs:
        yield _outdated(facts.outdated_initramfs)
    else:
        whose = "the package vfioctl of this system" if facts.has_package else "vfioctl install"
        yield passed(f"the udev rule, the units and the script of {whose} are in place")


def _outdated(why: str) -> Finding:
    evidence, _, command = why.rpartition(": ")
    return note(evidence, "It binds at boot what was persistent when it was made.", "renew it", command=command)
