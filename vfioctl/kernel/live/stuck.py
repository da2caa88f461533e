"""The errors for a call that did not return: in which process, where in the kernel, and what ends it."""

from __future__ import annotations

import re

from vfioctl.errors import Stuck
from vfioctl.kernel.worker.processes import ticket_of
from vfioctl.kernel.worker.stall import Unreturned

_CALL = re.compile(r"^\[<0>\] (\w+)\+", re.M)
_MOST_CALLS = 6


def write_never_returned(path: str, value: str, late: Unreturned) -> Stuck:
    """For a write; its facts have the ticket that `Kernel.write_ended` takes."""
    error = _stuck(
        f"writing {value!r} to {path} did not return in {late.seconds:g} s",
        "something holds the device; the write ends when it is released, or at the next boot",
        late,
    )
    error.next_command = "vfioctl recover"
    error.facts["path"] = path
    return error


def call_never_returned(what: str, hint: str, late: Unreturned) -> Stuck:
    """For a module, a unit, a library call or a read."""
    return _stuck(f"{what} did not return in {late.seconds:g} s", hint, late)


def _stuck(message: str, hint: str, late: Unreturned) -> Stuck:
    error = Stuck(message, hint=hint, facts={"pid": late.pid, "ticket": ticket_of(late.pid), **late.state})
    state, place = late.state.get("stat", "?"), late.state.get("wchan", "?")
    calls = _CALL.findall(late.state.get("stack", ""))[:_MOST_CALLS]
    called = f", called by {' <- '.join(calls)}" if calls else ""
    error.kernel_said = f"process {late.pid} is in state {state}, in {place}{called}"
    return error
