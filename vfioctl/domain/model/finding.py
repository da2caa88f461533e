"""What is wrong with a domain's XML. May not do input or output."""

from __future__ import annotations

from enum import StrEnum

from vfioctl.core.frozen import record_class


class Severity(StrEnum):
    """Whether the domain would work."""

    ERROR = "error"
    """libvirt refuses it, it does not start, or it is not what its author means."""
    WARNING = "warning"
    """It works, but slower, or not everywhere."""


@record_class
class Finding:
    """One thing that is wrong with a document, and its remedy."""

    rule: str
    """The name of the rule, such as `pin-vcpu`, which stays the same in later releases."""
    severity: Severity
    path: str
    """Where: `/domain/devices/hostdev[2]/source/address`."""
    line: int | None
    """The line of the document, from 1; None if it was not read from text."""
    reason: str
    remedy: str


@record_class
class CheckDocument:
    """The JSON document of `vfioctl domain check --json`."""

    ok: bool
    """Whether the domain would work, as far as it was judged."""
    domain: str | None
    """Its name."""
    host: bool
    """Whether it was judged against a host; False with --no-host."""
    findings: tuple[Finding, ...]
    """In the order of the document."""
    unknown: tuple[str, ...] = ()
    """What could not be judged, and why."""
