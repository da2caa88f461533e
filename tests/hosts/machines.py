"""Simulated machines for tests: a bundled host in memory, with faults, and the state that a change may alter."""

from __future__ import annotations

import errno
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from pydantic import TypeAdapter

from vfioctl.core.change import Plan, Step
from vfioctl.core.registry import Registry
from vfioctl.host import Host
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.machine import Group, Iommu
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.protocol import PCI_DEVICES
from vfioctl.kernel.recorded.host import read_tree
from vfioctl.kernel.recorded.tree import Node, Tree
from vfioctl.kernel.simulated.blocking import MANAGING
from vfioctl.kernel.simulated.faults import Fault
from vfioctl.kernel.simulated.groups import driver_of
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.session import Session
from vfioctl.subsystems import SUBSYSTEMS

HOSTS = Path(__file__).parent
REGISTRY = Registry(SUBSYSTEMS)
NAMES = tuple(sorted(file.stem for file in HOSTS.glob("*.host")))

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For properties: a busy machine is no failure."""


@functools.cache
def original(name: str) -> Tree:
    return read_tree(HOSTS / f"{name}.host")


@functools.cache
def reduced(name: str, *addresses: str) -> Tree:
    """A host with these functions only, and the bridges above them: commands on it take a fraction of the time."""
    tree = copy(original(name))
    homes = {path.rpartition("/")[2]: tree.resolve(path) for path in tree.links if path.startswith(f"{PCI_DEVICES}/")}
    gone = [home for home in homes.values() if not any(f"{homes[name]}/".startswith(f"{home}/") for name in addresses)]
    for path in [
        path for path in tree.links if f"{tree.resolve(path)}/".startswith(tuple(f"{home}/" for home in gone))
    ]:
        tree.remove(path)
    for home in gone:
        tree.remove(home)
    return tree


FOUR_GPUS = ("0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0")
"""gpu0 to gpu3 of `hgx8`."""
TRAINING, SCREEN = PciAddress("0000:01:00.0"), PciAddress("0000:09:00.0")
DAEMON, DCGM, DESKTOP = "nvidia-persistenced.service", "nvidia-dcgm.service", "lightdm.service"
STOPPABLE = (DAEMON, DCGM, DESKTOP)


@functools.cache
def in_use() -> Tree:
    """The busy host while only services hold its GPUs: each kind of setting is needed there.

    TRAINING is looked after by two daemons, has persistence mode on and `unbindLock`; SCREEN has the text console, a
    desktop and the firmware's framebuffer on it.
    """
    tree = copy(original("busy"))
    for pid in (1893, 3107, 3395):
        tree.remove(f"/proc/{pid}")
    for gpu in ("0000:01:00.0", "0000:03:00.0", "0000:04:00.0"):
        tree.put(f"/proc/driver/nvidia/gpus/{gpu}/unbindLock", "0")
    add_process(tree, 950, "nv-hostengine", f"0::/system.slice/{DCGM}", "/dev/nvidia0")
    tree.properties[f"unit:{DCGM}"] = {"state": "active"}
    tree.put_directory("/sys/devices/platform/efi-framebuffer.0")
    for driver, name in (("efi-framebuffer", "efi-framebuffer.0"), ("simple-framebuffer", "")):
        home = f"/sys/bus/platform/drivers/{driver}"
        tree.put_directory(home)
        for file in ("bind", "unbind"):
            tree.put(f"{home}/{file}", "")
        if name:
            tree.put_link(f"{home}/{name}", f"../../../../devices/platform/{name}")
    return tree


def put_process(tree: Tree, pid: int, *files: str, name: str = "python3", **texts: str) -> None:
    """A process that has those files open; `texts` are more files of it by name: cgroup, cmdline, maps, ..."""
    tree.put(f"/proc/{pid}/comm", name)
    for file, text in texts.items():
        tree.put(f"/proc/{pid}/{file}", text)
    for fd, target in enumerate(files):
        tree.put_link(f"/proc/{pid}/fd/{fd}", target)


def add_process(tree: Tree, pid: int, name: str, cgroup: str, *files: str) -> None:
    """A process of that cgroup, started by its name, that has those files open."""
    put_process(tree, pid, *files, name=name, cgroup=cgroup, cmdline=name)


class GrowingTree(Tree):
    """A tree that grows by statements: devices, their nodes, and processes."""

    def device(self, path: str, subsystem: str, number: str = "") -> str:
        """A device of that class or bus, and its number where it has a node."""
        self.put_link(f"{path}/subsystem", f"/sys/class/{subsystem}")
        if number:
            self.put(f"{path}/dev", number)
        return path

    def node(self, path: str, kind: str, major: int, minor: int) -> None:
        self.put_node(path, Node(kind, major, minor))

    def process(self, pid: int, *files: str, name: str = "python3", **texts: str) -> None:
        put_process(self, pid, *files, name=name, **texts)

    def unreadable(self, pid: int) -> None:
        """Its open files are not for our eyes; its name and command line are."""
        self.remove(f"/proc/{pid}/fd")
        self.put_refused(f"/proc/{pid}/fd", errno.EACCES)


def copy(tree: Tree) -> Tree:
    twin = Tree()
    twin.synthetic, twin.comments = tree.synthetic, list(tree.comments)
    twin.files, twin.links, twin.refused, twin.nodes = (
        dict(tree.files),
        dict(tree.links),
        dict(tree.refused),
        dict(tree.nodes),
    )
    twin.directories = {path: set(names) for path, names in tree.directories.items()}
    twin.properties = {subject: dict(facts) for subject, facts in tree.properties.items()}
    return twin


def machine(tree: Tree, ledger: Path, faults: Sequence[Fault] = ()) -> Host:
    """A host on that very tree: a second one on it is what another process would see."""
    return Host(Session(Simulated(tree, "simulated", faults=faults), ledger, settle=0.0, lock_wait=0.0))


def write_ledger(ledger: Path, content: bytes | None) -> None:
    """The ledger is that, or none, and no more."""
    for file in ledger.parent.glob(f"{ledger.name}*"):
        file.unlink()
    if content is not None:
        ledger.write_bytes(content)


_NO_EFFECTS = ("load", "unheld", "unheld VFs")


def effects_of(plan: Plan) -> list[Step]:
    """The steps that the simulated kernel counts, each as one of its `writes`."""
    return [step for step in plan.steps if step.action not in _NO_EFFECTS]


def effect(step: Step) -> tuple[str, str]:
    """A step as the simulated kernel notes it."""
    prefixes = {"persistence": "nvml:", "compute mode": "compute:", "service": "unit:", "NVIDIA VFs": MANAGING}
    return f"{prefixes.get(step.action, '')}{step.target}", step.value


def state(tree: Tree) -> Mapping[str, Any]:
    """All that a change may alter, but for loaded modules: these are left loaded."""
    devices = {a: tree.resolve(f"/sys/bus/pci/devices/{a}") for a in tree.directories["/sys/bus/pci/devices"]}
    platform = "/sys/bus/platform/drivers"
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
        "settings": {path: text for path, text in tree.files.items() if path.endswith(_SETTINGS)},
        "framebuffers": {
            (driver, name)
            for driver in tree.directories.get(platform, ())
            for name in tree.directories.get(f"{platform}/{driver}", ())
        },
        "class devices": {path for path in tree.directories if path.endswith(_CLASSES)},
        "properties": {
            subject: {name: facts[name] for name in ("persistence_mode", "state") if name in facts}
            for subject, facts in tree.properties.items()
            if subject.startswith(("nvml:", "unit:"))
        },
    }


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """What is not the same in two states, for people."""
    told = []
    for part in one:
        mine, theirs = one[part], other[part]
        if isinstance(mine, dict):
            keys = [key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)]
            told += [f"{part} {key}: {mine.get(key)!r}, not {theirs.get(key)!r}" for key in keys]
        else:
            told += [f"{part}: {mine - theirs} more, {theirs - mine} less"] if mine != theirs else []
    return sorted(told)


def settings_that_differ(one: Tree, other: Tree) -> set[str]:
    """The files of settings whose text is not the same in both."""
    texts = [{path: text for path, text in tree.files.items() if path.endswith(_SETTINGS)} for tree in (one, other)]
    return {path for path in texts[0].keys() | texts[1].keys() if texts[0].get(path) != texts[1].get(path)}


_SETTINGS = ("/power/control", "/d3cold_allowed", "/reset_method", "/bind", "/unbindLock")
_CLASSES = ("/drm", "/graphics", "/net", "/nvme", "/sound")


def written(tree: Tree, root: Path) -> Path:
    """A captured directory with the tree's files, links and directories, as `--root` takes one."""
    for path in tree.directories:
        (root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for path, text in tree.files.items():
        (root / path.lstrip("/")).write_text(f"{text}\n", encoding="utf-8")
    for path, target in tree.links.items():
        (root / path.lstrip("/")).symlink_to(target)
    return root


_FUNCTION = TypeAdapter(Function)  # making one takes ten milliseconds


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
    return _FUNCTION.validate_python(known | facts)


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
