"""Simulated hosts for tests that change vGPUs: initial state, boot, the changes, and comparing states."""

from __future__ import annotations

import functools
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.hosts.machines import copy, effect, effects_of, machine, original, write_ledger
from tests.hosts.pool import add_pool
from vfioctl.core.change import Plan, Result, Step
from vfioctl.host import Host
from vfioctl.kernel.protocol import PCI_DEVICES
from vfioctl.kernel.recorded.host import read_tree
from vfioctl.kernel.recorded.tree import Tree, form
from vfioctl.kernel.simulated.faults import Fault
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.vgpu.model.vgpu import OURS, VgpuState

A2, L40S, T4, XE, GIM, NVME = (
    "0000:08:00.0",
    "0000:41:00.0",
    "0000:3b:00.0",
    "0000:03:00.0",
    "0000:05:00.0",
    "0000:42:00.0",
)
UUIDS = tuple(f"c0ffee00-0000-4000-8000-{number:012}" for number in range(9))
OTHERS = "0badcafe-0000-4000-8000-000000000001"
"""What another process calls its vGPU."""
NEXT_BOOT = "11111111-1111-1111-1111-111111111111"
LIMITER = (("frame_rate_limiter", "0"),)
BOOT_ID = "/proc/sys/kernel/random/boot_id"
MDEVS = "/sys/bus/mdev/devices"

Ask = Callable[[Host], Plan]
Rows = Mapping[str, tuple[str, bool]]


# -- how a host begins ---------------------------------------------------------------------------------


@functools.cache
def beginning(name: str) -> Tree:
    """A bundled host with nothing on the card that a change of vGPUs is about; `pool` has a parent of no bus."""
    if name == "pool":
        tree = copy(original("t4"))
        add_pool(tree, 100)
        return tree
    tree = copy(original(name))
    kernel = Simulated(tree, name)
    if name == "xe":
        kernel.write("/sys/bus/pci/drivers/vfio-pci/unbind", "0000:03:00.1")
        kernel.write(f"{PCI_DEVICES}/{XE}/sriov_numvfs", "0")
    for uuid in kernel.children(MDEVS) if name == "a2" else ():
        kernel.write(f"{MDEVS}/{uuid}/remove", "1")
    for number in (4, 5) if name == "l40s" else ():
        kernel.write(f"{PCI_DEVICES}/0000:41:00.{number}/nvidia/current_vgpu_type", "0")
    return tree


# -- what counts -----------------------------------------------------------------------------------------


def everything(tree: Tree) -> Mapping[str, Any]:
    """All of a tree that a kernel would show, but for empty folders; not what the simulation keeps for itself.

    How often a VF was enabled is left out: the simulation does not count it.
    """
    return {
        "files": {path: text for path, text in tree.files.items() if not path.endswith("/enable")},
        "links": dict(tree.links),
        "refused": dict(tree.refused),
        "nodes": dict(tree.nodes),
        "vfio devices": {path: "" for path in tree.directories if "/vfio-dev/" in path},
        "properties": {s: dict(facts) for s, facts in tree.properties.items() if not s.startswith("sim:")},
    }


def unnumbered(tree: Tree) -> Mapping[str, Any]:
    """As `everything`, without groups and nodes, whose numbers are whichever is free."""
    return {
        part: {path: fact for path, fact in facts.items() if not re.search("iommu_group|/vfio-dev|^/dev/vfio", path)}
        for part, facts in everything(tree).items()
    }


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """What is not the same, for people."""
    return sorted(
        f"{part} {key}: {one[part].get(key)!r}, not {other[part].get(key)!r}"
        for part in one
        if one[part] != other[part]
        for key in one[part].keys() | other[part].keys()
        if one[part].get(key) != other[part].get(key)
    )


def rows(host: Host) -> Rows:
    """What the ledger says that vfioctl created: place, and whether it is persistent."""
    return {created.id: (created.place, created.persistent) for created in host.vgpu.created().values()}


def ours(host: Host) -> set[str]:
    """The vGPUs that are shown as vfioctl's, and as being there."""
    away = (VgpuState.DEFINED, VgpuState.ZOMBIE, VgpuState.WEDGED)
    return {vgpu.id for vgpu in host.vgpu.vgpus().instances if vgpu.owner == OURS and vgpu.state not in away}


# -- a host that boots -----------------------------------------------------------------------------------


