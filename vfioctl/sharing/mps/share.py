"""Shares of a GPU, the limits that follow for an MPS daemon, and what its clients need. May not do input or output."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from vfioctl.core.frozen import value_class
from vfioctl.errors import BadSpec
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.host_paths import MPS_RUN
from vfioctl.placement.model.share import WHOLE
from vfioctl.units import exact_size

MIB = 1 << 20
THREADS, MEMORY = "threads", "memory"
"""The kinds of limit."""
DIFFERS = "differs"
"""In place of a limit that is not the same for all servers and the default."""
CLAIM_VARIABLE = "VFIOCTL_CLAIM"
"""The variable by which a client says whose it is. It is the client's own word."""
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the kernel's own place for it
_CLAIM = re.compile("[0-9a-f]{8}", re.ASCII)


@value_class
class MpsShare:
    """The part of one GPU that a claim has."""

    claim: str
    owner: str
    gpu: PciAddress
    cores: int
    """hundredths of the GPU; 0 for no limit"""
    memory: int
    """bytes; 0 for no limit"""

    @property
    def is_whole(self) -> bool:
        """Whether the claim has the whole GPU, and its client no limits."""
        return not (self.cores or self.memory)


@value_class
class Limits:
    """What an MPS daemon allows each client. None: no limit is set."""

    threads: int | None = None
    """percent of the GPU's multiprocessors, 1 to 100"""
    memory: int | None = None
    """bytes of the GPU's memory, whole MiB"""

    @property
    def words(self) -> str:
        """The limits as a person reads them: `40 % of the threads, 2 GiB`."""
        threads = f"{self.threads} % of the threads" if self.threads is not None else ""
        memory = exact_size(self.memory) if self.memory is not None else ""
        return ", ".join(filter(None, (threads, memory))) or "no limits"


@value_class
class Mount:
    """A directory of the host that a client in a container needs, under the same path."""

    path: str
    options: tuple[str, ...] = ("rw", "nosuid", "nodev", "bind")


@value_class
class ClientEdits:
    """What a client of MPS is started with."""

    environment: Mapping[str, str]
    mounts: tuple[Mount, ...]

    @property
    def cdi(self) -> dict[str, object]:
        """The containerEdits of a CDI file."""
        return {
            "env": [f"{name}={value}" for name, value in self.environment.items()],
            "mounts": [
                {"hostPath": mount.path, "containerPath": mount.path, "options": list(mount.options)}
                for mount in self.mounts
            ],
        }


def checked_limits(threads: int | None, memory: int | None) -> Limits:
    """Return limits that a daemon takes; memory is rounded down to whole MiB. Raises BadSpec."""
    if threads is not None and not 1 <= threads <= WHOLE:
        raise BadSpec(f"a client gets 1 to {WHOLE} percent of a GPU's threads, not {threads}")
    if memory is not None and memory < MIB:
        raise BadSpec("a client needs at least 1 MiB of the GPU's memory")
    return Limits(threads, None if memory is None else memory // MIB * MIB)


def limits_of(share: MpsShare) -> Limits:
    """Return the limits of a client with this share. Raises BadSpec."""
    return checked_limits(share.cores or None, share.memory or None)


def daemon_limits(shares: Iterable[MpsShare]) -> Limits:
    """Return what a daemon must allow for these shares of its GPU: the largest of each kind.

    A client can lower its limits by its environment and never raise them (NVIDIA's MPS documentation,
    CUDA_MPS_ACTIVE_THREAD_PERCENTAGE), so the daemon's are those of the largest share. Raises BadSpec."""
    shares = tuple(shares)
    for share in shares:
        limits_of(share)
    return checked_limits(_largest(share.cores for share in shares), _largest(share.memory for share in shares))


def _largest(amounts: Iterable[int]) -> int | None:
    """Return the largest amount; None if there is none, or one is 0 and so without a limit."""
    known = tuple(amounts)
    return max(known) if known and all(known) else None


def client_edits(share: MpsShare, name: str, *, priority: int | None = None) -> ClientEdits:
    """Return the environment and the mounts of a client with this share, of the daemon called `name`.

    `priority`: 0 (normal) or 1 (below normal). /dev/shm is the memory that clients and server exchange; a container
    with an IPC namespace of its own needs the host's. Raises BadSpec."""
    if _CLAIM.fullmatch(share.claim) is None:
        raise BadSpec(f"not the id of a claim: {share.claim[:40]!r}")
    if priority not in (None, 0, 1):
        raise BadSpec(f"the priority of a client is 0 (normal) or 1 (below normal), not {priority}")
    limits = limits_of(share)
    pipes = pipes_of(name)
    environment = {
        "CUDA_MPS_PIPE_DIRECTORY": pipes,
        **({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(limits.threads)} if limits.threads is not None else {}),
        **({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={megabytes(limits.memory)}"} if limits.memory is not None else {}),
        **({"CUDA_MPS_CLIENT_PRIORITY": str(priority)} if priority is not None else {}),
        CLAIM_VARIABLE: share.claim,
    }
    return ClientEdits(environment, (Mount(pipes), Mount(_SHARED_MEMORY)))


def pipes_of(name: str) -> str:
    """Return the directory of a daemon's pipes."""
    return f"{MPS_RUN}/{name}"


def megabytes(size: int) -> str:
    """Return a number of bytes as MPS takes it: `2048M`, rounded down. Its M is 2^20 bytes."""
    return f"{size // MIB}M"
