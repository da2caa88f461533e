"""Recognises VMM processes, their guests and the devices on their command lines. May not do input or output."""

from __future__ import annotations

import re
from itertools import pairwise

from vfioctl.units import UUID_FORM
from vfioctl.untrusted_text import parse_json

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