class BootableHost:
    """A simulated host in a file, which can be booted: it then has nothing but what it has at each boot."""

    def __init__(self, folder: Path, at_boot: Tree) -> None:
        self.at_boot, self.file = at_boot, folder / "machine.host"
        self._keep(at_boot)

    def twin(self, folder: Path) -> BootableHost:
        """The same again, with its ledger, elsewhere."""
        twin = BootableHost(folder, self.at_boot)
        for file in self.file.parent.glob("machine.host*"):
            (folder / file.name).write_bytes(file.read_bytes())
        return twin

    def _keep(self, tree: Tree) -> None:
        self.file.write_text(form(tree), encoding="utf-8")

    @property
    def tree(self) -> Tree:
        return read_tree(self.file)

    @property
    def host(self) -> Host:
        return Host.simulated(str(self.file))

    def does(self, *asks: Ask) -> None:
        for ask in asks:
            host = self.host
            assert host.apply(ask(host)).result == Result.DONE

    def other(self, path: str, value: str) -> None:
        """Another process writes."""
        Simulated.at(self.file).write(path, value)

    def edit(self, change: Callable[[Tree], None]) -> None:
        tree = self.tree
        change(tree)
        self._keep(tree)

    def add(self, path: str, text: str) -> None:
        self.edit(lambda tree: tree.put(path, text))

    def boots(self) -> None:
        tree, before = copy(self.at_boot), self.tree
        again = NEXT_BOOT.replace("1", "2")
        tree.put(BOOT_ID, again if before.files[BOOT_ID] == NEXT_BOOT else NEXT_BOOT)
        for path, text in before.files.items():
            if path.startswith("/etc/"):
                tree.put(path, text)
        self._keep(tree)

    def all_but_boot(self) -> dict[str, object]:
        tree = self.tree
        tree.remove(BOOT_ID)
        return dict(everything(tree))


# -- the changes -----------------------------------------------------------------------------------------


class Case:
    """One change of vGPUs: how the host is before it, the plan, and how it is after it.

    `prepare`: changes that vfioctl made before, so that there is something that is its own.
    """

    def __init__(self, name: str, folder: Path, host_name: str, ask: Ask, *prepare: Ask) -> None:
        self.name, self.ledger = f"{host_name} {name}", folder / f"{host_name}-{name}.db"
        self.tree_of_boot = beginning(host_name)
        self.start = copy(self.tree_of_boot)
        for each in prepare:
            host = machine(self.start, self.ledger)
            assert host.apply(each(host)).result == Result.DONE
        host = machine(self.start, self.ledger)
        self.before, self.rows_before, self.ours_before = everything(self.start), rows(host), ours(host)
        self.saved = self.ledger.read_bytes() if self.ledger.exists() else None
        done = copy(self.start)
        host = machine(done, self.ledger)
        self.plan = ask(host)
        outcome = host.apply(self.plan)
        assert outcome.result == Result.DONE
        self.after, self.rows_after, self.ours_after = everything(done), rows(host), ours(host)
        self.effects = effects_of(self.plan)
        assert isinstance(host.session.kernel, Simulated)
        assert host.session.kernel.writes == [effect(step) for step in self.effects]
        assert self.effects
        assert differing(self.before, self.after)

    def fresh(self) -> Tree:
        """The host and the ledger as before the change."""
        self.write_ledger(self.saved)
        return copy(self.start)

    def write_ledger(self, content: bytes | None) -> None:
        write_ledger(self.ledger, content)

    def host(self, tree: Tree, *faults: Fault) -> Host:
        return machine(tree, self.ledger, faults)

    def is_done(self, at: int) -> bool:
        """Whether the change is whole after that effect: then recovery leaves it, otherwise it goes back."""
        return at == len(self.effects)

    def as_before(self, tree: Tree, where: str) -> None:
        """The host is as before, and the ledger says so too."""
        self._as(tree, self.before, self.rows_before, f"{self.name}, {where}: not as before")

    def as_after(self, tree: Tree, where: str) -> None:
        """The host is as it was to be, and the ledger says so too, of each thing once."""
        self._as(tree, self.after, self.rows_after, f"{self.name}, {where}: not as after")

    def _as(self, tree: Tree, expected: Mapping[str, Any], owned: Rows, where: str) -> None:
        told = differing(everything(tree), expected)
        assert told == [], f"{where}: {told[:4]}"
        assert rows(machine(tree, self.ledger)) == owned, where
        with closing(sqlite3.connect(self.ledger)) as ledger:
            assert sorted(owned) == sorted(name for (name,) in ledger.execute("SELECT id FROM vgpu")), where


