"""Virtual machines by their processes: which programs are VMMs, what guest they run, what was handed to it. Pure."""

from __future__ import annotations

import json
import re
from itertools import pairwise

_NAMES = ("qemu", "kvm", "cloud-hyperviso", "crosvm", "firecracker", "stratovirt")
"""How the names of VMMs begin; the kernel keeps 15 characters (TASK_COMM_LEN)."""
_ADDRESS = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{1,2}:[0-9a-fA-F]{1,2}\.[0-7]"
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# host=01:00.0 and "host":"0000:01:00.0" (QEMU, libvirt); the end of a path in sysfs (QEMU's sysfsdev, cloud-hypervisor,
# crosvm), which may also name an mdev.
_HOST = re.compile(rf'\bhost"?\s*[=:]\s*"?({_ADDRESS})(?![\w.:])', re.ASCII)
_SYSFS = re.compile(rf'/sys/(?:[^/,"\s]+/)*?({_ADDRESS}|{_UUID})/?(?=[,"\s]|$)', re.ASCII)
_LAST = re.compile(rf"/({_ADDRESS}|{_UUID})/?$", re.ASCII)


def is_vmm(name: str) -> bool:
    """By the name that the kernel shows of a process."""
    return name.startswith(_NAMES)


def handed_over(command_line: str) -> list[str]:
    """The PCI addresses (with their domain) and mdevs on a VMM's command line (/proc/PID/cmdline), each once."""
    arguments = command_line.split("\0")
    found = [name for argument in arguments for way in (_HOST, _SYSFS) for name in way.findall(argument)]
    return list(dict.fromkeys(map(full_name, found)))


def device_at(path: str) -> str:
    """The PCI address or mdev that a path in sysfs ends with; empty if it does not."""
    found = _LAST.search(path)
    return full_name(found[1]) if found else ""


def full_name(name: str) -> str:
    """`0000:01:00.0` from `1:0.0`; an mdev's name as it is."""
    if "-" in name:
        return name
    *domain, bus, rest = name.lower().split(":")
    device, _, function = rest.partition(".")
    return f"{(domain or ['0000'])[0]:0>4}:{bus:0>2}:{device:0>2}.{function}"


def guest_name(command_line: str) -> str | None:
    """The guest's name: `-name guest=NAME,...`, `-name NAME` (QEMU), `--name NAME`."""
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
