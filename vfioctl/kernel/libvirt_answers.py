"""What the answers of libvirt mean: values, or its errors as ours, by who must act. May not ask libvirt."""

from __future__ import annotations

from shlex import quote
from typing import Any

from vfioctl.errors import (
    BadDocument,
    BadSpec,
    ConflictError,
    Foreign,
    HostError,
    MissingLibrary,
    NotPermitted,
    StalePlan,
    UnknownDomain,
    VfioctlError,
)

Answer = tuple[Any, int, str]
"""The value; or None with libvirt's number of the error and its text."""
NOT_INSTALLED = "libvirt-python is not installed: pip install 'vfioctl[libvirt]'"
MISSING, CHANGED = -1, -2
# virErrorNumber, which is part of libvirt's ABI
INVALID_BY_SCHEMA = 92
UNSUPPORTED, _OPERATION_FAILED, NO_DOMAIN, _NO_POOL, NO_VOLUME, _HOOK_FAILED = 3, 9, 42, 49, 50, 71
_OF_DOCUMENT = {8, 16, 21, 27, 35, 67, 91, INVALID_BY_SCHEMA}
"""INVALID_ARG, OS_TYPE, NO_NAME, XML_ERROR, XML_DETAIL, CONFIG_UNSUPPORTED, CPU_INCOMPATIBLE, XML_INVALID_SCHEMA."""
_DENIED = {29, 45, 79, 88, 94}
"""OPERATION_DENIED, AUTH_FAILED, AUTH_CANCELLED, ACCESS_DENIED, AUTH_UNAVAILABLE."""


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
    if code == MISSING:
        return MissingLibrary(f"{doing} needs libvirt-python, which is not installed", hint=text.partition(": ")[2])
    if code == CHANGED:
        return StalePlan(f"{doing}: its files are not as planned: {text}", hint="make a new plan")
    error: VfioctlError
    if code == NO_DOMAIN:
        command = f"vfioctl domain list --connect {quote(uri)}"
        error = UnknownDomain(f"{doing}: there is no such domain", next_command=command)
    elif code == _NO_POOL:
        error = BadSpec(f"{doing}: libvirt at {uri} has no such storage pool", hint="virsh pool-list --all")
    elif code in _DENIED or "Permission denied" in text:
        error = NotPermitted(f"{doing}: libvirt at {uri} does not permit it", hint="run it as root")
    elif code in _OF_DOCUMENT:
        error = BadDocument(f"{doing}: libvirt refuses the document", hint="the document must change")
    elif code == _OPERATION_FAILED and "already" in text:
        error = Foreign(f"{doing}: another domain has its name or its UUID", hint="change <name> and <uuid>")
    elif code == _HOOK_FAILED:
        error = ConflictError(f"{doing}: a hook of libvirt refuses it", hint="the reason is in what libvirt said")
    elif "Failed to connect" in text or "End of file" in text:
        error = HostError(f"{doing}: libvirt at {uri} cannot be reached", hint="systemctl status libvirtd virtqemud")
    else:
        error = HostError(f"{doing}: libvirt at {uri} failed")
    error.kernel_said = text
    return error
