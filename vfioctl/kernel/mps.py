"""What a host offers of NVIDIA's Multi-Process Service (MPS): a protocol for its control program. Runs nothing."""

from __future__ import annotations

import re
from typing import Protocol

from vfioctl.errors import HostError

PROGRAM = "nvidia-cuda-mps-control"
"""NVIDIA's program: the daemon, and what talks to it. Its packages install it in /usr/bin."""
MOST_OUTPUT = 1 << 16
"""Bytes of an answer that are read: the lists of a server have a line for each of at most 60 clients."""
COMPUTE_MODES = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")
"""By number of nvmlComputeMode_t."""
_QUESTION = re.compile(r"ps|get_[a-z_]{1,60}(?: [0-9]{1,10}){0,2}", re.ASCII)
_ORDER = re.compile(r"set_[a-z_]{1,60}(?: [0-9]{1,10}){0,2} [0-9]{1,15}[MG]?|quit", re.ASCII)


class MpsQuestions(Protocol):
    """Asks the control daemons of MPS. Answers are text of another program: nothing in them may be believed."""

    def mps_usage(self) -> str:
        """What the control program says of its options. Raises HostError if the host does not have it."""
        raise HostError("MPS: this host's control program is not recorded")

    def ask_mps(self, pipes: str, question: str) -> str:
        """The answer of the daemon whose pipes are in that directory, to `ps` or to a command `get_...`; cut off after
        MOST_OUTPUT bytes. Raises HostError if there is no daemon, or no answer in time; Stuck."""
        raise HostError(f"MPS: nothing is recorded of the daemon at {pipes}")


class MpsOrders(Protocol):
    """Changes what MPS needs."""

    @property
    def read_only(self) -> str: ...

    def tell_mps(self, pipes: str, order: str) -> None:
        """Gives the daemon a command `set_...`, or `quit`. The program may report success and do nothing: ask again.
        Raises HostError, Stuck."""
        raise HostError(f"the MPS daemon at {pipes} cannot be told anything: {self.read_only}")

    def set_compute_mode(self, address: str, mode: str) -> None:
        """Sets the compute mode of one NVIDIA GPU, one of COMPUTE_MODES, through NVML. Raises HostError, Stuck."""
        raise HostError(f"the compute mode of {address} cannot be set: {self.read_only}")


def refuse_question(text: str) -> None:
    """Raise ValueError for what is no question: reading may not change anything."""
    if _QUESTION.fullmatch(text) is None:
        raise ValueError(f"not a question to MPS: {text[:80]!r}")


def refuse_order(text: str) -> None:
    """Raise ValueError for what is no command that vfioctl gives."""
    if _ORDER.fullmatch(text) is None:
        raise ValueError(f"not an order to MPS: {text[:80]!r}")
