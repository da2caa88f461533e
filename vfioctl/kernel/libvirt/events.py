"""The life of libvirt's domains: a program of its own that writes a line of JSON for each event, and ends with libvirt.

`vfioctl.kernel.live.domain_events` starts it. libvirt's event loop belongs to a whole process, and a daemon that hangs
stops it: neither may happen to the process that watches. It ends when its standard input does."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from vfioctl.kernel.program_feed import FOLLOWED, failed, say

_KEEPALIVE_SECONDS, _KEEPALIVE_COUNT = 5, 3
_TICK_MILLISECONDS = 1000
NAMES = (*("defined", "undefined", "started", "suspended", "resumed", "stopped", "shutdown", "pmsuspended", "crashed"),)
"""VIR_DOMAIN_EVENT_*, by number."""


def main(uri: str) -> int:
    """Write events until standard input or the connection ends. Returns the exit status: 1 if libvirt failed."""
    try:
        import libvirt
    except ImportError as error:
        return failed(str(error))
    libvirt.registerErrorHandler(lambda *_: None, None)  # it would write to stderr
    libvirt.virEventRegisterDefaultImpl()
    ended: list[str] = []
    try:
        connection = libvirt.openReadOnly(uri)
        with suppress(libvirt.libvirtError):  # a driver without a daemon has neither
            connection.setKeepAlive(_KEEPALIVE_SECONDS, _KEEPALIVE_COUNT)
            connection.registerCloseCallback(lambda *_: ended.append("libvirt closed the connection"), None)
        connection.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, _write, None)
        libvirt.virEventAddHandle(0, libvirt.VIR_EVENT_HANDLE_READABLE, lambda *_: os._exit(0), None)
        libvirt.virEventAddTimeout(_TICK_MILLISECONDS, lambda *_: None, None)  # so that the loop looks at `ended`
        say(FOLLOWED, uri, "")
        while not ended:
            libvirt.virEventRunDefaultImpl()
    except libvirt.libvirtError as error:
        return failed(str(error))
    return failed(ended[0])


def _write(_connection: Any, domain: Any, event: int, _detail: int, _opaque: Any) -> None:
    say(NAMES[event] if 0 <= event < len(NAMES) else "changed", domain.name(), domain.UUIDString())
