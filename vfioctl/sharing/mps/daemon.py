"""What vfioctl has told an MPS daemon, as the file of its unit's environment has it. May not do input or output."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vfioctl.core.frozen import value_class
from vfioctl.errors import RequestError
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.host_paths import MPS_LOG, MPS_RUN
from vfioctl.kernel.mps import COMPUTE_MODES
from vfioctl.placement.model.share import Enforcement
from vfioctl.sharing.mps.share import MIB, Limits, pipes_of

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim

EXCLUSIVE = "Exclusive_Process"
"""The compute mode in which only one process may use a GPU: the MPS server."""
NAME = re.compile(r"[0-9a-f]{4,8}-[0-9a-f]{2}-[01][0-9a-f]\.[0-7]|claim-[0-9a-f]{8}", re.ASCII)
"""The name of a daemon: its GPU's address, or its claim. It has no colon, which separates paths in options of mounts
and in systemd's RuntimeDirectory=."""
_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_TEXT = re.compile(
    r"CUDA_VISIBLE_DEVICES=(?P<uuid>[^\n]*)\nCUDA_MPS_PIPE_DIRECTORY=[^\n]*/(?P<name>[^\n/]*)\n"
    r"CUDA_MPS_LOG_DIRECTORY=[^\n]*\n(?:CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=[0-9]+\n)?"
    r"VFIOCTL_GPU=(?P<gpu>[^\n]*)\nVFIOCTL_MODE_BEFORE=(?P<before>[^\n]*)\n"
    r"VFIOCTL_THREADS=(?P<threads>[0-9]{0,3})\nVFIOCTL_MEMORY=(?P<memory>[0-9]{0,15})",
    re.ASCII,
)


@value_class
class Told:
    """What a daemon was started with."""

    name: str
    gpu: PciAddress
    uuid: str
    """NVML's, of the one GPU that the daemon sees: it is device 0 there. Limits by UUID would be ignored silently."""
    mode_before: str
    """the GPU's compute mode before; `stop` sets it again"""
    limits: Limits

    @property
    def claim(self) -> str:
        """The id of the claim that the daemon is for; empty if it is for all of its GPU's."""
        return self.name.removeprefix("claim-") if self.name.startswith("claim-") else ""

    def serves(self, gpu: str, claim: str) -> bool:
        """Return whether a claim's clients on a GPU are its clients."""
        return self.gpu == gpu and self.claim in ("", claim)

    @property
    def file(self) -> str:
        """The path of the file."""
        return file_of(self.name)

    @property
    def pipes(self) -> str:
        """The directory of its pipes."""
        return pipes_of(self.name)

    @property
    def unit(self) -> str:
        """Its systemd unit."""
        return unit_of(self.name)

    @property
    def text(self) -> str:
        """The text of the file, without the last newline: the environment of the unit.

        The percentage is there for a daemon that systemd starts again; memory is only set by a command."""
        threads, memory = self.limits.threads, self.limits.memory
        lines = [
            f"CUDA_VISIBLE_DEVICES={self.uuid}",
            f"CUDA_MPS_PIPE_DIRECTORY={self.pipes}",
            f"CUDA_MPS_LOG_DIRECTORY={MPS_LOG}/{self.name}",
            *([f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={threads}"] if threads is not None else []),
            f"VFIOCTL_GPU={self.gpu}",
            f"VFIOCTL_MODE_BEFORE={self.mode_before}",
            f"VFIOCTL_THREADS={'' if threads is None else threads}",
            f"VFIOCTL_MEMORY={'' if memory is None else memory}",
        ]
        return "\n".join(lines)


def told_in(text: str) -> Told | None:
    """Return what such a file says; None if it is not as vfioctl writes it."""
    match = _TEXT.fullmatch(text)
    if match is None or NAME.fullmatch(match["name"]) is None or _UUID.fullmatch(match["uuid"]) is None:
        return None
    limits = Limits(*(int(match[part]) if match[part] else None for part in ("threads", "memory")))
    try:
        told = Told(match["name"], PciAddress(match["gpu"]), match["uuid"], match["before"], limits)
    except RequestError:
        return None
    is_sound = told.text == text and told.mode_before in COMPUTE_MODES and _may_be(limits)
    return told if is_sound else None


def _may_be(limits: Limits) -> bool:
    threads, memory = limits.threads, limits.memory
    return (threads is None or 1 <= threads <= 100) and (memory is None or (memory >= MIB and memory % MIB == 0))


def is_uuid(text: str | None) -> bool:
    """Return whether NVML's UUID of a GPU has its usual form."""
    return text is not None and _UUID.fullmatch(text) is not None


def name_of(gpu: PciAddress, claim: str = "") -> str:
    """Return the name of a GPU's daemon, or of a claim's."""
    return f"claim-{claim}" if claim else str(gpu).replace(":", "-")


def file_of(name: str) -> str:
    """Return the file of a daemon's environment."""
    return f"{MPS_RUN}/{name}.env"


def unit_of(name: str) -> str:
    """Return the systemd unit of a daemon."""
    return f"vfioctl-mps@{name}.service"


def gpus_without_daemon(claim: Claim, daemons: Sequence[Told]) -> Iterator[PciAddress]:
    """Yield the GPUs of which MPS is to enforce the claim's share, and no daemon serves it."""
    for share in claim.shares:
        if share.enforce == Enforcement.MPS and not any(told.serves(share.address, claim.id) for told in daemons):
            yield PciAddress(share.address)
