"""Asks libvirt which domains it has, and which devices those that run have. May not write.

libvirt is asked in a worker, which is abandoned if it does not answer: a daemon may hang.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from vfioctl.claims.model.passthrough_devices import devices_in
from vfioctl.kernel.libvirt.domains import SECONDS, SOCKETS, running
from vfioctl.kernel.protocol import Unanswered, per_subject

if TYPE_CHECKING:
    from vfioctl.kernel.protocol import Reader

URI = "qemu:///system"


class Domain(NamedTuple):
    """A running domain, and the addresses and UUIDs of its devices."""

    name: str
    devices: tuple[str, ...]


class Domains(NamedTuple):
    """What libvirt says. `unknown`: why it cannot be asked; empty if it answered, or if this host has none."""

    running: tuple[Domain, ...] = ()
    unknown: str = ""


def read_domains(kernel: Reader) -> Domains:
    """Return the running domains. A host without libvirt's socket has none."""
    if not any(kernel.has(path) for path in SOCKETS):
        return Domains()
    ((_, said),) = kernel.survey(ask, [URI], timeout=SECONDS)
    if isinstance(said, Unanswered):
        return Domains(unknown=f"libvirt cannot be asked: {said.reason}")
    running, why = said
    domains = tuple(Domain(name, tuple(devices)) for name, devices in running)
    return Domains(domains, f"libvirt cannot be asked: {why}" if why else "")


@per_subject
def ask(kernel: Reader, uri: str) -> tuple[list[tuple[str, list[str]]], str]:
    """Return each running domain's name and devices, and why libvirt could not be asked."""
    del kernel
    return running(uri, devices_in)
