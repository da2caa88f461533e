"""Asks libvirt about domains, and tells it to define them. The only module that imports libvirt-python, an extra.

Its questions and orders are functions of a URI and words that return plain data, so that they can run in a worker: a
daemon may hang. On hosts without a daemon (recorded, simulated) they may ask libvirt's test driver, which never blocks.
What libvirt says, and every name and document, may come from anybody: texts are bounded here, and escaped where shown.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from shlex import quote
from typing import Any, TypeVar

from vfioctl.errors import (
    BadDocument,
    Foreign,
    HostError,
    MissingLibrary,
    NotPermitted,
    UnknownDomain,
    VfioctlError,
)

T = TypeVar("T")
Answer = tuple[Any, int, str]
"""The value; or None with libvirt's number of the error and its text."""
SOCKETS = tuple(f"/run/libvirt/{name}-sock{ro}" for name in ("libvirt", "virtqemud") for ro in ("", "-ro"))
"""What libvirt's daemons listen on."""
SECONDS = 5.0
"""Timeout for a listing that asks libvirt beside other things."""
QUESTION_SECONDS = 30.0
"""Timeout for any other question: libvirtd may have to start first, and to start QEMU to see what it offers."""
ORDER_SECONDS = 60.0
"""Timeout for an order: libvirtd may start QEMU once to see what it offers."""
TEST = "test:"
"""How the URIs of libvirt's test driver begin."""
NOT_INSTALLED = "libvirt-python is not installed: pip install 'vfioctl[libvirt]'"
_MISSING = -1
_DOING = {
    "facts": "asking for the domains",
    "definition": "reading the definition of",
    "capabilities": "asking for the capabilities of the host",
    "native": "translating the document",
    "validated": "checking the document",
    "define": "defining the domain",
    "undefine": "removing the definition of",
}
_MOST_DOMAINS, _LONGEST_NAME, _LONGEST_TEXT = 10_000, 255, 1000
# virErrorNumber, which is part of libvirt's ABI
INVALID_BY_SCHEMA = 92
_UNSUPPORTED, _OPERATION_FAILED, _NO_DOMAIN = 3, 9, 42
_OF_DOCUMENT = {8, 16, 21, 27, 35, 67, 91, INVALID_BY_SCHEMA}
"""INVALID_ARG, OS_TYPE, NO_NAME, XML_ERROR, XML_DETAIL, CONFIG_UNSUPPORTED, CPU_INCOMPATIBLE, XML_INVALID_SCHEMA."""
_DENIED = {29, 45, 79, 88, 94}
"""OPERATION_DENIED, AUTH_FAILED, AUTH_CANCELLED, ACCESS_DENIED, AUTH_UNAVAILABLE."""


# -- for the caller ----------------------------------------------------------------------------------


def named(what: str) -> Callable[..., Answer]:
    """The question or order of this name."""
    return {**QUESTIONS, **ORDERS}[what]


def doing(what: str, words: Sequence[str]) -> str:
    """What is asked or told, for messages."""
    about = f" {words[0]}" if what in ("definition", "undefine") else ""
    return f"{_DOING[what]}{about}"


def asked_here(uri: str, question: str, *words: str) -> Any:
    """The answer on a host that has no daemon: only the test driver is asked, in this process. Raises HostError."""
    if question != "validated" and not uri.startswith(TEST):
        raise HostError(
            f"there is no libvirt at {uri} on this host: it is not this machine",
            hint="--connect test:///default asks libvirt's test driver",
        )
    return value_of(named(question)(uri, *words), uri, doing(question, words))


def value_of(answer: Answer, uri: str, doing: str) -> Any:
    """The value of an answer. `doing`: for the message, as in `defining web1`.

    Raises MissingLibrary, NotPermitted, UnknownDomain, BadDocument, Foreign, HostError, with libvirt's text.
    """
    value, code, text = answer
    if not code:
        return value
    error = _error(code, text, uri, doing)
    error.facts |= {"uri": uri, "libvirt": code, "text": text}
    raise error


def _error(code: int, text: str, uri: str, doing: str) -> VfioctlError:
    if code == _MISSING:
        return MissingLibrary(f"{doing} needs libvirt-python, which is not installed", hint=text.partition(": ")[2])
    error: VfioctlError
    if code == _NO_DOMAIN:
        command = f"vfioctl domain list --connect {quote(uri)}"
        error = UnknownDomain(f"{doing}: there is no such domain", next_command=command)
    elif code in _DENIED or "Permission denied" in text:
        error = NotPermitted(f"{doing}: libvirt at {uri} does not permit it", hint="run it as root")
    elif code in _OF_DOCUMENT:
        error = BadDocument(f"{doing}: libvirt refuses the document", hint="the document must change")
    elif code == _OPERATION_FAILED and "already" in text:
        error = Foreign(f"{doing}: another domain has its name or its UUID", hint="change <name> and <uuid>")
    elif "Failed to connect" in text or "End of file" in text:
        error = HostError(f"{doing}: libvirt at {uri} cannot be reached", hint="systemctl status libvirtd virtqemud")
    else:
        error = HostError(f"{doing}: libvirt at {uri} failed")
    error.kernel_said = text
    return error


# -- connections -------------------------------------------------------------------------------------


@contextmanager
def _connection(uri: str, *, writes: bool = False) -> Iterator[tuple[Any, Any]]:
    import libvirt

    libvirt.registerErrorHandler(lambda *_: None, None)  # it would write to stderr
    opened = (libvirt.open if writes else libvirt.openReadOnly)(uri)
    try:
        yield opened, libvirt
    finally:
        opened.close()


