"""Recognises whose a process is: the unit, container, pod and guest of its cgroup, the guest of its command line.
May not do input or output. Sources: cgroups(7); systemd's CONTROL_GROUP_INTERFACE; the cgroup names of Docker, Podman,
containerd, CRI-O, LXC, Kata Containers and libvirt, under both cgroup drivers (systemd, cgroupfs) and both versions."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from vfioctl.units import UUID_FORM
from vfioctl.untrusted_text import parse_json

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


def membership(text: str, made_by_root: Callable[[str, str], str] = lambda _, path: path) -> Membership:
    """Parse the lines `ID:CONTROLLERS:PATH`. Version 1 has several lines; all of them are used.
    `made_by_root` (controllers, path): the beginning of the path that no ordinary user can have named. Nothing else is
    believed, nor is what a user's slice has below the session or the user's systemd instance."""
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


_NAMES = ("qemu", "kvm", "cloud-hyperviso", "crosvm", "firecracker", "stratovirt")
"""Prefixes of the names of VMMs; the kernel keeps 15 characters (TASK_COMM_LEN)."""
_ADDRESS = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{1,2}:[0-9a-fA-F]{1,2}\.[0-7]"
# host=01:00.0 and "host":"0000:01:00.0" (QEMU, libvirt); the end of a path in sysfs (QEMU's sysfsdev, cloud-hypervisor,
# crosvm), which may also name an mdev. The time of every search is linear in the length of its text.
_HOST = re.compile(rf'\bhost"?\s*[=:]\s*"?({_ADDRESS})(?![\w.:])', re.ASCII)
_BETWEEN_PATHS = re.compile(r'[,"\s]', re.ASCII)
_NAME = re.compile(rf"{_ADDRESS}|{UUID_FORM}", re.ASCII)
MOST_OF_A_COMMAND_LINE = 256 << 10
"""Characters of a command line that are read; the rest is ignored."""
_LONGEST_NAME = 255


def is_vmm(name: str) -> bool:
    """Return whether a process is a VMM, by the kernel's name of it."""
    return name.startswith(_NAMES)


def passthrough_names(command_line: str) -> list[str]:
    """Return the PCI addresses (with domain) and mdevs on a VMM's command line (/proc/PID/cmdline), each once."""
    words: dict[str, None] = {}
    for argument in _arguments(command_line):
        words |= dict.fromkeys(full_name(name) for name in _HOST.findall(argument))
        if "/sys/" in argument:
            paths = (part.partition("/sys/") for part in _BETWEEN_PATHS.split(argument))
            words |= dict.fromkeys(name for _, sys, rest in paths if sys and (name := device_at(f"/{rest}")))
    return list(words)


def _arguments(command_line: str) -> list[str]:
    return command_line[:MOST_OF_A_COMMAND_LINE].split("\0")


def device_at(path: str) -> str:
    """Return the PCI address or mdev at the end of a sysfs path; empty if there is none."""
    _, slash, name = path.removesuffix("/").rpartition("/")
    return full_name(name) if slash and _NAME.fullmatch(name) else ""


def full_name(name: str) -> str:
    """Return `0000:01:00.0` for `1:0.0`, and an mdev's name unchanged."""
    if "-" in name:
        return name
    *domain, bus, rest = name.lower().split(":")
    device, _, function = rest.partition(".")
    return f"{(domain or ['0000'])[0]:0>4}:{bus:0>2}:{device:0>2}.{function}"


def guest_name(command_line: str) -> str | None:
    """Return the guest's name from `-name guest=NAME,...`, `-name NAME` (QEMU) or `--name NAME`."""
    for option, value in pairwise(_arguments(command_line)):
        if option in ("-name", "--name"):
            # half of a surrogate pair, which JSON can escape, can neither be printed nor stored
            return _plain_name(value)[:_LONGEST_NAME].encode("utf-8", "replace").decode() or None
    return None


def _plain_name(value: str) -> str:
    if value.startswith("{"):
        try:
            return str(parse_json(value).get("guest", ""))
        except (ValueError, AttributeError):  # an attacker's may be nested 20,000 deep
            return ""
    settings = value.replace(",,", "\0").split(",")  # QEMU writes a comma in a value twice
    named = [part.removeprefix("guest=") for part in settings if part.startswith("guest=")]
    plain = [part for part in settings[:1] if "=" not in part]
    return next(iter([*named, *plain]), "").replace("\0", ",")
