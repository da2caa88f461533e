"""A host in one look, and read again in part: what is read, what is missing, and that both ways agree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.machines import copy, machine, original
from vfioctl.core.events import Progress
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.overview.model.overview import Overview, Part
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.session import Session

HOSTS = Path(__file__).resolve().parents[2] / "hosts"
GPU = PciAddress("0000:1b:00.0")
NO_LIBVIRT = {Part.DOMAINS: "this host has no libvirt at qemu:///system: it is simulated or recorded"}


@pytest.fixture
def host(fast_folder: Path) -> Host:
    return machine(copy(original("hgx8")), fast_folder / "ledger.db")


def bind(host: Host, address: str = GPU, progress: Progress | None = None) -> None:
    host.apply(host.binding.plan_bind([address]), progress=progress)


def without_time(overview: Overview) -> dict[str, object]:
    return {name: value for name, value in vars(overview).items() if name != "at"}


def test_it_has_what_the_apis_have(host: Host) -> None:
    claim = host.claims.create(ClaimRequest(owner="vm/a", devices=(GPU,))).claim
    overview = host.overview()
    assert overview.inventory == host.inventory()
    assert overview.claims == (claim,)
    assert overview.vgpus == host.vgpu.vgpus()
    assert {holder.address for holder in overview.holders.holders} >= {"0000:52:00.0"}
    assert (overview.unfinished, overview.read_only, overview.missing) == ((), "", NO_LIBVIRT)


def test_of_a_gpu_all_holders_are_named(host: Host) -> None:
    overview = host.overview()
    for gpu in overview.inventory.gpus:
        alone = {holder.words for holder in host.holders([gpu.address]).holders if holder.address == gpu.address}
        together = {holder.words for holder in overview.holders.holders if holder.address == gpu.address}
        assert together == alone


def test_parts_that_are_not_wanted_are_left_out(host: Host) -> None:
    overview = host.overview(without=[Part.HOLDERS, Part.DOMAINS, Part.CLAIMS])
    assert (overview.holders.devices, overview.domains, overview.claims, overview.missing) == ((), (), (), {})
    bind(host)
    again = host.refresh(overview, [GPU])
    assert (again.holders.devices, again.missing) == ((), {})


def test_domains_are_those_of_libvirt(fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("libvirt")
    host = machine(copy(original("hgx8")), fast_folder / "ledger.db")
    monkeypatch.setattr("vfioctl.domain.probe.domains.checked_uri", lambda _: "test:///default")  # the configuration's
    overview = host.overview()
    assert [domain.name for domain in overview.domains] == ["test"]
    assert overview.missing == {}


def test_a_damaged_ledger_costs_only_what_is_in_it(fast_folder: Path) -> None:
    ledger = fast_folder / "ledger.db"
    ledger.write_bytes(b"not a database, but long enough to be taken for one" * 20)
    overview = machine(copy(original("hgx8")), ledger).overview(without=[Part.DOMAINS])
    assert set(overview.missing) == {Part.CLAIMS, Part.CHANGES}
    assert all("ledger" in why for why in overview.missing.values())
    assert len(overview.inventory.gpus) > 8
    assert "ledger" in overview.read_only


def test_a_recorded_host_says_why_it_cannot_be_changed() -> None:
    assert "recorded" in Host.recorded("hgx8").overview().read_only


class Counting(Simulated):
    """Notes the directories of functions that are read."""

    def note(self, path: str) -> None:
        self.seen: set[str] = getattr(self, "seen", set())
        self.seen |= {path.split("/")[5]} if path.startswith("/sys/bus/pci/devices/0") else set()

    def directory(self, path, *args, **options):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN003
        self.note(path)
        return super().directory(path, *args, **options)

    def entries(self, path, *args, **options):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN003
        self.note(path)
        return super().entries(path, *args, **options)

    def read(self, path: str) -> str:
        self.note(path)
        return super().read(path)


class TestRefresh:
    def test_equals_a_new_look(self, host: Host) -> None:
        before = host.overview()
        bind(host)
        after = host.refresh(before, [GPU])
        assert after.inventory.by_address[GPU].driver == "vfio-pci"
        assert without_time(after) == without_time(host.overview())
        host.apply(host.binding.plan_unbind([GPU]))
        assert without_time(host.refresh(after, [GPU])) == without_time(host.overview())

    def test_reads_only_what_is_named(self, fast_folder: Path) -> None:
        kernel = Counting(copy(original("hgx8")), "simulated")
        host = Host(Session(kernel, fast_folder / "ledger.db", settle=0.0))
        before = host.overview()
        bind(host)
        kernel.seen = set()
        host.refresh(before, [GPU])
        others = {gpu.address for gpu in before.inventory.gpus if gpu.address != GPU}
        assert GPU in kernel.seen
        assert not kernel.seen & others

    def test_keeps_what_could_not_be_read_of_others(self, host: Host) -> None:
        kernel = host.session.kernel
        assert isinstance(kernel, Simulated)
        for address in (GPU, "0000:43:00.0"):
            kernel.tree.properties[f"nvml:{address}"] = {"error": "GPU is lost"}
        before = host.overview()
        after = host.refresh(before, [GPU])
        told = [(warning.subject, warning.text) for warning in before.inventory.warnings]
        assert {subject for subject, _ in told} >= {GPU, "0000:43:00.0"}
        assert sorted((warning.subject, warning.text) for warning in after.inventory.warnings) == sorted(told)

    def test_of_nothing_reads_the_ledger_only(self, host: Host) -> None:
        before = host.overview()
        bind(host)
        claim = host.claims.create(ClaimRequest(owner="vm/a", devices=(GPU,))).claim
        after = host.refresh(before)
        assert after.inventory is before.inventory
        assert after.claims == (claim,)

    def test_of_a_gpu_that_is_gone_reads_the_host(self, host: Host) -> None:
        before = host.overview()
        kernel = host.session.kernel
        assert isinstance(kernel, Simulated)
        kernel.tree.remove(kernel.tree.resolve(f"/sys/bus/pci/devices/{GPU}"))
        kernel.tree.remove(f"/sys/bus/pci/devices/{GPU}")
        after = host.refresh(before, [GPU])
        assert GPU not in after.inventory.by_address
        assert len(after.inventory.functions) == len(before.inventory.functions) - 1
        assert not [holder for holder in after.holders.holders if holder.address == GPU]

    def test_of_vgpus_reads_their_card(self, fast_folder: Path) -> None:
        host = machine(copy(original("t4")), fast_folder / "ledger.db")
        before = host.overview()
        card = before.vgpus.cards[0]
        outcome = host.vgpu.create(card.types[0].name)
        assert outcome.result == "done"
        after = host.refresh(before, [PciAddress(card.id)])
        assert len(after.vgpus.instances) == len(before.vgpus.instances) + 1
        assert after.vgpus == host.vgpu.vgpus()
        assert without_time(after) == without_time(host.overview())


def test_a_change_that_is_under_way_is_no_interrupted_one(tmp_path: Path) -> None:
    file = tmp_path / "hgx8.host"
    file.write_text((HOSTS / "hgx8.host").read_text(encoding="utf-8"), encoding="utf-8")
    host = Host.simulated(str(file))
    looks: list[Overview] = []
    bind(host, progress=lambda event: looks.append(host.overview()) if event.number == 3 else None)
    (change,) = looks[0].unfinished
    assert (change.subjects, change.under_way) == ((GPU,), True)
    assert host.overview().unfinished == ()


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    import threading

    before = threading.active_count()
    yield
    assert threading.active_count() == before
