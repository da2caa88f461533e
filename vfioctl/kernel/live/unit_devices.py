"""What systemd lets units open: DevicePolicy and DeviceAllow, read and set with systemctl. Changes run in a worker."""

from __future__ import annotations

import os
import subprocess

from vfioctl.errors import HostError
from vfioctl.kernel.device_lists import UnitDevices, is_unit
from vfioctl.kernel.live.control_groups import ROOTS
from vfioctl.kernel.live.units import systemctl

BOOTED = "/run/systemd/system"
"""Where it is, systemd runs (sd_booted(3))."""
_TIMEOUT = 10.0
_PROPERTIES = "--property=LoadState,ControlGroup,DropInPaths,DevicePolicy,DeviceAllow"
_OURS = ("50-DeviceAllow.conf", "50-DevicePolicy.conf")
"""The files of `systemctl set-property`. Drop-ins are read in the order of their names, wherever they are."""
_LONGEST = 1 << 16


def unit_of(cgroup: str) -> UnitDevices | None:
    """Return the unit whose cgroup this is; None if there is none, or no systemd. Raises HostError."""
    name = cgroup.rpartition("/")[2]
    if not is_unit(name) or not os.path.isdir(BOOTED):
        return None
    try:
        done = systemctl("show", _PROPERTIES, "--", name, timeout=_TIMEOUT)
    except FileNotFoundError:
        return None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"systemd did not say whether {name} is a unit", hint="systemctl status") from error
    if done.returncode or "LoadState=" not in done.stdout:
        raise HostError(f"systemd did not say whether {name} is a unit", hint="systemctl status")
    return shown(name, cgroup, done.stdout)


def shown(name: str, cgroup: str, text: str) -> UnitDevices | None:
    """Return the unit of this name, from the output of `systemctl show`; None if its cgroup is another one. One that
    does not run has none, and what is set for it stays."""
    lines = [line.partition("=")[::2] for line in text.splitlines()]
    facts = dict(lines)
    own = facts.get("ControlGroup")
    is_its = own == cgroup or (own == "" and not any(os.path.exists(f"{root}{cgroup}") for root in ROOTS))
    if facts.get("LoadState") == "not-found" or not is_its:
        return None
    allowed = tuple(sorted(value for key, value in lines if key == "DeviceAllow" and value))
    later = tuple(path for path in facts.get("DropInPaths", "").split() if _is_read_later(path))
    return UnitDevices(name, facts.get("DevicePolicy", "auto"), allowed, later)


def _is_read_later(path: str) -> bool:
    """Return whether a drop-in undoes what `set-property` sets, as soon as systemd reads its files again."""
    if (name := os.path.basename(path)) in _OURS or name < _OURS[0]:
        return False
    try:
        with open(path, errors="replace") as file:
            text = file.read(_LONGEST)
    except OSError:
        return True  # it may
    keys = (line.partition("=")[0].strip() for line in text.splitlines())
    return not {"DeviceAllow", "DevicePolicy"}.isdisjoint(keys)


def set_devices(name: str, policy: str, *allowed: str) -> tuple[int, str]:
    """Set both properties until the next boot. Return systemctl's exit code and the end of its stderr."""
    if not is_unit(name):
        return 2, f"{name[:80]!r} is not the name of a unit with a cgroup"
    values = [f"DevicePolicy={policy}", "DeviceAllow=", *(f"DeviceAllow={entry}" for entry in allowed)]
    try:
        done = systemctl("set-property", "--runtime", "--", name, *values)
    except OSError as error:
        return 127, f"systemctl: {error.strerror}"
    return done.returncode, done.stderr.strip()[-500:]
