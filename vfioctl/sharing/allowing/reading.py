"""Reads what allow-lists need of a host: GPU nodes, classes of devices, notes, and who has refused nodes open. May not
write."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from vfioctl.errors import HostError, KernelRefused
from vfioctl.kernel.host_paths import ALLOWED_RUN
from vfioctl.kernel.lenient import names_in, number_of, text_of
from vfioctl.sharing.allowing.entries import Classes, classes_in
from vfioctl.sharing.allowing.values import GpuNodes, Holding, Note, Setting, Shared, note_in, setting_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfioctl.inventory.api import InventoryApi, Processes
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.inventory.model.values import PciAddress
    from vfioctl.kernel.protocol import Reader

_DEVICES, _NODES = "/proc/devices", "/sys/dev/char"
_NUMBER = re.compile(r"[0-9]{1,4}:[0-9]{1,7}", re.ASCII)
_NVIDIA = "195"  # nv-chardev-numbers.h, where the kernel does not list it
_CONTROL, _MODESET = 255, 254  # the minors of /dev/nvidiactl and /dev/nvidia-modeset
_UVM = (0, 1)  # /dev/nvidia-uvm, /dev/nvidia-uvm-tools
_V2 = "0::"


def read_gpu_nodes(kernel: Reader, devices: InventoryApi, inventory: Inventory) -> GpuNodes:
    """Return the nodes of all GPUs. Those of a PF include its VFs, which are parts of it."""
    gpus = inventory.gpus
    own = devices.device_numbers(gpus)
    characters = {gpu: frozenset(n for n in numbers if n.startswith("c ")) for gpu, numbers in own.items()}
    whole = {
        gpu.address: characters[gpu.address].union(*(characters.get(vf, frozenset()) for vf in gpu.virtfns))
        for gpu in gpus
    }
    classes = classes_in(text_of(kernel, _DEVICES))
    return GpuNodes(
        whole, {gpu.address: gpu.driver for gpu in gpus}, tuple(_shared(classes, frozenset().union(*whole.values())))
    )


def _shared(classes: Mapping[str, tuple[str, ...]], own: Collection[str]) -> Iterator[Shared]:
    """Yield the nodes that all GPUs of a driver share, by the majors that the kernel lists now."""
    majors = {name: major for major, names in classes.items() for name in names}
    nvidia = majors.get("nvidia-frontend") or majors.get("nvidia") or majors.get("nvidiactl")
    if nvidia is None and any(number.startswith(f"c {_NVIDIA}:") for number in own):
        nvidia = _NVIDIA
    numbers = [f"c {nvidia}:{minor}" for minor in (_CONTROL, _MODESET)] if nvidia else []
    if uvm := majors.get("nvidia-uvm"):
        numbers += [f"c {uvm}:{minor}" for minor in _UVM]
    if numbers:
        yield Shared("nvidia", frozenset(numbers))
    if kfd := majors.get("kfd"):
        yield Shared("amdgpu", frozenset([f"c {kfd}:0"]))


def without_number(nodes: GpuNodes) -> tuple[PciAddress, ...]:
    """Return the GPUs without a device node now: a node that appears later is not refused."""
    return tuple(gpu for gpu, numbers in nodes.numbers.items() if not numbers)


def read_classes(kernel: Reader, nodes: GpuNodes, settings: Collection[Setting]) -> Classes:
    """Return the classes of devices, the nodes that are known, and the numbers of nodes that settings name by path."""
    known = frozenset(f"c {name}" for name in names_in(kernel, _NODES) if _NUMBER.fullmatch(name))
    paths = {entry.partition(" ")[0] for setting in settings for entry in setting.entries}
    numbers = {path: number_of(kernel, path) for path in paths if path.startswith("/dev/")}
    return Classes(classes_in(text_of(kernel, _DEVICES)), known | nodes.every, numbers)


def read_setting(kernel: Reader, cgroup: str) -> Setting | None:
    """Return the setting of the unit whose cgroup this is; None without one. Raises HostError."""
    devices = kernel.unit_devices(cgroup)
    return setting_of(devices) if devices else None


def read_notes(kernel: Reader) -> Mapping[str, tuple[str, Note | None]]:
    """Return the text of each note and what it says, by the unit's name; None if it is damaged."""
    texts = {unit: text_of(kernel, f"{ALLOWED_RUN}/{unit}") for unit in names_in(kernel, ALLOWED_RUN)}
    return {unit: (text, note_in(text)) for unit, text in texts.items()}


def read_holders(
    kernel: Reader, processes: Processes, cgroup: str, refused: Collection[str]
) -> tuple[tuple[Holding, ...], int, str]:
    """Return the processes of a cgroup, and of those below it, that have refused nodes open; how many processes could
    not be read; why nothing is known. A process that has moved or ended since costs only itself."""
    running = processes.running
    holders: list[Holding] = []
    for process in running.processes:
        held = {node.number: node.path for node in process.nodes if node.number in refused}
        if held and (at := _cgroup_of(kernel, process.pid)) and (at == cgroup or at.startswith(f"{cgroup}/")):
            holders += [Holding(int(process.pid), process.name, at, held[number], number) for number in sorted(held)]
    return tuple(sorted(holders)), running.unread, running.unknown or running.hidden


def _cgroup_of(kernel: Reader, pid: str) -> str:
    lines = text_of(kernel, f"/proc/{pid}/cgroup").split("\n")
    return next((line.removeprefix(_V2) for line in lines if line.startswith(_V2)), "")


def read_others(kernel: Reader, cgroup: str) -> Sequence[str]:
    """Return the names of the programs on a cgroup whose list vfioctl cannot read."""
    try:
        return [program.name or f"program {program.id}" for program in kernel.device_programs(cgroup)
                if program.refused is None]  # fmt: skip
    except (KernelRefused, HostError):
        return []
