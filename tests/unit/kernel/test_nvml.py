"""What NVML says: read in a child, complete or not at all, and never waited for longer than promised."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace

import pytest

from tests.hosts.machines import copy, original
from tests.probing import read_inventory
from vfioctl.inventory.model.functions import Inventory, Nvml
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

    def nvmlDeviceGetHandleByPciBusId(self, bus: str) -> int:  # noqa: N802 - pynvml's name
        return ["00000000:41:00.0", "00010000:01:00.0"].index(bus)

    def nvmlDeviceGetName(self, _handle: int) -> str:  # noqa: N802 - pynvml's name
        return "NVIDIA H100"

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802 - pynvml's name
        return f"GPU-{handle}"

    nvmlMemory_v2 = 0x02000028  # noqa: N815 - pynvml's name

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int = 0) -> SimpleNamespace:  # noqa: N802 - pynvml's name
        """The second GPU's driver is an old one, whose only answer counts what the driver reserves."""
        if version and handle == 1:
            raise NVMLError(13)
        return SimpleNamespace(total=80 << 30, used=(3 if version else 4) << 30)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802 - pynvml's name
        if handle == 1:
            raise NVMLError
        return SimpleNamespace(gpu=97, memory=5)

    NVML_TEMPERATURE_GPU = 0

    def nvmlDeviceGetTemperature(self, _handle: int, sensor: int) -> int:  # noqa: N802 - pynvml's name
        return 61 + 100 * sensor

    def nvmlDeviceGetPersistenceMode(self, _handle: int) -> int:  # noqa: N802 - pynvml's name
        return 1

    def nvmlDeviceGetComputeMode(self, handle: int) -> int:  # noqa: N802 - pynvml's name
        return [3, 99][handle]

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:  # noqa: N802 - pynvml's name
        if handle == 1:
            raise NVMLError
        return [1, 0]


GPUS = ("0000:41:00.0", "10000:01:00.0")
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
    monkeypatch.setattr(nvml, "has_library", lambda: True)
    return library


def missing(name: str) -> None:
    raise OSError(f"{name}: cannot open shared object file")


