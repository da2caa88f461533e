"""Host files as directory trees, and an independent reader of such a tree.

The oracle of the listings: it shares no line with vfioctl and may import nothing of it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

_FACT = re.compile(r"(?P<path>/\S+?)(?:/$| (?P<form>[=|!%]|->) ?(?P<value>.*))")
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|(.))")
_LETTERS = {"n": "\n", "t": "\t", "r": "\r"}
_BARS = 7
"""Lines of `resource` that are a function's own: six BARs and the expansion ROM. Bridge windows and VF BARs follow."""
_IO_OR_MEMORY = 0x300


def unpack(file: Path, root: Path) -> Path:
    """Write a host file as a directory tree, for `--root`.

    Device nodes and files that could not be read become empty files: both would need privileges.
    """
    for line in file.read_text(encoding="utf-8").splitlines():
        if fact := _FACT.fullmatch(line):
            _write(root / _unescaped(fact["path"]).lstrip("/"), fact["form"] or "/", _unescaped(fact["value"] or ""))
    return root


def _write(path: Path, form: str, value: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if form == "/":
        path.mkdir(exist_ok=True)
    elif form == "->":
        path.symlink_to(value)
    elif form in "!%":
        path.touch()
    else:
        with path.open("a", encoding="utf-8", newline="") as stream:
            stream.write(f"{value}\n")


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _LETTERS.get(found[2], found[2]), text)


class Facts(NamedTuple):
    """What the files of one function say. Sizes are in bytes."""

    vendor: str
    pci_class: str
    driver: str | None
    iommu_group: int | None
    numa_node: int | None
    bars: dict[int, int]
    """Size by index."""
    total_vfs: int | None
    vfs: set[str]
    pf: str | None


def functions(root: Path) -> dict[str, Facts]:
    """The PCI functions of a tree, by address."""
    devices = root / "sys/bus/pci/devices"
    return {address: _facts(devices / address) for address in os.listdir(devices)}


def groups(root: Path) -> dict[int, set[str]]:
    """The members of each IOMMU group, from the groups' own directories."""
    place = root / "sys/kernel/iommu_groups"
    return {
        int(name): set(os.listdir(place / name / "devices")) for name in (os.listdir(place) if place.is_dir() else ())
    }


class Cpu(NamedTuple):
    """The online CPUs that share a core and an L3 cache with a CPU."""

    core: set[int]
    cache: set[int]


def cpus(root: Path) -> dict[int, Cpu]:
    """The online CPUs, each from its own files. One of which nothing is known is a core by itself."""
    home = root / "sys/devices/system/cpu"
    online = cpu_list(_text(home / "online") or "")
    return {cpu: _cpu(home / f"cpu{cpu}", cpu, online) for cpu in sorted(online)}


def _cpu(home: Path, number: int, online: set[int]) -> Cpu:
    siblings = cpu_list(_text(home / "topology/thread_siblings_list") or str(number))
    caches = [each for each in home.glob("cache/index*") if _text(each / "level") == "3"]
    shared = cpu_list(_text(caches[0] / "shared_cpu_list") or "") if caches else set()
    return Cpu(siblings & online, shared & online)


def nodes(root: Path) -> dict[int, set[int]]:
    """The CPUs of each NUMA node."""
    homes = (root / "sys/devices/system/node").glob("node[0-9]*")
    return {int(home.name[4:]): cpu_list(_text(home / "cpulist") or "") for home in homes}


def hugepages(root: Path) -> dict[tuple[int, int], tuple[int, int]]:
    """The total and the free hugepages by node and size in bytes."""
    pools = (root / "sys/devices/system/node").glob("node[0-9]*/hugepages/hugepages-*kB")
    return {
        (int(pool.parts[-3][4:]), int(pool.name[10:-2]) * 1024): (
            int(_text(pool / "nr_hugepages") or 0),
            int(_text(pool / "free_hugepages") or 0),
        )
        for pool in pools
    }


def cpu_list(text: str) -> set[int]:
    """The CPUs in a list of the kernel."""
    ranges = [part.split("-") for part in text.split(",") if part]
    return {cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1)}


def _facts(device: Path) -> Facts:
    group, node, vfs = _target(device / "iommu_group"), _text(device / "numa_node"), _text(device / "sriov_totalvfs")
    return Facts(
        vendor=(_text(device / "vendor") or "").removeprefix("0x"),
        pci_class=(_text(device / "class") or "").removeprefix("0x"),
        driver=_target(device / "driver"),
        iommu_group=int(group) if group else None,
        numa_node=int(node) if node and int(node) >= 0 else None,
        bars=_bars(_text(device / "resource") or ""),
        total_vfs=int(vfs) if vfs else None,
        vfs={os.path.basename(os.readlink(link)) for link in device.glob("virtfn*")},
        pf=_target(device / "physfn"),
    )


def _bars(resource: str) -> dict[int, int]:
    regions = [tuple(int(word, 16) for word in line.split()) for line in resource.splitlines()[:_BARS]]
    return {i: end - start + 1 for i, (start, end, flags) in enumerate(regions) if flags & _IO_OR_MEMORY}


def _target(link: Path) -> str | None:
    return os.path.basename(os.readlink(link)) if link.is_symlink() else None


def _text(file: Path) -> str | None:
    return file.read_text(encoding="utf-8").strip() if file.is_file() else None
