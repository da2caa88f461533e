"""Reads the configuration of Kata and containerd, and what the kubelet knows. Reads only."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vfioctl.containers.kata.check import Kata
from vfioctl.containers.kata.settings import merged
from vfioctl.errors import KernelRefused
from vfioctl.kernel.lenient import names_in
from vfioctl.kernel.protocol import FileReader
from vfioctl.kernel.untrusted_files import read_file
from vfioctl.untrusted_text import parse_json, parse_toml

_PLACES = (
    "/etc/kata-containers/configuration.toml",
    "/usr/share/defaults/kata-containers/configuration.toml",
    "/opt/kata/share/defaults/kata-containers/configuration.toml",
)
_CONTAINERD = "/etc/containerd/config.toml"
_KUBELET = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
_MOST = 4 << 20


def read_kata(kernel: FileReader, config: Path | None) -> Kata:
    """Read Kata's configuration and its needs. `config`: its configuration.toml; None for the first that exists."""
    path = str(config) if config else next((place for place in _PLACES if kernel.has(place)), "")
    settings: Mapping[str, Any] | None = None
    file, problem = path, ""
    try:
        if path:
            documents = []
            for file in (path, *(_beside(path) if config else _drop_ins(kernel, path))):
                text = read_file(Path(file), _MOST).decode("utf-8", "replace") if config else kernel.read(file)
                documents.append(parse_toml(text))
            settings = merged(documents)
    except KernelRefused as error:
        problem = f"{file} cannot be read: {error.symbol}"
    except OSError as error:
        problem = f"{file} cannot be read: {error.strerror}"
    except ValueError as error:
        problem = f"{file} is no TOML: {error}"
    return Kata(path, settings, problem, _pod_annotations(kernel), _plugins(kernel))


def _beside(config: str) -> list[str]:
    folder = f"{os.path.dirname(os.path.realpath(config))}/config.d"
    return sorted(map(str, Path(folder).glob("*.toml")))


def _drop_ins(kernel: FileReader, path: str) -> list[str]:
    folder = f"{path.rpartition('/')[0]}/config.d"
    return [f"{folder}/{name}" for name in names_in(kernel, folder) if name.endswith(".toml")]


def _pod_annotations(kernel: FileReader) -> tuple[str, ...] | None:
    """Return what containerd hands to Kata; None if it has no runtime of that type."""
    try:
        pod_annotations = list(_of_kata(parse_toml(kernel.read(_CONTAINERD))))
    except (KernelRefused, ValueError):
        return None
    return tuple(dict.fromkeys(text for listed in pod_annotations for text in listed)) if pod_annotations else None


def _of_kata(table: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the annotations of each runtime whose type names Kata."""
    kind, listed = table.get("runtime_type"), table.get("pod_annotations")
    if isinstance(kind, str) and "kata" in kind:
        yield [text for text in listed if isinstance(text, str)] if isinstance(listed, list) else []
    for section in table.values():
        if isinstance(section, Mapping):
            yield from _of_kata(section)


def _plugins(kernel: FileReader) -> Mapping[str, tuple[str, ...]] | None:
    """Return the ids of each resource in the kubelet's checkpoint."""
    try:
        document = parse_json(kernel.read(_KUBELET))
        listed = document["Data"]["RegisteredDevices"]
        return {str(name): tuple(str(device) for device in ids or ()) for name, ids in (listed or {}).items()}
    except (KernelRefused, ValueError, LookupError, TypeError, AttributeError):
        return None
