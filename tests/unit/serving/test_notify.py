"""What the service manager gets, as sd_notify(3) says, and that it cannot hurt the service."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path

import pytest

from vfioctl.serving.notify import Heartbeat, Notifier


class Manager:
    """A socket where systemd's would be."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.settimeout(10)
        self.fd = self._socket.fileno()

    def message(self) -> str:
        return self._socket.recv(1 << 16).decode()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    there = Manager(str(tmp_path / "notify"))
    yield there
    there.close()


@pytest.fixture
def notifier(manager: Manager, tmp_path: Path) -> Notifier:
    return Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})


def test_states(notifier: Notifier, manager: Manager) -> None:
    notifier.ready("3 resources")
    notifier.status("2 of 3 resources are registered")
    notifier.alive()
    notifier.stopping()
    expected = ["READY=1\nSTATUS=3 resources", "STATUS=2 of 3 resources are registered", "WATCHDOG=1", "STOPPING=1"]
    assert [manager.message() for _ in expected] == expected


def test_a_status_is_one_line(notifier: Notifier, manager: Manager) -> None:
    notifier.status("gone\nMAINPID=1" + "x" * 5000)
    message = manager.message()
    assert message.startswith(r"STATUS=gone\nMAINPID=1xxx")
    assert len(message) < 1100


def test_an_abstract_socket() -> None:
    name = f"vfioctl-test-{os.getpid()}"
    manager = Manager(f"\0{name}")
    Notifier({"NOTIFY_SOCKET": f"@{name}"}).ready()
    assert manager.message() == "READY=1"
    manager.close()


@pytest.mark.parametrize("path", ["", "relative", "/nowhere", "vsock:2:1234", "/" + "x" * 200])
def test_nobody_there_is_no_error(path: str) -> None:
    Notifier({"NOTIFY_SOCKET": path}).ready("up")


def test_a_manager_that_reads_nothing_is_not_waited_for(notifier: Notifier, manager: Manager) -> None:
    for _ in range(5000):
        notifier.alive()
    assert manager.message() == "WATCHDOG=1"


@pytest.mark.parametrize(
    ("usec", "pid", "interval"),
    [
        ("60000000", "", 30.0),
        ("60000000", "own", 30.0),
        ("60000000", "1", None),
        ("", "", None),
        ("0", "", None),
        ("-5", "", None),
    ],
)
def test_the_watchdog_gets_a_sign_in_half_its_time(usec: str, pid: str, interval: float | None) -> None:
    environment = {"WATCHDOG_USEC": usec, "WATCHDOG_PID": str(os.getpid()) if pid == "own" else pid}
    assert Notifier(environment).watchdog_interval == interval


class TestHeartbeat:
    def test_goes_on_while_the_service_lives(self, manager: Manager, tmp_path: Path) -> None:
        notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "20000"})
        living, ended = chain([True, True], repeat(object=False)), threading.Event()

        def is_alive() -> bool:
            lives = next(living)
            if not lives:
                ended.set()
            return lives

        heartbeat = Heartbeat(notifier, is_alive)
        heartbeat.start()
        assert [manager.message(), manager.message()] == ["WATCHDOG=1"] * 2
        assert ended.wait(10)
        heartbeat.close()
        notifier.stopping()
        assert manager.message() == "STOPPING=1", "a dead service gave no sign of life"

    def test_ends(self, manager: Manager, tmp_path: Path) -> None:
        notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "3600000000"})
        heartbeat = Heartbeat(notifier, lambda: True)
        heartbeat.start()
        assert manager.message() == "WATCHDOG=1"
        heartbeat.close()
        for thread in [thread for thread in threading.enumerate() if thread.name == "watchdog"]:
            thread.join(10)
            assert not thread.is_alive()

    def test_is_none_without_a_watchdog(self, notifier: Notifier) -> None:
        before = threading.active_count()
        Heartbeat(notifier, lambda: True).start()
        assert threading.active_count() == before
