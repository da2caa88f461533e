"""A thousand pods on one node, in an order that only the seed knows, while the kubelet, the service and the node start
anew, pods are rejected and the kernel hangs: no device is in two pods, none is lost, each is put back."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import memory
from tests.hosts.machines import copy, put_process, reduced
from tests.kubelet.kubelet import Kubelet
from tests.kubelet.node import H100, NEAR, eventually, resource
from tests.kubelet.pods import Container, NotStarted, Pod, Rejected
from tests.kubelet.releases import RELEASES, Release
from vfioctl.errors import VfioctlError
from vfioctl.host import Host
from vfioctl.kernel.protocol import PCI_DEVICES
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated import rules
from vfioctl.kernel.simulated.faults import HANG, Fault
from vfioctl.kernel.simulated.files import BOOT_ID
from vfioctl.kernel.simulated.groups import driver_of
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.session import Session

PODS = 500
"""For each release: a thousand in all."""
MOST = 3
"""Devices of a container."""


class World:
    """The node, and what its pods really have: a process each, which has the devices open."""

    def __init__(self, folder: Path, release: Release, seed: int) -> None:
        self.chance, self.boots, self.happened = random.Random(seed), 0, Counter[str]()
        self.kubelet = Kubelet(folder, release, seed=seed)
        self.at_boot = reduced("hgx8", *NEAR)
        self.kernel = Simulated(copy(self.at_boot), "simulated")
        self.session = Session(self.kernel, folder / "ledger.db", settle=0.0, lock_wait=20.0)
        self.host = Host(self.session)
        self.groups = {str(f.address): f.iommu_group for f in self.host.inventory().functions}
        self.running: dict[str, tuple[Pod, frozenset[str], int]] = {}
        """By uid: a pod, its devices, its process."""
        self._pids = iter(range(1000, 1 << 22))
        self._stop, self._thread = threading.Event(), threading.Thread()

    # --- the service

    def serve(self) -> None:
        self._stop = threading.Event()
        arguments = {"stop": self._stop.is_set, "ready": lambda _: None}
        self._thread = threading.Thread(target=self.host.kubelet.serve, kwargs=arguments, daemon=True)
        self._thread.start()

    def end_service(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self.kubelet.wait_for_loss()

    def until_known(self) -> None:
        eventually(lambda: self.kubelet.healthy(H100), "no healthy device", 60)

    # --- what may happen

    def step(self, number: int) -> None:
        """A new pod, and something else."""
        self.admit(number)
        happenings = {
            self.end_one: 60,
            self.start_again: 20,
            self.restart_kubelet: 2,
            self.restart_service: 2,
            self.lose_checkpoint: 1,
            self.reboot: 1,
            self.hang: 2,
        }
        happening = self.chance.choices([*happenings], [*happenings.values()])[0]
        happening()
        self.check()

    def admit(self, number: int) -> None:
        count = self.chance.randint(1, MOST)
        while self.running and len(NEAR) - sum(len(ids) for _, ids, _ in self.running.values()) < count:
            self.end_one()
        containers = [Container("app", {H100: count})]
        if self.chance.random() < 0.1:
            containers.append(Container("before", {H100: 1}, init=True))
        if self.chance.random() < 0.1:
            containers.append(Container("beside", {}, refused="not enough cpus available"))
        pod = Pod(f"pod{number}", containers)
        try:
            self.kubelet.run(pod)
        except (Rejected, NotStarted) as error:
            self.happened["rejected" if "not enough cpus" in str(error) else "refused"] += 1
            self.kubelet.remove(pod)
            return
        self.open(pod)

    def open(self, pod: Pod) -> None:
        """The pod's process opens its devices, as a VM does."""
        ids, pid = self.kubelet.ids_of(pod), next(self._pids)
        for other, others, _ in self.running.values():
            assert not ids & others, f"{pod.name} has what {other.name} has"
        with self.kernel._turn():
            put_process(self.kernel.tree, pid, *(f"/dev/vfio/{self.groups[i]}" for i in ids), name="qemu-system-x86")
        self.running[pod.uid] = (pod, ids, pid)
        self.happened["ran"] += 1

    def end_one(self) -> None:
        if self.running:
            pod, _, pid = self.running.pop(self.chance.choice([*self.running]))
            with self.kernel._turn():
                self.kernel.tree.remove(f"/proc/{pid}")
            (self.kubelet.remove if self.chance.random() < 0.7 else self.kubelet.finish)(pod)

    def start_again(self) -> None:
        """A container of a pod starts again."""
        if self.running:
            pod, _, pid = self.running[self.chance.choice([*self.running])]
            with self.kernel._turn():
                self.kernel.tree.remove(f"/proc/{pid}")
            del self.running[pod.uid]
            try:
                self.kubelet.start_container(pod, "app")
            except NotStarted:
                self.happened["not started again"] += 1
                self.kubelet.remove(pod)
            else:
                self.open(pod)

    def restart_kubelet(self) -> None:
        self.happened["kubelet restarted"] += 1
        self.kubelet.restart()
        self.until_known()

    def lose_checkpoint(self) -> None:
        self.happened["checkpoint lost"] += 1
        self.kubelet.restart(checkpoint=False)
        self.until_known()

    def restart_service(self) -> None:
        self.happened["service restarted"] += 1
        self.end_service()
        self.serve()
        self.until_known()

    def reboot(self) -> None:
        """The node starts anew: pods that ran come again, when the service is back."""
        self.happened["rebooted"] += 1
        self.end_service()
        self.kubelet.shut_down()
        self.boots += 1
        with self.kernel._turn():
            self.kernel._faults, self.kernel._tree = (), copy(self.at_boot)
            self.kernel.tree.put(BOOT_ID, f"00000000-0000-4000-8000-{self.boots:012d}")
            rules.remember_natives(self.kernel.tree)
        were, self.running = [pod for pod, _, _ in self.running.values()], {}
        self.serve()
        self.kubelet.start(api_server=False)
        self.until_known()
        self.kubelet.api_answers()
        for pod in were:
            try:
                if self.kubelet.life(pod).ended:
                    raise NotStarted
                self.kubelet.start_container(pod, "app")
            except NotStarted:
                self.happened["not started after a reboot"] += 1
                self.kubelet.remove(pod)
            else:
                self.open(pod)

    def hang(self) -> None:
        """One of the next writes never returns, until somebody mends the device."""
        self.happened["hung"] += 1
        self.kernel._faults = (Fault(len(self.kernel.writes) + self.chance.randint(1, 8), HANG),)

    def mend(self) -> None:
        """Whatever blocks is released, and what was left of changes is put back."""
        self.kernel._faults = ()
        for subject in [*self.kernel.tree.properties]:
            if subject.startswith("sim:") and "blocked" in self.kernel.tree.properties[subject]:
                self.kernel.release(subject.removeprefix("sim:"))
        with suppress(VfioctlError):
            self.host.recover()

    # --- what always holds

    def check(self) -> None:
        """What pods run with is on VFIO, and each device is in one claim at most."""
        if self.chance.random() < 0.3:
            self.mend()
        drivers = self.drivers()
        for pod, ids, _ in self.running.values():
            assert all(drivers[device] == "vfio-pci" for device in ids), f"{pod.name} has lost {drivers}"
        owners = Counter(device.subject for claim in self.host.claims.claims() for device in claim.devices)
        assert not owners or max(owners.values()) == 1

    def drivers(self) -> Mapping[str, str | None]:
        with self.kernel._turn():
            tree: Tree = self.kernel.tree
            return {device: driver_of(tree, tree.resolve(f"{PCI_DEVICES}/{device}")) for device in NEAR}


