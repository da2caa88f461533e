"""What the lab needs from the build machine, looked up once; finds things and says what is missing, changes nothing."""

import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# tool or file -> the Debian package that brings it
TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "mksquashfs": "squashfs-tools",
    "busybox": "busybox-static",
    "cpio": "cpio",
    "lspci": "pciutils",
    "udevadm": "udev",
    "modprobe": "kmod",
    "mke2fs": "e2fsprogs",
    "ip": "iproute2",
    "make": "make",
    "gcc": "gcc",
    "mdevctl": "mdevctl",
    # without libvirt-daemon-system, which would make a service of it
    "libvirtd": "libvirt-daemon",
    "qemu-img": "qemu-utils",
    "virsh": "libvirt-clients",
    "qemu-ga": "qemu-guest-agent",
    "podman": "podman",
    "crun": "crun",
    "runc": "runc",
    "ctr": "containerd",
}
KERNEL_PACKAGE = "linux-image-amd64"
# PT_INTERP of elf(5): a program that has one needs shared libraries
ELF_INTERPRETER = 3
_KVM_SECONDS = 20
"""It takes about three."""


class LabError(Exception):
    """The lab cannot run here; the message is one line and names the remedy."""


@dataclass(frozen=True)
class Found:
    """Where the parts of the lab lie on this machine."""

    vng: Path
    kernel: Path
    busybox: Path
    agent: Path
    kvm: bool

    @property
    def release(self) -> str:
        """The kernel's release, as `uname -r` will say in the lab."""
        return self.kernel.name.removeprefix("vmlinuz-")

    @property
    def kernel_headers(self) -> Path:
        """What modules for this kernel are built against."""
        return Path("/lib/modules", self.release, "build")

    @property
    def kernel_source(self) -> Path:
        """Debian's archive of the source of this kernel's series, such as 6.1."""
        return Path(f"/usr/src/linux-source-{'.'.join(self.release.split('.')[:2])}.tar.xz")


def look() -> Found:
    """Everything the lab needs; raises LabError naming what to install."""
    kernel = newest_kernel()
    missing = sorted({package for tool, package in TOOLS.items() if not _which(tool)})
    if kernel is None:
        raise LabError(_to_install([*missing, KERNEL_PACKAGE]))
    busybox = Path(_which("busybox") or "")
    agent = Path(_which("qemu-ga") or "")
    found = Found(vng=_vng(), kernel=kernel, busybox=busybox, agent=agent, kvm=kvm_works(kernel))
    if not found.kernel_headers.exists():
        missing.append(f"linux-headers-{found.release}")
    if not found.kernel_source.exists():
        missing.append(found.kernel_source.name.removesuffix(".tar.xz"))
    if missing:
        raise LabError(_to_install(missing))
    if not _is_static(busybox):
        raise LabError("busybox is not static: apt-get install busybox-static")
    return found


def newest_kernel() -> Path | None:
    """The newest Debian kernel whose modules are installed too."""
    kernels = [
        path
        for path in Path("/boot").glob("vmlinuz-*-amd64")
        if Path("/lib/modules", path.name.removeprefix("vmlinuz-")).is_dir()
    ]
    return max(kernels, key=_release_order, default=None)


def kvm_works(kernel: Path) -> bool:
    """Whether a kernel runs under KVM up to its panic, as it has no root: one may start, and never come so far."""
    command = ["qemu-system-x86_64", "-machine", "q35,accel=kvm", "-cpu", "max", "-m", "512", "-nodefaults"]
    command += ["-display", "none", "-serial", "stdio", "-no-reboot"]
    command += ["-kernel", str(kernel), "-append", "console=ttyS0 panic=-1"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_KVM_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and b"Kernel panic" in done.stdout


def _to_install(packages: list[str]) -> str:
    return f"missing Debian packages: apt-get install {' '.join(packages)}"


def _vng() -> Path:
    if sys.prefix == sys.base_prefix:
        raise LabError("run this with the project's virtual environment: make, then .venv/bin/python tests/lab/boot.py")
    for name in ("pytest", "vng"):
        if not Path(sys.prefix, "bin", name).exists():
            package = "virtme-ng" if name == "vng" else name
            raise LabError(f"{package} is not in {sys.prefix}: run make, or {sys.prefix}/bin/pip install {package}")
    if len(sys.prefix.split()) > 1:
        raise LabError(f"virtme-ng cannot start from a path with a space in it: {sys.prefix}")
    return Path(sys.prefix, "bin", "vng")


def _release_order(kernel: Path) -> list[int]:
    return [int(part) for part in kernel.name.replace("-", ".").split(".") if part.isdigit()]


def _is_static(program: Path) -> bool:
    image = program.read_bytes()
    table, size, count = *struct.unpack_from("<Q", image, 32), *struct.unpack_from("<HH", image, 54)
    kinds = [struct.unpack_from("<I", image, table + size * number)[0] for number in range(count)]
    return ELF_INTERPRETER not in kinds


def _which(tool: str) -> str | None:
    # an ordinary user's PATH lacks the sbin folders, where half of these are
    return shutil.which(tool) or shutil.which(tool, path="/usr/local/sbin:/usr/sbin:/sbin")
