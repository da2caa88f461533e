"""A second-level guest: this same kernel in QEMU inside the lab, given host functions and mediated devices by vfio.

Its init prints every PCI function it sees and powers off, or stays until ended: a VM that really uses a device.
"""

import fcntl
import functools
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

INITRAMFS = Path("/run/lab/sources/second-level.cpio")
KERNEL_ARGUMENTS = "console=ttyS0 quiet panic=-1"
STAY = "lab.stay"
SECONDS = 180.0
# vfio pins all of it, which means filling it with zeros under emulation
MEGABYTES = "192"
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


def functions_seen(devices: list[str], seconds: float = SECONDS, user: int = 0) -> list[Seen]:
    """Boots a guest with these to its end, functions by address and mediated devices by UUID. `user`: QEMU's.

    Raises TimeoutError, or AssertionError with what QEMU said.
    """
    with _started(devices, stay=False, user=user) as (guest, log):
        try:
            guest.wait(timeout=seconds)
        except subprocess.TimeoutExpired as expired:
            raise TimeoutError(f"the guest did not power off in {seconds} s:\n{log.read_text()}") from expired
        return seen_in(log.read_text())


@contextmanager
def running(devices: list[str], seconds: float = SECONDS) -> "Iterator[tuple[subprocess.Popen[bytes], list[Seen]]]":
    """A guest that has booted and stays until the block ends: QEMU's process, and what the guest saw."""
    with _started(devices, stay=True) as (guest, log):
        yield guest, booted(log, lambda: guest.poll() is None, seconds)


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
    return seen_in(console.read_text())


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


@contextmanager
def _started(devices: list[str], *, stay: bool, user: int = 0) -> "Iterator[tuple[subprocess.Popen[bytes], Path]]":
    log = Path(os.environ["VFIOCTL_LAB_RESULTS"]) / f"second-level-{time.monotonic_ns()}.log"
    with log.open("wb") as out:
        guest = subprocess.Popen(
            _command(devices, stay=stay),
            user=user or None,
            group=user or None,
            extra_groups=[] if user else None,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield guest, log
    finally:
        guest.kill()
        guest.wait()


def _command(devices: list[str], *, stay: bool) -> list[str]:
    command = ["qemu-system-x86_64", "-machine", f"q35,accel={accelerator()}", "-cpu", "max", "-m", MEGABYTES]
    command += ["-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot"]
    command += ["-kernel", os.environ["VFIOCTL_LAB_KERNEL"], "-initrd", str(INITRAMFS)]
    command += ["-append", f"{KERNEL_ARGUMENTS} {STAY}" if stay else KERNEL_ARGUMENTS]
    for name in devices:
        place = f"host={name}" if ":" in name else f"sysfsdev=/sys/bus/mdev/devices/{name}"
        command += ["-device", f"vfio-pci,{place}"]
    return command


def seen_in(log: str) -> list[Seen]:
    """What a guest printed of itself; raises AssertionError when that is not whole."""
    assert "L2 end" in log, f"the guest did not come to its end:\n{log}"
    lines = [line.split() for line in log.splitlines()]
    return [Seen(*line[2:6]) for line in lines if line[:2] == ["L2", "pci"]]
