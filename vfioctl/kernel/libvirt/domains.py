"""Reads libvirt's domains; has it define, start and stop them.

Its questions and orders are functions of a URI and words that return plain data, so that they can run in a worker: a
daemon may hang. On hosts without a daemon (recorded, simulated) they may ask libvirt's test driver, which never blocks.
What libvirt says, and every name and document, may come from anybody: texts are bounded here, and escaped where shown.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from vfioctl.errors import HostError
from vfioctl.kernel.libvirt.answers import NO_DOMAIN, OF_STORAGE, UNSUPPORTED, Answer, value_of
from vfioctl.kernel.libvirt.connection import answered, code_of, connected

T = TypeVar("T")
SOCKETS = tuple(f"/run/libvirt/{name}-sock{ro}" for name in ("libvirt", "virtqemud") for ro in ("", "-ro"))
"""What libvirt's daemons listen on."""
SECONDS = 5.0
"""Timeout for a listing that asks libvirt beside other things."""
QUESTION_SECONDS = 30.0
"""Timeout for any other question: libvirtd may have to start first, and to start QEMU to see what it offers."""
ORDER_SECONDS = 60.0
"""Timeout for an order: libvirtd may start QEMU once to see what it offers."""
START_SECONDS = 900.0
"""Timeout for the start of a domain: QEMU may first take, and clear, a terabyte of memory."""
TEST = "test:"
"""How the URIs of libvirt's test driver begin."""
_MOST_DOMAINS, _LONGEST_NAME = 10_000, 255


# -- for the caller ----------------------------------------------------------------------------------


def named(what: str) -> Callable[..., Answer]:
    """The question or order of this name."""
    if what in OF_STORAGE:
        from vfioctl.kernel.libvirt import storage

        return storage.NAMED[what]
    return {**QUESTIONS, **ORDERS}[what]


def asked_here(uri: str, question: str, *words: str) -> Any:
    """The answer on a host that has no daemon: only the test driver is asked, in this process. Raises HostError."""
    if question != "validated" and not uri.startswith(TEST):
        raise HostError(
            f"there is no libvirt at {uri} on this host: it is not this machine",
            hint="--connect test:///default asks libvirt's test driver",
        )
    return value_of(named(question)(uri, *words), uri, question, words)


# -- questions ---------------------------------------------------------------------------------------


def running(uri: str, read: Callable[[str], T]) -> tuple[list[tuple[str, T]], str]:
    """Each running domain's name and what `read` finds in its XML; and why libvirt could not be asked."""

    def ask() -> list[tuple[str, T]]:
        with connected(uri) as (connection, libvirt):
            domains = connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)[:_MOST_DOMAINS]
            each = (_unless_gone(libvirt, _name_and_xml, domain) for domain in domains)
            return [(found[0], read(found[1])) for found in each if found]

    value, _, why = answered(ask)
    return value or [], why[:200]


def facts(uri: str) -> Answer:
    """The versions of libvirt and of its hypervisor, None if unknown; and each domain, see `_domain`."""

    def ask() -> tuple[int | None, int | None, list[tuple[Any, ...]]]:
        with connected(uri) as (connection, libvirt):
            domains = connection.listAllDomains(0)[:_MOST_DOMAINS]
            known = [found for domain in domains if (found := _unless_gone(libvirt, _domain, domain, libvirt))]
            versions = (_unless_gone(libvirt, ask) for ask in (connection.getLibVersion, connection.getVersion))
            return (*versions, known)  # type: ignore[return-value]

    return answered(ask)


def _domain(domain: Any, libvirt: Any) -> tuple[Any, ...]:
    """Name, UUID, whether it runs, whether it is defined, the XML as it runs, and as it is defined; empty if not."""
    is_active, is_defined = bool(domain.isActive()), bool(domain.isPersistent())
    live = domain.XMLDesc(0) if is_active else ""
    defined = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE) if is_defined else ""
    return _name(domain), domain.UUIDString(), is_active, is_defined, live, defined


def definition(uri: str, name: str) -> Answer:
    """The XML that defines a domain, with its passwords, for which libvirt asks more rights; empty if there is none."""

    def ask() -> str:
        with connected(uri, writes=True) as (connection, libvirt):
            try:
                domain = connection.lookupByName(name)
                secure = libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE
                return str(domain.XMLDesc(secure)) if domain.isPersistent() else ""
            except libvirt.libvirtError as error:
                if code_of(error) == NO_DOMAIN:
                    return ""
                raise

    return answered(ask)


