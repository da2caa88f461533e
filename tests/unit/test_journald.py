"""Changes in the journal of the system: what a socket of journald gets, and that none of it can hurt a change."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.conftest import Run
from vfioctl import sources
from vfioctl.console.choice import Choice
from vfioctl.core.logs import CHANGES
from vfioctl.host import Host
from vfioctl.journald import log_to_journal
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.opening import CommandSession, open_session
from vfioctl.session import Session


class Journal:
    """A socket where journald's would be."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.settimeout(0)

    def messages(self) -> list[dict[str, str]]:
        """All that came since the last call, as fields."""
        found = []
        while True:
            try:
                found.append(_fields(self._socket.recv(1 << 20)))
            except BlockingIOError:
                return found

    def close(self) -> None:
        self._socket.close()


def _fields(data: bytes) -> dict[str, str]:
    """As journald reads them."""
    found = {}
    while data:
        line, _, data = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            length, data = int.from_bytes(data[:8], "little"), data[8:]
            value, end, data = data[:length], data[length : length + 1], data[length + 1 :]
            assert end == b"\n"
        found[name.decode()] = value.decode()
    return found


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    there = Journal(tmp_path / "socket")
    yield there
    there.close()


class TestHandler:
    def sent(self, path: str, level: int, message: str, **fields: object) -> None:
        stop = log_to_journal(path)
        try:
            logging.getLogger(CHANGES).log(level, "%s", message, extra=fields)
        finally:
            stop()

    def test_sends_the_fields_of_a_change(self, journal: Journal) -> None:
        self.sent(
            journal.path,
            logging.INFO,
            "bind x: done",
            plan_id="abc",
            devices="0000:01:00.0 0000:01:00.1",
            verb="bind",
            result="done",
        )
        assert journal.messages() == [
            {
                "MESSAGE": "bind x: done",
                "PRIORITY": "6",
                "SYSLOG_IDENTIFIER": "vfioctl",
                "VFIOCTL_PLAN_ID": "abc",
                "VFIOCTL_DEVICES": "0000:01:00.0 0000:01:00.1",
                "VFIOCTL_VERB": "bind",
                "VFIOCTL_RESULT": "done",
            }
        ]

    @pytest.mark.parametrize(
        ("level", "priority"), [(logging.CRITICAL, "2"), (logging.ERROR, "3"), (logging.WARNING, "4"), (25, "6")]
    )
    def test_has_the_priorities_of_syslog(self, journal: Journal, level: int, priority: str) -> None:
        self.sent(journal.path, level, "m")
        assert [message["PRIORITY"] for message in journal.messages()] == [priority]

    def test_sends_lines_with_their_length(self, journal: Journal) -> None:
        self.sent(journal.path, logging.ERROR, "two\nlines=\nMESSAGE=forged\n", result="a\n")
        (message,) = journal.messages()
        assert message["MESSAGE"] == "two\nlines=\nMESSAGE=forged\n"
        assert message["VFIOCTL_RESULT"] == "a\n"

    def test_cuts_what_is_too_long_for_a_datagram(self, journal: Journal) -> None:
        self.sent(journal.path, logging.ERROR, "x" * 1_000_000, devices="y" * 1_000_000)
        (message,) = journal.messages()
        assert len(message["MESSAGE"]) == len(message["VFIOCTL_DEVICES"]) == 4096

    def test_is_silent_when_it_is_stopped(self, journal: Journal) -> None:
        log_to_journal(journal.path)()
        logging.getLogger(CHANGES).error("late")
        assert journal.messages() == []

    @pytest.mark.parametrize("path", ["/nonexistent/socket", "/dev/null", "x" * 300, "", "a\0b"])
    def test_does_without_a_journal(self, path: str) -> None:
        self.sent(path, logging.ERROR, "nobody hears it")

    def test_does_not_wait_for_a_journal_that_is_full(self, journal: Journal) -> None:
        for number in range(2000):
            self.sent(journal.path, logging.ERROR, f"{number} {'x' * 3000}")
        assert 0 < len(journal.messages()) < 2000


