"""Reads what the running service tells of itself. May not write."""

from __future__ import annotations

from pathlib import Path

from vfioctl.kernel.untrusted_files import read_file
from vfioctl.kubelet.model.status import Running, running_in

FILE = "kubelet.json"
_LARGEST = 1 << 20


def read_running(directory: str, ledger: Path) -> Running | None:
    """Return what the service with this ledger says; None if none runs, or its file cannot be read."""
    try:
        running = running_in(read_file(Path(directory, FILE), _LARGEST).decode())
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    is_ours = running.ledger == str(ledger) and Path("/proc", str(running.pid)).exists()
    return running if is_ours else None
