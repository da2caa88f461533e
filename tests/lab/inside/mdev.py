"""Raw sysfs access to vGPUs for the tests in the lab: mediated devices, VFs and NVIDIA's vendor-specific VFIO.

Reads and plain writes, with nothing of vfioctl in between. A write raises OSError as the kernel refuses, and blocks
where the kernel does; `pci.within` and `Writer` outlive that.
"""

import subprocess
import uuid
from pathlib import Path

from tests.lab.inside import pci

MODULES = Path("/run/lab/sources")
BUS = Path("/sys/bus/mdev")
PARENTS = Path("/sys/class/mdev_bus")
NONE = "0"


def load(module: str, **parameters: object) -> None:
    """Inserts one of the lab's own modules, and what it and a holder need of the kernel's."""
    subprocess.run(["modprobe", "--all", "mdev", "vfio", "vfio_iommu_type1"], check=True, timeout=60)
    settings = [f"{name}={value}" for name, value in parameters.items()]
    subprocess.run(["insmod", str(MODULES / f"{module}.ko"), *settings], check=True, timeout=60)


def unload(module: str) -> None:
    """Removes a module, and with it every idle vGPU of its parents; raises CalledProcessError when one is held."""
    subprocess.run(["rmmod", module], check=True, timeout=60, capture_output=True)


def is_loaded(module: str) -> bool:
    """Whether the kernel has it, going as well as staying."""
    return (Path("/sys/module") / module / "holders").exists()


def set_parameter(module: str, name: str, value: object) -> None:
    """Changes a parameter of a loaded module."""
    pci.write(Path("/sys/module") / module / "parameters" / name, f"{value}")


def parents() -> set[str]:
    """The names of all parents."""
    return {path.name for path in PARENTS.iterdir()}


def supported(parent: str) -> dict[str, Path]:
    """A parent's types by id, each with its folder."""
    return {path.name: path for path in (PARENTS / parent / "mdev_supported_types").iterdir()}


def available(parent: str) -> dict[str, int]:
    """How many more of only this type, for each type by id."""
    return {kind: int((path / "available_instances").read_text()) for kind, path in supported(parent).items()}


def instances_of(parent: str, kind: str) -> set[str]:
    """The UUIDs that a type's own folder lists."""
    return {path.name for path in (supported(parent)[kind] / "devices").iterdir()}


def instances() -> set[str]:
    """The UUIDs that the bus lists; one whose removal is blocked is not among them."""
    return {path.name for path in (BUS / "devices").iterdir()}


def new_uuid() -> str:
    """As the kernel writes them: with dashes, in lower case."""
    return str(uuid.uuid4())


def create(parent: str, kind: str, name: str | None = None) -> str:
    """Creates a mediated device; returns its UUID."""
    name = name or new_uuid()
    pci.write(supported(parent)[kind] / "create", name)
    return name


def fill(parent: str, kind: str, count: int) -> list[str]:
    """Creates this many mediated devices of one type."""
    return [create(parent, kind) for _ in range(count)]


def remove(name: str) -> None:
    """Removes a mediated device; blocks while it is held open."""
    pci.write(BUS / "devices" / name / "remove", "1")


def remove_all() -> None:
    """Removes every mediated device that the bus lists."""
    for name in instances():
        remove(name)


def creatable(function: str) -> dict[str, str]:
    """The names of the types that can be created on a VF of the vendor's framework, by id."""
    lines = (pci.DEVICES / function / "nvidia/creatable_vgpu_types").read_text().splitlines()
    pairs = [(left.strip(), name.strip()) for left, _, name in (line.partition(":") for line in lines)]
    return {left: name for left, name in pairs if left.isdecimal()}


def current(function: str) -> str:
    """The id of a VF's type, `NONE` without one."""
    return (pci.DEVICES / function / "nvidia/current_vgpu_type").read_text().strip()


def set_current(function: str, kind: str) -> None:
    """Creates a vGPU of a type by id, or with `NONE` removes it."""
    pci.write(pci.DEVICES / function / "nvidia/current_vgpu_type", kind)


def enable_vfs(physical: str, count: int, *, autoprobe: bool) -> list[str]:
    """Turns VFs on; their addresses in the order of their numbers."""
    pci.write(pci.DEVICES / physical / "sriov_drivers_autoprobe", "1" if autoprobe else "0")
    set_vf_count(physical, count)
    return vfs(physical)


def set_vf_count(physical: str, count: int) -> None:
    """One write to sriov_numvfs; 0 blocks while a VF is held open."""
    pci.write(pci.DEVICES / physical / "sriov_numvfs", f"{count}")


def vfs(physical: str) -> list[str]:
    """The addresses of the VFs there are, in the order of their numbers; never blocks."""
    links = (pci.DEVICES / physical).glob("virtfn*")
    return [link.readlink().name for link in sorted(links, key=lambda link: int(link.name.removeprefix("virtfn")))]


class Writer:
    """One sysfs write in a process of its own, which may block for ever."""

    def __init__(self, path: Path, text: str) -> None:
        self._process = subprocess.Popen(["sh", "-c", f"echo {text} >{path}"], stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        """SIGKILL; does nothing to a writer that is blocked in the kernel, but mark it."""
        self._process.kill()

    def status(self, seconds: float) -> int | None:
        """The exit status as of `subprocess`, None while it still runs after so many seconds."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def state(self) -> str:
        """The letter of proc(5): S sleeping, D in a sleep that no signal ends."""
        return Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def blocked_in(self) -> str:
        """The kernel function of /proc/PID/wchan."""
        return Path(f"/proc/{self._process.pid}/wchan").read_text()

    def stack(self) -> str:
        """The kernel stack, one function a line."""
        return Path(f"/proc/{self._process.pid}/stack").read_text()
