"""Asks a daemon's control program through the kernel seam. May not change anything."""

from __future__ import annotations

from vfioctl.errors import HostError, Stuck
from vfioctl.kernel.protocol import Reader
from vfioctl.sharing.mps.answers import percent_in
from vfioctl.sharing.mps.daemon import unit_of
from vfioctl.sharing.mps.intents import ACTIVE, INACTIVE, SILENT, UNKNOWN
from vfioctl.sharing.mps.share import pipes_of

HEALTH = "get_default_active_thread_percentage"
"""The question to which every daemon that works has an answer."""


def ask(reader: Reader, name: str, question: str) -> str:
    """Return the answer of a daemon. Raises HostError, Stuck."""
    return reader.ask_mps(pipes_of(name), question)


def answers(reader: Reader, name: str) -> bool:
    """Return whether a daemon answers sensibly."""
    try:
        return percent_in(ask(reader, name, HEALTH)) is not None
    except (HostError, Stuck):
        return False


def state_of(reader: Reader, name: str) -> str:
    """Return the state of a daemon. It is unknown where systemd does not say it: systemd may be busy."""
    unit = unit_of(name)
    state = reader.unit_states([unit]).get(unit)
    if state is None:
        return UNKNOWN
    if state not in ("active", "activating", "reloading"):
        return INACTIVE
    return ACTIVE if answers(reader, name) else SILENT
