"""Simulated machines for tests: a bundled host in memory, with faults, and what of it a change may alter."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

from hypothesis import settings

from vfioctl.host import Host
from vfioctl.kernel.recorded import read_tree
from vfioctl.kernel.simulated.faults import Fault
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.kernel.simulated.rules import driver_of
from vfioctl.kernel.tree import Tree
from vfioctl.model.inventory import Function, Group, Inventory, Iommu
from vfioctl.model.values import PciAddress

HOSTS = Path(__file__).parents[1] / "hosts"
NAMES = tuple(sorted(file.stem for file in HOSTS.glob("*.host")))

unhurried = settings(deadline=None)
"""For properties: a busy machine is no failure."""


@functools.cache
def original(name: str) -> Tree:
    return read_tree(HOSTS / f"{name}.host")


def copy(tree: Tree) -> Tree:
    twin = Tree()
    twin.files, twin.links, twin.refused, twin.nodes = (
        dict(tree.files), dict(tree.links), dict(tree.refused), dict(tree.nodes)
    )  # fmt: skip
    twin.directories = {path: set(names) for path, names in tree.directories.items()}
    twin.properties = {subject: dict(facts) for subject, facts in tree.properties.items()}
    return twin


def machine(tree: Tree, ledger: Path, faults: Sequence[Fault] = ()) -> Host:
    """A host on that very tree: a second one on it is what another process would see."""
    return Host(Simulated(tree, "simulated", faults=faults), ledger, settle=0.0, lock_wait=0.0)


def state(tree: Tree) -> Mapping[str, object]:
    """All that a bind may alter, but for loaded modules: these are left loaded."""
    devices = {a: tree.resolve(f"/sys/bus/pci/devices/{a}") for a in tree.directories["/sys/bus/pci/devices"]}
    return {
        "drivers": {a: driver_of(tree, device) for a, device in devices.items()},
        "overrides": {a: tree.files.get(f"{device}/driver_override") for a, device in devices.items()},
        "bound": {
            (driver, name)
            for driver in tree.directories["/sys/bus/pci/drivers"]
            for name in tree.directories[f"/sys/bus/pci/drivers/{driver}"]
            if ":" in name
        },
        "groups": {path for path in tree.nodes if path.startswith("/dev/vfio/") and path != "/dev/vfio/vfio"},
        "vfio devices": {a for a, device in devices.items() if tree.directories.get(f"{device}/vfio-dev")},
    }


def written(tree: Tree, root: Path) -> Path:
    """A captured directory with the tree's files, links and directories, as `--root` takes one."""
    for path in tree.directories:
        (root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for path, text in tree.files.items():
        (root / path.lstrip("/")).write_text(f"{text}\n", encoding="utf-8")
    for path, target in tree.links.items():
        (root / path.lstrip("/")).symlink_to(target)
    return root


def function(address: str, class_code: str = "030200", **facts: object) -> Function:
    """A function as a value: a GPU on nvidia in group 1, unless told otherwise."""
    known: dict[str, object] = {
        "address": address,
        "vendor_id": "10de",
        "device_id": "2330",
        "subsystem_vendor_id": "10de",
        "subsystem_device_id": "16c1",
        "class": class_code,
        "driver": "nvidia",
        "iommu_group": 1,
        "available_drivers": ("nvidia", "vfio-pci"),
    }
    return Function.model_validate(known | facts)


def inventory_of(*functions: Function, iommu: Iommu | None = None, drivers: Sequence[str] = ("nvidia",)) -> Inventory:
    """A host of those functions, with its groups."""
    members: dict[int, list[PciAddress]] = {}
    for each in functions:
        if each.iommu_group is not None:
            members.setdefault(each.iommu_group, []).append(each.address)
    return Inventory(
        functions=functions,
        groups=tuple(
            Group(id=number, type=None, members=tuple(found), viable=False, blockers=(), node=None)
            for number, found in members.items()
        ),
        numa_nodes=(),
        iommu=iommu or Iommu(kind=None, translating=True),
        drivers=tuple(drivers),
    )
