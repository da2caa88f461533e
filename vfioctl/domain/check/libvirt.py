"""Asks libvirt what it says of a domain's XML: its schema, its parser, QEMU's command line. Changes nothing there."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from vfioctl.domain.document.xml import parse, text_of
from vfioctl.domain.model.finding import Finding, Severity
from vfioctl.domain.model.libvirt import is_elsewhere
from vfioctl.domain.probe.domains import read_libvirt, to_native, validate
from vfioctl.errors import BadDocument, HostError, RequestError, UnknownDomain

if TYPE_CHECKING:
    from vfioctl.domain.model.libvirt import Libvirt
    from vfioctl.kernel.protocol import Reader

_NO_VFIO = "passthrough type 'default'"
"""What libvirt says on a host without VFIO of a device that does not name its driver."""


class Asked(NamedTuple):
    """What libvirt says."""

    version: tuple[int, ...] | None = None
    """None if it cannot be asked."""
    findings: tuple[Finding, ...] = ()
    unknown: tuple[str, ...] = ()
    libvirt: Libvirt | None = None
    """It and its domains; None if it cannot be asked, or is on another machine."""


NOT_ASKED = Asked()


def ask(kernel: Reader, uri: str, given: str | bytes) -> Asked:
    """Return libvirt's version, and why it refuses the document. What cannot be asked is unknown. Raises BadDocument.

    It gets the document as it is, or in libvirt's own form if that is not in UTF-8.
    """
    document = parse(given)
    try:
        text = given if isinstance(given, str) else given.decode()
    except UnicodeDecodeError:
        text = text_of(document)
    libvirt = read_libvirt(kernel, uri)
    if libvirt.unknown:
        return Asked(None, (), (f"libvirt: {libvirt.unknown}",))
    findings, unknown = [], []
    for rule, question in (("libvirt", validate), ("libvirt-qemu", to_native)):
        try:
            question(kernel, uri, text)
        except BadDocument as error:
            findings.append(_finding(rule, error.kernel_said or error.message))
            break  # what does not pass the one is not worth the other
        except (HostError, RequestError) as error:
            unknown.append(f"{error.message}: {error.kernel_said or error.hint}".rstrip(": "))
    here = None if is_elsewhere(uri) else libvirt
    return Asked(_version(libvirt.version), tuple(findings), tuple(unknown), here)


def defined(kernel: Reader, uri: str, name: str) -> str:
    """Return the XML of a domain that libvirt has, as it runs or is defined. Raises UnknownDomain, HostError."""
    libvirt = read_libvirt(kernel, uri)
    if libvirt.unknown:
        raise HostError(f"{name} is no file, and libvirt cannot be asked for it: {libvirt.unknown}")
    libvirt_domain = libvirt.find(name)
    if libvirt_domain is None:
        raise UnknownDomain(f"{name} is no file, and no domain of {uri}", next_command="vfioctl domain list")
    return libvirt_domain.xml


def _finding(rule: str, said: str) -> Finding:
    is_host = _NO_VFIO in said
    return Finding(
        rule=rule,
        severity=Severity.WARNING if is_host else Severity.ERROR,
        path="/domain",
        line=None,
        reason=f"libvirt refuses it: {' '.join(said.split())}",
        remedy="name='vfio' in the <driver> of each hostdev"
        if is_host
        else "what libvirt says; see its formatdomain page",
    )


def _version(number: int | None) -> tuple[int, ...] | None:
    return None if number is None else (number // 1_000_000, number // 1000 % 1000)
