"""Fixtures of the contract tests: a simulated machine here, the real kernel inside the lab.

The suite uses only the kernel protocol. Everything that it asserts was first observed on the real kernel.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.probing import read_inventory
from vfioctl.errors import KernelRefused
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.protocol import DRIVERS_PROBE, PCI_DEVICES, PCI_DRIVERS, Kernel
from vfioctl.kernel.recorded.host import read_tree
from vfioctl.kernel.simulated.host import Simulated

HOSTS = Path(__file__).parents[1] / "hosts"
IN_LAB = "VFIOCTL_LAB_RESULTS" in os.environ


@dataclass(frozen=True)
class HostWithPair:
    """A kernel, real or simulated, with a GPU and one companion in its group, both on their native drivers."""

    kernel: Kernel
    gpu: str
    companion: str
    gpu_driver: str
    companion_driver: str
    group: int

    def device(self, attribute: str, address: str = "") -> str:
        return f"{PCI_DEVICES}/{address or self.gpu}/{attribute}"

    def driver_of(self, address: str) -> str | None:
        try:
            return self.kernel.link(self.device("driver", address)).rpartition("/")[2]
        except KernelRefused:
            return None

    def override(self, name: str, address: str = "") -> None:
        self.kernel.write(self.device("driver_override", address), name)

    def unbind(self, address: str) -> None:
        driver = self.driver_of(address)
        if driver:
            self.kernel.write(f"{PCI_DRIVERS}/{driver}/unbind", address)

    def move(self, address: str, driver: str) -> None:
        self.override(driver, address)
        self.unbind(address)
        self.kernel.write(DRIVERS_PROBE, address)


@pytest.fixture(params=["lab"] if IN_LAB else ["lab", "workstation"])
def machine(request: pytest.FixtureRequest) -> Iterator[HostWithPair]:
    yield from _put_back_after(_in_lab() if IN_LAB else _simulated(request.param))


@pytest.fixture
def lab_machine() -> Iterator[HostWithPair]:
    """The lab's machine, real or simulated, for tests that need its devices."""
    yield from _put_back_after(_in_lab() if IN_LAB else _simulated("lab"))


def _put_back_after(found: HostWithPair) -> Iterator[HostWithPair]:
    yield found
    for address, driver in ((found.gpu, found.gpu_driver), (found.companion, found.companion_driver)):
        if found.driver_of(address) != driver:
            found.move(address, driver)
        found.override("\n", address)
        assert found.driver_of(address) == driver


@functools.cache  # what devices there are does not change; each test puts back how they are bound
def _in_lab() -> HostWithPair:
    return _with_pair(Live())


def _simulated(name: str) -> HostWithPair:
    return _with_pair(Simulated(read_tree(HOSTS / f"{name}.host"), name))


def _with_pair(kernel: Kernel) -> HostWithPair:
    kernel.load("vfio-pci")
    inventory = read_inventory(kernel)
    for gpu in inventory.gpus:
        others = [inventory.by_address[a] for a in gpu.companions]
        if len(others) == 1 and others[0].iommu_group == gpu.iommu_group is not None:
            assert gpu.driver
            assert others[0].driver
            return HostWithPair(kernel, gpu.address, others[0].address, gpu.driver, others[0].driver, gpu.iommu_group)
    raise AssertionError("no GPU with exactly one companion in its group")