def is_running(uri: str, name: str) -> Answer:
    """Whether a domain runs. One that is gone does not."""

    def ask() -> bool:
        with connected(uri) as (connection, libvirt):
            try:
                return bool(connection.lookupByName(name).isActive())
            except libvirt.libvirtError as error:
                if code_of(error) == NO_DOMAIN:
                    return False
                raise

    return answered(ask)


def capabilities(uri: str) -> Answer:
    """What libvirt says of the host: XML."""

    def ask() -> str:
        with connected(uri) as (connection, _):
            return str(connection.getCapabilities())

    return answered(ask)


def native(uri: str, xml: str) -> Answer:
    """QEMU's command line for a document; empty where the driver cannot say. It needs a read-write connection."""

    def ask() -> str:
        with connected(uri, writes=True) as (connection, libvirt):
            try:
                return str(connection.domainXMLToNative("qemu-argv", xml, 0))
            except libvirt.libvirtError as error:
                if code_of(error) == UNSUPPORTED:
                    return ""
                raise

    return answered(ask)


def validated(uri: str, xml: str) -> Answer:
    """The document in libvirt's form. Defined with VALIDATE in a test driver of its own, which is gone afterwards."""
    del uri  # any driver reads by the same schema and the same parser

    def ask() -> str:
        node = os.memfd_create("node", os.MFD_CLOEXEC)
        try:
            os.write(node, b"<node/>")
            with connected(f"{TEST}///proc/self/fd/{node}", writes=True) as (connection, libvirt):
                domain = connection.defineXMLFlags(xml, libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
                return str(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE))
        finally:
            os.close(node)

    return answered(ask)


def guest_files(uri: str, name: str, *paths: str) -> Answer:
    """The beginnings of files in a domain's guest, by path, through its agent; without those that it does not read."""
    from vfioctl.kernel.libvirt.agent import read_files

    def ask() -> dict[str, str]:
        with connected(uri, writes=True) as (connection, libvirt):
            return read_files(connection.lookupByName(name), paths, libvirt.libvirtError)

    return answered(ask)


# -- orders ------------------------------------------------------------------------------------------


def define(uri: str, xml: str) -> Answer:
    """Defines a domain, or changes its definition; libvirt compares the document with its schema first."""

    def order() -> None:
        with connected(uri, writes=True) as (connection, libvirt):
            connection.defineXMLFlags(xml, libvirt.VIR_DOMAIN_DEFINE_VALIDATE)

    return answered(order)


def undefine(uri: str, name: str) -> Answer:
    """Removes a definition. The firmware's variables and the TPM's state stay: what is put back needs them."""

    def order() -> None:
        with connected(uri, writes=True) as (connection, libvirt):
            domain = connection.lookupByName(name)
            xml = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
            flags = libvirt.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM if "<nvram" in xml or "firmware=" in xml else 0
            flags |= getattr(libvirt, "VIR_DOMAIN_UNDEFINE_KEEP_TPM", 0) if "<tpm" in xml else 0
            domain.undefineFlags(flags)

    return answered(order)


def start(uri: str, name: str) -> Answer:
    """Starts a domain. Returns when QEMU has begun to run it, which takes minutes if all of its memory is taken first.

    libvirt runs the hooks meanwhile: one that refuses makes this fail.
    """
    return _ordered(uri, name, lambda domain: domain.create())


def shutdown(uri: str, name: str) -> Answer:
    """Asks the guest to shut down, and does not wait."""
    return _ordered(uri, name, lambda domain: domain.shutdown())


def destroy(uri: str, name: str) -> Answer:
    """Ends a domain as a power cut does."""
    return _ordered(uri, name, lambda domain: domain.destroy())


def _ordered(uri: str, name: str, order: Callable[[Any], object]) -> Answer:
    def tell() -> None:
        with connected(uri, writes=True) as (connection, _):
            order(connection.lookupByName(name))

    return answered(tell)


QUESTIONS: dict[str, Callable[..., Answer]] = {
    question.__name__: question
    for question in (facts, definition, is_running, capabilities, native, validated, guest_files)
}
ORDERS: dict[str, Callable[..., Answer]] = {
    order.__name__: order for order in (define, undefine, start, shutdown, destroy)
}


def _name_and_xml(domain: Any) -> tuple[str, str]:
    return _name(domain), domain.XMLDesc(0)


def _name(domain: Any) -> str:
    return str(domain.name())[:_LONGEST_NAME]


def _unless_gone(libvirt: Any, read: Callable[..., T], *args: object) -> T | None:
    try:
        return read(*args)
    except libvirt.libvirtError:  # it has ended meanwhile, or the driver cannot say
        return None
