"""Reads libvirt: its versions, its domains, and what it says of a document. Changes nothing there.

Nothing here blocks for longer than libvirt's timeout: a hanging daemon counts as one that cannot be asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfioctl.domain.model.libvirt import DomainXml, Libvirt
from vfioctl.errors import HostError, RequestError

if TYPE_CHECKING:
    from vfioctl.kernel.protocol import Reader


def read_libvirt(kernel: Reader, uri: str) -> Libvirt:
    """Return libvirt and its domains; `unknown` says why if it cannot be asked."""
    try:
        return ask_libvirt(kernel, uri)
    except (HostError, RequestError) as error:
        reason = error.kernel_said or error.hint
        return Libvirt(uri=uri, unknown=f"{error.message}: {reason}" if reason else error.message)


def ask_libvirt(kernel: Reader, uri: str) -> Libvirt:
    """Return libvirt and its domains. Raises HostError, MissingLibrary if it cannot be asked."""
    version, hypervisor, domains = kernel.ask_libvirt(uri, "facts")
    listed = (
        DomainXml(name=name, uuid=uuid, is_active=is_active, is_defined=is_defined, live=live, defined=defined)
        for name, uuid, is_active, is_defined, live, defined in domains
    )
    return Libvirt(
        uri=uri, version=version, hypervisor=hypervisor, domains=tuple(sorted(listed, key=lambda domain: domain.name))
    )


def validate(kernel: Reader, uri: str, xml: str) -> str:
    """Return the document in libvirt's form, read by its schema and its parser; nothing is defined.

    Raises BadDocument with libvirt's reason in `kernel_said`; HostError, MissingLibrary if libvirt cannot be asked.
    """
    return str(kernel.ask_libvirt(uri, "validated", xml))


def to_native(kernel: Reader, uri: str, xml: str) -> str:
    """Return QEMU's command line for the document; empty where the driver cannot say, as the test driver.

    It needs a read-write connection. Raises as `validate`.
    """
    return str(kernel.ask_libvirt(uri, "native", xml))
