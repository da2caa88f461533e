"""Reads libvirt's domains and files of their guests; has it define, start and stop them. Alone imports libvirt_qemu.
Its questions and orders are functions of a URI and words that return plain data, so they can run in a worker: a daemon
may hang. On hosts without a daemon (recorded, simulated) they may ask libvirt's test driver, which never blocks. What
libvirt says, and every name and document, may be anybody's: texts are bounded here, and escaped where shown."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from vfioctl.kernel.descriptors import closing
from vfioctl.kernel.libvirt.answers import NO_DOMAIN, TEST, UNSUPPORTED, Answer, answered, connected, on_connection

T = TypeVar("T")
SOCKETS = tuple(f"/run/libvirt/{name}-sock{ro}" for name in ("libvirt", "virtqemud") for ro in ("", "-ro"))
"""What libvirt's daemons listen on."""
SECONDS = 5.0
"""Timeout for a listing that asks libvirt beside other things."""
QUESTION_SECONDS = 30.0
"""Timeout for any other question: libvirtd may have to start first, and to start QEMU to see what it offers."""
_MOST_DOMAINS, _LONGEST_NAME = 10_000, 255
_ANSWER_SECONDS, _ALL_SECONDS = 3, 15.0
"""Timeouts for one answer of a guest's agent, and for all."""
_MOST_FILES, _LONGEST_TEXT = 1000, 256
_INTERNAL_ERROR = 1
"""VIR_ERR_INTERNAL_ERROR: what libvirt makes of an agent's refusal, such as for a file that is not there."""


def running(uri: str, read: Callable[[str], T]) -> tuple[list[tuple[str, T]], str]:
    """Each running domain's name and what `read` finds in its XML; and why libvirt could not be asked."""

    def ask() -> list[tuple[str, T]]:
        with connected(uri) as (connection, libvirt):
            domains = connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)[:_MOST_DOMAINS]
            documents = (_unless_gone(libvirt, lambda d: (_name(d), d.XMLDesc(0)), domain) for domain in domains)
            return [(document[0], read(document[1])) for document in documents if document]

    value, _, why = answered(ask)
    return value or [], why[:200]


@on_connection()
def facts(connection: Any, libvirt: Any) -> tuple[int | None, int | None, list[tuple[Any, ...]]]:
    """The versions of libvirt and of its hypervisor, None if unknown; and each domain, see `_domain`."""
    domains = connection.listAllDomains(0)[:_MOST_DOMAINS]
    known = [domain_facts for domain in domains if (domain_facts := _unless_gone(libvirt, _domain, domain, libvirt))]
    versions = (_unless_gone(libvirt, ask) for ask in (connection.getLibVersion, connection.getVersion))
    return (*versions, known)  # type: ignore[return-value]


def _domain(domain: Any, libvirt: Any) -> tuple[Any, ...]:
    """Name, UUID, whether it runs, whether it is defined, the XML as it runs, and as it is defined; empty if not."""
    is_active, is_defined = bool(domain.isActive()), bool(domain.isPersistent())
    live = domain.XMLDesc(0) if is_active else ""
    defined = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE) if is_defined else ""
    return _name(domain), domain.UUIDString(), is_active, is_defined, live, defined


@on_connection(writes=True, instead={NO_DOMAIN: ""})
def definition(connection: Any, libvirt: Any, name: str) -> str:
    """The XML that defines a domain, with its passwords, for which libvirt asks more rights; empty if there is none."""
    domain = connection.lookupByName(name)
    secure = libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE
    return str(domain.XMLDesc(secure)) if domain.isPersistent() else ""


@on_connection(instead={NO_DOMAIN: False})
def is_running(connection: Any, _: Any, name: str) -> bool:
    """Whether a domain runs. One that is gone does not."""
    return bool(connection.lookupByName(name).isActive())


@on_connection()
def capabilities(connection: Any, _: Any) -> str:
    """What libvirt says of the host: XML."""
    return str(connection.getCapabilities())


@on_connection(writes=True, instead={UNSUPPORTED: ""})
def native(connection: Any, _: Any, xml: str) -> str:
    """QEMU's command line for a document; empty where the driver cannot say. It needs a read-write connection."""
    return str(connection.domainXMLToNative("qemu-argv", xml, 0))


