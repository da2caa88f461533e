"""Opens libvirt, and looks up its domains with what their documents say. May not change any."""

from __future__ import annotations

from operator import itemgetter
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.domain.document.reader import read_domain
from vfioctl.domain.model.libvirt import DomainXml, Libvirt, checked_uri
from vfioctl.errors import BadDocument, HostError, RequestError, UnknownDomain

if TYPE_CHECKING:
    from vfioctl.domain.document.reader import Domain
    from vfioctl.kernel.protocol import Reader
    from vfioctl.session import Session


class Known(NamedTuple):
    """A domain of libvirt, and what its document says; `unknown`: why it cannot be read."""

    domain: DomainXml
    says: Domain | None
    unknown: str = ""


class Domains:
    """The domains of libvirt. Each method raises HostError or MissingLibrary if libvirt does not answer."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def uri(self, connect: str = "") -> str:
        """Return the URI of the libvirt to use: `connect`, or that of the configuration. Raises BadSpec."""
        return checked_uri(connect or self._session.settings("domain").connect)

    def libvirt(self, connect: str = "") -> Libvirt:
        """Return libvirt and all its domains."""
        return ask_libvirt(self._session.kernel, self.uri(connect))

    def known(self, libvirt: Libvirt, *, as_defined: bool = False) -> tuple[Known, ...]:
        """Return domains as they run, else as defined. `as_defined`: as they start the next time, else as they run."""
        return tuple(
            _known(domain, domain.defined or domain.live if as_defined else domain.xml) for domain in libvirt.domains
        )

    def find(self, name: str, connect: str = "") -> Known:
        """Return a domain by its name or its UUID. Raises UnknownDomain."""
        libvirt = self.libvirt(connect)
        domain = libvirt.find(name)
        if domain is None:
            raise unknown_domain(name, libvirt.uri)
        return _known(domain, domain.xml)


def _known(domain: DomainXml, text: str) -> Known:
    try:
        return Known(domain, read_domain(text))
    except BadDocument as error:
        return Known(domain, None, error.message)


def unknown_domain(name: str, uri: str) -> UnknownDomain:
    """Make the error for a domain that libvirt does not have."""
    command = f"vfioctl domain list --connect {quote(uri)}"
    return UnknownDomain(f"there is no domain {name} at {uri}", next_command=command)


def stop_command(name: str, uri: str, *options: str) -> str:
    """Return the command that stops a domain."""
    return " ".join(("vfioctl domain stop", quote(name), *options, "--connect", quote(uri)))


def read_libvirt(kernel: Reader, uri: str) -> Libvirt:
    """Return libvirt and its domains; `unknown` says why if it cannot be asked."""
    try:
        return ask_libvirt(kernel, uri)
    except (HostError, RequestError) as error:
        reason = error.kernel_said or error.hint
        return Libvirt(uri=uri, unknown=f"{error.message}: {reason}" if reason else error.message)


def ask_libvirt(kernel: Reader, uri: str) -> Libvirt:
    """Return libvirt and its domains. Raises HostError, MissingLibrary if it cannot be asked."""
    version, hypervisor, facts = kernel.ask_libvirt(uri, "facts")
    domains = tuple(
        DomainXml(name=name, uuid=uuid, is_active=is_active, is_defined=is_defined, live=live, defined=defined)
        for name, uuid, is_active, is_defined, live, defined in sorted(facts, key=itemgetter(0))
    )
    return Libvirt(uri=uri, version=version, hypervisor=hypervisor, domains=domains)


def validate(kernel: Reader, uri: str, xml: str) -> str:
    """Return the document in libvirt's form, read by its schema and its parser; nothing is defined. Raises BadDocument
    with libvirt's reason in `kernel_said`; HostError, MissingLibrary if libvirt cannot be asked."""
    return str(kernel.ask_libvirt(uri, "validated", xml))


def to_native(kernel: Reader, uri: str, xml: str) -> str:
    """Return QEMU's command line; empty if the driver cannot say. Needs a read-write connection; see `validate`."""
    return str(kernel.ask_libvirt(uri, "native", xml))
