"""What a check found. May not do input or output."""

from __future__ import annotations

from enum import StrEnum

from vfioctl.core.frozen import record_class
from vfioctl.inventory.model.values import PciAddress


class Status(StrEnum):
    """What a check came to."""

    FAIL = "fail"
    """It stops or harms passthrough."""
    UNKNOWN = "unknown"
    """It could not be told."""
    NOTE = "note"
    """It works; there is something to know."""
    PASS = "pass"  # noqa: S105 - no password
    NOT_APPLICABLE = "not applicable"
    """This host has nothing that it concerns."""


@record_class
class Finding:
    """What a check found. `evidence`: what was read; `meaning` and `remedy`: empty if all is well."""

    status: Status
    evidence: str
    """What was read: a file and its value, or devices."""
    meaning: str = ""
    remedy: str = ""
    """What mends it, in words."""
    command: str = ""
    """The command line that mends it, or tells more."""
    devices: tuple[PciAddress, ...] = ()
    """The functions that it concerns; none if it is the whole host."""


@record_class
class Result:
    """One finding of one check."""

    check: str
    """The name of the check, such as `iommu`, which stays the same in later releases."""
    status: Status
    evidence: str
    """What was read: a file and its value, or devices."""
    meaning: str
    """What it means for passthrough; empty if all is well."""
    remedy: str
    """What mends it, in words; empty if a command says it, or if there is nothing to mend."""
    command: str
    """The command line that mends it, or tells more; empty if there is none."""
    devices: tuple[PciAddress, ...]
    """The functions that it concerns; none if it is the whole host."""


@record_class
class DoctorDocument:
    """The JSON document of `vfioctl doctor --json`."""

    ok: bool
    """Whether no check failed and every one could be told."""
    failed: int
    """The number of findings that stop or harm passthrough."""
    unknown: int
    """The number of findings that could not be told."""
    results: tuple[Result, ...]
    """What each check found, in the order of the checks; those that do not apply too."""


def document_of(results: tuple[Result, ...]) -> DoctorDocument:
    """Return the document of these results."""
    failed = sum(result.status is Status.FAIL for result in results)
    unknown = sum(result.status is Status.UNKNOWN for result in results)
    return DoctorDocument(ok=not (failed or unknown), failed=failed, unknown=unknown, results=results)


Devices = tuple[PciAddress, ...]


def passed(evidence: str) -> Finding:
    """Return the finding that all is well."""
    return Finding(status=Status.PASS, evidence=evidence)


def failed(evidence: str, meaning: str, remedy: str = "", *, command: str = "", devices: Devices = ()) -> Finding:
    """Return the finding of a problem."""
    return _finding(Status.FAIL, evidence, meaning, remedy, command, devices)


def note(evidence: str, meaning: str, remedy: str = "", *, command: str = "", devices: Devices = ()) -> Finding:
    """Return the finding of something to know."""
    return _finding(Status.NOTE, evidence, meaning, remedy, command, devices)


def unknown(evidence: str, meaning: str, remedy: str = "", *, command: str = "", devices: Devices = ()) -> Finding:
    """Return the finding that it could not be told."""
    return _finding(Status.UNKNOWN, evidence, meaning, remedy, command, devices)


def not_applicable(evidence: str) -> Finding:
    """Return the finding that this host has nothing that the check concerns."""
    return Finding(status=Status.NOT_APPLICABLE, evidence=evidence)


def _finding(status: Status, evidence: str, meaning: str, remedy: str, command: str, devices: Devices) -> Finding:
    return Finding(status=status, evidence=evidence, meaning=meaning, remedy=remedy, command=command, devices=devices)