def _answered(ask: Callable[[], T]) -> Answer:
    try:
        import libvirt
    except ImportError:
        return None, _MISSING, NOT_INSTALLED
    try:
        return ask(), 0, ""
    except libvirt.libvirtError as error:
        return None, _code(error), str(error).strip()[:_LONGEST_TEXT]


def _code(error: Any) -> int:
    code = error.get_error_code() if hasattr(error, "get_error_code") else 0
    return int(code) or 1


# -- questions ---------------------------------------------------------------------------------------


def running(uri: str, read: Callable[[str], T]) -> tuple[list[tuple[str, T]], str]:
    """Each running domain's name and what `read` finds in its XML; and why libvirt could not be asked."""

    def ask() -> list[tuple[str, T]]:
        with _connection(uri) as (connection, libvirt):
            domains = connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)[:_MOST_DOMAINS]
            each = (_unless_gone(libvirt, _name_and_xml, domain) for domain in domains)
            return [(found[0], read(found[1])) for found in each if found]

    value, _, why = _answered(ask)
    return value or [], why[:200]


def facts(uri: str) -> Answer:
    """The versions of libvirt and of its hypervisor, None if unknown; and each domain, see `_domain`."""

    def ask() -> tuple[int | None, int | None, list[tuple[Any, ...]]]:
        with _connection(uri) as (connection, libvirt):
            domains = connection.listAllDomains(0)[:_MOST_DOMAINS]
            known = [found for each in domains if (found := _unless_gone(libvirt, _domain, each, libvirt))]
            versions = (_unless_gone(libvirt, ask) for ask in (connection.getLibVersion, connection.getVersion))
            return (*versions, known)  # type: ignore[return-value]

    return _answered(ask)


def _domain(domain: Any, libvirt: Any) -> tuple[Any, ...]:
    """Name, UUID, whether it runs, whether it is defined, the XML as it runs, and as it is defined; empty if not."""
    is_active, is_defined = bool(domain.isActive()), bool(domain.isPersistent())
    live = domain.XMLDesc(0) if is_active else ""
    defined = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE) if is_defined else ""
    return _name(domain), domain.UUIDString(), is_active, is_defined, live, defined


def definition(uri: str, name: str) -> Answer:
    """The XML that defines a domain, with its passwords, for which libvirt asks more rights; empty if there is none."""

    def ask() -> str:
        with _connection(uri, writes=True) as (connection, libvirt):
            try:
                domain = connection.lookupByName(name)
                secure = libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE
                return str(domain.XMLDesc(secure)) if domain.isPersistent() else ""
            except libvirt.libvirtError as error:
                if _code(error) == _NO_DOMAIN:
                    return ""
                raise

    return _answered(ask)


def capabilities(uri: str) -> Answer:
    """What libvirt says of the host: XML."""

    def ask() -> str:
        with _connection(uri) as (connection, _):
            return str(connection.getCapabilities())

    return _answered(ask)


def native(uri: str, xml: str) -> Answer:
    """QEMU's command line for a document; empty where the driver cannot say. It needs a read-write connection."""

    def ask() -> str:
        with _connection(uri, writes=True) as (connection, libvirt):
            try:
                return str(connection.domainXMLToNative("qemu-argv", xml, 0))
            except libvirt.libvirtError as error:
                if _code(error) == _UNSUPPORTED:
                    return ""
                raise

    return _answered(ask)


def validated(uri: str, xml: str) -> Answer:
    """The document in libvirt's form. Defined with VALIDATE in a test driver of its own, which is gone afterwards."""
    del uri  # any driver reads by the same schema and the same parser

    def ask() -> str:
        node = os.memfd_create("node", os.MFD_CLOEXEC)
        try:
            os.write(node, b"<node/>")
            with _connection(f"{TEST}///proc/self/fd/{node}", writes=True) as (connection, libvirt):
                domain = connection.defineXMLFlags(xml, libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
                return str(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE))
        finally:
            os.close(node)

    return _answered(ask)


# -- orders ------------------------------------------------------------------------------------------


def define(uri: str, xml: str) -> Answer:
    """Defines a domain, or changes its definition; libvirt compares the document with its schema first."""

    def order() -> None:
        with _connection(uri, writes=True) as (connection, libvirt):
            connection.defineXMLFlags(xml, libvirt.VIR_DOMAIN_DEFINE_VALIDATE)

    return _answered(order)


def undefine(uri: str, name: str) -> Answer:
    """Removes a definition. The firmware's variables and the TPM's state stay: what is put back needs them."""

    def order() -> None:
        with _connection(uri, writes=True) as (connection, libvirt):
            domain = connection.lookupByName(name)
            xml = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
            flags = libvirt.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM if "<nvram" in xml or "firmware=" in xml else 0
            flags |= getattr(libvirt, "VIR_DOMAIN_UNDEFINE_KEEP_TPM", 0) if "<tpm" in xml else 0
            domain.undefineFlags(flags)

    return _answered(order)


QUESTIONS: dict[str, Callable[..., Answer]] = {
    each.__name__: each for each in (facts, definition, capabilities, native, validated)
}
ORDERS: dict[str, Callable[..., Answer]] = {each.__name__: each for each in (define, undefine)}


def _name_and_xml(domain: Any) -> tuple[str, str]:
    return _name(domain), domain.XMLDesc(0)


def _name(domain: Any) -> str:
    return str(domain.name())[:_LONGEST_NAME]


def _unless_gone(libvirt: Any, read: Callable[..., T], *args: object) -> T | None:
    try:
        return read(*args)
    except libvirt.libvirtError:  # it has ended meanwhile, or the driver cannot say
        return None
