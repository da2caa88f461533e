"""Reads the kubelet's checkpoint of device managers: a hint at most, for its form belongs to the kubelet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vfioctl.kernel.untrusted_files import read_file
from vfioctl.untrusted_text import parse_json

FILE = "kubelet_internal_checkpoint"
_LARGEST = 16 << 20


def allocated_ids(directory: str) -> frozenset[tuple[str, str]]:
    """Return the devices that the kubelet has given to pods, by resource and id; none if that cannot be read."""
    try:
        document = parse_json(read_file(Path(directory, FILE), _LARGEST).decode(), most=_LARGEST)
        return frozenset(_entries(document["Data"]["PodDeviceEntries"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return frozenset()


def _entries(entries: Any) -> Iterator[tuple[str, str]]:
    for entry in entries or ():
        devices = entry["DeviceIDs"]  # by NUMA node, since Kubernetes 1.20
        lists = devices.values() if isinstance(devices, dict) else [devices]
        yield from ((str(entry["ResourceName"]), str(name)) for names in lists for name in names or ())
