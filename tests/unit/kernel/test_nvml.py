"""What NVML says: read in a child, complete or not at all, and never waited for longer than promised."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest

from tests.hosts.machines import copy, original
from vfioctl.inventory.model.functions import Nvml
from vfioctl.inventory.probe.inventory import read_inventory
from vfioctl.kernel.live import host as live
from vfioctl.kernel.live import nvml
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.protocol import NvmlAnswer, Unanswered
from vfioctl.kernel.recorded.host import Recorded

pytestmark = pytest.mark.alone  # what it patches, workers have only where they are forked by a process with one thread


class NVMLError(Exception):
    """pynvml's own."""


class Library(ModuleType):
    """What of pynvml is used, with two GPUs, the second one without MIG."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        super().__init__("pynvml")

    def nvmlInit(self) -> None:  # noqa: N802 - pynvml's name
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - pynvml's name
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:  # noqa: N802 - pynvml's name
        return number

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802 - pynvml's name
        return SimpleNamespace(busId=["00000000:41:00.0", "00010000:01:00.0"][handle])

    def nvmlDeviceGetName(self, _handle: int) -> str:  # noqa: N802 - pynvml's name
        return "NVIDIA H100"

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802 - pynvml's name
        return f"GPU-{handle}"

    def nvmlDeviceGetMemoryInfo(self, _handle: int) -> SimpleNamespace:  # noqa: N802 - pynvml's name
        return SimpleNamespace(total=80 << 30)

    def nvmlDeviceGetPersistenceMode(self, _handle: int) -> int:  # noqa: N802 - pynvml's name
        return 1

    def nvmlDeviceGetComputeMode(self, handle: int) -> int:  # noqa: N802 - pynvml's name
        return [3, 99][handle]

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:  # noqa: N802 - pynvml's name
        if handle == 1:
            raise NVMLError
        return [1, 0]


FIRST = {
    "name": "NVIDIA H100",
    "uuid": "GPU-0",
    "memory_bytes": str(80 << 30),
    "persistence_mode": "1",
    "compute_mode": "Exclusive_Process",
    "mig_mode": "1",
}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return library


class TestAsking:
    @pytest.mark.usefixtures("library")
    def test_every_gpu_says_what_it_can(self) -> None:
        answer = nvml.read_gpus()
        assert isinstance(answer, dict)
        assert answer["0000:41:00.0"] == FIRST
        assert answer["10000:01:00.0"] == {
            key: {"uuid": "GPU-1", "compute_mode": "unknown"}.get(key, value)
            for key, value in FIRST.items()
            if key != "mig_mode"
        }

    @pytest.mark.usefixtures("library")
    def test_the_answer_comes_out_of_the_child(self) -> None:
        assert Live().nvml()() == nvml.read_gpus()

    def test_a_gpu_that_has_fallen_off_the_bus_costs_itself(
        self, library: Library, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def handle(number: int) -> int:
            if number == 0:
                raise NVMLError("GPU is lost")
            return number

        monkeypatch.setattr(library, "nvmlDeviceGetHandleByIndex", handle)
        answer = nvml.read_gpus()
        assert isinstance(answer, dict)
        assert list(answer) == ["10000:01:00.0"]

    def test_an_answer_that_nobody_understands_is_a_reason(
        self, library: Library, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(library, "nvmlDeviceGetPciInfo", lambda _: SimpleNamespace(busId="somewhere"))
        answer = Live().nvml()()
        assert isinstance(answer, Unanswered)
        assert "ValueError" in answer.reason
        assert "\n" not in answer.reason

    def test_an_error_is_a_reason(self, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse() -> None:
            raise NVMLError("Driver/library version mismatch")

        monkeypatch.setattr(library, "nvmlInit", refuse)
        assert Live().nvml()() == Unanswered("NVML: Driver/library version mismatch")
        assert nvml.read_gpus() == "NVML: Driver/library version mismatch"

    def test_an_absent_module_is_a_reason(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", None)
        assert "not installed" in str(nvml.read_gpus())
        assert isinstance(Live().nvml()(), Unanswered)

    @pytest.mark.usefixtures("library")
    def test_an_older_binding_lacks_only_what_it_lacks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(Library, "nvmlDeviceGetMigMode")
        answer = nvml.read_gpus()
        assert isinstance(answer, dict)
        assert answer["0000:41:00.0"] == {key: value for key, value in FIRST.items() if key != "mig_mode"}

    @pytest.mark.parametrize("end", [lambda: time.sleep(60), lambda: os.kill(os.getpid(), signal.SIGKILL)])
    def test_one_that_hangs_or_crashes_is_outlived(
        self, library: Library, monkeypatch: pytest.MonkeyPatch, end: Callable[[], None]
    ) -> None:
        assert live._NVML_SECONDS <= 10
        monkeypatch.setattr(live, "_NVML_SECONDS", 0.3)
        monkeypatch.setattr(library, "nvmlInit", end)
        assert isinstance(Live().nvml()(), Unanswered)


class TestTheInventory:
    GPU = "0009:01:00.0"

    def gpu(self, **facts: str) -> Nvml | None:
        tree = copy(original("gh200"))
        tree.properties[f"nvml:{self.GPU}"] = facts
        return next(f.nvml for f in read_inventory(Recorded(tree, "")).functions if f.address == self.GPU)

    def test_has_what_was_said(self) -> None:
        assert self.gpu(**FIRST) == Nvml(
            name="NVIDIA H100",
            uuid="GPU-0",
            memory_bytes=80 << 30,
            persistence_mode=True,
            compute_mode="Exclusive_Process",
            mig_mode=True,
        )

    def test_has_nothing_that_was_not_said(self) -> None:
        assert self.gpu(name="x") == Nvml(name="x")
        assert self.gpu(persistence_mode="0", mig_mode="0") == Nvml(persistence_mode=False, mig_mode=False)

    @pytest.mark.parametrize("odd", ["", "-1", "lots", "1e9", "\u00b2", "\u0663", " 1", "9" * 5000, "0x10"])
    def test_takes_no_odd_amount_of_memory(self, odd: str) -> None:
        assert self.gpu(name="x", memory_bytes=odd) == Nvml(name="x")

    def test_ignores_what_is_said_of_devices_that_are_not_there(self) -> None:
        tree = copy(original("gh200"))
        tree.properties = {"nvml:ffff:ff:1f.7": {"name": "ghost"}}
        inventory = read_inventory(Recorded(tree, ""))
        assert all(f.nvml is None for f in inventory.functions)

    def test_says_why_there_is_nothing(self) -> None:
        tree = copy(original("gh200"))
        tree.properties = {}
        warnings = read_inventory(Recorded(tree, "")).warnings
        assert [(w.subject, w.text) for w in warnings] == [("NVML", "no facts from the NVIDIA driver: not recorded")]

    def test_asks_only_where_a_gpu_is_on_the_nvidia_driver(self) -> None:
        class Asked(Recorded):
            def nvml(self) -> Callable[[], NvmlAnswer]:
                raise AssertionError

        read_inventory(Asked(original("laptop"), ""))
        with pytest.raises(AssertionError):
            read_inventory(Asked(original("gh200"), ""))
