"""Reads which drivers may have a device before VFIO at boot: those built into the kernel, and those that an initramfs
is told to have. May not write. The initramfs itself is not read: that takes long, and not all formats are known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from vfioctl.doctor.model.facts import FileText
from vfioctl.doctor.probe.files import read_text
from vfioctl.inventory.model.functions import is_vfio_driver
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.lenient import names_in, text_of
from vfioctl.kernel.modalias import Aliases
from vfioctl.kernel.protocol import PCI_DEVICES, FileReader

_FILES = ("/etc/initramfs-tools/modules", "/etc/dracut.conf", "/etc/mkinitcpio.conf")
_FOLDERS = ("/etc/dracut.conf.d", "/usr/lib/dracut/dracut.conf.d", "/etc/mkinitcpio.conf.d")
_MOST_FILES = 200
_ALIAS = re.compile(r"(?:^|\0)([a-z0-9_]{1,64})\.alias=(pci:[^\0]{1,200})", re.ASCII)


def read_initramfs(kernel: FileReader) -> tuple[FileText, ...]:
    """Return the settings of initramfs-tools, dracut and mkinitcpio. Sources: initramfs-tools(7), dracut.conf(5),
    mkinitcpio.conf(5)."""
    names = ((folder, name) for folder in _FOLDERS for name in names_in(kernel, folder) if name.endswith(".conf"))
    paths = [*_FILES, *(f"{folder}/{name}" for folder, name in names)]
    files = (read_text(kernel, path) for path in paths[:_MOST_FILES])
    return tuple(file for file in files if file.text or file.refused)


def read_built_in(kernel: FileReader, functions: Iterable[PciAddress]) -> Mapping[PciAddress, tuple[str, ...]]:
    """Return the drivers that fit each function and are built into the running kernel, but for those of VFIO. Source:
    modules.builtin.modinfo (Documentation/kbuild/kbuild.rst)."""
    release = text_of(kernel, "/proc/sys/kernel/osrelease")
    text = text_of(kernel, f"/lib/modules/{release}/modules.builtin.modinfo")
    lines = (f"alias {alias} {module}" for module, alias in _ALIAS.findall(text))
    aliases = Aliases("\n".join(lines))
    found = {a: aliases.modules(text_of(kernel, f"{PCI_DEVICES}/{a}/modalias").strip()) for a in functions}
    return {
        address: names
        for address, modules in found.items()
        if (names := tuple(name for name in modules if not is_vfio_driver(name)))
    }
