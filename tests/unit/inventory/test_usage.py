"""How busy GPUs are: from NVML and from sysfs, without waking one that sleeps or waiting for one that hangs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.hosts.machines import copy, original
from vfioctl.core.marks import Mark, MarkKind
from vfioctl.host import Host
from vfioctl.inventory.model.usage import Usage
from vfioctl.inventory.model.values import PciAddress
from vfioctl.inventory.probe.usage import is_asleep
from vfioctl.kernel.protocol import PCI_DEVICES, NvmlAnswer, Unanswered
from vfioctl.kernel.recorded.host import Recorded
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.session import Session

MIB = 1 << 20
AMD, OTHER_AMD = PciAddress("0000:05:00.0"), PciAddress("0000:0f:00.0")
NVIDIA, OTHER_NVIDIA = PciAddress("0000:1b:00.0"), PciAddress("0000:43:00.0")
ASKED = {
    "utilisation_percent": "97",
    "temperature_celsius": "61",
    "memory_used_bytes": str(3 * MIB),
    "memory_bytes": str(80 * MIB),
}
BUSY = Usage("nvml", 97, 61, 3 * MIB, 80 * MIB)


class Watched(Recorded):
    """A recorded host that knows what was read."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree, "recorded")
        self.asked: list[tuple[str, ...]] = []
        self.files: list[str] = []

    def read(self, path: str) -> str:
        self.files.append(path)
        return super().read(path)

    def nvml(
        self, gpus: Sequence[str], *, types: bool = False, links: bool = False, usage: bool = False
    ) -> Callable[[], NvmlAnswer]:
        assert usage
        self.asked.append(tuple(gpus))
        return super().nvml(gpus, types=types, links=links, usage=usage)


def put(tree: Tree, address: str, **files: str) -> None:
    path = tree.resolve(f"{PCI_DEVICES}/{address}")
    for name, text in files.items():
        tree.put(f"{path}/{name.replace('__', '/')}", text)


def driven_by(tree: Tree, address: str, driver: str) -> None:
    tree.put_link(f"{tree.resolve(f'{PCI_DEVICES}/{address}')}/driver", f"../../../bus/pci/drivers/{driver}")


def host_of(kernel: Recorded, folder: Path) -> Host:
    return Host(Session(kernel, folder / "ledger.db"))


@pytest.fixture
def mi300x() -> Tree:
    tree = copy(original("mi300x"))
    for gpu in (AMD, OTHER_AMD):
        driven_by(tree, gpu, "amdgpu")
    return tree


@pytest.fixture
def hgx8() -> Tree:
    tree = copy(original("hgx8"))
    for gpu in (NVIDIA, OTHER_NVIDIA):
        tree.properties[f"nvml:{gpu}"] |= ASKED
    return tree


class TestSysfs:
    def test_of_amdgpu(self, mi300x: Tree, tmp_path: Path) -> None:
        put(mi300x, AMD, gpu_busy_percent="42\n", mem_info_vram_used="1048576", mem_info_vram_total="206141652992")
        put(mi300x, AMD, hwmon__hwmon3__temp1_input="54600")
        usage = host_of(Recorded(mi300x, ""), tmp_path).devices.usage([AMD, OTHER_AMD])
        assert usage == {AMD: Usage("amdgpu", 42, 55, MIB, 206141652992)}

    @pytest.mark.parametrize(("driver", "file"), [("nouveau", 1), ("i915", 1), ("xe", 2), ("radeon", 1)])
    def test_of_drivers_that_have_only_a_sensor(self, mi300x: Tree, tmp_path: Path, driver: str, file: int) -> None:
        driven_by(mi300x, AMD, driver)
        put(mi300x, AMD, gpu_busy_percent="42", **{f"hwmon__hwmon0__temp{file}_input": "-4600"})
        assert host_of(Recorded(mi300x, ""), tmp_path).devices.usage([AMD]) == {
            AMD: Usage(driver, temperature_celsius=-5)
        }

    def test_of_a_driver_that_has_none_of_these(self, mi300x: Tree, tmp_path: Path) -> None:
        driven_by(mi300x, AMD, "vfio-pci")
        put(mi300x, AMD, gpu_busy_percent="42", hwmon__hwmon0__temp1_input="4600")
        assert host_of(Recorded(mi300x, ""), tmp_path).devices.usage([AMD]) == {}

    @pytest.mark.parametrize(
        "asleep",
        [{"power__runtime_status": "suspended"}, {"power__runtime_status": "suspending"}, {"power_state": "D3cold"},
         {"power_state": "D3hot"}],
    )  # fmt: skip
    def test_wakes_no_gpu(self, mi300x: Tree, tmp_path: Path, asleep: dict[str, str]) -> None:
        put(mi300x, AMD, gpu_busy_percent="42", hwmon__hwmon0__temp1_input="4600")
        kernel = Watched(mi300x)
        host = host_of(kernel, tmp_path)
        assert host.devices.usage([AMD]) != {}
        put(mi300x, AMD, **asleep)
        kernel.files.clear()
        assert host.devices.usage([AMD]) == {}
        assert [file for file in kernel.files if "busy" in file or "temp" in file] == []

    @pytest.mark.parametrize("text", ["", "lots", "101", "-1", "1" * 30, "4 2", "\u0664"])
    def test_of_what_is_no_percentage(self, mi300x: Tree, tmp_path: Path, text: str) -> None:
        put(mi300x, AMD, gpu_busy_percent=text, mem_info_vram_used="7")
        usage = host_of(Recorded(mi300x, ""), tmp_path).devices.usage([AMD])
        assert usage == {AMD: Usage("amdgpu", memory_used_bytes=7)}

    def test_of_a_gpu_that_does_not_answer_costs_its_own(self, mi300x: Tree, tmp_path: Path) -> None:
        for gpu in (AMD, OTHER_AMD):
            put(mi300x, gpu, gpu_busy_percent="42")
        mi300x.properties[f"sim:{AMD}"] = {"unanswered": "1"}
        usage = host_of(Recorded(mi300x, ""), tmp_path).devices.usage([AMD, OTHER_AMD])
        assert usage == {OTHER_AMD: Usage("amdgpu", 42)}