@pytest.fixture(params=RELEASES, ids=str)
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr("vfioctl.kubelet.model.settings._SHORTEST", 0.01)
    with memory() as folder:
        made = World(folder, request.param, seed=24)
        settings = {
            "plugins": made.kubelet.plugins,
            "pod_resources": made.kubelet.pod_resources,
            "listen": "",
            "run": folder / "run",
            "poll": "0.2s",
            "grace": "3s",
            "allocate_timeout": "30s",
        }
        lines = ["[kubelet]", *(f'{name} = "{value}"' for name, value in settings.items()), resource(H100, "10de:2330")]
        (folder / "config.toml").write_text("\n".join(lines))
        monkeypatch.setenv("VFIOCTL_CONFIG", str(folder / "config.toml"))
        made.kubelet.start()
        made.serve()
        made.until_known()
        yield made
        made.end_service()
        made.kubelet.stop()


def test_no_device_is_in_two_pods_and_each_is_put_back(world: World) -> None:
    before, began = world.drivers(), time.process_time()
    for number in range(PODS):
        world.step(number)
    while world.running:
        world.end_one()

    def all_is_back() -> bool:
        world.mend()
        return not world.host.claims.claims() and world.drivers() == before

    eventually(all_is_back, "not all devices were put back", 60)
    print(f"{time.process_time() - began:.0f} s of CPU; {dict(world.happened)}")
    assert world.host.session.journal.unfinished() == ()
    assert world.happened["ran"] > PODS / 2
    assert min(world.happened[what] for what in ("rejected", "kubelet restarted", "service restarted", "rebooted")) > 0
    world.kubelet.wait(lambda: world.kubelet.healthy(H100) == {*NEAR})
