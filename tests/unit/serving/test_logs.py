"""The log of the service: a JSON object a line, with the fields of changes and of the service."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.conftest import ROOT
from vfioctl.core.logs import CHANGES
from vfioctl.serving.logs import JsonHandler, log_as_json

SERVICE = logging.getLogger("vfioctl.kubelet")


@pytest.fixture
def _as_json() -> Iterator[None]:
    stop = log_as_json()
    yield
    stop()


def lines(capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capfd.readouterr().err.splitlines()]


@pytest.mark.usefixtures("_as_json")
def test_fields(capfd: pytest.CaptureFixture[str]) -> None:
    SERVICE.info("registered", extra={"resource": "nvidia.com/A100", "unknown": "x"})
    logging.getLogger(CHANGES).error(
        "bind: refused", extra={"plan_id": "1f", "devices": "0000:41:00.0", "verb": "bind"}
    )
    registered, refused = lines(capfd)
    assert registered.pop("time").endswith("+00:00")
    assert registered == {
        "level": "info",
        "logger": "vfioctl.kubelet",
        "message": "registered",
        "resource": "nvidia.com/A100",
    }
    assert (refused["level"], refused["plan_id"], refused["devices"]) == ("error", "1f", "0000:41:00.0")


@pytest.mark.usefixtures("_as_json")
def test_a_record_is_one_line_of_ascii(capfd: pytest.CaptureFixture[str]) -> None:
    SERVICE.warning("%s", "a\nb\x1b[31m\x7f\u202e" + "x" * 9000)
    text = capfd.readouterr().err
    assert text.count("\n") == 1
    assert text.rstrip("\n").isascii()
    assert text.rstrip("\n").isprintable()
    assert len(json.loads(text)["message"]) == 4096


@pytest.mark.usefixtures("_as_json")
def test_a_traceback_is_a_field(capfd: pytest.CaptureFixture[str]) -> None:
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        SERVICE.exception("a bug")
    (line,) = lines(capfd)
    assert line["traceback"].endswith("ZeroDivisionError")


@pytest.mark.usefixtures("_as_json")
def test_debug_records_are_for_those_who_ask(capfd: pytest.CaptureFixture[str]) -> None:
    SERVICE.debug("a request")
    assert lines(capfd) == []


def test_other_handlers_come_back() -> None:
    logger = logging.getLogger("vfioctl")
    before, level = logger.handlers[:], logger.level
    log_as_json()()
    assert (logger.handlers, logger.level) == (before, level)


def test_in_the_journal_a_line_has_its_priority_and_changes_come_otherwise(capfd: pytest.CaptureFixture[str]) -> None:
    handler = JsonHandler(in_journal=True)
    for name, level in (("vfioctl.kubelet", logging.ERROR), (CHANGES, logging.INFO), ("vfioctl", logging.INFO)):
        handler.emit(logging.LogRecord(name, level, "", 0, "text", (), None))
    assert [line[:4] for line in capfd.readouterr().err.splitlines()] == ["<3>{", "<6>{"]


def test_stderr_is_the_journal_if_systemd_says_so() -> None:
    program = (
        "import os, socket\nfrom vfioctl.serving.logs import _is_journal\n"
        "ours, theirs = socket.socketpair()\nstatus = os.fstat(ours.fileno())\n"
        "os.environ['JOURNAL_STREAM'] = f'{status.st_dev}:{status.st_ino}'\n"
        "print(_is_journal(ours.fileno()), _is_journal(theirs.fileno()), _is_journal(0), _is_journal(999))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env={**os.environ})
    assert done.stdout.split() == ["True", "False", "False", "False"]


def test_a_closed_stderr_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Closed:
        def write(self, _text: str) -> None:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    JsonHandler(in_journal=False).emit(logging.LogRecord("vfioctl", logging.INFO, "", 0, "text", (), None))
