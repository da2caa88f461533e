"""Tells systemd of the state of the service: sd_notify(3), without its library. Does nothing without NOTIFY_SOCKET."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping

from vfioctl.console.words import plain

_LONGEST = 1000
"""Maximum length of a status, in characters."""


class Notifier:
    """Sends states to the service manager. A state that cannot be sent is dropped: the service goes on."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path if path.startswith("/") else ""
        self.watchdog_interval = _interval(environment)
        """Seconds between two signs of life, half of what systemd waits for one; None if it expects none."""

    def ready(self, status: str = "") -> None:
        """The service is up: systemd starts what comes after it."""
        self._send("READY=1", _status(status))

    def status(self, text: str) -> None:
        """What `systemctl status` shows."""
        self._send(_status(text))

    def alive(self) -> None:
        """A sign of life for the watchdog."""
        self._send("WATCHDOG=1")

    def stopping(self, status: str = "") -> None:
        """The service ends."""
        self._send("STOPPING=1", _status(status))

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(0)  # a hanging manager must not block the service
                sender.sendto("\n".join(filter(None, lines)).encode("utf-8", "replace"), self._address)
        except (OSError, ValueError):  # ValueError: a path that is no valid socket address
            pass


class Heartbeat:
    """Sends signs of life from a thread for as long as `is_alive` says so. `is_alive` may not wait for a change."""

    def __init__(self, notifier: Notifier, is_alive: Callable[[], bool]) -> None:
        self._notifier, self._is_alive = notifier, is_alive
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin; without a watchdog do nothing."""
        if self._notifier.watchdog_interval is not None:
            threading.Thread(target=self._beat, name="watchdog", daemon=True).start()

    def close(self) -> None:
        """End."""
        self._stopped.set()

    def _beat(self) -> None:
        while not self._stopped.is_set():
            if self._is_alive():
                self._notifier.alive()
            self._stopped.wait(self._notifier.watchdog_interval)


def _status(text: str) -> str:
    """One line: a second one would be another assignment."""
    return f"STATUS={plain(text)[:_LONGEST]}" if text else ""


def _interval(environment: Mapping[str, str]) -> float | None:
    """Half of WATCHDOG_USEC, if it is meant for this process: sd_watchdog_enabled(3)."""
    microseconds, process = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not (microseconds.isascii() and microseconds.isdecimal()) or process not in ("", str(os.getpid())):
        return None
    return int(microseconds) / 2e6 or None
