"""Raw PCI sysfs for the tests in the lab: reads and plain writes, with nothing of vfioctl in between.

A write can block for ever while a device is held open; `within` runs one in a child that can be outlived.
"""

import contextlib
import os
import signal
import subprocess
import time
import traceback
from collections.abc import Callable
from pathlib import Path

DEVICES = Path("/sys/bus/pci/devices")
DRIVERS = Path("/sys/bus/pci/drivers")
NO_OVERRIDE = "(null)"


def driver_of(address: str) -> str | None:
    """The driver's name; never blocks, whatever state the device is in."""
    link = DEVICES / address / "driver"
    return link.readlink().name if link.is_symlink() else None


def group_of(address: str) -> str:
    """The number of the function's IOMMU group."""
    return (DEVICES / address / "iommu_group").readlink().name


def attribute(address: str, name: str) -> str:
    """A sysfs attribute's text, stripped; may block on a device that is being unbound."""
    return (DEVICES / address / name).read_text().strip()


def drivers() -> dict[str, str | None]:
    """Every function and the driver it is on."""
    return {path.name: driver_of(path.name) for path in sorted(DEVICES.iterdir())}


def write(path: Path, text: str) -> None:
    """One write to a sysfs file; raises OSError as the kernel refuses."""
    # unbuffered: the kernel's answer must be this call's, not that of a later close
    with path.open("wb", buffering=0) as file:
        file.write(text.encode())


def load_vfio() -> None:
    """Loads vfio-pci; its driver folder appears."""
    subprocess.run(["modprobe", "vfio-pci"], check=True, timeout=60)


def bind_to_vfio(address: str) -> None:
    """Override, unbind, probe; raises OSError as the kernel refuses, AssertionError when nothing bound."""
    load_vfio()
    bind_to(address, "vfio-pci")


def bind_to(address: str, driver: str) -> None:
    """The same for any driver that is loaded."""
    write(DEVICES / address / "driver_override", driver)
    unbind(address)
    write(DRIVERS.parent / "drivers_probe", address)
    assert driver_of(address) == driver, f"{address} is on {driver_of(address)}"


def unbind(address: str) -> None:
    """Takes the function off whatever driver it is on; blocks while someone holds it open through vfio."""
    driver = driver_of(address)
    if driver is not None:
        write(DRIVERS / driver / "unbind", address)


def bind_back(address: str, driver: str | None) -> None:
    """No override, and the driver it had."""
    write(DEVICES / address / "driver_override", "\n")
    if driver_of(address) not in (None, driver):
        unbind(address)
    if driver is not None and driver_of(address) is None:
        write(DRIVERS / driver / "bind", address)


def put_back(before: dict[str, str | None]) -> None:
    """All functions as they were in `before`, VFs and mdevs gone; raises AssertionError when they are not."""
    for mdev in Path("/sys/bus/mdev/devices").glob("*"):
        write(mdev / "remove", "1")
    for count in DEVICES.glob("*/sriov_numvfs"):
        if count.read_text().strip() != "0":
            _turn_vfs_off(count.parent.name, before)
    for autoprobe in DEVICES.glob("*/sriov_drivers_autoprobe"):
        write(autoprobe, "1")
    for address, driver in before.items():
        if driver_of(address) != driver or attribute(address, "driver_override") != NO_OVERRIDE:
            bind_back(address, driver)
        if attribute(address, "d3cold_allowed") != "1":  # as every function has it at boot; `bind` may have left 0
            write(DEVICES / address / "d3cold_allowed", "1")
    assert drivers() == before


def _turn_vfs_off(physical: str, before: dict[str, str | None]) -> None:
    if driver_of(physical) != before[physical]:
        # without a driver nobody can, and not every driver does
        bind_back(physical, before[physical])
    write(DEVICES / physical / "sriov_numvfs", "0")


def within(seconds: float, work: Callable[[], None]) -> None:
    """Does the work in a forked child; raises TimeoutError, with the child's kernel stack, when it outlasts this."""
    child = os.fork()
    if child == 0:
        _end_with(work)
    deadline = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0, "the work failed; its traceback is above"
            return
        if time.monotonic() > deadline:
            stack = Path(f"/proc/{child}/stack").read_text()
            os.kill(child, signal.SIGKILL)
            raise TimeoutError(f"not done in {seconds} s, blocked in:\n{stack}")
        time.sleep(0.01)


def _end_with(work: Callable[[], None]) -> None:
    status = 1
    with contextlib.suppress(BaseException):
        try:
            work()
            status = 0
        except BaseException:
            # the parent's pytest reports only that it failed
            os.write(2, traceback.format_exc().encode())
            raise
    os._exit(status)
