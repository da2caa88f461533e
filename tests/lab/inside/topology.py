"""The lab's devices by the part they play, looked up in sysfs; addresses and group numbers move as disks are added."""

from dataclasses import dataclass

from tests.lab.inside.pci import DEVICES, attribute, group_of

DISPLAY, AUDIO, NVME, NIC = "0x0380", "0x0403", "0x0108", "0x0200"


@dataclass(frozen=True)
class Topology:
    """Addresses, all of the form 0000:01:00.0."""

    display: str
    """A GPU's display function; shares its card and IOMMU group with `audio`. No NUMA node."""
    audio: str
    """The display's companion."""
    far_display: str
    """A GPU alone in its group, on NUMA node 1."""
    nvme: str
    """The SR-IOV physical function, four VFs, none enabled; on NUMA node 1."""
    busy_display: str
    """A GPU whose card and IOMMU group hold a disk and a NIC too. No NUMA node."""
    busy_disk: str
    """An nvme with one empty namespace."""
    busy_nic: str
    """An e1000e whose packets go nowhere."""

    @property
    def card(self) -> tuple[str, str]:
        """The two functions that must travel together."""
        return self.display, self.audio

    @property
    def busy_card(self) -> tuple[str, str, str]:
        """The three functions that must travel together."""
        return self.busy_display, self.busy_disk, self.busy_nic


def look_up() -> Topology:
    """Finds each part by class, NUMA node and the slot it is in."""
    (audio,) = _functions(AUDIO, node="-1")
    (busy_disk,) = _functions(NVME, node="-1")
    (far_display,) = _functions(DISPLAY, node="1")
    (nvme,) = _functions(NVME, node="1")
    return Topology(
        display=_in_slot_of(audio, DISPLAY),
        audio=audio,
        far_display=far_display,
        nvme=nvme,
        busy_display=_in_slot_of(busy_disk, DISPLAY),
        busy_disk=busy_disk,
        busy_nic=_in_slot_of(busy_disk, NIC),
    )


def group_members(address: str) -> set[str]:
    """Every function in this one's IOMMU group, itself too."""
    return {path.name for path in DEVICES.iterdir() if group_of(path.name) == group_of(address)}


def _in_slot_of(address: str, kind: str) -> str:
    (found,) = (one for one in _functions(kind, node="-1") if one.rpartition(".")[0] == address.rpartition(".")[0])
    return found


def _functions(kind: str, *, node: str) -> list[str]:
    return [
        path.name
        for path in sorted(DEVICES.iterdir())
        if attribute(path.name, "class").startswith(kind) and attribute(path.name, "numa_node") == node
    ]
