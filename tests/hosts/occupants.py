"""Users of devices on a synthetic host: processes, file systems, interfaces, the console, as in /proc and /sys."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from tests.hosts.builder import Function, HostBuilder

USERS = {0: "root", 110: "nvidia-persistenced", 1000: "ada", 1001: "grace", 64055: "libvirt-qemu"}


def container_id(name: str) -> str:
    """64 hexadecimal digits, as runtimes make them."""
    return sha256(name.encode()).hexdigest()


def process(
    host: HostBuilder,
    pid: int,
    command: Sequence[str],
    *,
    uid: int,
    cgroup: str,
    files: Sequence[str] = (),
    name: str = "",
) -> None:
    """A process with some of its open files; the name is what the kernel keeps of the program's."""
    home = f"/proc/{pid}"
    name = name or command[0].rpartition("/")[2][:15]
    host.file(f"{home}/comm", name)
    host.file(f"{home}/cgroup", f"0::{cgroup}")
    host.file(f"{home}/cmdline", "".join(f"{word}\0" for word in command))
    host.lines(f"{home}/status", [f"Name:\t{name}", "\t".join(["Uid:", *[str(uid)] * 4])])
    for fd, target in enumerate(("/dev/null", "socket:[24114]", "socket:[24114]", *files)):
        host.raw_link(f"{home}/fd/{fd}", target)


def disk(host: HostBuilder, function: Function, number: int, minor: int, partitions: int) -> list[str]:
    """An NVMe controller, its disk and the partitions of that. Gives the paths of the partitions."""
    controller = host.device(f"{function.path}/nvme/nvme{number}", "nvme", f"240:{number}", f"/dev/nvme{number}")
    name = f"nvme{number}n1"
    whole = host.device(f"{controller}/{name}", "block", f"259:{minor}", f"/dev/{name}")
    return [
        host.device(f"{whole}/{name}p{part}", "block", f"259:{minor + part}", f"/dev/{name}p{part}")
        for part in range(1, partitions + 1)
    ]


def volume(host: HostBuilder, number: int, name: str, *below: str) -> str:
    """A device of the device mapper on others, as LVM makes them. Gives its path."""
    path = host.device(f"/sys/devices/virtual/block/dm-{number}", "block", f"254:{number}", f"/dev/dm-{number}")
    host.file(f"{path}/dm/name", name)
    host.raw_link(f"/dev/mapper/{name}", f"../dm-{number}")
    for lower in below:
        host.link(f"{lower}/holders/dm-{number}", path)
    return path


def interface(host: HostBuilder, path: str, *, up: bool = True) -> str:
    """A network interface. Gives its path."""
    host.device(path, "net")
    host.file(f"{path}/flags", "0x1003" if up else "0x1002")
    return path


def display(host: HostBuilder, function: Function, card: int, *, framebuffer: bool = False) -> None:
    """The DRM nodes of a GPU, and its framebuffer with the text console on it."""
    host.device(f"{function.path}/drm/card{card}", "drm", f"226:{card}", f"/dev/dri/card{card}")
    render = 128 + card
    host.device(f"{function.path}/drm/renderD{render}", "drm", f"226:{render}", f"/dev/dri/renderD{render}")
    if framebuffer:
        host.device(f"{function.path}/graphics/fb0", "graphics", "29:0", "/dev/fb0")


def sound(host: HostBuilder, function: Function, card: int) -> None:
    """A sound card with its control device and one for playing."""
    home = host.device(f"{function.path}/sound/card{card}", "sound")
    for minor, name in enumerate((f"controlC{card}", f"pcmC{card}D3p"), start=32 * card + 2):
        host.device(f"{home}/{name}", "sound", f"116:{minor}", f"/dev/snd/{name}")


def consoles(host: HostBuilder) -> None:
    """A dummy console that nothing is on, and the framebuffer's."""
    for number, (name, bind) in enumerate((("(S) dummy device", "0"), ("(M) frame buffer device", "1"))):
        home = f"/sys/devices/virtual/vtconsole/vtcon{number}"
        host.link(f"/sys/class/vtconsole/vtcon{number}", home)
        host.file(f"{home}/name", name)
        host.file(f"{home}/bind", bind)


def nvidia(host: HostBuilder, function: Function, minor: int) -> None:
    """What the NVIDIA driver says of one GPU, and its node."""
    lines = ["Model: \t\t NVIDIA GPU", f"Bus Location: \t {function.address}", f"Device Minor: \t {minor}"]
    host.lines(f"/proc/driver/nvidia/gpus/{function.address}/information", lines)
    host.file(f"/proc/driver/nvidia/gpus/{function.address}/unbindLock", "0")
    host.node(f"/dev/nvidia{minor}", 195, minor)
