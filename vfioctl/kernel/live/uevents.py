"""The kernel's uevents of PCI functions and what is below them, through pyudev. Reads only."""

from __future__ import annotations

import errno as errnos
from typing import Any

from vfioctl.kernel.feeds import Feed, Lost, Notice, notice_of

SUBSYSTEMS = ("pci", "mdev", "vfio", "vfio-dev", "drm")
_BUFFER_BYTES = 1 << 20
_MOST = 10_000
"""Notices of one call; more are left for the next one."""


class Uevents(Feed):
    """Uevents as the kernel sends them: those that udev sends on reach nobody where it does not run."""

    def __init__(self) -> None:
        """Raises Lost if they cannot be followed."""
        try:
            from pyudev import Context, Monitor

            self._monitor: Any = Monitor.from_netlink(Context(), source="kernel")
            for subsystem in SUBSYSTEMS:
                self._monitor.filter_by(subsystem)
            self._enlarge()
            self._monitor.start()
        except (ImportError, OSError) as error:
            raise Lost(f"the kernel's events cannot be followed: {error}", ended=True) from None

    def _enlarge(self) -> None:
        try:
            self._monitor.set_receive_buffer_size(_BUFFER_BYTES)
        except OSError:  # only root may exceed the system's limit; with less, more events may be lost
            return

    def fileno(self) -> int:
        """Return the netlink socket."""
        return int(self._monitor.fileno())

    def read(self) -> list[Notice]:
        """Return the notices that wait. Raises Lost when the kernel had no room for more."""
        notices: list[Notice] = []
        try:
            for _ in range(_MOST):
                device = self._monitor.poll(timeout=0)
                if device is None:
                    break
                notice = notice_of(device.action or "", device.subsystem or "", device.sys_path, device.driver or "")
                if notice:
                    notices.append(notice)
        except OSError as error:
            why = "more happened than could be noted" if error.errno == errnos.ENOBUFS else str(error)
            raise Lost(f"events of the kernel were lost: {why}") from None
        return notices

    def close(self) -> None:
        """Close the socket, which is the monitor's, by letting go of the monitor."""
        self._monitor = None
