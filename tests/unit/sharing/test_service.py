"""The service with a stand-in for the machine: what it counts, whom it freezes, and what it tells Prometheus."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.machines import copy, function, original
from tests.unit.sharing.stand_in import Groups, Machine
from tests.unit.sharing.test_drm_usage import SECOND, text
from vfioctl.core.limits import read_document
from vfioctl.errors import HostError, NotPermitted
from vfioctl.kernel.feeds import Lost
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.session import Session
from vfioctl.sharing.api import SharingApi
from vfioctl.sharing.measuring.gpus import MeasuredGpus, gpus_of
from vfioctl.sharing.model.gpu_time import OTHER, Source, Usage, quotas
from vfioctl.sharing.model.settings import SharingSettings
from vfioctl.sharing.serving.containers import Known
from vfioctl.sharing.serving.metrics import ShareMetrics
from vfioctl.sharing.serving.service import ShareService
from vfioctl.sharing.serving.totals import Totals

A, B = "/user.slice/a", "/user.slice/b"
GPU, SECOND_GPU, AMD = "0000:41:00.0", "0000:42:00.0", "0000:03:00.0"


class SharedHost(Simulated):
    """A simulated host whose processes are the stand-in's."""

    machine: Machine

    def gpu_sharing(self) -> Machine:
        return self.machine


def settings(**more: Any) -> SharingSettings:
    groups = [{"path": A, "weight": 300}, {"path": B, "weight": 100}]
    return read_document(SharingSettings, {"poll": "0.2s", "min_run": "0.2s", "groups": groups, "listen": "", **more})


