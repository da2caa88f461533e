"""Connections to libvirt, and what its answers mean: values, or its errors as ours, by who must act. Alone imports
libvirt-python, an extra."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from shlex import quote
from typing import Any, TypeVar

from vfioctl import errors
from vfioctl.kernel.worker import wire

T = TypeVar("T")
TEST = "test:"
"""How the URIs of libvirt's test driver begin."""
_LONGEST_TEXT = 1000
Answer = tuple[Any, int, str]
"""The value; or None with libvirt's number of the error and its text."""
NOT_INSTALLED = "libvirt-python is not installed: pip install 'vfioctl[libvirt]'"
MISSING, CHANGED = -1, -2
# virErrorNumber, which is part of libvirt's ABI
INVALID_BY_SCHEMA = 92
UNSUPPORTED, _OPERATION_FAILED, NO_DOMAIN, _NO_POOL, NO_VOLUME, _HOOK_FAILED = 3, 9, 42, 49, 50, 71
_OF_DOCUMENT = {8, 16, 21, 27, 35, 67, 91, INVALID_BY_SCHEMA}
"""INVALID_ARG, OS_TYPE, NO_NAME, XML_ERROR, XML_DETAIL, CONFIG_UNSUPPORTED, CPU_INCOMPATIBLE, XML_INVALID_SCHEMA."""
_BRINGS_DOCUMENT = ("define", "validated", "native", "start")
"""The questions and orders that give libvirt a document; a start gives it the one that defines the domain."""
_DENIED = {29, 45, 79, 88, 94}
"""OPERATION_DENIED, AUTH_FAILED, AUTH_CANCELLED, ACCESS_DENIED, AUTH_UNAVAILABLE."""
_DOING = {
    "facts": "asking for the domains",
    "definition": "reading the definition of",
    "is_running": "asking for the state of",
    "capabilities": "asking for the capabilities of the host",
    "native": "translating the document",
    "validated": "checking the document",
    "guest_files": "asking the guest agent of",
    "define": "defining the domain",
    "undefine": "removing the definition of",
    "start": "starting",
    "shutdown": "asking to shut down",
    "destroy": "ending",
    "pool": "asking for the storage pool",
    "volume": "asking for the volume",
    "seed": "reading the cloud-init seed",
    "create_image": "creating the disk image",
    "write_seed": "writing the cloud-init seed",
    "delete_volume": "deleting the volume",
}
OF_STORAGE = ("pool", "volume", "seed", "create_image", "write_seed", "delete_volume")
_OF_A_DOMAIN = ("definition", "is_running", "guest_files", "undefine", "start", "shutdown", "destroy")


def doing(what: str, words: Sequence[str]) -> str:
    """The request to libvirt, for messages."""
    named = words[:1] if what in (*_OF_A_DOMAIN, "pool") else words[:2] if what in OF_STORAGE else ()
    return " ".join(filter(None, (_DOING[what], "/".join(named))))


def value_of(answer: Answer, uri: str, what: str, words: Sequence[str]) -> Any:
    """The value of an answer to a question or an order, `what`, with its words. Raises MissingLibrary, NotPermitted,
    UnknownDomain, BadDocument, Foreign, HostError, with libvirt's text."""
    value, code, text = answer
    if not code:
        return value
    error = _error(code, text, uri, what, doing(what, words))
    error.facts |= {"uri": uri, "libvirt": code, "text": text}
    raise error


def _error(code: int, text: str, uri: str, what: str, doing: str) -> errors.VfioctlError:
    if code == MISSING:
        return errors.MissingLibrary(
            f"{doing} needs libvirt-python, which is not installed", hint=text.partition(": ")[2]
        )
    if code == CHANGED:
        return errors.StalePlan(f"{doing}: its files are not as planned: {text}", hint="make a new plan")
    error: errors.VfioctlError
    if code == NO_DOMAIN:
        command = f"vfioctl domain list --connect {quote(uri)}"
        error = errors.UnknownDomain(f"{doing}: there is no such domain", next_command=command)
    elif code == _NO_POOL:
        error = errors.BadSpec(f"{doing}: libvirt at {uri} has no such storage pool", hint="virsh pool-list --all")
    elif code in _DENIED or "Permission denied" in text:
        error = errors.NotPermitted(f"{doing}: libvirt at {uri} does not permit it", hint="run it as root")
    elif code in _OF_DOCUMENT and what in _BRINGS_DOCUMENT:
        error = errors.BadDocument(f"{doing}: libvirt refuses the document", hint="the document must change")
    elif code == _OPERATION_FAILED and "already" in text:
        error = errors.Foreign(f"{doing}: another domain has its name or its UUID", hint="change <name> and <uuid>")
    elif code == _HOOK_FAILED:
        error = errors.ConflictError(
            f"{doing}: a hook of libvirt refuses it", hint="the reason is in what libvirt said"
        )
    elif "Failed to connect" in text or "End of file" in text:
        error = errors.HostError(
            f"{doing}: libvirt at {uri} cannot be reached", hint="systemctl status libvirtd virtqemud"
        )
    else:
        error = errors.HostError(f"{doing}: libvirt at {uri} failed")
    error.kernel_said = text
    return error


@contextmanager
def connected(uri: str, *, writes: bool = False) -> Iterator[tuple[Any, Any]]:
    """Yield a connection and the module. `writes`: it may change things, and read secrets; that needs more rights."""
    import libvirt

    libvirt.registerErrorHandler(lambda *_: None, None)  # it would write to stderr
    opened = (libvirt.open if writes else libvirt.openReadOnly)(uri)
    try:
        yield opened, libvirt
    finally:
        opened.close()


def answered(ask: Callable[[], T]) -> Answer:
    """Return what `ask` returns, or the error of libvirt that it raises, as an answer."""
    try:
        import libvirt
    except ImportError:
        return None, MISSING, NOT_INSTALLED
    try:
        return ask(), 0, ""
    except libvirt.libvirtError as error:
        code = error.get_error_code() if hasattr(error, "get_error_code") else 0
        return None, int(code) or 1, str(error).strip()[:_LONGEST_TEXT]


def on_connection(
    *, writes: bool = False, instead: Mapping[int, object] | None = None
) -> Callable[[Callable[..., object]], Callable[..., Answer]]:
    """Make a function of a connection, the module libvirt and words a function of a URI and words that answers.
    `instead`: what it answers for errors of libvirt, by their numbers. `writes`: see `connected`."""

    def question_of(ask: Callable[..., object]) -> Callable[..., Answer]:
        @wraps(ask)
        def question(uri: str, *words: str) -> Answer:
            def on_uri() -> object:
                with connected(uri, writes=writes) as (connection, libvirt):
                    return ask(connection, libvirt, *words)

            value, code, text = answered(on_uri)
            return (instead[code], 0, "") if instead and code in instead else (value, code, text)

        return question

    return question_of


def named(what: str) -> Callable[..., Answer]:
    """The question or order of this name."""
    return wire.named(f"vfioctl.kernel.libvirt.{'storage' if what in OF_STORAGE else 'domains'}:{what}")


def asked_here(uri: str, question: str, *words: str) -> Any:
    """The answer on a host that has no daemon: only the test driver is asked, in this process. Raises HostError."""
    if question != "validated" and not uri.startswith(TEST):
        why = f"this host has no libvirt at {uri}: it is simulated or recorded"
        raise errors.HostError(why, hint="--connect test:///default asks libvirt's test driver")
    return value_of(named(question)(uri, *words), uri, question, words)
