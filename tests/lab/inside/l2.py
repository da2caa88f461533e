"""A second-level guest: this same kernel in QEMU inside the lab, given host functions and mediated devices by vfio.

Its init prints every PCI function it sees, and stays until ended: a VM that really uses a device. Where it is enough
that QEMU has a device, the guest does not run: booting takes half a minute.
"""

import fcntl
import functools
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

INITRAMFS = Path("/run/lab/sources/second-level.cpio")
KERNEL_ARGUMENTS = "console=ttyS0 quiet panic=-1"
SECONDS = 180.0
# vfio pins all of it, which means filling it with zeros under emulation
MEGABYTES, PAUSED_MEGABYTES = "192", "64"
KVM = Path("/dev/kvm")
KVM_MODULES = ("kvm_amd", "kvm_intel")
# <linux/kvm.h>
KVM_CREATE_VM = 0xAE01


class Seen(NamedTuple):
    """A PCI function as the guest sees it: its address there, `vendor:device` and class in hexadecimal, NUMA node."""

    address: str
    ids: str
    kind: str
    node: str


@contextmanager
def paused(devices: list[str], user: int = 0) -> "Iterator[subprocess.Popen[bytes]]":
    """QEMU that has these devices and has not begun to run its guest, until the block ends. `user`: QEMU's.

    Raises AssertionError with what QEMU said when it ends before.
    """
    log = Path(os.environ["VFIOCTL_LAB_RESULTS"]) / f"second-level-{time.monotonic_ns()}.log"
    command = ["qemu-system-x86_64", "-S", "-machine", "q35", "-m", PAUSED_MEGABYTES]
    command += ["-nodefaults", "-no-user-config", "-display", "none"]
    for name in devices:
        command += ["-device", f"vfio-pci,host={name}"]
    with log.open("wb") as out:
        guest = subprocess.Popen(
            command,
            user=user or None,
            group=user or None,
            extra_groups=[] if user else None,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + SECONDS
        while _open_devices(guest.pid) < len(devices):
            assert guest.poll() is None, log.read_text()
            assert time.monotonic() < deadline, f"QEMU did not start in {SECONDS} s:\n{log.read_text()}"
            time.sleep(0.2)
        yield guest
    finally:
        guest.kill()
        guest.wait()


def _open_devices(pid: int) -> int:
    found = 0
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            found += os.readlink(file) == "anon_inode:[vfio-device]"
    return found


def booted(console: Path, is_alive: Callable[[], bool], seconds: float = SECONDS) -> list[Seen]:
    """Waits until a guest has written to its console what it sees.

    Raises TimeoutError, or AssertionError with the console's text when the guest ends before.
    """
    deadline = time.monotonic() + seconds
    while "L2 end" not in console.read_text():
        assert is_alive(), console.read_text()
        if time.monotonic() > deadline:
            raise TimeoutError(f"the guest did not boot in {seconds} s:\n{console.read_text()}")
        time.sleep(0.2)
    return _seen_in(console.read_text())


def accelerator() -> str:
    """`kvm` when the lab's emulated CPU offers it, loading its module if need be; else `tcg`."""
    for module in KVM_MODULES:
        if not KVM.exists():
            subprocess.run(["modprobe", "--quiet", module], check=False, timeout=60)
            subprocess.run(["udevadm", "settle", "--timeout=30"], check=False)  # it sets the mode of a new node
    if not KVM.exists():
        return "tcg"
    _vm_kept()
    return "kvm"


@functools.cache
def _vm_kept() -> int:
    """A VM that stays until this process ends, so that no other one is the first or the last.

    With the first VM and after the last one, KVM patches an instruction of the scheduler (`preempt_notifier_key` in
    `finish_task_switch`). QEMU 7.2 sometimes goes on with the breakpoint that stands there meanwhile: then every
    processor traps for ever, and the machine stalls.
    """
    device = os.open(KVM, os.O_RDWR | os.O_CLOEXEC)
    try:
        return fcntl.ioctl(device, KVM_CREATE_VM, 0)
    finally:
        os.close(device)


def _seen_in(log: str) -> list[Seen]:
    """What a guest printed of itself; raises AssertionError when that is not whole."""
    assert "L2 end" in log, f"the guest did not come to its end:\n{log}"
    lines = [line.split() for line in log.splitlines()]
    return [Seen(*line[2:6]) for line in lines if line[:2] == ["L2", "pci"]]
