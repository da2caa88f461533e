"""Which devices a pod may get, each with the reason: decided from values, and looked at on simulated hosts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.hosts.machines import FOUR_GPUS, copy, function, inventory_of, machine, original, put_process, reduced
from tests.unit.kubelet.values import GPU, MDEV, NAME, OTHER, WEB, claim, resource
from vfioctl.claims.model.claim import Claim, ClaimState
from vfioctl.core.marks import Mark, MarkKind
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.kernel.protocol import PCI_DEVICES
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kubelet.choosing.health import Facts, devices_of, lost_of
from vfioctl.kubelet.choosing.members import Member
from vfioctl.kubelet.model.cordon import CORDON, XID, Cordon
from vfioctl.kubelet.model.device import LABEL, PROVISIONAL, Birth, Device, Resource
from vfioctl.kubelet.model.settings import KubeletSettings
from vfioctl.kubelet.reading.look import Look
from vfioctl.placement.model.request import ClaimRequest

PF, VF = PciAddress("0000:41:00.0"), PciAddress("0000:41:00.4")
ON_HOST = function(GPU)
GUEST = function(GPU, driver="vfio-pci")
WHOLE = Member(GPU, GPU, 0)
SINCE = "2026-01-01T10:20:30.000+00:00"
CORDONED = Cordon(GPU, CORDON, "loud", SINCE, "alice")


def mark(address: str, kind: MarkKind = MarkKind.WEDGED, why: str = "unbind never returned") -> Mark:
    return Mark(address=address, kind=kind, since=SINCE, why=why)


def judged(
    member: Member = WHOLE,
    *functions: object,
    marks: tuple[Mark, ...] = (),
    cordons: Mapping[str, Cordon] | None = None,
    claims: tuple[Claim, ...] = (),
    refusals: Mapping[str, str] | None = None,
    **settings: object,
) -> Device:
    """The device of a member, as the resource of these settings has it."""
    inventory = inventory_of(*(functions or (ON_HOST,)))  # type: ignore[arg-type]
    facts = Facts(inventory, {m.address: m for m in marks}, cordons or {}, claims, refusals or {})
    (found,) = devices_of(resource(NAME, **settings), [member], facts)
    return found


class TestAReason:
    def test_is_none_for_a_device_that_is_free(self) -> None:
        found = judged()
        assert (found.is_healthy, found.reason, found.claim, found.owner, found.numa_node) == (True, "", "", "", 0)

    def test_is_what_a_claim_would_be_refused_for(self) -> None:
        assert judged(refusals={GPU: "claimed by vm/a (1)"}).reason == "claimed by vm/a (1)"

    def test_is_what_is_known_of_a_vgpu_without_the_ledger(self) -> None:
        assert judged(Member(MDEV, GPU, None, problem="it is orphan")).reason == "it is orphan"

    @pytest.mark.parametrize("kind", list(MarkKind))
    def test_is_a_mark(self, kind: MarkKind) -> None:
        assert judged(marks=(mark(GPU, kind),)).reason == f"it is {kind}: unbind never returned"

    def test_is_a_mark_of_its_pf(self) -> None:
        vf = function(VF, physfn=PF)
        assert "it is wedged" in judged(Member(VF, VF, 0), function(PF), vf, marks=(mark(PF),)).reason

    def test_is_a_mark_of_the_parent_of_a_mediated_device(self) -> None:
        assert "it is wedged" in judged(Member(MDEV, GPU, 0), marks=(mark(GPU),)).reason

    def test_is_a_mark_of_a_mediated_device(self) -> None:
        assert "it is wedged" in judged(Member(MDEV, GPU, 0), marks=(mark(MDEV),)).reason

    def test_is_a_cordon(self) -> None:
        assert judged(cordons={GPU: CORDONED}).reason == "cordoned by alice since 2026-01-01T10:20Z: loud"

    def test_is_a_cordon_of_the_gpu_that_a_vgpu_is_on(self) -> None:
        assert "cordoned" in judged(Member(MDEV, GPU, 0), cordons={GPU: CORDONED}).reason

    def test_is_an_error_that_nvml_reported(self) -> None:
        assert judged(cordons={GPU: Cordon(GPU, XID, "XID 79: it fell off", SINCE, "")}).reason == "XID 79: it fell off"

    def test_of_a_device_that_a_pod_has_is_none_but_the_claim_is_told(self) -> None:
        found = judged(claims=(claim(owner=WEB.owner),), refusals={GPU: "whatever"})
        assert (found.is_healthy, found.claim, found.owner) == (True, "11111111", WEB.owner)

    def test_of_a_device_that_a_pod_has_may_be_a_mark_or_a_cordon(self) -> None:
        for facts in ({"marks": (mark(GPU),)}, {"cordons": {GPU: CORDONED}}):
            found = judged(claims=(claim(),), **facts)
            assert (found.is_healthy, found.claim) == (False, "11111111")

    def test_is_that_the_claim_is_wedged(self) -> None:
        found = judged(claims=(claim(state=ClaimState.WEDGED, why="unbind of it never returned"),))
        assert found.reason == "claim 11111111 is wedged: unbind of it never returned"

    def test_is_that_it_travels_with_what_a_pod_has(self) -> None:
        found = judged(claims=(claim(OTHER, companions=(GPU,), owner=WEB.owner),))
        assert (found.reason, found.claim) == (f"it travels with a device of {WEB.owner} (11111111)", "")

    @pytest.mark.parametrize(
        ("driver", "words"), [("nvidia", "nvidia has it"), (None, "it has no driver"), ("vfio-pci", "")]
    )
    def test_is_the_driver_where_the_resource_binds_nothing(self, driver: str | None, words: str) -> None:
        found = judged(WHOLE, function(GPU, driver=driver), bind=False)
        assert found.reason == (f"{words}, and this resource binds nothing" if words else "")

    def test_is_no_driver_for_a_vgpu(self) -> None:
        assert judged(Member(MDEV, GPU, 0, Birth("nvidia-63", GPU)), bind=False).is_healthy
        assert judged(Member(MDEV, GPU, 0), bind=False).is_healthy

    def test_of_a_parent_that_is_no_function_is_none(self) -> None:
        assert judged(Member(MDEV, "mtty", None)).is_healthy


class TestADeviceThatIsGone:
    def test_is_listed_while_a_pod_has_it(self) -> None:
        (lost,) = lost_of(resource(), (), (claim(owner=WEB.owner),))
        assert (lost.id, lost.reason, lost.claim, lost.owner) == (GPU, "it is gone", "11111111", WEB.owner)

    def test_has_the_id_of_its_consumer(self) -> None:
        (lost,) = lost_of(resource(consumer="kata"), (), (claim(),))
        assert lost.id == "0000-41-00.0"

    def test_is_no_companion_and_of_no_other_resource(self) -> None:
        assert not lost_of(resource(), [WHOLE], (claim(companions=(OTHER,)),))
        assert not lost_of(resource(), (), (claim(resource="a.b/c"),))


# -- on hosts ------------------------------------------------------------------------------------------

GPU0, GPU1, GPU2, GPU3 = map(PciAddress, FOUR_GPUS)


@pytest.fixture
def tree() -> Tree:
    return copy(reduced("hgx8", *FOUR_GPUS))


@pytest.fixture
def host(tree: Tree, fast_folder: Path) -> Host:
    return machine(tree, fast_folder / "ledger.db")


def looked(host: Host, **settings: object) -> Resource:
    resources = (resource(NAME, **settings),)
    return Look(host.session, KubeletSettings(resources=resources)).resource(resources[0])


def reasons(host: Host, **settings: object) -> Mapping[str, str]:
    return {str(device.subject): device.reason for device in looked(host, **settings).devices if device.reason}


def claimed(host: Host, *devices: Subject, owner: str = "vm/a", **more: object) -> Claim:
    return host.claims.create(ClaimRequest(owner=owner, devices=devices, **more)).claim  # type: ignore[arg-type]


class TestOnAHost:
    def test_all_are_healthy(self, host: Host) -> None:
        assert reasons(host) == {}
        assert [device.subject for device in looked(host).devices] == [GPU0, GPU1, GPU2, GPU3]

    def test_a_claim_of_a_vm_makes_it_unhealthy(self, host: Host) -> None:
        found = claimed(host, GPU1)
        assert reasons(host) == {GPU1: f"claimed by vm/a ({found.id})"}

    def test_the_claim_of_a_pod_of_another_resource_does(self, host: Host) -> None:
        found = claimed(host, GPU1, owner=PROVISIONAL, labels={LABEL: "a.b/c"})
        assert reasons(host) == {GPU1: f"claimed by pod/_/_/_ ({found.id})"}

    def test_its_own_claim_does_not(self, host: Host) -> None:
        found = claimed(host, GPU1, owner=PROVISIONAL, labels={LABEL: NAME})
        assert reasons(host) == {}
        assert [(d.subject, d.owner) for d in looked(host).devices if d.claim == found.id] == [(GPU1, PROVISIONAL)]

    def test_a_process_or_a_guest_that_uses_it_does(self, fast_folder: Path) -> None:
        busy = machine(copy(original("busy")), fast_folder / "ledger.db")
        assert [words for words in reasons(busy).values() if words.startswith("held")] == [
            "held by python3, tritonserver",
            "held by qemu-system-x86",
        ]

    def test_so_does_a_guest_without_a_claim(self, host: Host, tree: Tree) -> None:
        host.apply(host.binding.plan_bind([GPU2]))
        group = host.inventory().by_address[GPU2].iommu_group
        put_process(tree, 4712, f"/dev/vfio/{group}", name="qemu-system-x86", cmdline="qemu-system-x86_64\0-name\0web")
        assert list(reasons(host)) == [GPU2]
        assert reasons(host)[GPU2].startswith("held by ")

    def test_what_is_on_vfio_already_is_healthy_where_nothing_is_bound(self, host: Host) -> None:
        host.apply(host.binding.plan_bind([GPU2]))
        assert set(reasons(host, bind=False)) == {GPU0, GPU1, GPU3}
        assert set(reasons(host, bind=False).values()) == {"nvidia has it, and this resource binds nothing"}

    def test_a_mark_of_the_ledger_does(self, host: Host) -> None:
        host.session.journal.mark([mark(GPU3)], boot_id=host.session.boot_id)
        assert reasons(host) == {GPU3: "it is wedged: unbind never returned"}

    def test_one_that_vanished_under_its_pod_is_told(self, host: Host, tree: Tree) -> None:
        claimed(host, GPU1, owner=WEB.owner, labels={LABEL: NAME})
        home = tree.resolve(f"{PCI_DEVICES}/{GPU1}")
        tree.remove(f"{PCI_DEVICES}/{GPU1}")
        tree.remove(home)
        assert reasons(host) == {GPU1: "it is gone"}
        assert len(looked(host).devices) == 4

    def test_an_address_means_one(self, host: Host) -> None:
        assert [device.subject for device in looked(host, match=(GPU2,)).devices] == [GPU2]

    @pytest.mark.parametrize(("word", "count"), [("10de:2330", 4), ("h100", 4), ("10de:2331", 0)])
    def test_ids_and_names_mean_all_of_a_model(self, host: Host, word: str, count: int) -> None:
        assert len(looked(host, match=(word,)).devices) == count

    def test_an_error_costs_one_resource(self, host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        config = tmp_path / "config.toml"
        config.write_text("[claims]\nreserved = 1\n")
        monkeypatch.setenv("VFIOCTL_CONFIG", str(config))
        found = looked(host)
        assert (found.devices, "claims.reserved must be a list" in found.problem) == ((), True)


class TestVgpusOnAHost:
    @pytest.fixture
    def a2(self, fast_folder: Path) -> Host:
        return machine(copy(original("a2")), fast_folder / "ledger.db")

    def test_that_exist(self, a2: Host) -> None:
        first = looked(a2, devices="mdev").devices[0]
        assert first.is_healthy
        found = claimed(a2, first.subject)
        assert reasons(a2, devices="mdev") == {first.subject: f"claimed by vm/a ({found.id})"}

    def test_that_are_created_fit_the_card(self, a2: Host) -> None:
        settings = {"devices": "vgpu", "type": "A2-4C"}
        (kind,) = a2.vgpu.vgpus().cards[0].called("A2-4C")
        healthy = [device for device in looked(a2, **settings).devices if device.is_healthy and device.birth]
        assert len(healthy) == kind.available.at_most
        device = healthy[0]
        assert device.birth
        request = ClaimRequest(
            owner=PROVISIONAL,
            vgpu=device.birth.type,
            parent=device.birth.parent,
            uuids=(device.subject,),  # type: ignore[arg-type]
            labels={LABEL: NAME},
        )
        found = a2.claims.create(request).claim
        assert [claimed.subject for claimed in found.devices if claimed.asked] == [device.subject]
        after = next(now for now in looked(a2, **settings).devices if now.id == device.id)
        assert (after.is_healthy, after.claim, after.birth) == (True, found.id, device.birth)

    def test_of_a_card_that_a_vm_has_whole_are_unhealthy(self, fast_folder: Path) -> None:
        t4 = machine(copy(original("t4")), fast_folder / "ledger.db")
        found = claimed(t4, PciAddress("0000:3b:00.0"))
        words = set(reasons(t4, devices="vgpu", type="nvidia-222").values())
        assert (
            words <= {f"claimed by vm/a ({found.id})", ""}
            or len(looked(t4, devices="vgpu", type="nvidia-222").devices) == 0
        )

    def test_of_a_card_that_is_reserved_are_unhealthy(
        self, a2: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        config = tmp_path / "config.toml"
        config.write_text('[claims]\nreserved = ["0000:08:00.0"]\n')
        monkeypatch.setenv("VFIOCTL_CONFIG", str(config))
        assert not [device for device in looked(a2, devices="vgpu", type="A2-4C").devices if device.is_healthy]
