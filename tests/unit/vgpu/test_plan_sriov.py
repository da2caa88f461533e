"""Plans that turn VFs on and off, and that set profiles: the order of the writes, the way back, each refusal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import pytest

from tests.hosts.machines import REGISTRY, function, inventory_of
from vfioctl.core.change import Key, Plan, Step
from vfioctl.core.marks import Mark, MarkKind
from vfioctl.core.resource import Found
from vfioctl.errors import BadSpec, DeviceInUse, Foreign, HostError, VfioctlError, some_of
from vfioctl.inventory.model.functions import Inventory, Nvml
from vfioctl.inventory.model.holders import Holder, HolderKind, Holders
from vfioctl.inventory.model.values import PciAddress
from vfioctl.vgpu.model.intents import ProfileIntent, SetVfsIntent, asked
from vfioctl.vgpu.model.kinds import PhysicalFunction
from vfioctl.vgpu.model.persistent import vfs_text
from vfioctl.vgpu.model.vgpu import Created, Dialect, Profile, Vgpu, VgpuCard, Vgpus, VgpuState
from vfioctl.vgpu.plan.sriov import _profile, plan_profile, plan_vfs

PF = PciAddress("0000:03:00.0")
HOME = f"/sys/bus/pci/devices/{PF}"
COUNT, AUTOPROBE = f"{HOME}/sriov_numvfs", f"{HOME}/sriov_drivers_autoprobe"
ASK = f"unheld VFs {PF}"
"""The check: of the VFs, not of the PF itself."""
FILE = f"/etc/vfioctl/vgpu.d/{PF}.json"


def vf(number: int) -> PciAddress:
    return PciAddress(f"0000:03:00.{number}")


def host(now: int = 0, *, driver: str | None = "xe", vf_driver: str | None = None, **facts: object) -> Inventory:
    """A PF with so many VFs."""
    vfs = [vf(number) for number in range(1, now + 1)]
    physical = function(PF, "030200", driver=driver, virtfns=tuple(vfs), sriov_totalvfs=4, **facts)
    virtual = (function(a, driver=vf_driver, physfn=PF, iommu_group=n) for n, a in enumerate(vfs, start=2))
    return inventory_of(physical, *virtual)


def plan(  # noqa: PLR0913 - one for each thing that a test may vary
    inventory: Inventory,
    wanted: int,
    *,
    total: int = 4,
    autoprobe: str = "1",
    kept: str = "",
    ours: bool = True,
    instances: tuple[Vgpu, ...] = (),
    holders: tuple[Holder, ...] = (),
    **wish: bool,
) -> Plan:
    intent = SetVfsIntent.model_validate({"devices": (PF,), "vfs": wanted, **wish})
    count = len(inventory.by_address[PF].virtfns)
    created: Mapping[str, Created] = {PF: Created(PF, PF, str(count), "t", persistent=False)} if ours else {}
    nvml = inventory.by_address[PF].nvml
    known = PhysicalFunction(
        total=total, autoprobe=autoprobe, definition=kept, gpu_instances=bool(nvml and nvml.mig_mode)
    )
    held = Holders(devices=(), holders=holders)
    return REGISTRY.plan(plan_vfs(inventory, Vgpus(instances=instances), intent, known, created, held))


def told(made: Iterable[Step]) -> list[str]:
    return [
        f"{'' if step.action == 'write' else step.action} {step.target.removeprefix(f'{HOME}/')} {step.value}".strip()
        for step in made
    ]


def back(made: Plan, written: frozenset[Key] = frozenset(), **found: str) -> list[str]:
    """The steps of the rollback. `found`: by kind, where it is not as after the change."""
    kinds = {"vf_count": "VFs", "nvidia_vfs": "NVIDIA VFs"}
    known = {kinds.get(kind, kind): value for kind, value in found.items()}
    values = {c.key: known.get(c.kind, c.after) for c in made.changes}
    seen = Found(values, written, {c.key: c for c in made.changes})
    changes = [c for each in made.changes if (c := REGISTRY.resource(each).restore(each, seen))]
    return told(owned.step for owned in REGISTRY.steps(changes))


class TestOrder:
    def test_vfs_find_no_drivers_as_they_come(self) -> None:
        made = plan(host(), 4)
        assert told(made.steps) == ["sriov_drivers_autoprobe 0", "sriov_numvfs 4", "sriov_drivers_autoprobe 1"]
        assert made.subjects == (PF,)
        assert not REGISTRY.is_forged(made)

    @pytest.mark.parametrize("autoprobe", ["0", ""])
    def test_autoprobe_that_is_off_or_not_there_is_left_alone(self, autoprobe: str) -> None:
        assert told(plan(host(), 4, autoprobe=autoprobe).steps) == ["sriov_numvfs 4"]

    @pytest.mark.parametrize("wanted", [1, 4])
    def test_another_count_goes_by_way_of_none(self, wanted: int) -> None:
        made = plan(host(2), wanted)
        assert told(made.steps) == [
            ASK,
            "sriov_drivers_autoprobe 0",
            "sriov_numvfs 0",
            f"sriov_numvfs {wanted}",
            "sriov_drivers_autoprobe 1",
        ]
        assert not REGISTRY.is_forged(made)

    def test_on_the_way_down_nothing_needs_autoprobe(self) -> None:
        assert told(plan(host(2), 0).steps) == [ASK, "sriov_numvfs 0"]

    @pytest.mark.parametrize(("now", "wanted"), [(0, 0), (2, 2)])
    def test_what_is_so_already_takes_nothing(self, now: int, wanted: int) -> None:
        made = plan(host(now), wanted, ours=False)
        assert made.nothing_to_do
        assert [fact.subject for fact in made.facts] == [PF]

    def test_it_rests_on_the_pf_and_on_all_vfs_that_go(self) -> None:
        assert [fact.subject for fact in plan(host(2), 0).facts] == [PF, vf(1), vf(2)]


class TestRollback:
    def back(self, made: Plan, **found: str) -> list[str]:
        return back(made, frozenset(), **found)

    def test_to_none(self) -> None:
        assert self.back(plan(host(), 4)) == [ASK, "sriov_numvfs 0"]

    def test_from_before_the_count_was_written(self) -> None:
        assert self.back(plan(host(), 4), vf_count="0", autoprobe="0") == ["sriov_drivers_autoprobe 1"]

    def test_to_another_count_keeps_autoprobe_off_until_the_vfs_are_back(self) -> None:
        assert self.back(plan(host(2), 4)) == [
            ASK,
            "sriov_drivers_autoprobe 0",
            "sriov_numvfs 0",
            "sriov_numvfs 2",
            "sriov_drivers_autoprobe 1",
        ]

    def test_from_none_between_two_counts(self) -> None:
        assert self.back(plan(host(2), 4), vf_count="0", autoprobe="0") == [
            "sriov_numvfs 2",
            "sriov_drivers_autoprobe 1",
        ]

    def test_from_a_count_that_somebody_else_has_set_is_left_to_them(self) -> None:
        assert self.back(plan(host(), 4), vf_count="3", autoprobe="1") == []

    def test_of_vfs_that_went_makes_them_again_as_they_were(self) -> None:
        assert self.back(plan(host(2), 0)) == [
            "sriov_drivers_autoprobe 0",
            "sriov_numvfs 2",
            "sriov_drivers_autoprobe 1",
        ]
        assert self.back(plan(host(2, vf_driver="xe"), 0)) == ["sriov_numvfs 2"], "and their drivers find them again"


class TestRefusals:
    @pytest.mark.parametrize(
        ("wanted", "driver", "kind", "said"),
        [
            (5, "xe", BadSpec, "has at most 4 VFs"),
            (2, None, HostError, "VFs are created by its driver"),
            (2, "vfio-pci", DeviceInUse, "is bound for a guest"),
            (2, "gim", HostError, "gim creates its VFs when it is loaded"),
        ],
    )
    def test_of_counts_and_drivers(self, wanted: int, driver: str | None, kind: type[VfioctlError], said: str) -> None:
        with pytest.raises(kind, match=said) as caught:
            plan(host(driver=driver), wanted)
        assert caught.value.hint

    @pytest.mark.parametrize(("facts", "said"), [({}, "has no VFs to turn on"), ({"physfn": vf(7)}, "is a VF itself")])
    def test_of_what_has_no_vfs(self, facts: dict[str, object], said: str) -> None:
        with pytest.raises(BadSpec, match=said):
            plan(inventory_of(function(PF, "030200", **facts)), 1, total=0)

    def test_of_a_plan_without_a_count(self) -> None:
        with pytest.raises(BadSpec, match="vfs is missing"):
            asked(lambda: SetVfsIntent.model_validate({"devices": (PF,)}))

    def test_of_a_wedged_pf(self) -> None:
        mark = Mark(address=PF, kind=MarkKind.WEDGED, since="t", why="w", ticket="1:2")
        with pytest.raises(DeviceInUse, match="is wedged"):
            plan(host(mark=mark), 4)

    @pytest.mark.parametrize("wanted", [0, 4])
    def test_of_vfs_that_others_made(self, wanted: int) -> None:
        with pytest.raises(Foreign, match="vfioctl did not create the 2 VFs") as caught:
            plan(host(2), wanted, ours=False)
        assert (caught.value.exit_code, "--foreign" in caught.value.hint) == (4, True)
        assert plan(host(2), wanted, ours=False, foreign=True).steps

    @pytest.mark.parametrize("wanted", [0, 4])
    @pytest.mark.parametrize("state", [s for s in VgpuState if s is not VgpuState.DEFINED])
    def test_of_vfs_that_are_cut(self, wanted: int, state: VgpuState) -> None:
        cut = Vgpu("4e8c", Dialect.MDEV, card=PF, parent=vf(2), state=state, type="x-1", profile="A2-4C")
        with pytest.raises(DeviceInUse, match=r"has live vGPUs: A2-4C 4e8c on 0000:03:00\.2") as caught:
            plan(host(2), wanted, instances=(cut,), foreign=True)
        assert caught.value.facts == {"vgpus": ["4e8c"]}

    def test_but_not_of_vgpus_elsewhere_or_only_defined(self) -> None:
        elsewhere = Vgpu("a", Dialect.MDEV, card=PF, parent="0000:09:00.1", type="x-1")
        defined = Vgpu("b", Dialect.MDEV, card=PF, parent=vf(1), type="x-1", state=VgpuState.DEFINED)
        assert plan(host(2), 0, instances=(elsewhere, defined)).steps

    @pytest.mark.parametrize("wanted", [0, 4])
    def test_of_vfs_that_are_for_guests(self, wanted: int) -> None:
        with pytest.raises(DeviceInUse, match=r"has VFs for guests: 0000:03:00\.1 on vfio-pci, ") as caught:
            plan(host(2, vf_driver="vfio-pci"), wanted)
        assert caught.value.next_command == f"vfioctl unbind {vf(1)} {vf(2)}"

    def test_of_another_count_while_vfs_have_drivers(self) -> None:
        """They would come back without; none at all is what was asked for then."""
        inventory = host(2, vf_driver="xe")
        with pytest.raises(DeviceInUse, match="has VFs with drivers"):
            plan(inventory, 4)
        assert told(plan(inventory, 0).steps)[-1] == "sriov_numvfs 0"

    @pytest.mark.parametrize("wanted", [0, 4])
    def test_of_vfs_that_somebody_holds(self, wanted: int) -> None:
        held = Holder(address=vf(1), kind=HolderKind.PROCESS, pid=4711, name="qemu", path="/dev/vfio/2", how="open")
        with pytest.raises(DeviceInUse, match="qemu"):
            plan(host(2), wanted, holders=(held,))

    def test_but_not_of_who_holds_the_pf(self) -> None:
        held = Holder(address=PF, kind=HolderKind.PROCESS, pid=1, name="Xorg", path="/dev/dri/card0", how="open")
        assert plan(host(2), 0, holders=(held,)).steps

    def test_only_a_few_are_named(self) -> None:
        many = tuple(Vgpu(f"id{n}", Dialect.MDEV, card=PF, parent=vf(1), type="x-1") for n in range(7))
        with pytest.raises(DeviceInUse, match="and 3 more"):
            plan(host(2), 0, instances=many)


class TestNvidia:
    def test_all_or_none(self) -> None:
        made = plan(host(driver="nvidia"), 4)
        (check, manage) = made.steps
        assert (check.action, check.target, check.value) == ("unheld", PF, ""), "sriov-manage takes the GPU itself"
        assert (manage.action, manage.target, manage.value) == ("NVIDIA VFs", PF, "1")
        assert not made.changes_of("autoprobe")
        assert not REGISTRY.is_forged(made)
        off = plan(host(4, driver="nvidia", vf_driver="nvidia"), 0)
        assert [(s.target, s.value) for s in off.steps] == [(PF, ""), (PF, "0")]
        assert not REGISTRY.is_forged(off)

    @pytest.mark.parametrize("wanted", [1, 3])
    def test_not_some(self, wanted: int) -> None:
        with pytest.raises(BadSpec, match=r"turns on all 4 VFs of 0000:03:00\.0, or none"):
            plan(host(driver="nvidia"), wanted)

    @pytest.mark.parametrize(("now", "wanted"), [(0, 4), (4, 0)])
    def test_not_in_mig_mode(self, now: int, wanted: int) -> None:
        nvml = Nvml(mig_mode=True)
        with pytest.raises(DeviceInUse, match="MIG mode") as caught:
            plan(host(now, driver="nvidia", nvml=nvml), wanted)
        assert "-mig 0" in caught.value.hint

    def test_on_another_driver_it_is_as_any(self) -> None:
        assert told(plan(host(driver="nouveau"), 2).steps)[1] == "sriov_numvfs 2"

    def test_the_way_back_is_the_other_way(self) -> None:
        made = plan(host(driver="nvidia"), 4)
        for found, value in (("4", "0"), ("2", None), ("0", None)):
            steps = back(made, nvidia_vfs=found)
            assert steps[1:] == ([f"NVIDIA VFs {PF} {value}"] if value else [])

    def test_fewer_than_asked_for_are_put_back_where_the_tool_was_run(self) -> None:
        made = plan(host(driver="nvidia"), 4)
        keys = frozenset(change.key for change in made.changes)
        assert back(made, keys, nvidia_vfs="2")[1:] == [f"NVIDIA VFs {PF} 0"]

    def test_the_gpu_is_to_have_its_driver_afterwards(self) -> None:
        made = plan(host(driver="nvidia"), 4)
        (binding,) = made.changes_of("binding")
        assert (binding.subject, binding.before, binding.after) == (PF, "nvidia", "nvidia")
        resource = REGISTRY.resource(binding)
        assert resource.matches(binding, "nvidia")
        assert not resource.matches(binding, "no driver"), "sriov-manage had taken it away"
        assert back(made, binding="no driver", nvidia_vfs="0") == [
            f"override {PF}/driver_override nvidia".replace(f"{PF}/", ""),
            f"/sys/bus/pci/drivers_probe {PF}",
            "override driver_override",
        ]
        other = binding.model_copy(update={"after": "vfio-pci"})
        forged = [other if change == binding else change for change in made.changes]
        assert not made.intent.permits(made.model_copy(update={"changes": tuple(forged)}))


class TestKeeping:
    def test_the_count_is_kept_after_the_vfs_are_there(self) -> None:
        made = plan(host(), 4, persistent=True)
        assert (made.steps[-1].action, made.steps[-1].target) == ("file", FILE)
        assert json.loads(made.steps[-1].value) == {
            "version": 1,
            "device": PF,
            "card": PF,
            "identity": "10de:2330:10de:16c1:030200",
            "vfs": 4,
            "parameters": {},
        }
        assert not REGISTRY.is_forged(made)

    @pytest.mark.parametrize(("driver", "is_said"), [("xe", True), ("nvidia", False)])
    def test_vfs_without_a_driver_are_told_of(self, driver: str, is_said: bool) -> None:
        """sriov-manage binds those of nvidia."""
        notes = plan(host(driver=driver), 4).notes
        assert any("binds no drivers to the VFs" in note for note in notes) is is_said
        assert any("sriov-manage takes the GPU from its driver" in note for note in notes) is not is_said
        assert not any("binds no drivers" in note for note in plan(host(4, driver=driver), 4, ours=False).notes)

    def test_vfs_that_are_there_may_be_kept_too(self) -> None:
        made = plan(host(4), 4, persistent=True, ours=False)
        assert [step.action for step in made.steps] == ["file"]

    def test_off_forgets_before_the_vfs_go(self) -> None:
        made = plan(host(2), 0, kept=vfs_text(PF, 2))
        assert [step.action for step in made.steps] == ["unheld VFs", "file", "write"]
        assert made.steps[1].value == ""

    def test_off_forgets_also_where_there_are_none(self) -> None:
        assert [(s.action, s.value) for s in plan(host(), 0, kept=vfs_text(PF, 2)).steps] == [("file", "")]

    def test_another_count_that_is_not_kept_says_what_boot_makes(self) -> None:
        made = plan(host(2), 4, kept=vfs_text(PF, 2))
        assert any("--persistent renews it" in note for note in made.notes)
        renewed = plan(host(2), 4, kept=vfs_text(PF, 2), persistent=True)
        assert not any("--persistent" in note for note in renewed.notes)


class TestProfiles:
    VALUES = (
        Profile("pf", {"sched_priority": "low [normal] high\n"}),
        Profile("vf1", {"exec_quantum_ms": "20\n", "sched_priority": "low [normal]"}),
    )

    def plan(self, *parameters: tuple[str, str], profiles: tuple[Profile, ...] = VALUES) -> Plan:
        card = VgpuCard(PF, Dialect.XE, profiles=profiles)
        intent = ProfileIntent(devices=(PF,), parameters=parameters)
        return REGISTRY.plan(plan_profile(host(2), card, intent))

    def test_are_written_where_they_are(self) -> None:
        made = self.plan(("vf1/exec_quantum_ms", "10"), ("pf/sched_priority", "high"))
        assert told(made.steps) == [
            "sriov_admin/vf1/profile/exec_quantum_ms 10",
            "sriov_admin/pf/profile/sched_priority high",
        ]
        assert [change.before for change in made.changes] == ["20", "normal"], "of several words the chosen one"
        assert not REGISTRY.is_forged(made)

    def test_that_are_so_already_take_nothing(self) -> None:
        assert self.plan(("vf1/exec_quantum_ms", "20"), ("vf1/sched_priority", "normal")).nothing_to_do

    @pytest.mark.parametrize("name", ["vf2/exec_quantum_ms", "vf1/vram_quota", "vf1", "", "../x", "vf1/../../x"])
    def test_that_it_has_not_are_refused(self, name: str) -> None:
        with pytest.raises(BadSpec, match="has no profile value") as caught:
            self.plan((name, "1"))
        assert "pf/sched_priority" in caught.value.hint

    def test_that_it_has_not_are_refused_with_eight_that_it_has(self) -> None:
        known = {f"vf{number}/exec_quantum_ms": "1" for number in range(10, 20)}
        with pytest.raises(BadSpec) as caught:
            _profile(VgpuCard("card", Dialect.XE), "x", "1", known)
        assert caught.value.hint == f"it has {some_of(sorted(known), most=8)}"
        assert caught.value.hint.count("vf1") == 8

    @pytest.mark.parametrize("value", ["\u0661", "1;2", "x" * 65, "A", "\n"])
    def test_of_odd_text_are_refused(self, value: str) -> None:
        with pytest.raises(BadSpec, match="not a profile value"):
            self.plan(("vf1/exec_quantum_ms", value))

    def test_twice_are_refused(self) -> None:
        with pytest.raises(BadSpec, match="twice"):
            self.plan(("vf1/exec_quantum_ms", "1"), ("vf1/exec_quantum_ms", "2"))

    def test_only_xe_cards_have_them(self) -> None:
        with pytest.raises(BadSpec) as caught:
            self.plan(("vf1/exec_quantum_ms", "1"), profiles=())
        assert caught.value.hint == "only xe cards have profiles"
