"""What cgroups of a simulated host may open: their programs, and the settings of units. May not touch the machine."""

from __future__ import annotations

import errno as errnos
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from urllib.parse import quote, unquote

from vfioctl.errors import HostError, KernelRefused
from vfioctl.kernel.device_lists import CGROUPS, DeviceProgram, UnitDevices
from vfioctl.kernel.device_program import NAME, ordered
from vfioctl.kernel.recorded.tree import Tree

_CGROUP = "sim:cgroup:"
"""And the quoted path of a cgroup: its property `refused` is what vfioctl's program refuses, `others` the names of
other programs."""


class DeviceTable:
    """A part of `Simulated`. A cgroup exists if its directory is recorded, or a process is in it or below it."""

    _effect: Callable[[str, str], AbstractContextManager[None]]

    @property
    def tree(self) -> Tree:
        """The host's tree."""
        raise NotImplementedError

    def device_programs(self, cgroup: str) -> Sequence[DeviceProgram]:
        if not self._exists(cgroup):
            raise KernelRefused(f"{CGROUPS}{cgroup}", errnos.ENOENT)
        facts = self._facts(cgroup)
        others = [DeviceProgram(number, name, 0) for number, name in enumerate(facts.get("others", "").split(), 1)]
        refused = tuple(filter(None, facts.get("refused", "").split(",")))
        return [*others, *([DeviceProgram(100, NAME, 0, refused)] if refused else [])]

    def restricted_cgroups(self) -> Sequence[str]:
        named = [key for key, facts in self.tree.properties.items() if key.startswith(_CGROUP) and facts.get("refused")]
        cgroups = [unquote(key.removeprefix(_CGROUP)) for key in named]
        return sorted(filter(self._exists, cgroups))

    def unit_devices(self, cgroup: str) -> UnitDevices | None:
        unit = cgroup.rpartition("/")[2]
        facts = self.tree.properties.get(f"unit:{unit}", {})
        if facts.get("cgroup") != cgroup and (facts.get("cgroup") != "" or self._exists(cgroup)):
            return None
        allowed = tuple(sorted(filter(None, facts.get("DeviceAllow", "").split(","))))
        later = tuple(facts.get("later", "").split())
        return UnitDevices(unit, facts.get("DevicePolicy", "auto"), allowed, later)

    def refuse_devices(self, cgroup: str, numbers: Sequence[str]) -> None:
        with self._effect(f"cgroup:{cgroup}", ", ".join(numbers)):
            if not self._exists(cgroup):
                raise KernelRefused(f"{CGROUPS}{cgroup}", errnos.ENOENT, "a device program")
            facts = self.tree.properties.setdefault(f"{_CGROUP}{quote(cgroup)}", {})
            facts["refused"] = ",".join(ordered(numbers))

    def set_unit_devices(self, unit: str, policy: str, allowed: Sequence[str]) -> None:
        with self._effect(f"unit:{unit}", policy):
            if f"unit:{unit}" not in self.tree.properties:
                raise HostError(f"what {unit} may open cannot be set: no such unit")
            self.tree.properties[f"unit:{unit}"] |= {"DevicePolicy": policy, "DeviceAllow": ",".join(allowed)}

    def _facts(self, cgroup: str) -> Mapping[str, str]:
        return self.tree.properties.get(f"{_CGROUP}{quote(cgroup)}", {})

    def _exists(self, cgroup: str) -> bool:
        return f"{CGROUPS}{cgroup}" in self.tree.directories or any(
            path == cgroup or path.startswith(f"{cgroup}/") for path in self._occupied()
        )

    def _occupied(self) -> Iterator[str]:
        """Yield the cgroups of the host's processes."""
        for pid in filter(str.isdecimal, self.tree.directories.get("/proc", ())):
            for line in self.tree.files.get(f"/proc/{pid}/cgroup", "").split("\n"):
                if line.startswith("0::"):
                    yield line.removeprefix("0::")
