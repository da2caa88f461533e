"""Reads what other programs restore at boot: driverctl, mdevctl, and ids that vfio-pci is given. Reads only.

A damaged file costs only itself."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from vfioctl.binding.model.given_ids import COMMAND_LINE, MODPROBE, ids_in_modprobe, ids_on_command_line
from vfioctl.kernel.host_paths import DEFINITIONS
from vfioctl.kernel.lenient import files_in, names_in, text_of
from vfioctl.kernel.protocol import PCI_ADDRESS, FileReader
from vfioctl.persist.model.persistent import Owner, Persistent, State

DRIVERCTL = "/etc/driverctl.d"
DISABLED, ARGUMENT = "/etc/vfioctl/disabled", "vfioctl.disable"
_DRIVER = re.compile("[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)
_MOST_FILES = 200
_AUTO = re.compile(r'"start"\s*:\s*"auto"')


def driverctl_overrides(kernel: FileReader) -> Mapping[str, tuple[str, str]]:
    """Return driverctl's file for each PCI function, and the driver that it gives it at boot, by address."""
    found = {}
    for name in names_in(kernel, DRIVERCTL):
        address = name.removeprefix("pci-")  # driverctl names files `pci-ADDRESS` or `ADDRESS`
        file = f"{DRIVERCTL}/{name}"
        driver = text_of(kernel, file).strip()
        if PCI_ADDRESS.fullmatch(address) and _DRIVER.fullmatch(driver):
            found[address] = file, driver
    return found


def switched_off(kernel: FileReader) -> str:
    """Return the file or kernel argument that keeps vfioctl from restoring anything; empty if there is none."""
    words = text_of(kernel, COMMAND_LINE).split()
    if any(word.partition("=")[0] == ARGUMENT for word in words):
        return f"{ARGUMENT} on the kernel command line"
    return DISABLED if kernel.has(DISABLED) else ""


def given_ids(kernel: FileReader) -> Iterator[tuple[Owner, str, str]]:
    """Yield each list of ids that vfio-pci takes at boot, with who gives it, and in which file."""
    for ids in ids_on_command_line(text_of(kernel, COMMAND_LINE)):
        yield Owner.COMMAND_LINE, COMMAND_LINE, ids
    for path in files_in(kernel, MODPROBE, ".conf")[:_MOST_FILES]:
        for ids in ids_in_modprobe(text_of(kernel, path)):
            yield Owner.MODPROBE, path, ids


def mdevctl_starts(kernel: FileReader, own: Collection[str]) -> Iterator[Persistent]:
    """Yield each mediated device that mdevctl creates at boot, but for the files in `own`."""
    for parent in names_in(kernel, DEFINITIONS):
        for uuid in names_in(kernel, f"{DEFINITIONS}/{parent}"):
            path = f"{DEFINITIONS}/{parent}/{uuid}"
            if parent != "scripts.d" and path not in own and _AUTO.search(text_of(kernel, path)):
                goal = f"vGPU on {parent}"
                yield Persistent(name=uuid, goal=goal, owner=Owner.MDEVCTL, state=State.FOREIGN, file=path)
