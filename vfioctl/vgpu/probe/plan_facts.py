"""Reads the vGPUs and VFs that one plan is about, and no others. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from vfioctl.errors import KernelRefused
from vfioctl.inventory.model.functions import Function
from vfioctl.kernel.host_paths import MDEV_DEVICES
from vfioctl.kernel.lenient import names_in, number_in, text_of
from vfioctl.kernel.protocol import PCI_DEVICES, FileReader, Reader
from vfioctl.units import UUID
from vfioctl.vgpu.dialects.dialect import card_of
from vfioctl.vgpu.ledger.reading import Recorded
from vfioctl.vgpu.model.kinds import PhysicalFunction
from vfioctl.vgpu.model.lookup import with_owners
from vfioctl.vgpu.model.persistent import own_definition_file
from vfioctl.vgpu.model.vgpu import Vgpus
from vfioctl.vgpu.probe.inventory import read_vgpus

CAPABILITIES = "/proc/driver/nvidia/capabilities"


def read_affected(
    kernel: Reader,
    recorded: Recorded,
    cards: Collection[str] | None,
    names: Iterable[str] | None = (),
    *,
    types: bool = True,
) -> Vgpus:
    """The vGPUs of `cards` with their owners. `names`: UUIDs whose definitions are read. None means all of both.
    `types`: see `VgpuScan`."""
    defined = None if names is None else set(names)
    vgpus = read_vgpus(kernel, cards, suspects=recorded.wedged, names=recorded.names, defined=defined, types=types)
    return with_owners(vgpus, recorded.created, recorded.wedged)


def cards_of(kernel: FileReader, names: Iterable[str]) -> set[str] | None:
    """The cards of these VFs and mediated devices; None when one does not exist, so its card is unknown."""
    homes = {_home(kernel, name) for name in names}
    return None if "" in homes else homes


def _home(kernel: FileReader, name: str) -> str:
    """The card of a VF, or of an existing mediated device; empty for anything else."""
    place = name
    if UUID.fullmatch(name):
        try:
            place = kernel.link(f"{MDEV_DEVICES}/{name}").split("/")[-2]
        except KernelRefused:
            return ""
    return card_of(kernel, place)


def texts_of(kernel: FileReader, files: Iterable[str]) -> Mapping[str, str]:
    """The text of each file; empty when there is no such file."""
    return {file: text_of(kernel, file) for file in files}


def total_vfs(kernel: FileReader, address: str) -> int:
    """The maximum number of VFs of a PF; 0 for any other function."""
    return number_in(text_of(kernel, f"{PCI_DEVICES}/{address}/sriov_totalvfs")) or 0


def physical_function(kernel: FileReader, function: Function) -> PhysicalFunction:
    """The facts of a PF that are not in the inventory."""
    return PhysicalFunction(
        total=total_vfs(kernel, function.address),
        autoprobe=text_of(kernel, f"{PCI_DEVICES}/{function.address}/sriov_drivers_autoprobe").strip(),
        definition=text_of(kernel, own_definition_file(function.address)),
        gpu_instances=_has_gpu_instances(kernel, function),
    )


def _has_gpu_instances(kernel: FileReader, function: Function) -> bool:
    """Whether MIG is enabled on this GPU; if NVML does not report it, on any GPU here (nv-caps.c: gpu0/mig/gi1)."""
    if function.nvml and function.nvml.mig_mode is not None:
        return function.nvml.mig_mode
    homes = (f"{CAPABILITIES}/{gpu}/mig" for gpu in names_in(kernel, CAPABILITIES))
    return any(name.startswith("gi") for home in homes for name in names_in(kernel, home))