class Stage:
    """A service whose clock the test turns."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
        self.groups = Groups({A: [10], B: [11], "/other": [12]})
        self.machine = Machine(self.groups)
        host = SharedHost(copy(original("workstation")), "a host")
        host.machine = self.machine
        self.session = Session(host, tmp_path / "ledger.db")
        self.service = ShareService(self.session, settings(**more))
        self._monkeypatch, self._ahead = monkeypatch, 0.0

    def use(self, nvml: tuple[str, ...] = (), fdinfo: tuple[str, ...] = (), lease: str = "") -> None:
        leases = {GPU: lease} if lease else {}
        self.service._meter.measure_gpus(MeasuredGpus(nvml, fdinfo, leases))

    def ticks(self, count: int, seconds: float = 0.5) -> list[Usage]:
        """As if time had passed."""
        usages: list[Usage] = []
        for _ in range(count):
            self._ahead += seconds
            with self._monkeypatch.context() as patched:
                patched.setattr(time, "monotonic", partial(_later, time.monotonic, self._ahead))
                patched.setattr(time, "time", partial(_later, time.time, self._ahead))
                usages += self.service.tick()
        return usages


def _later(clock: Callable[[], float], ahead: float) -> float:
    return clock() + ahead


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Stage]]:
    stages: list[Stage] = []

    def make(**more: Any) -> Stage:
        stages.append(Stage(tmp_path, monkeypatch, **more))
        return stages[-1]

    yield make
    for there in stages:
        there.service.close()
        assert not there.groups.asked, "something is left frozen"
        assert there.machine.feeds == 0


def of(usages: list[Usage], group: str) -> float:
    return sum(usage.seconds for usage in usages if usage.group == group)


class TestMeasuring:
    def test_nvml_time_is_counted_by_group(self, stage: Callable[..., Stage]) -> None:
        there = stage()
        there.use((GPU,))
        there.machine.percents = {10: 60, 11: 30, 12: 10}
        usages = there.ticks(21)
        assert of(usages, A) == pytest.approx(6, abs=0.3)
        assert of(usages, B) == pytest.approx(3, abs=0.3)
        assert of(usages, OTHER) == pytest.approx(1, abs=0.3)

    def test_fdinfo_is_counted_by_group(self, stage: Callable[..., Stage]) -> None:
        there = stage()
        there.use(fdinfo=(AMD,))
        there.machine.texts[10] = [text("amdgpu", engine_compute=0)]
        there.ticks(1)
        there.machine.texts[10] = [text("amdgpu", engine_compute=SECOND // 4)]
        (usage,) = there.ticks(1)
        assert usage[:3] == (A, AMD, Source.FDINFO)
        assert usage[3:] == pytest.approx((0.25, 0.0))

    def test_memory_is_that_of_the_processes_now(self, stage: Callable[..., Stage]) -> None:
        there = stage()
        there.use((GPU,), fdinfo=(AMD,))
        there.machine.memory = {10: 3 << 30, 11: 1 << 30, 12: 5}
        one = text("amdgpu", engine_compute=0)  # 512 MiB, open twice in one process
        there.machine.texts[10] = [one, one]
        there.ticks(1)
        assert there.service.totals.counted().memory == {
            (A, GPU): 3 << 30,
            (B, GPU): 1 << 30,
            (OTHER, GPU): 5,
            (A, AMD): 512 << 20,
        }
        there.machine.memory, there.machine.texts[10] = {11: 7}, []
        there.ticks(4)
        assert there.service.totals.counted().memory == {(B, GPU): 7}
        there.use(())
        there.ticks(1)
        assert there.service.totals.counted().memory == {}

    def test_what_cannot_be_read_is_told_and_costs_itself(self, stage: Callable[..., Stage]) -> None:
        there = stage()
        there.use(fdinfo=(AMD,))
        del there.groups.members[B]
        there.machine.closed.add(10)
        there.ticks(1)
        assert "ENOENT" in there.service.problems[B]
        assert "EACCES" in there.service.problems["processes"]

    def test_when_nvml_fails_its_gpus_are_told_and_it_is_asked_again_later(self, stage: Callable[..., Stage]) -> None:
        there = stage()
        there.use((GPU,))
        there.machine.percents = {10: 60}
        there.machine.lost = Lost("NVML's process samples ended", ended=True)
        assert there.ticks(1) == []
        assert there.service.problems[GPU] == "NVML's process samples ended"
        there.machine.lost = None
        assert there.ticks(1) == []
        assert of(there.ticks(1, seconds=30), A) > 0
        assert GPU not in there.service.problems

    def test_a_gpu_that_fails_alone_is_tried_again_a_minute_later(self, stage: Callable[..., Stage]) -> None:
        there = stage()
        there.use((GPU, SECOND_GPU))
        there.service._seen = math.inf  # its devices are those of the test
        there.machine.percents, there.machine.failed = {10: 60}, {SECOND_GPU: "GPU is lost"}
        there.ticks(2)
        assert there.service.problems == {SECOND_GPU: "GPU is lost"}
        there.machine.failed = {}
        there.ticks(1, seconds=61)
        assert {usage.gpu for usage in there.ticks(2)} == {GPU, SECOND_GPU}
        assert there.service.problems == {}

    def test_one_that_fails_for_ever_is_tried_ever_less_often(self, stage: Callable[..., Stage]) -> None:
        """As one in MIG mode: each try costs the others some samples."""
        there = stage()
        there.use((GPU, SECOND_GPU))
        there.service._seen = math.inf  # its devices are those of the test
        there.machine.percents, there.machine.failed = {10: 60}, {SECOND_GPU: "NotSupported"}
        there.ticks(120, seconds=30)
        assert there.service.problems == {SECOND_GPU: "NotSupported"}
        assert there.machine.opened <= 8

    def test_a_lease_is_time_by_the_clock(self, stage: Callable[..., Stage]) -> None:
        there = stage()
        there.use(lease="vm/a")
        there.ticks(1)
        (usage,) = there.ticks(1, seconds=2)
        assert usage[:3] == ("vm/a", GPU, Source.LEASE)
        assert usage[3:] == pytest.approx((2, 0.0), abs=0.3)


@pytest.mark.parametrize("driver", ["vfio-pci", "mlx5-vfio-pci", "nvgrace_gpu_vfio_pci"])
def test_a_gpu_on_any_vfio_driver_is_leased(driver: str) -> None:
    found = gpus_of([function(GPU, driver=driver, owner="vm/a")], ())
    assert (found.leases, found.problems) == ({GPU: "vm/a"}, {})


class TestThrottling:
    def test_without_throttle_nothing_is_frozen(self, stage: Callable[..., Stage]) -> None:
        there = stage()
        there.use((GPU,))
        there.machine.percents = {10: 10, 11: 90}
        there.ticks(100)
        assert there.groups.log == []

    def test_a_greedy_group_gets_its_part_only(self, stage: Callable[..., Stage]) -> None:
        there = stage(throttle=True)
        there.use((GPU,))
        used = {A: 0.0, B: 0.0}
        for _ in range(2000):
            frozen = there.groups.asked
            there.machine.percents = {10: 100 if B in frozen else 10, 11: 100 if A in frozen else 90}
            usages = there.ticks(1)
            for group in used:
                used[group] += of(usages, group)
        assert f"freeze {B}" in there.groups.log
        assert used[A] / (used[A] + used[B]) == pytest.approx(0.75, abs=0.03)

    def test_a_single_group_is_never_frozen(self, stage: Callable[..., Stage]) -> None:
        there = stage(throttle=True)
        there.use((GPU,))
        there.machine.percents = {11: 100}
        there.ticks(100)
        assert there.groups.log == []

    def test_a_group_that_must_not_be_frozen_is_not(
        self, stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture
    ) -> None:
        there = stage(throttle=True)
        there.use((GPU,))
        there.groups.members[B] = [1, 11]
        there.machine.percents = {10: 10, 11: 90}
        with caplog.at_level(logging.WARNING):
            there.ticks(60)
        assert f"freeze {B}" not in there.groups.log
        assert "not frozen: process 1 is in it" in caplog.text
        assert there.service.excluded() == {B: "process 1 is in it"}

    def test_a_dry_run_says_whom_and_freezes_none(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        there = Stage(tmp_path, monkeypatch, throttle=True)
        there.service.close()
        there.service = ShareService(there.session, settings(throttle=True), dry_run=True)
        there.use((GPU,))
        there.machine.percents = {10: 10, 11: 90}
        with caplog.at_level(logging.INFO, "vfioctl.sharing"):
            there.ticks(60)
        there.service.close()
        assert there.groups.log == []
        assert [vars(record)["cgroup"] for record in caplog.records if record.msg == "would be frozen"].count(B)


class TestApi:
    @pytest.fixture
    def there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
        there = Stage(tmp_path, monkeypatch)
        there.service.close()
        return there

    @staticmethod
    def api(there: Stage, monkeypatch: pytest.MonkeyPatch, **more: Any) -> SharingApi:
        monkeypatch.setattr(Session, "settings", lambda *_: settings(**more))
        monkeypatch.setattr(
            "vfioctl.sharing.serving.service.gpus_of", lambda *_: MeasuredGpus((GPU,), problems={AMD: "no driver"})
        )
        return SharingApi(there.session)

    def test_one_measurement(self, there: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        there.machine.percents = {10: 75, 11: 25}
        found = self.api(there, monkeypatch).measure(1.0)
        assert 1.0 <= found.seconds < 5.0
        assert [(usage.group, usage.gpu) for usage in found.usages] == [(A, GPU), (B, GPU)]
        assert found.share(found.usages[0]) == pytest.approx(0.75)
        assert (found.quota(A), found.quota(OTHER)) == (0.75, None)
        assert found.problems == {AMD: "no driver"}
        assert there.machine.feeds == 0

    def test_serving_until_it_is_stopped(self, there: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        said: list[str] = []
        until = time.monotonic() + 1
        self.api(there, monkeypatch).serve(stop=lambda: time.monotonic() > until, ready=said.append)
        assert said == ["measures 2 control groups"]
        assert there.machine.feeds == 0

    def test_only_root_throttles(self, there: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.geteuid", lambda: 1000)
        with pytest.raises(NotPermitted, match="only root"):
            self.api(there, monkeypatch, throttle=True).serve(stop=lambda: True, ready=lambda _: None)

    def test_what_is_left_frozen_is_thawed(self, there: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.geteuid", lambda: 0)
        there.machine.left = {A: ""}
        assert self.api(there, monkeypatch).thaw() == {A: ""}
        there.machine.left = {A: "", B: "Permission denied"}
        with pytest.raises(HostError, match=r"/user\.slice/b could not be thawed: Permission denied"):
            self.api(there, monkeypatch).thaw()

    def test_metrics_over_http(self, there: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        there.machine.percents = {10: 75, 11: 25}
        asked: list[str] = []

        def stop() -> bool:
            if time.monotonic() > begun + 1.5:
                asked.append(_asked(19821, "/metrics"))
                asked.append(_asked(19821, "/healthz"))
            return bool(asked)

        begun = time.monotonic()
        self.api(there, monkeypatch, listen="127.0.0.1:19821").serve(stop=stop, ready=lambda _: None)
        assert f'gpu_time_seconds_total{{cgroup="{A}",gpu="{GPU}",source="nvml"}}' in asked[0]
        assert asked[1] == "ok\n"


def _asked(port: int, path: str) -> str:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    return connection.getresponse().read().decode()


class TestMetrics:
    @staticmethod
    def lines(totals: Totals, weights: dict[str, int], known: Known | None = None) -> dict[str, float]:
        metrics = ShareMetrics(totals, quotas(weights), (lambda: known) if known else None)
        metrics.froze(0.003)
        lines = metrics.text().decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}

    def test_each_metric(self) -> None:
        totals = Totals()
        totals.add([Usage(A, GPU, Source.NVML, 3.0, 0.1), Usage(B, GPU, Source.NVML, 1.0, 0.0)], 0)
        totals.add([Usage("vm/x", AMD, Source.LEASE, 5.0, 0.0)], 1)
        totals.set_frozen(frozenset({B}), {B: 2.5})
        told = self.lines(totals, {A: 300, B: 100})
        assert told[f'gpu_time_seconds_total{{cgroup="{A}",gpu="{GPU}",source="nvml"}}'] == 3.0
        assert told[f'gpu_time_error_seconds_total{{cgroup="{A}",gpu="{GPU}",source="nvml"}}'] == 0.1
        assert told[f'gpu_time_seconds_total{{cgroup="vm/x",gpu="{AMD}",source="lease"}}'] == 5.0
        assert told[f'gpu_time_share{{cgroup="{A}",gpu="{GPU}"}}'] == 0.75
        assert told[f'gpu_time_quota{{cgroup="{A}"}}'] == 0.75
        assert told[f'gpu_frozen{{cgroup="{B}"}}'] == 1
        assert told[f'gpu_frozen_seconds_total{{cgroup="{B}"}}'] == 2.5
        assert told['gpu_freeze_latency_seconds_bucket{le="0.005"}'] == 1
        assert not any(name.startswith("gpu_time_share") and "vm/x" in name for name in told)

    def test_containers_have_the_names_of_gpu_manager(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VFIOCTL_NODE_NAME", "gpu1")
        totals, pods = Totals(), "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice"
        first, second = f"{pods}/cri-containerd-{'a' * 64}.scope", f"{pods}/crio-{'b' * 64}.scope/own/child"
        totals.add([], 0)
        used = [Usage(first, GPU, Source.NVML, 3.0, 0), Usage(first, AMD, Source.FDINFO, 1.0, 0)]
        totals.add([*used, Usage(second, GPU, Source.NVML, 2.5, 0), Usage("/other", GPU, Source.NVML, 1.0, 0)], 10)
        totals.set_memory({(first, GPU): 3 << 30, (second, GPU): 1 << 20, ("/other", GPU): 5})
        names = {"a" * 64: ("ml", "train-0", "main"), "b" * 64: ("ml", "web", "app")}
        claimed = {("ml", "train-0", "main"): (40, 8 << 30), ("ml", "whole", "app"): (200, 160 << 30)}
        known = Known(names, claimed, {GPU: "gpu0", AMD: "gpu1"})
        told = self.lines(totals, {}, known)

        def one(metric: str, pod: str, container: str, label: str, value: str) -> float:
            labels = f'container_name="{container}",{label}="{value}",namespace="ml",node="gpu1",pod_name="{pod}"'
            return told[f"{metric}{{{','.join(sorted(labels.split(',')))}}}"]

        assert one("container_gpu_utilization", "train-0", "main", "gpu", "gpu0") == pytest.approx(30)
        assert one("container_gpu_utilization", "train-0", "main", "gpu", "gpu1") == pytest.approx(10)
        assert one("container_gpu_utilization", "train-0", "main", "gpu", "total") == pytest.approx(40)
        assert one("container_gpu_utilization", "web", "app", "gpu", "total") == pytest.approx(25)
        assert one("container_gpu_memory_total", "train-0", "main", "gpu_memory", "gpu0") == 3072
        assert one("container_gpu_memory_total", "web", "app", "gpu_memory", "total") == 1
        assert one("container_request_gpu_utilization", "train-0", "main", "req_of_gpu", "total") == 0.4
        assert one("container_request_gpu_utilization", "whole", "app", "req_of_gpu", "total") == 2
        assert one("container_request_gpu_memory", "train-0", "main", "req_of_gpu_memory", "total") == 8192
        assert sum(name.startswith("container_") for name in told) == 13

    def test_names_of_users_cannot_make_other_lines(self) -> None:
        totals = Totals()
        totals.add([Usage('/a"} 1\nevil 1\\\x1b', GPU, Source.NVML, 1.0, 0.0)], 0)
        told = self.lines(totals, {})
        assert not any(name.startswith("evil") or "\x1b" in name for name in told)

    def test_shares_are_of_the_last_half_minute(self) -> None:
        totals = Totals()
        totals.add([Usage(A, GPU, Source.NVML, 100.0, 0.0)], 0)
        totals.add([Usage(B, GPU, Source.NVML, 1.0, 0.0)], 60)
        assert totals.counted().shares == {(B, GPU): 1.0}
        assert totals.counted().times[A, GPU, Source.NVML][0] == 100.0

    def test_there_is_a_bounded_number_of_series(self) -> None:
        totals = Totals()
        totals.add([Usage(f"vm/{number}", GPU, Source.LEASE, 1.0, 0.0) for number in range(20_000)], 0)
        counted = totals.counted().times
        assert len(counted) <= 8193
        assert sum(seconds for seconds, _ in counted.values()) == pytest.approx(20_000)

    def test_what_was_not_used_for_long_makes_room(self) -> None:
        totals = Totals()
        totals.add([Usage(f"vm/{number}", GPU, Source.LEASE, 1.0, 0.0) for number in range(8192)], 0)
        totals.add([Usage("vm/0", GPU, Source.LEASE, 1.0, 0.0)], 3000)
        totals.add([Usage(f"vm/{number}", GPU, Source.LEASE, 1.0, 0.0) for number in (0, "new")], 4000)
        counted = totals.counted().times
        assert counted["vm/0", GPU, Source.LEASE][0] == 3.0
        assert counted["vm/new", GPU, Source.LEASE][0] == 1.0
        assert ("vm/1", GPU, Source.LEASE) not in counted