class TestNvml:
    def test_is_asked_about_these_gpus_only(self, hgx8: Tree, tmp_path: Path) -> None:
        kernel = Watched(hgx8)
        usage = host_of(kernel, tmp_path).devices.usage([OTHER_NVIDIA])
        assert (usage, kernel.asked) == ({OTHER_NVIDIA: BUSY}, [(OTHER_NVIDIA,)])

    def test_is_not_asked_about_a_gpu_that_sleeps_or_is_on_vfio(self, hgx8: Tree, tmp_path: Path) -> None:
        put(hgx8, NVIDIA, power__runtime_status="suspended")
        kernel = Watched(hgx8)
        assert is_asleep(kernel, NVIDIA)
        assert host_of(kernel, tmp_path).devices.usage([NVIDIA, OTHER_NVIDIA]) == {OTHER_NVIDIA: BUSY}
        assert kernel.asked == [(OTHER_NVIDIA,)]
        assert host_of(kernel, tmp_path).devices.usage([NVIDIA]) == {}
        assert len(kernel.asked) == 1

    def test_is_not_asked_while_a_device_is_wedged(self, hgx8: Tree, tmp_path: Path) -> None:
        kernel = Watched(hgx8)
        host = host_of(kernel, tmp_path)
        mark = Mark(address=NVIDIA, kind=MarkKind.WEDGED, since="t", why="it hangs", ticket="1:2")
        host.session.journal.mark([mark], boot_id=host.session.boot_id)
        assert host.devices.usage([NVIDIA, OTHER_NVIDIA]) == {}
        assert kernel.asked == []

    def test_that_does_not_answer_costs_its_own_gpus(
        self, hgx8: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driven_by(hgx8, NVIDIA, "amdgpu")
        put(hgx8, NVIDIA, gpu_busy_percent="42")
        monkeypatch.setattr(Recorded, "nvml", lambda *_, **__: lambda: Unanswered("it hangs"))
        usage = host_of(Recorded(hgx8, ""), tmp_path).devices.usage([NVIDIA, OTHER_NVIDIA])
        assert usage == {NVIDIA: Usage("amdgpu", 42)}


def test_of_a_wedged_gpu_is_not_read(mi300x: Tree, tmp_path: Path) -> None:
    for gpu in (AMD, OTHER_AMD):
        put(mi300x, gpu, gpu_busy_percent="42")
    kernel = Watched(mi300x)
    host = host_of(kernel, tmp_path)
    mark = Mark(address=AMD, kind=MarkKind.WEDGED, since="t", why="it hangs", ticket="1:2")
    host.session.journal.mark([mark], boot_id=host.session.boot_id)
    assert host.devices.usage([AMD, OTHER_AMD]) == {OTHER_AMD: Usage("amdgpu", 42)}
    assert not any(AMD in file for file in kernel.files)
