"""The devices, CPUs and hugepages that were chosen for a claim, and why. May not do input or output."""

from __future__ import annotations

from typing import Self

from vfioctl.core.frozen import value_class
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.placement.model.claims import Hugepages
from vfioctl.placement.model.share import GpuShare
from vfioctl.units import format_cpu_list

WARNING = "warning: "
"""How a reason begins that is a warning."""


@value_class
class Rejection:
    """A device that was not chosen. `free`: whether it could have been, and others are better."""

    device: str
    """A PCI address, or the name of a parent of vGPUs that is no PCI function."""
    title: str
    reason: str
    free: bool = False


@value_class
class NewVgpus:
    """vGPUs that are created for a claim: how many of which type, on which parent."""

    parent: str
    """A PF, a VF, or the name of a device that is no PCI function."""
    type: str
    """The kernel's name for the type."""
    count: int


@value_class
class NativeShare:
    """A share of a GPU that stays with its host driver, as JSON has it."""

    address: str
    """The GPU's PCI address."""
    cores: int
    """Hundredths of the GPU; 100 is the whole GPU."""
    memory: int
    """Bytes; 0: none is reserved, or all of a whole GPU."""
    enforce: str
    """The enforcement that was asked for; empty for the strongest that the host has."""
    cdi: str
    """The name that NVIDIA's container toolkit gives to the GPU; empty if it has none."""

    @classmethod
    def of(cls, share: GpuShare) -> Self:
        return cls(share.address, share.cores, share.memory, share.enforce, share.cdi)


@value_class
class NodeHugepages:
    """Hugepages of one size (bytes) on one NUMA node, as JSON has them."""

    node: int
    size: int
    pages: int


@value_class
class Placement:
    """What a claim gets. Chosen devices, CPUs and nodes are in the order of the host."""

    devices: tuple[Subject, ...]
    """Those that the request names, in its order, or that were chosen; without companions and new vGPUs."""
    cpus: tuple[int, ...] = ()
    hugepages: tuple[Hugepages, ...] = ()
    nodes: tuple[int, ...] = ()
    """The NUMA nodes of the devices."""
    why: tuple[str, ...] = ()
    """Sentences that explain the choice."""
    others: tuple[Rejection, ...] = ()
    """Each other GPU of the host, with the reason."""
    vgpus: tuple[NewVgpus, ...] = ()
    """The vGPUs that are created, if the request is for such."""
    shares: tuple[GpuShare, ...] = ()
    """Shares of GPUs that stay with their host driver, or all of such GPUs, if the request is for such."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the reasons an operator must know even if no reasons are asked for."""
        return tuple(why for why in self.why if why.startswith(WARNING))

    @property
    def functions(self) -> tuple[PciAddress, ...]:
        """The functions among the devices."""
        return tuple(device for device in self.devices if isinstance(device, PciAddress))

    def document(self) -> PlacementDocument:
        """Return the JSON form."""
        return PlacementDocument(
            devices=self.devices,
            vgpus=self.vgpus,
            shares=tuple(NativeShare.of(share) for share in self.shares),
            nodes=self.nodes,
            cpus=format_cpu_list(self.cpus),
            hugepages=tuple(NodeHugepages(*hugepages) for hugepages in self.hugepages),
            why=self.why,
            others=self.others,
        )


@value_class
class PlacementDocument:
    """The document of `vfioctl place --json`."""

    devices: tuple[str, ...]
    """Addresses of functions and UUIDs of mediated devices: those that the request names, or that were chosen."""
    vgpus: tuple[NewVgpus, ...]
    """The vGPUs that would be created, if the request is for such."""
    shares: tuple[NativeShare, ...]
    """Shares of GPUs that stay with their host driver, or all of such GPUs, if the request is for such."""
    nodes: tuple[int, ...]
    """The NUMA nodes of the devices."""
    cpus: str
    """The CPUs as a list such as `1-8,97-104`; empty for none."""
    hugepages: tuple[NodeHugepages, ...]
    why: tuple[str, ...]
    """Sentences that explain the choice."""
    others: tuple[Rejection, ...]
    """Each other GPU of the host, with the reason; empty if the request names its devices."""
