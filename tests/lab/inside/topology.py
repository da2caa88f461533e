"""The lab's devices by the part they play, looked up in sysfs; addresses and group numbers move as disks are added."""

from dataclasses import dataclass

from tests.lab.inside.pci import DEVICES, attribute, group_of

DISPLAY, AUDIO, NVME = "0x0380", "0x0403", "0x0108"


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

    @property
    def card(self) -> tuple[str, str]:
        """The two functions that must travel together."""
        return self.display, self.audio


def look_up() -> Topology:
    """Finds each part by class and NUMA node."""
    (display,) = _functions(DISPLAY, node="-1")
    (far_display,) = _functions(DISPLAY, node="1")
    (audio,) = _functions(AUDIO, node="-1")
    (nvme,) = _functions(NVME, node="1")
    return Topology(display=display, audio=audio, far_display=far_display, nvme=nvme)


def group_members(address: str) -> set[str]:
    """Every function in this one's IOMMU group, itself too."""
    return {path.name for path in DEVICES.iterdir() if group_of(path.name) == group_of(address)}


def _functions(kind: str, *, node: str) -> list[str]:
    return [
        path.name
        for path in sorted(DEVICES.iterdir())
        if attribute(path.name, "class").startswith(kind) and attribute(path.name, "numa_node") == node
    ]
