"""Puts a function to a host's own uses, with the host's tools: a mounted file system, an interface with an address."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab.inside.pci import DEVICES

NVME_SCAN_SECONDS = 10.0


@contextmanager
def mounted(address: str, place: Path) -> Iterator[Path]:
    """A new ext4 file system on an nvme function's namespace, mounted at `place` until the block ends; its node."""
    node = block_device(address)
    _run("mke2fs", "-q", "-F", "-t", "ext4", str(node))
    _run("mount", "-t", "ext4", str(node), str(place))
    try:
        yield node
    finally:
        _run("umount", str(place))


@contextmanager
def with_address(function: str, network: str) -> Iterator[str]:
    """A NIC's interface, up and with an address such as 192.0.2.1/24, until the block ends; its name."""
    name = interface(function)
    _run("ip", "address", "add", network, "dev", name)
    _run("ip", "link", "set", name, "up")
    try:
        yield name
    finally:
        # all of it may have gone with the driver
        if (DEVICES / function / "net" / name).exists():
            _run("ip", "link", "set", name, "down")
            _run("ip", "address", "flush", "dev", name)


def block_device(address: str) -> Path:
    """The node in /dev of an nvme function's namespace; its number moves as drivers are rebound."""
    pattern = "nvme/nvme*/nvme*n1"
    within_seconds(NVME_SCAN_SECONDS, lambda: any((DEVICES / address).glob(pattern)))
    (disk,) = (DEVICES / address).glob(pattern)
    node = Path("/dev", disk.name)
    within_seconds(NVME_SCAN_SECONDS, node.is_block_device)
    return node


def interface(address: str) -> str:
    """The name of a NIC's network interface, the one udev gives it a moment after the driver has bound."""
    _run("udevadm", "settle", "--timeout=30")
    (link,) = (DEVICES / address / "net").iterdir()
    return link.name


def within_seconds(seconds: float, condition: Callable[[], bool]) -> None:
    """Returns once it holds; raises TimeoutError when it does not come to."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so after {seconds} s")
        time.sleep(0.05)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)