def made_by(step: Step) -> bool:
    """Whether the step creates a vGPU."""
    return step.target.endswith("/create") or (step.target.endswith("/current_vgpu_type") and step.value != "0")


def is_removal(step: Step) -> bool:
    return step.target.endswith("/remove") or (step.target.endswith("/current_vgpu_type") and step.value == "0")


def is_nvidia(step: Step) -> bool:
    return "/nvidia" in step.target


def all_cases(host_name: str, folder: Path) -> Iterator[Case]:
    """Each kind of change on one host."""
    of_host: Mapping[str, tuple[tuple[str, Ask, tuple[Ask, ...]], ...]] = {
        "a2": (*_vgpus("A2-4C", UUIDS[:3]), *_nvidia(A2)),
        "l40s": (*_vgpus("L40S-12Q", ()), *_nvidia(L40S)),
        "t4": _vgpus("T4-4C", UUIDS[:3]),
        "pool": _vgpus("mbochs-medium", UUIDS[:3], parameters=()),
        "xe": (*_counts(XE), ("profile", _profile, (vfs(XE, 2),))),
        "lab": _counts(NVME),
    }
    for name, ask, prepare in of_host[host_name]:
        yield Case(name, folder, host_name, ask, *prepare)


def create(type_name: str, names: tuple[str, ...] = (), *, count: int = 1, **more: Any) -> Ask:
    """That many vGPUs, called by the first of the names where they are mediated devices."""
    return lambda host: host.vgpu.plan_create(type_name, count=count, uuids=names[:count], **more)


def remove_all(host: Host) -> Plan:
    """All vGPUs that are vfioctl's."""
    return host.vgpu.plan_remove(sorted(ours(host)))


def _vgpus(
    kind: str, names: tuple[str, ...], parameters: tuple[tuple[str, str], ...] = LIMITER
) -> tuple[tuple[str, Ask, tuple[Ask, ...]], ...]:
    one, three = create(kind, names), create(kind, names, count=3, parameters=parameters, persistent=True)
    return (
        ("create", one, ()),
        ("create-kept", create(kind, names, persistent=True), ()),
        ("create-three", create(kind, names, count=3), ()),
        ("create-three-kept", three, ()),
        ("remove", remove_all, (one,)),
        ("remove-three-kept", remove_all, (three,)),
    )


def vfs(address: str, count: int | None, *, persistent: bool = False) -> Ask:
    return lambda host: host.vgpu.plan_vfs(address, count, persistent=persistent)


def _counts(address: str) -> tuple[tuple[str, Ask, tuple[Ask, ...]], ...]:
    return (
        ("set", vfs(address, 2), ()),
        ("set-kept", vfs(address, 2, persistent=True), ()),
        ("set-another", vfs(address, 3), (vfs(address, 2),)),
        ("set-another-kept", vfs(address, 3, persistent=True), (vfs(address, 2, persistent=True),)),
        ("off", vfs(address, 0), (vfs(address, 2),)),
        ("off-kept", vfs(address, 0), (vfs(address, 2, persistent=True),)),
    )


def _nvidia(address: str) -> tuple[tuple[str, Ask, tuple[Ask, ...]], ...]:
    def off(host: Host) -> Plan:
        return host.vgpu.plan_vfs(address, 0, foreign=True)

    on, kept = vfs(address, None), vfs(address, None, persistent=True)
    return (
        ("vfs-off", off, ()),
        ("vfs-on", on, (off,)),
        ("vfs-on-kept", kept, (off,)),
        ("vfs-off-kept", off, (off, kept)),
    )


def _profile(host: Host) -> Plan:
    values = (("vf1/exec_quantum_ms", "30"), ("vf2/preempt_timeout_us", "50000"), ("pf/sched_priority", "high"))
    return host.vgpu.plan_profile(XE, values)


def kinds_of(case: Case) -> frozenset[str]:
    """Which kinds of effects it has, however many: of several cases alike the shortest is enough."""
    return frozenset((*(step.action for step in case.effects), *(s.target.rpartition("/")[2] for s in case.effects)))
