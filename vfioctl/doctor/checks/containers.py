"""Checks of what container runtimes are told of devices. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator

from vfioctl.console.words import counted
from vfioctl.doctor.model.facts import CdiFile, Facts
from vfioctl.doctor.model.result import Finding, failed, not_applicable, passed, unknown
from vfioctl.errors import some_of

_MOST = 3


def cdi(facts: Facts) -> Iterator[Finding]:
    """Whether vfioctl's CDI files are valid, and their nodes exist."""
    if facts.cdi_problem:
        yield unknown(facts.cdi_problem, "Whether CDI files are valid is not known.", "run it as root")
        return
    if not facts.cdi:
        yield not_applicable("no CDI file of vfioctl in /etc/cdi and /var/run/cdi")
        return
    findings = [finding for file in facts.cdi for finding in _judged(file)]
    yield from findings
    if not findings:
        yield passed(f"{some_of(file.path for file in facts.cdi)}: valid, and its nodes exist")


def _judged(file: CdiFile) -> Iterator[Finding]:
    again = "vfioctl cdi generate"
    if file.unread is not None:
        yield file.unread.not_told()
        return
    if file.problems:
        meaning = "Container runtimes refuse this file: no container gets a device by a name in it."
        yield failed(f"{file.path}: {some_of(file.problems, _MOST)}", meaning, command=again)
    if file.missing:
        meaning = "A container that asks for such a device does not start."
        yield failed(f"{file.path} names {some_of(file.missing, _MOST)}, and it does not exist", meaning, command=again)
    if file.twins:
        meaning = "Of two files that define one name, runtimes take one or neither."
        remedy = "remove the file that nothing needs"
        yield failed(f"{file.path} and {some_of(file.twins, _MOST)}", meaning, remedy, command="vfioctl cdi list")


def kata(facts: Facts) -> Iterator[Finding]:
    """Whether Kata's settings, CDI names and what the kubelet reports fit together for the devices of pods."""
    wrong = [line for line in facts.kata if line.is_well is False]
    if facts.kata_problem:
        yield unknown(facts.kata_problem, "Whether Kata's guests can have devices is not known.", "run it as root")
    elif not facts.kata:
        yield not_applicable("Kata is not installed, or gets no device")
    elif wrong:
        for line in wrong:
            meaning = "A pod whose runtime is Kata does not get its devices, or not all of them."
            yield failed(f"{line.name}: {line.found}", meaning, line.remedy, command="vfioctl kata check")
    else:
        unread = [line.name for line in facts.kata if line.is_well is None]
        left = f"; not checked: {some_of(unread)}" if unread else ""
        yield passed(f"vfioctl kata check: {counted(len(facts.kata) - len(unread), 'line')} well{left}")
