"""Finds kernel-side holders: disks, interfaces, vGPUs, the console, users of the driver's module. May not write."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.holders import Holder, HolderKind
from vfioctl.inventory.probe.nodes import VTCONSOLES, is_drawn, why_claimed
from vfioctl.kernel.lenient import link_name, names_in, number_of, text, text_of
from vfioctl.kernel.protocol import PCI_DEVICES, PCI_DRIVERS, Descendant, Reader, Unanswered

if TYPE_CHECKING:
    from vfioctl.inventory.probe.network import Network

_FRAMEBUFFERS = "/sys/class/graphics"
_FOREIGN = " (with --foreign if vfioctl did not create it)"
_FIRMWARE = ("efi-framebuffer", "simple-framebuffer", "vesa-framebuffer", "bootfb")
"""Platform devices of a framebuffer that the firmware has set up on the boot display (drivers/firmware/sysfb.c)."""
_BLOCK = "/sys/class/block"
_OCTAL = re.compile(r"\\([0-7]{3})")
_DEEPEST = 8
"""Maximum depth of stacked block devices: partition, RAID, encryption, volumes, ..."""


class _Use(NamedTuple):
    """One use of a function by the kernel: the fields of its `Holder`."""

    kind: HolderKind
    name: str
    path: str
    how: str
    remedy: str = ""


class KernelHolders:
    """Finds the kernel-side holders of functions."""

    def __init__(self, kernel: Reader) -> None:
        self._kernel, self._disks = kernel, _Disks(kernel)

    @cached_property
    def _network(self) -> Network:
        from vfioctl.inventory.probe.network import Network  # imported late: few cards have an interface

        return Network(self._kernel)

    def holders(self, function: Function, below: Sequence[Descendant]) -> Iterator[Holder]:
        address = function.address
        for kind, name, path, how, remedy in self._uses(function, below):
            yield Holder(address=address, kind=kind, name=name, path=path, how=how, remedy=remedy)

    def _uses(self, function: Function, below: Sequence[Descendant]) -> Iterator[_Use]:
        yield from self._disks.uses(below)
        for interface in [device for device in below if device.subsystem == "net"]:
            if use := self._network.use_of(interface):
                yield _Use(HolderKind.NETWORK, *use)
        yield from _mdevs(below)
        yield from _vgpu(self._kernel, function.address)
        yield from _consoles(self._kernel, function, below)
        yield from _module(self._kernel, function.driver)


def _mdevs(below: Sequence[Descendant]) -> Iterator[_Use]:
    for device in below:
        if device.subsystem == "mdev":
            name = device.path.rpartition("/")[2]
            remedy = f"stop the guest that has it, then vfioctl vgpu remove {name}{_FOREIGN}"
            yield _Use(HolderKind.MDEV, name, device.path, "a live mdev", remedy)


def _vgpu(kernel: Reader, address: str) -> Iterator[_Use]:
    """Yield the vGPU on a VF with NVIDIA's vendor-specific VFIO."""
    path = f"{PCI_DEVICES}/{address}/nvidia/current_vgpu_type"
    if not kernel.has(path):
        return
    ((_, kind),) = kernel.survey(text, [path])
    if kind not in ("", "0"):
        remedy = f"stop the guest that has it, then vfioctl vgpu remove {address}{_FOREIGN}"
        yield _Use(HolderKind.VGPU, f"vGPU type {kind}", path, "a live vGPU", remedy)


def _consoles(kernel: Reader, function: Function, below: Sequence[Descendant]) -> Iterator[_Use]:
    own = [device.path.rpartition("/")[2] for device in below if device.subsystem == "graphics"]
    if function.boot_vga and not own:
        own = [fb for fb in names_in(kernel, _FRAMEBUFFERS) if _is_of_firmware(kernel, fb)]
    consoles = names_in(kernel, VTCONSOLES) if own else []
    for console, drawn in kernel.survey(is_drawn, consoles):
        for framebuffer in own if drawn is True else ():
            detach = f"echo 0 > {VTCONSOLES}/{console}/bind"
            yield _Use(HolderKind.CONSOLE, console, f"/dev/{framebuffer}", "the text console", detach)


def _is_of_firmware(kernel: Reader, framebuffer: str) -> bool:
    return link_name(kernel, f"{_FRAMEBUFFERS}/{framebuffer}/device").startswith(_FIRMWARE)


def _module(kernel: Reader, driver: str | None) -> Iterator[_Use]:
    """Yield the driver's module if it is in use: by other modules, or by open files of its devices."""
    home = f"{PCI_DRIVERS}/{driver}/module"
    count = text_of(kernel, f"{home}/refcnt") if driver else ""
    if count.isdecimal() and int(count):
        name, users = link_name(kernel, home), ", ".join(names_in(kernel, f"{home}/holders"))
        times = "once" if count == "1" else f"{count} times"
        how = f"used {times}" + (f" by {users}, or by open files of its devices" if users else "")
        yield _Use(HolderKind.MODULE, name, f"/sys/module/{name}", how)


class _DiskUse(NamedTuple):
    name: str
    how: str
    remedy: str


class _Disks:
    def __init__(self, kernel: Reader) -> None:
        self._kernel = kernel

    def uses(self, below: Sequence[Descendant]) -> Iterator[_Use]:
        disks = [device for device in below if device.subsystem == "block" and device.number]
        uses = {disk.path: [*self._uses(disk.number, disk.path)] for disk in disks}
        idle = [disk for disk in disks if not any(uses[other] for other in uses if _is_at_or_below(other, disk.path))]
        for path, why in self._claimed(idle).items():
            uses[path] = [_DiskUse(_name(path), why, f"find out with lsblk {_node(path)}, and take it out of use")]
        for path, uses_of_path in uses.items():
            yield from (_Use(HolderKind.DISK, use.name, _node(path), use.how, use.remedy) for use in uses_of_path)

    def _uses(self, number: str, path: str, depth: int = _DEEPEST) -> Iterator[_DiskUse]:
        places = sorted(self._mounts.get(number, ()), key=len)
        if places:
            more = f" at {len(places)} places" if len(places) > 1 else ""
            remedy = f"umount {quote(places[0])}" if places[0] != "/" else "this host runs from it"
            yield _DiskUse(places[0], f"mounted{more}", remedy)
        if number in self._swaps:
            yield _DiskUse("swap", "swap", f"swapoff {quote(self._swaps[number])}")
        for upper in names_in(self._kernel, f"{path}/holders") if depth else ():
            yield from self._above(upper, depth - 1)

    def _above(self, upper: str, depth: int) -> Iterator[_DiskUse]:
        home = f"{_BLOCK}/{upper}"
        label = text_of(self._kernel, f"{home}/dm/name") or upper
        undo = f"dmsetup remove {quote(label)}" if label != upper else f"take {upper} apart"
        if upper.startswith("md"):
            undo = f"mdadm --stop {quote(f'/dev/{upper}')}"
        users = [*self._uses(text_of(self._kernel, f"{home}/dev"), home, depth)]
        for use in users:
            remedy = f"{use.remedy}, then {undo}" if use.name != "/" else use.remedy
            yield _DiskUse(use.name, f"{use.how}, through {label}", remedy)
        if not users:
            yield _DiskUse(label, f"a part of {label}", undo)

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
