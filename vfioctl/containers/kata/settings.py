"""Kata's configuration.toml with its drop-ins, and vfioctl's own drop-in. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vfioctl.containers.kata.needs import MOST_PORTS, Needs
from vfioctl.errors import HostError
from vfioctl.units import format_size

DROP_IN = "50-vfioctl.toml"
PORTS = {"root-port": "pcie_root_port", "switch-port": "pcie_switch_port", "bridge-port": ""}
"""The places for cold-plugged devices, and the setting with the number of ports of each."""
NO_PORT = "no-port"
MODES = ("guest-kernel", "vfio")
GUEST_KERNEL = "guest-kernel"


def merged(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings of a configuration and its drop-ins: a later table adds to an earlier one."""
    settings: dict[str, Any] = {}
    for document in documents:
        for name, value in document.items():
            both = isinstance(value, Mapping) and isinstance(settings.get(name), Mapping)
            settings[name] = merged([settings[name], value]) if both else value
    return settings


def hypervisor_of(settings: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the name of the hypervisor and its table; empty if there is none."""
    tables = settings.get("hypervisor")
    for name, table in tables.items() if isinstance(tables, Mapping) else ():
        if isinstance(table, Mapping):
            return name, table
    return "", {}


def runtime_of(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    table = settings.get("runtime")
    return table if isinstance(table, Mapping) else {}


def permits(patterns: object, name: str) -> bool:
    """Return whether enable_annotations allows a pod to set this: each entry is a regular expression."""
    for pattern in patterns if isinstance(patterns, list) else ():
        try:
            if isinstance(pattern, str) and len(pattern) < 1000 and re.fullmatch(pattern, name):
                return True
        except re.error:
            continue
    return False


def drop_in(needs: Needs, *, mode: str, hypervisor: str = "qemu") -> str:
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
        f"[hypervisor.{hypervisor}]",
        'cold_plug_vfio = "root-port"',
        f'hot_plug_vfio = "{NO_PORT}"',
        f"pcie_root_port = {needs.ports}",
        "",
        "[runtime]",
        f'vfio_mode = "{mode}"',
    ]
    return "\n".join(lines) + "\n"
