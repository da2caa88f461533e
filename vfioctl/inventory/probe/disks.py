"""Finds block devices in use: mounted, used as swap, or part of md, device mapper and others. May not write."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from shlex import quote
from typing import NamedTuple

from vfioctl.inventory.model.holders import Holder, HolderKind
from vfioctl.inventory.model.values import PciAddress
from vfioctl.inventory.probe.readers import why_claimed
from vfioctl.kernel.lenient import names_in, number_of, text_of
from vfioctl.kernel.protocol import Descendant, Reader, Unanswered

_BLOCK = "/sys/class/block"
_OCTAL = re.compile(r"\\([0-7]{3})")
_DEEPEST = 8
"""Maximum depth of stacked block devices: partition, RAID, encryption, volumes, ..."""


class Use(NamedTuple):
    """One use of a block device."""

    name: str
    how: str
    remedy: str


class Disks:
    """The block devices of a host that are in use."""

    def __init__(self, kernel: Reader) -> None:
        self._kernel = kernel

    def holders(self, address: PciAddress, below: Sequence[Descendant]) -> Iterator[Holder]:
        """Yield the uses of the disks and partitions below a function."""
        disks = [device for device in below if device.subsystem == "block" and device.number]
        uses = {disk.path: [*self._uses(disk.number, disk.path)] for disk in disks}
        idle = [disk for disk in disks if not any(uses[other] for other in uses if _is_at_or_below(other, disk.path))]
        for path, why in self._claimed(idle).items():
            uses[path] = [Use(_name(path), why, f"find out with lsblk {_node(path)}, and take it out of use")]
        for path, uses_of_path in uses.items():
            for use in uses_of_path:
                yield Holder(
                    address=address,
                    kind=HolderKind.DISK,
                    path=_node(path),
                    name=use.name,
                    how=use.how,
                    remedy=use.remedy,
                )

    def _uses(self, number: str, path: str, depth: int = _DEEPEST) -> Iterator[Use]:
        places = sorted(self._mounts.get(number, ()), key=len)
        if places:
            more = f" at {len(places)} places" if len(places) > 1 else ""
            remedy = f"umount {quote(places[0])}" if places[0] != "/" else "this host runs from it"
            yield Use(places[0], f"mounted{more}", remedy)
        if number in self._swaps:
            yield Use("swap", "swap", f"swapoff {quote(self._swaps[number])}")
        for upper in names_in(self._kernel, f"{path}/holders") if depth else ():
            yield from self._above(upper, depth - 1)

    def _above(self, upper: str, depth: int) -> Iterator[Use]:
        """Yield the uses of a device that is built on this one."""
        home = f"{_BLOCK}/{upper}"
        label = text_of(self._kernel, f"{home}/dm/name") or upper
        undo = f"dmsetup remove {quote(label)}" if label != upper else f"take {upper} apart"
        if upper.startswith("md"):
            undo = f"mdadm --stop {quote(f'/dev/{upper}')}"
        users = [*self._uses(text_of(self._kernel, f"{home}/dev"), home, depth)]
        for use in users:
            remedy = f"{use.remedy}, then {undo}" if use.name != "/" else use.remedy
            yield Use(use.name, f"{use.how}, through {label}", remedy)
        if not users:
            yield Use(label, f"a part of {label}", undo)

    def _claimed(self, disks: Sequence[Descendant]) -> Mapping[str, str]:
        """Return the block devices that have, or may have, an owner that no file names. Workers ask the kernel."""
        paths = {disk.number: disk.path for disk in disks}
        answers = self._kernel.survey(why_claimed, list(paths))
        claimed = {
            paths[number]: f"in use perhaps: it does not answer, {why.reason}" if isinstance(why, Unanswered) else why
            for number, why in answers
            if why
        }
        return {p: why for p, why in claimed.items() if not any(o != p and _is_at_or_below(o, p) for o in claimed)}

    @cached_property
    def _mounts(self) -> Mapping[str, list[str]]:
        """Return mount points by device number; file systems with their own number, such as btrfs, by their source."""
        mounts: dict[str, list[str]] = {}
        numbers: dict[str, str] = {}
        for number, place, source in _mount_lines(self._kernel):
            if source.startswith("/dev/") and source not in numbers:
                numbers[source] = number_of(self._kernel, source).removeprefix("b ")
            for device in {number, numbers.get(source, "")}:
                mounts.setdefault(device, []).append(place)
        return mounts

    @cached_property
    def _swaps(self) -> Mapping[str, str]:
        """Return swap devices by device number."""
        lines = text_of(self._kernel, "/proc/swaps").split("\n")[1:]
        paths = [_unescaped(line.split()[0]) for line in lines if line.strip()]
        return {number_of(self._kernel, path).removeprefix("b "): path for path in paths if path.startswith("/dev/")}


def _mount_lines(kernel: Reader) -> Iterator[tuple[str, str, str]]:
    """Yield device number, mount point and source from mountinfo (proc(5)), of init's namespace if readable."""
    text = text_of(kernel, "/proc/1/mountinfo") or text_of(kernel, "/proc/self/mountinfo")
    for line in text.split("\n"):
        before, _, after = line.partition(" - ")
        fields, source = before.split(" "), after.split(" ")
        if len(fields) > 4 and len(source) > 1:
            yield fields[2], _unescaped(fields[4]), _unescaped(source[1])


def _is_at_or_below(path: str, above: str) -> bool:
    return path == above or path.startswith(f"{above}/")


def _unescaped(text: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _node(path: str) -> str:
    return f"/dev/{_name(path).replace('!', '/')}"
