"""Recognises VMM processes, their guests and the devices on their command lines. May not do input or output."""

from __future__ import annotations

import json
import re
from itertools import pairwise

from vfioctl.kernel.places import UUID_FORM

_NAMES = ("qemu", "kvm", "cloud-hyperviso", "crosvm", "firecracker", "stratovirt")
"""Prefixes of the names of VMMs; the kernel keeps 15 characters (TASK_COMM_LEN)."""
_ADDRESS = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{1,2}:[0-9a-fA-F]{1,2}\.[0-7]"
# host=01:00.0 and "host":"0000:01:00.0" (QEMU, libvirt); the end of a path in sysfs (QEMU's sysfsdev, cloud-hypervisor,
# crosvm), which may also name an mdev.
_HOST = re.compile(rf'\bhost"?\s*[=:]\s*"?({_ADDRESS})(?![\w.:])', re.ASCII)
_SYSFS = re.compile(rf'/sys/(?:[^/,"\s]+/)*?({_ADDRESS}|{UUID_FORM})/?(?=[,"\s]|$)', re.ASCII)
_LAST = re.compile(rf"/({_ADDRESS}|{UUID_FORM})/?$", re.ASCII)


def is_vmm(name: str) -> bool:
    """Return whether a process is a VMM, by the kernel's name of it."""
    return name.startswith(_NAMES)


def handed_over(command_line: str) -> list[str]:
    """Return the PCI addresses (with domain) and mdevs on a VMM's command line (/proc/PID/cmdline), each once."""
    arguments = command_line.split("\0")
    found = [name for argument in arguments for way in (_HOST, _SYSFS) for name in way.findall(argument)]
    return list(dict.fromkeys(map(full_name, found)))


def device_at(path: str) -> str:
    """Return the PCI address or mdev at the end of a sysfs path; empty if there is none."""
    found = _LAST.search(path)
    return full_name(found[1]) if found else ""


def full_name(name: str) -> str:
    """Return `0000:01:00.0` for `1:0.0`, and an mdev's name unchanged."""
    if "-" in name:
        return name
    *domain, bus, rest = name.lower().split(":")
    device, _, function = rest.partition(".")
    return f"{(domain or ['0000'])[0]:0>4}:{bus:0>2}:{device:0>2}.{function}"


def guest_name(command_line: str) -> str | None:
    """Return the guest's name from `-name guest=NAME,...`, `-name NAME` (QEMU) or `--name NAME`."""
    arguments = command_line.split("\0")
    for option, value in pairwise(arguments):
        if option in ("-name", "--name"):
            return _plain_name(value) or None
    return None


def _plain_name(value: str) -> str:
    if value.startswith("{"):
        try:
            return str(json.loads(value).get("guest", ""))
        except (ValueError, AttributeError):
            return ""
    settings = value.replace(",,", "\0").split(",")  # QEMU writes a comma in a value twice
    named = [part.removeprefix("guest=") for part in settings if part.startswith("guest=")]
    plain = [part for part in settings[:1] if "=" not in part]
    return next(iter([*named, *plain]), "").replace("\0", ",")
