"""Writes a synthetic host with any number of PCI functions as a directory tree: sys/, proc/ and lib/modules/.

Every attribute that a real function has is there, with its real form, so that each program reads what it would read on
a server of that size. The tree can be read with `vfioctl --root DIR`, or mounted over /sys as bench/inventory.py does.

    python -m bench.synthetic DIR FUNCTIONS
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.attributes import attributes, subfolders
from bench.topology import Planned, functions

CPUS_PER_NODE, NODES = 32, 2
MODULES = {"vfio-pci": "vfio_pci", "pcieport": None}
"""The module that carries a driver, where it is not of the driver's name; None when it is built in."""

# tmpfs and others keep the number of links in 32 bits, ext4 stops at 65,000
_LINKS_PER_FILE = 60_000


class Tree:
    """A folder in the making. Equal texts share one file, or 10,000 functions would fill gigabytes."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._pool: dict[tuple[bytes, int], tuple[str, int]] = {}

    def folder(self, path: str) -> None:
        os.makedirs(f"{self._root}/{path}", exist_ok=True)

    def link(self, path: str, target: str) -> None:
        """A symbolic link to a place in the tree, relative as the kernel makes them."""
        os.symlink(os.path.relpath(target, os.path.dirname(path)), f"{self._root}/{path}")

    def file(self, path: str, content: str | bytes, mode: int = 0o444) -> None:
        data = content if isinstance(content, bytes) else f"{content}\n".encode()
        known, links = self._pool.get((data, mode), ("", _LINKS_PER_FILE))
        where = f"{self._root}/{path}"
        if links < _LINKS_PER_FILE:
            os.link(known, where)
            self._pool[data, mode] = known, links + 1
        else:
            fd = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(fd, data)
            os.fchmod(fd, mode)
            os.close(fd)
            self._pool[data, mode] = where, 1

    def files(self, folder: str, contents: Iterable[tuple[str, str | bytes, int]]) -> None:
        self.folder(folder)
        for name, content, mode in contents:
            self.file(f"{folder}/{name}", content, mode)


def write(root: Path, count: int) -> Sequence[Planned]:
    """The whole host below `root`, an empty or absent folder."""
    tree, planned = Tree(root), functions(count)
    for folder in ("sys/bus/pci/devices", "sys/bus/pci/drivers", "sys/bus/pci/slots", "proc", "dev"):
        tree.folder(folder)
    for name in ("drivers_probe", "rescan"):
        tree.file(f"sys/bus/pci/{name}", b"", 0o200)
    tree.file("sys/bus/pci/drivers_autoprobe", "1", 0o644)
    tree.file("proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro intel_iommu=on iommu=pt")
    _write_machine(tree)
    _write_iommus(tree)
    _write_functions(tree, planned)
    _write_groups(tree, planned)
    _write_drivers(tree, planned)
    _copy_modules(root)
    return planned


def _write_functions(tree: Tree, planned: Sequence[Planned]) -> None:
    virtual = defaultdict(list)
    for function in planned:
        if function.physfn:
            virtual[function.physfn].append(function)
    place = {function.address: f"sys/devices/{function.folder}" for function in planned}
    for function in planned:
        here = place[function.address]
        tree.files(here, attributes(function, len(virtual[function.address])))
        for name, contents in subfolders(function):
            tree.files(f"{here}/{name}", contents)
        tree.link(f"sys/bus/pci/devices/{function.address}", here)
        tree.link(f"{here}/subsystem", "sys/bus/pci")
        tree.link(f"{here}/iommu_group", f"sys/kernel/iommu_groups/{function.group}")
        tree.link(f"{here}/iommu", f"sys/devices/virtual/iommu/dmar{function.numa_node}")
        if function.driver:
            tree.link(f"{here}/driver", f"sys/bus/pci/drivers/{function.driver}")
    for physical, children in virtual.items():
        for number, child in enumerate(children):
            tree.link(f"{place[physical]}/virtfn{number}", place[child.address])
            tree.link(f"{place[child.address]}/physfn", place[physical])
    for function in planned:
        if function.supplier:
            _write_device_link(tree, place, function.address, function.supplier)


def _write_device_link(tree: Tree, place: dict[str, str], consumer: str, supplier: str) -> None:
    """As drivers/base/core.c shows one: an audio function needs its display function."""
    link = f"sys/devices/virtual/devlink/pci:{supplier}--pci:{consumer}"
    tree.files(link, [("status", "consumer probe", 0o444), ("runtime_pm", "1", 0o444)])
    tree.link(f"{link}/consumer", place[consumer])
    tree.link(f"{link}/supplier", place[supplier])
    tree.link(f"{place[consumer]}/supplier:pci:{supplier}", link)
    tree.link(f"{place[supplier]}/consumer:pci:{consumer}", link)


def _write_groups(tree: Tree, planned: Sequence[Planned]) -> None:
    made = set()
    for function in planned:
        group = f"sys/kernel/iommu_groups/{function.group}"
        if group not in made:
            made.add(group)
            tree.folder(f"{group}/devices")
            tree.file(f"{group}/type", "DMA-FQ", 0o644)
            tree.file(f"{group}/reserved_regions", "0x00000000fee00000 0x00000000feefffff msi")
        tree.link(f"{group}/devices/{function.address}", f"sys/devices/{function.folder}")


def _write_drivers(tree: Tree, planned: Sequence[Planned]) -> None:
    bound = defaultdict(list)
    for function in planned:
        if function.driver:
            bound[function.driver].append(function)
    for driver, members in bound.items():
        here = f"sys/bus/pci/drivers/{driver}"
        tree.files(here, [(name, b"", 0o200) for name in ("bind", "unbind", "new_id", "remove_id", "uevent")])
        for function in members:
            tree.link(f"{here}/{function.address}", f"sys/devices/{function.folder}")
        module = MODULES.get(driver, driver)
        if module:
            there = f"sys/module/{module}"
            tree.files(there, [("initstate", "live", 0o444), ("refcnt", str(len(members)), 0o444)])
            tree.folder(f"{there}/drivers")
            tree.link(f"{there}/drivers/pci:{driver}", here)
            tree.link(f"{here}/module", there)


def _write_machine(tree: Tree) -> None:
    cpus = f"0-{NODES * CPUS_PER_NODE - 1}"
    for name, value in (("cpu", cpus), ("node", f"0-{NODES - 1}")):
        states = ("online", "possible")
        tree.files(f"sys/devices/system/{name}", [(state, value, 0o444) for state in states])
    for node in range(NODES):
        here = f"sys/devices/system/node/node{node}"
        first = node * CPUS_PER_NODE
        distances = " ".join("10" if other == node else "21" for other in range(NODES))
        memory = f"Node {node} MemTotal:       527999999 kB\nNode {node} MemFree:        500000000 kB"
        texts = {"cpulist": f"{first}-{first + CPUS_PER_NODE - 1}", "distance": distances, "meminfo": memory}
        tree.files(here, [(name, text, 0o444) for name, text in texts.items()])
        for cpu in range(first, first + CPUS_PER_NODE):
            _write_cpu(tree, cpu, node)


def _write_cpu(tree: Tree, cpu: int, node: int) -> None:
    here = f"sys/devices/system/cpu/cpu{cpu}"
    sibling = cpu ^ 1
    texts = {
        "physical_package_id": str(node),
        "core_id": str(cpu // 2),
        "thread_siblings_list": f"{min(cpu, sibling)}-{max(cpu, sibling)}",
    }
    tree.files(f"{here}/topology", [(name, text, 0o444) for name, text in texts.items()])
    tree.link(f"{here}/node{node}", f"sys/devices/system/node/node{node}")
    tree.link(f"sys/devices/system/node/node{node}/cpu{cpu}", here)


def _write_iommus(tree: Tree) -> None:
    tree.folder("sys/class/iommu")
    for number in range(NODES):
        here = f"sys/devices/virtual/iommu/dmar{number}"
        registers = {"cap": "19ed008c40780c66", "ecap": "3ee9e86f050df", "version": "7:0"}
        tree.files(f"{here}/intel-iommu", [(name, text, 0o444) for name, text in registers.items()])
        tree.folder(f"{here}/devices")
        tree.link(f"sys/class/iommu/dmar{number}", here)


def _copy_modules(root: Path) -> None:
    """The running release's module index, taken from the newest kernel installed: alias look-ups cost what they do."""
    there = root / "lib/modules" / platform.release()
    there.mkdir(parents=True)
    indexes = sorted(Path("/lib/modules").glob("*/modules.alias.bin"), key=lambda path: path.stat().st_mtime)
    for path in indexes[-1].parent.glob("modules.*") if indexes else ():
        shutil.copyfile(path, there / path.name)


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]))