class TestCommands:
    """On a simulated host, where VFIOCTL_JOURNALD_SOCKET asks for it."""

    @pytest.fixture
    def told(self, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> Journal:
        monkeypatch.setenv("VFIOCTL_JOURNALD_SOCKET", journal.path)
        return journal

    def test_a_change_that_was_made(self, run: Run, told: Journal) -> None:
        plan = run("bind gpu0 --json --simulate laptop").document["plan"]
        (message,) = told.messages()
        assert message["MESSAGE"] == "bind 0000:01:00.0: done"
        assert (message["VFIOCTL_PLAN_ID"], message["VFIOCTL_VERB"]) == (plan["id"], "bind")
        assert message["VFIOCTL_DEVICES"].split() == ["0000:01:00.0", "0000:01:00.1"]
        assert message["VFIOCTL_RESULT"] == "done"

    def test_a_change_that_was_rolled_back(self, run: Run, told: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VFIOCTL_FAULTS", "3:EBUSY")
        assert run("bind gpu1 --simulate workstation").code == 5
        (message,) = told.messages()
        assert message["PRIORITY"] == "3"
        assert message["VFIOCTL_RESULT"].startswith("KernelRefused: writing ")

    def test_a_change_that_was_refused(self, run: Run, told: Journal, tmp_path: Path) -> None:
        plan = tmp_path / "plan.json"
        plan.write_text(run("bind gpu0 --dry-run --json --simulate laptop").out)
        assert told.messages() == [], "a dry run is no change"
        assert run(f"apply {plan} --simulate laptop").code == 0
        told.messages()
        assert run("bind gpu0 --host laptop").code == 3
        (message,) = told.messages()
        assert message["VFIOCTL_RESULT"].startswith("NotPermitted: ")

    def test_a_change_that_recover_rolled_back(self, run: Run, told: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VFIOCTL_FAULTS", "2:hang")
        assert run("bind gpu1 --simulate workstation").code == 7
        monkeypatch.delenv("VFIOCTL_FAULTS")
        kernel = Host.simulated("workstation").session.kernel
        assert isinstance(kernel, Simulated)
        kernel.release("0000:0b:00.1")
        assert run("recover --simulate workstation").code == 0
        stuck, recovered = told.messages()
        assert stuck["VFIOCTL_RESULT"].startswith("Stuck: ")
        assert recovered["MESSAGE"] == "recover bind 0000:0b:00.0: put back"
        assert recovered["VFIOCTL_RESULT"] == "put back"

    def test_listings_say_nothing(self, run: Run, told: Journal) -> None:
        run("inventory --simulate laptop")
        run("history --simulate laptop")
        assert told.messages() == []

    def test_without_a_socket_a_simulated_host_tells_nobody(
        self, run: Run, journal: Journal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("vfioctl.journald.SOCKET", journal.path)
        assert run("bind gpu0 --simulate laptop").code == 0
        assert journal.messages() == []

    def test_a_socket_that_is_gone_hurts_no_change(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VFIOCTL_JOURNALD_SOCKET", "/nonexistent/socket")
        assert run("bind gpu0 --simulate laptop").code == 0

    def test_this_machine_tells_its_own_journal(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        asked: list[tuple[str, ...]] = []

        def log(*path: str) -> Callable[[], None]:
            asked.append(path)
            return lambda: None

        monkeypatch.setattr("vfioctl.journald.log_to_journal", log)
        choice = Choice(open_session)
        for live in (False, True):
            session = CommandSession(sources.recorded(Session, "laptop").kernel, tmp_path / "ledger.db")
            session.follow(choice, live=live)
            assert session.engine is session.engine
        choice.at_end.close()
        assert asked == [()]
