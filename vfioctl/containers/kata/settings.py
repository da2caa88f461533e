"""Kata's settings, which are only read, and what its guest needs of them to have devices: PCIe ports, address space."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vfioctl.claims.model.cdi import Node
from vfioctl.errors import HostError, KernelRefused
from vfioctl.inventory.model.functions import Inventory
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.kernel.host_paths import KATA_CONFIGURATIONS
from vfioctl.kernel.lenient import names_in
from vfioctl.kernel.protocol import FileReader
from vfioctl.kernel.untrusted_files import read_file
from vfioctl.units import format_size
from vfioctl.untrusted_text import parse_json, parse_toml

MOST_PORTS = 16
"""Kata's limit of root ports, and of switch ports."""
_LEFT_OUT = ("0600", "0604")
"""Classes that Kata does not attach from a group: host bridges and PCI bridges."""
_LEAST_WINDOW = 2 << 20
PORTS = {"root-port": "pcie_root_port", "switch-port": "pcie_switch_port", "bridge-port": ""}
"""The places for cold-plugged devices, and the setting with the number of ports of each."""
NO_PORT = "no-port"
MODES = ("guest-kernel", "vfio")
_CONTAINERD = "/etc/containerd/config.toml"
_KUBELET = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
_MOST = 4 << 20


@dataclass(frozen=True)
class Kata:
    """What was read of Kata, containerd and the kubelet. None: there is no such file, or it could not be read."""

    path: str = ""
    settings: Mapping[str, Any] | None = None
    problem: str = ""
    pod_annotations: tuple[str, ...] | None = None
    """Those that containerd hands to Kata; None also if it has no runtime of Kata."""
    resources: Mapping[str, tuple[str, ...]] | None = None
    """The ids of each resource that device plugins have reported to the kubelet."""


def read_kata(kernel: FileReader, config: Path | None) -> Kata:
    """Read Kata's configuration and its needs. `config`: its configuration.toml; None for the first that exists."""
    path = str(config) if config else next((place for place in KATA_CONFIGURATIONS if kernel.has(place)), "")
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
    try:
        document = parse_json(kernel.read(_KUBELET))
        listed = document["Data"]["RegisteredDevices"]
        return {str(name): tuple(str(device) for device in ids or ()) for name, ids in (listed or {}).items()}
    except (KernelRefused, ValueError, LookupError, TypeError, AttributeError):
        return None


def merged(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings of a configuration and its drop-ins: a later table adds to an earlier one."""
    settings: dict[str, Any] = {}
    for document in documents:
        for name, value in document.items():
            both = isinstance(value, Mapping) and isinstance(settings.get(name), Mapping)
            settings[name] = merged([settings[name], value]) if both else value
    return settings


@dataclass(frozen=True)
class Needs:
    """The functions that the guest gets, each on a port of its own, and their address space in bytes."""

    functions: tuple[str, ...]
    window_64: int
    """The sum of the ports' windows for 64-bit prefetchable memory: each is a power of two."""
    window_32: int
    """The memory of BARs below 4 GiB."""

    @property
    def ports(self) -> int:
        return len(self.functions)


def needs_of(inventory: Inventory, subjects: Iterable[Subject], node: Node) -> Needs:
    """Return the needs of these devices. With a group node Kata attaches the whole group."""
    attached = dict.fromkeys(function for subject in subjects for function in _attached(inventory, subject, node))
    functions = [inventory.by_address[function] for function in attached if isinstance(function, PciAddress)]
    sizes = [function.prefetchable_64 for function in functions if function.prefetchable_64]
    return Needs(
        functions=tuple(map(str, attached)),
        window_64=sum(max(_LEAST_WINDOW, 1 << (size - 1).bit_length()) for size in sizes),
        window_32=sum(bar.size for function in functions for bar in function.bars if bar.kind == "mem32"),
    )


def _attached(inventory: Inventory, subject: Subject, node: Node) -> Iterator[Subject]:
    function = inventory.by_address.get(subject) if isinstance(subject, PciAddress) else None
    if function is None or node is Node.CDEV or function.iommu_group is None:
        yield subject
        return
    for address in inventory.members_of(function.iommu_group):
        member = inventory.by_address.get(address)
        if member and member.class_code[:4] not in _LEFT_OUT:
            yield address


def drop_in(needs: Needs, *, mode: str) -> str:
    """Return the text of the drop-in for these devices. Raises HostError if Kata has too few ports for them."""
    if needs.ports > MOST_PORTS:
        raise HostError(
            f"these devices are {needs.ports} functions, and Kata has {MOST_PORTS} root ports",
            hint="name one claim with --claim, or use cdev nodes, which attach no companions",
            facts={"functions": list(needs.functions)},
        )
    lines = [
        "# Written by vfioctl kata config. Put it into config.d beside Kata's configuration.toml.",
        f"# Each of these functions needs a root port: {', '.join(needs.functions) or 'none'}",
    ]
    if needs.window_64:
        lines.append(f"# Their ports need {format_size(needs.window_64)} of 64-bit address space in the guest.")
    lines += [
        "",
        "[hypervisor.qemu]",
        'cold_plug_vfio = "root-port"',
        f'hot_plug_vfio = "{NO_PORT}"',
        f"pcie_root_port = {needs.ports}",
        "",
        "[runtime]",
        f'vfio_mode = "{mode}"',
    ]
    return "\n".join(lines) + "\n"
