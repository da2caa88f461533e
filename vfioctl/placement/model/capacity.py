"""What a host has for claims: its devices, CPUs and hugepages, and what is not free of them. May not do I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from vfioctl.core.frozen import value_class
from vfioctl.inventory.model.functions import Inventory
from vfioctl.inventory.model.values import PciAddress
from vfioctl.placement.model.claims import Taken
from vfioctl.placement.model.settings import ClaimSettings
from vfioctl.units import Uuid

if TYPE_CHECKING:
    from vfioctl.core.change import Plan


@value_class
class Core:
    """A core: the online CPUs that share it, ascending."""

    cpus: tuple[int, ...]
    node: int
    cache: int | None = None
    """The L3 cache that it shares: the lowest of the CPUs that have it. None if there is none, or it is not known."""


@value_class
class HugepagePool:
    """The hugepages of one size (bytes) on one node."""

    node: int
    size: int
    total: int
    free: int


@value_class
class Topology:
    """The CPUs of a host. `unknown`: facts that could not be read, and why."""

    cores: tuple[Core, ...] = ()
    """In the order of their first CPUs."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    isolated: frozenset[int] = frozenset()
    """CPUs that the host's scheduler leaves alone (isolcpus, nohz_full): for realtime guests, and for nothing else."""

    @cached_property
    def by_node(self) -> Mapping[int, tuple[Core, ...]]:
        nodes: dict[int, list[Core]] = {}
        for core in self.cores:
            nodes.setdefault(core.node, []).append(core)
        return {node: tuple(cores) for node, cores in sorted(nodes.items())}

    @cached_property
    def core_of(self) -> Mapping[int, Core]:
        return {cpu: core for core in self.cores for cpu in core.cpus}


@value_class
class VgpuCreation:
    """The vGPUs that are created for a request."""

    plan: Plan
    refusals: Mapping[str, str]
    """Why no vGPU of the type can be created on each card that offers vGPUs; empty if one can."""


@value_class
class Context:
    """What a caller knows of a host beyond what the host and the ledger report."""

    pinned: Mapping[int, str] = field(default_factory=dict)
    """CPUs that are not to be chosen, each with who has it."""
    own_cpus: Collection[int] = ()
    """CPUs of the guest itself: that its process is pinned to them does not keep it from them."""
    nodes: Mapping[PciAddress, int] = field(default_factory=dict)
    """NUMA nodes of functions, where the firmware reports none."""
    held: Mapping[PciAddress, str] = field(default_factory=dict)
    """Functions that are not to be chosen, each with the reason."""
    previews: bool = False
    """Whether a boot display may be named that is not on VFIO yet: nothing is claimed."""


@value_class
class Capacity:
    """A host at one moment, with what claims and settings leave of it: all that a placement is decided from."""

    inventory: Inventory
    topology: Topology = field(default_factory=Topology)
    hugepages: tuple[HugepagePool, ...] = ()
    taken: Taken = field(default_factory=Taken)
    settings: ClaimSettings = field(default_factory=ClaimSettings)
    pinned: Mapping[int, str] = field(default_factory=dict)
    """CPUs to which running guests are pinned, each with the guest."""
    peers: Mapping[PciAddress, frozenset[PciAddress]] = field(default_factory=dict)
    """The GPUs that each GPU reaches over NVLink, as NVML reports."""
    held: Mapping[PciAddress, str] = field(default_factory=dict)
    """GPUs that are known to be in use, each with the reason."""
    parents: Mapping[Uuid, str] = field(default_factory=dict)
    """The parents of mediated devices, which may be no PCI functions; those of functions may be left out."""
    creation: VgpuCreation | None = None
    """For a request for vGPUs."""
    realtime: bool = False
    """See `ClaimRequest`."""
    previews: bool = False
    """See `Context`."""

    @property
    def isolated_by_node(self) -> Mapping[int, int]:
        """The number of isolated CPUs of each node."""
        return {
            node: sum(cpu in self.topology.isolated for core in cores for cpu in core.cpus)
            for node, cores in self.topology.by_node.items()
        }

    @property
    def for_isolated_only(self) -> Capacity:
        """The same host, of which no other CPUs are free."""
        others = self.topology.core_of.keys() - self.topology.isolated
        return replace(self, pinned={**self.pinned, **dict.fromkeys(others, "not isolated")})

    @property
    def housekeeping(self) -> Collection[int]:
        """The CPUs that stay with the host: as the settings say, or the first core of each node; no isolated one."""
        if self.settings.housekeeping_cpus is not None:
            return self.settings.housekeeping_cpus
        isolated = self.topology.isolated
        first = (
            next((core.cpus for core in cores if isolated.isdisjoint(core.cpus)), ())
            for cores in self.topology.by_node.values()
        )
        return {cpu for cpus in first for cpu in cpus}
