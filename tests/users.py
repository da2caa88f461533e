"""Runs a part of a test as another user: the one who shares a machine with root and means ill."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from tests.processes import end_in_time

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two users")


def as_nobody(work: Callable[[], Any]) -> Any:
    """Return what `work` returns in a child that is uid 65534, as JSON has it; a string for an OSError: its name."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            end_in_time()
            os.close(ours)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            try:
                answer = work()
            except OSError as error:
                answer = type(error).__name__
            os.write(theirs, json.dumps(answer).encode())
            code = 0
        except BaseException:  # noqa: BLE001 - the child never returns to the test
            traceback.print_exc(file=sys.__stderr__)
        os._exit(code)
    os.close(theirs)
    with open(ours, "rb") as stream:
        told = stream.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return json.loads(told)