def validated(uri: str, xml: str) -> Answer:
    """The document in libvirt's form. Defined with VALIDATE in a test driver of its own, which is gone afterwards."""
    del uri  # any driver reads by the same schema and the same parser

    def ask() -> str:
        with closing(os.memfd_create("node", os.MFD_CLOEXEC)) as node:
            os.write(node, b"<node/>")
            with connected(f"{TEST}///proc/self/fd/{node}", writes=True) as (connection, libvirt):
                domain = connection.defineXMLFlags(xml, libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
                return str(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE))

    return answered(ask)


@on_connection(writes=True)
def guest_files(connection: Any, libvirt: Any, name: str, *paths: str) -> dict[str, str]:
    """The beginnings of files in a domain's guest, by path, through its agent; without those that it does not read. The
    agent is a program in the guest: its answers may be anything, or never come."""
    return _read_files(connection.lookupByName(name), paths, libvirt.libvirtError)


def _read_files(domain: Any, paths: Sequence[str], refusal: type[Exception]) -> dict[str, str]:
    until, files = time.monotonic() + _ALL_SECONDS, {}
    for path in paths[:_MOST_FILES]:
        if time.monotonic() > until:
            break
        try:
            files[path] = _file(domain, path)
        except refusal as error:
            if getattr(error, "get_error_code", lambda: None)() != _INTERNAL_ERROR:
                raise
        except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError):  # that is no answer of an agent
            continue
    return files


def _file(domain: Any, path: str) -> str:
    import base64

    handle = int(_asked(domain, "guest-file-open", {"path": path, "mode": "r"}))
    try:
        content = str(_asked(domain, "guest-file-read", {"handle": handle, "count": _LONGEST_TEXT})["buf-b64"])
        return base64.b64decode(content[: 2 * _LONGEST_TEXT]).decode("utf-8", "replace")[:_LONGEST_TEXT]
    finally:
        _asked(domain, "guest-file-close", {"handle": handle})


def _asked(domain: Any, command: str, arguments: dict[str, Any]) -> Any:
    import json

    import libvirt_qemu

    from vfioctl.untrusted_text import parse_json

    said = json.dumps({"execute": command, "arguments": arguments})
    return parse_json(libvirt_qemu.qemuAgentCommand(domain, said, _ANSWER_SECONDS, 0))["return"]


@on_connection(writes=True)
def define(connection: Any, libvirt: Any, xml: str) -> None:
    """Defines a domain, or changes its definition; libvirt compares the document with its schema first."""
    connection.defineXMLFlags(xml, libvirt.VIR_DOMAIN_DEFINE_VALIDATE)


@on_connection(writes=True)
def undefine(connection: Any, libvirt: Any, name: str) -> None:
    """Removes a definition. The firmware's variables and the TPM's state stay: what is put back needs them."""
    domain = connection.lookupByName(name)
    xml = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
    flags = libvirt.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM if "<nvram" in xml or "firmware=" in xml else 0
    flags |= getattr(libvirt, "VIR_DOMAIN_UNDEFINE_KEEP_TPM", 0) if "<tpm" in xml else 0
    domain.undefineFlags(flags)


@on_connection(writes=True)
def start(connection: Any, _: Any, name: str) -> None:
    """Starts a domain. Returns when QEMU has begun to run it, which takes minutes if all of its memory is taken first.
    libvirt runs the hooks meanwhile: one that refuses makes this fail."""
    connection.lookupByName(name).create()


@on_connection(writes=True)
def shutdown(connection: Any, _: Any, name: str) -> None:
    """Asks the guest to shut down, and does not wait."""
    connection.lookupByName(name).shutdown()


@on_connection(writes=True)
def destroy(connection: Any, _: Any, name: str) -> None:
    """Ends a domain as a power cut does."""
    connection.lookupByName(name).destroy()


def _name(domain: Any) -> str:
    return str(domain.name())[:_LONGEST_NAME]


def _unless_gone(libvirt: Any, read: Callable[..., T], *args: object) -> T | None:
    try:
        return read(*args)
    except libvirt.libvirtError:  # it has ended meanwhile, or the driver cannot say
        return None
