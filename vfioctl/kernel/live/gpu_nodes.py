"""Hides the device files of NVIDIA's GPUs from the calling process, as from a container that was given some of them:
NVML opens each GPU whose file it finds, and a GPU that is open cannot be unbound. For programs of their own only."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Collection
from pathlib import Path

_CLONE_NEWNS = 0x20000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_GPUS = "/proc/driver/nvidia/gpus"
_MINOR = re.compile(rb"^Device Minor:\s*([0-9]+)$", re.MULTILINE)


def hide_all_but(gpus: Collection[str], *, known: str = _GPUS, devices: str = "/dev") -> bool:
    """Cover the device files of all other GPUs in a mount namespace of this process: its later threads, and no other
    process, see it. Returns False where that is not permitted (CAP_SYS_ADMIN), and some or all are not hidden.

    `known`: where the driver lists its GPUs; `devices`: where their device files are."""
    hidden = _nodes(gpus, known, devices)
    if not hidden:
        return True
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) or libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None):
        return False  # without the second, the mounts below would be the host's; unmounting there works here, too
    failures = [node for node in hidden if libc.mount(b"/dev/null", os.fsencode(node), None, _MS_BIND, None)]
    return not failures


def _nodes(gpus: Collection[str], known: str, devices: str) -> list[Path]:
    try:
        others = [address for address in os.listdir(known) if address not in gpus]
    except OSError:
        return []
    found = (_minor(Path(known, address, "information")) for address in others)
    return [node for minor in found if minor and (node := Path(devices, f"nvidia{minor}")).exists()]


def _minor(information: Path) -> str:
    try:
        match = _MINOR.search(information.read_bytes())
    except OSError:
        return ""
    return match[1].decode() if match else ""
