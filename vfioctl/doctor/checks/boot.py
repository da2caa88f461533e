"""Checks of what each boot restores. Each is pure."""

from __future__ import annotations

from collections.abc import Iterator

from vfioctl.doctor.model.facts import Facts
from vfioctl.doctor.model.result import Finding, failed, not_applicable, note, passed, unknown
from vfioctl.persist.model.persistent import Owner, State

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
            moved = entry.state is State.MOVED
            command = f"vfioctl bind {entry.now} --persistent" if moved else "vfioctl persist restore --dry-run"
            yield failed(f"{entry.file}: {entry.why or entry.state}", _WHAT[entry.state], command=command)
    if all(entry.is_well for entry in own) and not facts.switched_off:
        yield passed("vfioctl persist list: all of it is there")


def boot_files(facts: Facts) -> Iterator[Finding]:
    """Whether the udev rule, the units and the script that restore at boot are installed and current."""
    if not any(entry.owner is Owner.VFIOCTL for entry in facts.persistent):
        yield not_applicable("nothing is persistent")
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
    else:
        whose = "the package vfioctl of this system" if facts.has_package else "vfioctl install"
        yield passed(f"the udev rule, the units and the script of {whose} are in place")
