"""Parses /proc/PID/cgroup into unit, container, pod and guest. May not do input or output.

Sources: cgroups(7); systemd's CONTROL_GROUP_INTERFACE; the cgroup names of Docker, Podman, containerd, CRI-O, LXC,
Kata Containers and libvirt, under both cgroup drivers (systemd, cgroupfs) and both cgroup versions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

_ID = r"([0-9a-f]{64})"
_RUNTIME = re.compile(rf"(docker|libpod|cri-containerd|crio|nerdctl|containerd)[-:]{_ID}(?:\.scope)?")
_BARE = re.compile(_ID)
_LXC = re.compile(r"(?:lxc\.payload[./]|lxc/)([^/]+)")
_KATA = re.compile(r"kata_(?!overhead$)([0-9A-Za-z.-]{8,})")
_PARENTS = {"docker": "docker", "libpod_parent": "libpod", "kata_overhead": "kata"}
_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})")
_MACHINE = re.compile(r"machine-(.+)\.scope")
_QEMU = re.compile(r"qemu-[0-9]+-(.+)")
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")
_INSTANCE = re.compile(r"user@[0-9]+\.service")
_SHORT_ID = 12
"""As `docker ps` and `crictl ps` show it."""


class Membership(NamedTuple):
    """The unit, container, pod and guest of a process; None for each that does not apply."""

    unit: str | None = None
    """The innermost systemd unit, with its escapes, as systemctl takes it."""
    user_unit: bool = False
    """Whether the process belongs to a user's systemd instance, which is then the unit: users name what is in it."""
    container: str | None = None
    """`docker/0123456789ab`, `lxc/NAME`, ..."""
    pod: str | None = None
    """The pod's uid."""
    guest: str | None = None
    """The name of a virtual machine that libvirt runs."""


def _whole(_hierarchy: str, path: str) -> str:
    return path


def membership(text: str, made_by_root: Callable[[str, str], str] = _whole) -> Membership:
    """Parse the lines `ID:CONTROLLERS:PATH`. Version 1 has several lines; all of them are used.

    `made_by_root` (controllers, path): the beginning of the path that no ordinary user can have named. Nothing else is
    believed, nor is what a user's slice has below the session or the user's systemd instance.
    """
    lines = (line.split(":", 2) for line in text.split("\n"))
    paths = {made_by_root(parts[1], parts[2]): None for parts in lines if len(parts) == 3}
    units = [_of_path(path) for path in paths]
    return Membership(
        unit=next((group.unit for group in units if group.unit), None),
        user_unit=any(group.user_unit for group in units),
        container=next((group.container for group in units if group.container), None),
        pod=next((group.pod for group in units if group.pod), None),
        guest=next((group.guest for group in units if group.guest), None),
    )


def _of_path(path: str) -> Membership:
    parts = path.split("/")
    units = [part for part in parts if part.endswith((".service", ".scope"))]
    if instance := next((unit for unit in units if _INSTANCE.fullmatch(unit)), None):
        return Membership(unit=instance, user_unit=True)
    if "user.slice" in parts:
        return Membership(unit=units[0] if units else None)
    unit = units[-1] if units else None
    machine = next((match[1] for part in parts if (match := _MACHINE.fullmatch(part))), None)
    guest = _QEMU.fullmatch(_unescaped(machine)) if machine else None
    pod = _POD.search(path)
    return Membership(
        unit=unit,
        container=_container(parts) or (f"machine/{_unescaped(machine)}" if machine and not guest else None),
        pod=pod[1].replace("_", "-") if pod else None,
        guest=guest[1] if guest else None,
    )


def _container(parts: list[str]) -> str | None:
    """Return the outermost container, which is the one that the host's runtime knows."""
    for above, part in pairwise(["", *parts]):
        if match := _RUNTIME.search(part):
            return f"{match[1]}/{match[2][:_SHORT_ID]}"
        if _BARE.fullmatch(part):  # the driver cgroupfs names the runtime above, or not at all
            return f"{_PARENTS.get(above, 'cri')}/{part[:_SHORT_ID]}"
        if match := _KATA.fullmatch(part):
            return f"kata/{match[1][:_SHORT_ID]}"
        if match := _LXC.fullmatch(f"{above}/{part}") or _LXC.fullmatch(part):
            return f"lxc/{match[1]}"
    return None


def _unescaped(name: str) -> str:
    r"""`\x2d` is a dash in the name of a unit (systemd.unit(5))."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), name)