class TestAsking:
    @pytest.mark.usefixtures("library")
    def test_every_gpu_says_what_it_can(self) -> None:
        second = {
            key: {"uuid": "GPU-1", "compute_mode": "unknown"}.get(key, value)
            for key, value in FIRST.items()
            if key != "mig_mode"
        }
        assert list(nvml.read_gpus(GPUS)) == [(GPUS[0], FIRST), (GPUS[1], second)]

    @pytest.mark.usefixtures("library")
    def test_only_who_wants_it_learns_how_busy_they_are(self) -> None:
        usage = {"temperature_celsius": "61", "memory_used_bytes": str(3 << 30)}
        (first, second) = [facts for _, facts in nvml.read_gpus(GPUS, False, False, True)]  # noqa: FBT003 - as a worker gets them
        assert first == FIRST | usage | {"utilisation_percent": "97"}
        assert (usage | {"memory_used_bytes": str(4 << 30)}).items() <= second.items()
        assert "utilisation_percent" not in second
        answer = Live().nvml(GPUS, usage=True)()
        assert not isinstance(answer, Unanswered)
        assert answer[GPUS[0]] == first

    @pytest.mark.usefixtures("library")
    def test_the_answer_comes_out_of_the_worker(self) -> None:
        answer = Live().nvml(GPUS)()
        assert not isinstance(answer, Unanswered)
        assert answer[GPUS[0]] == FIRST
        assert list(answer) == [*GPUS]

    def test_a_gpu_that_has_fallen_off_the_bus_costs_itself(
        self, library: Library, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def handle(bus: str) -> int:
            if bus.endswith("41:00.0"):
                raise NVMLError(15)
            return 1

        monkeypatch.setattr(library, "nvmlDeviceGetHandleByPciBusId", handle)
        (lost, first), (_, second) = nvml.read_gpus(GPUS)
        assert (lost, [*first]) == (GPUS[0], ["error"])
        assert first["error"].startswith("the GPU is lost")
        assert second["uuid"] == "GPU-1"

    def test_an_answer_that_vfioctl_does_not_understand_costs_what_follows(
        self, library: Library, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def odd(handle: int) -> SimpleNamespace:
            if handle == 1:
                raise ValueError
            return SimpleNamespace(total=80 << 30)

        monkeypatch.setattr(library, "nvmlDeviceGetMemoryInfo", odd)
        assert Live().nvml(GPUS)() == {
            GPUS[0]: FIRST,
            GPUS[1]: {"error": "NVML gave an answer that vfioctl does not understand"},
        }

    def test_an_error_is_a_reason(self, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse() -> None:
            raise NVMLError("Unknown Error")

        monkeypatch.setattr(library, "nvmlInit", refuse)
        assert Live().nvml(GPUS)() == Unanswered("NVML: Unknown Error")

    def test_without_the_library_the_module_is_not_imported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ctypes, "CDLL", missing)
        monkeypatch.setitem(sys.modules, "pynvml", None)
        answer = Live().nvml(GPUS)()
        assert isinstance(answer, Unanswered)
        assert "libnvidia-ml.so.1 was not found" in answer.reason

    def test_an_absent_module_is_a_reason(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(nvml, "has_library", lambda: True)
        monkeypatch.setitem(sys.modules, "pynvml", None)
        answer = Live().nvml(GPUS)()
        assert isinstance(answer, Unanswered)
        assert "not installed" in answer.reason

    @pytest.mark.usefixtures("library")
    def test_an_older_binding_lacks_only_what_it_lacks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(Library, "nvmlDeviceGetMigMode")
        (_, first), _ = nvml.read_gpus(GPUS)
        assert first == {key: value for key, value in FIRST.items() if key != "mig_mode"}

    @pytest.mark.parametrize(
        ("end", "reason"),
        [(lambda: time.sleep(60), "did not answer within 0.3 s"), (lambda: os.kill(os.getpid(), 9), "crashed")],
    )
    def test_one_that_hangs_or_crashes_is_outlived(
        self, library: Library, monkeypatch: pytest.MonkeyPatch, end: Callable[[], None], reason: str
    ) -> None:
        assert live._NVML_SECONDS <= 10
        monkeypatch.setattr(live, "_NVML_SECONDS", 0.3)
        monkeypatch.setattr(library, "nvmlInit", end)
        answer = Live().nvml(GPUS)()
        assert isinstance(answer, Unanswered)
        assert reason in answer.reason

    def test_one_that_is_slow_tells_what_it_can_in_time(
        self, library: Library, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(live, "_NVML_SECONDS", 1.0)
        monkeypatch.setattr(
            library, "nvmlDeviceGetName", lambda handle: "NVIDIA H100" if not handle else time.sleep(60)
        )
        answer = Live().nvml(GPUS)()
        assert not isinstance(answer, Unanswered)
        assert answer[GPUS[0]] == FIRST
        assert "did not answer within 1 s" in answer[GPUS[1]]["error"]


def told(inventory: Inventory) -> list[tuple[str, str]]:
    return [(warning.subject, warning.text) for warning in inventory.warnings]


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

    @pytest.mark.parametrize("odd", ["2", "-1", "", "on", "\u0661"])
    def test_takes_no_odd_mode_for_on_or_off(self, odd: str) -> None:
        assert self.gpu(name="x", persistence_mode=odd, mig_mode=odd) == Nvml(name="x")

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
        found = read_inventory(Recorded(tree, ""))
        assert told(found) == [("NVML", "no facts from the NVIDIA driver: not recorded")]
        assert [gpu.unknown["nvml"] for gpu in found.gpus] == ["not recorded"]

    def test_says_which_gpu_is_lost(self) -> None:
        """What it told before counts."""
        tree = copy(original("hgx8"))
        tree.properties["nvml:0000:1b:00.0"] = {"name": "NVIDIA H100", "error": "the GPU is lost"}
        found = read_inventory(Recorded(tree, ""))
        assert told(found) == [("0000:1b:00.0", "no facts from the NVIDIA driver: the GPU is lost")]
        lost, *others = (gpu for gpu in found.gpus if gpu.driver == "nvidia")
        assert lost.nvml == Nvml(name="NVIDIA H100")
        assert lost.unknown == {"nvml": "the GPU is lost"}
        assert all(gpu.nvml and not gpu.unknown for gpu in others)

    def test_says_which_gpu_nvml_does_not_list(self) -> None:
        tree = copy(original("hgx8"))
        del tree.properties["nvml:0000:1b:00.0"]
        ((subject, text),) = told(read_inventory(Recorded(tree, "")))
        assert subject == "0000:1b:00.0"
        assert "NVML does not list it" in text

    def test_asks_for_no_vf(self) -> None:
        """NVML does not list them on their host."""
        assert told(read_inventory(Recorded(original("l40s"), ""))) == []

    def test_asks_only_where_a_gpu_is_on_the_nvidia_driver(self) -> None:
        class Asked(Recorded):
            def nvml(
                self, gpus: Sequence[str], *, types: bool = False, links: bool = False, usage: bool = False
            ) -> Callable[[], NvmlAnswer]:
                raise AssertionError(gpus, types, links, usage)

        read_inventory(Asked(original("laptop"), ""))
        with pytest.raises(AssertionError):
            read_inventory(Asked(original("gh200"), ""))
