"""Plans that make and remove vGPUs, of made-up cards: what they take, in which order, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from tests.hosts.machines import REGISTRY
from vfioctl.binding.model.intents import BindIntent
from vfioctl.core.change import Change, Draft, Fact, Key, Phase, Plan, Step
from vfioctl.core.resource import Found
from vfioctl.errors import BadSpec, ConflictError, DeviceInUse, Foreign, UnknownDevice
from vfioctl.inventory.model.holders import Holder, HolderKind, Holders
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.units import Uuid
from vfioctl.vgpu.model.intents import CreateVgpuIntent, RemoveVgpuIntent, asked
from vfioctl.vgpu.model.kinds import MDEV as MDEV_KIND
from vfioctl.vgpu.model.kinds import PARAMETER, ZOMBIE, creates
from vfioctl.vgpu.model.persistent import definition_text, vgpu_text
from vfioctl.vgpu.model.vgpu import (
    FOREIGN,
    OURS,
    Created,
    Definition,
    Dialect,
    Vgpu,
    VgpuCard,
    VgpuParent,
    Vgpus,
    VgpuState,
    VgpuType,
)
from vfioctl.vgpu.placement.placement import Place, Placement
from vfioctl.vgpu.plan.create import choose, plan_create
from vfioctl.vgpu.plan.remove import plan_remove
from vfioctl.vgpu.resources.files import Parameter

ONE, TWO = Uuid("4e8c5df7-c4fa-4719-904f-5579cd5ac35f"), Uuid("5e8c5df7-c4fa-4719-904f-5579cd5ac35f")
PF, VF, NEXT = (PciAddress(f"0000:41:00.{n}") for n in (0, 4, 5))
KIND = VgpuType("nvidia-754", name="NVIDIA A2-4C", profile="A2-4C")
NUMBERED = VgpuType("1155", name="NVIDIA L40S-4Q", profile="L40S-4Q")
PLAIN = VgpuType("mbochs-small", name="mbochs small")
MDEV = VgpuCard(PF, Dialect.MDEV, types=(KIND,), parents=(VgpuParent(VF, {KIND.id: 1}), VgpuParent(NEXT, {KIND.id: 1})))
VENDOR = VgpuCard(
    PF, Dialect.VENDOR, types=(NUMBERED,), parents=(VgpuParent(VF, {"1155": 1}), VgpuParent(NEXT, {"1155": 1}))
)
MBOCHS = VgpuCard("mbochs", Dialect.MDEV, types=(PLAIN,), parents=(VgpuParent("mbochs", {PLAIN.id: 25}),))
DEFINITION = f"/etc/mdevctl.d/{VF}/{ONE}"
OWN_FILE = f"/etc/vfioctl/vgpu.d/{VF}.json"
MDEVS = "/sys/bus/mdev/devices"
NOTHING: Mapping[str, Created] = {}


def fact(address: PciAddress) -> Fact:
    values: dict[str, str | int | None] = {
        "identity": "10de:25b6:10de:157e:030200",
        "iommu_group": 3,
        "driver": "nvidia",
        "driver_override": None,
    }
    return Fact(kind="function", subject=address, values=values)


FACTS: Mapping[str, Fact] = {address: fact(address) for address in (PF, VF, NEXT)}


def create(
    card: VgpuCard = MDEV,
    *there: Vgpu,
    uuids: tuple[Uuid, ...] = (ONE,),
    texts: Mapping[str, str] | None = None,
    **wish: object,
) -> Plan:
    """One or more vGPUs of the card's only type, on its first places."""
    found = Vgpus((card,), there)
    kind = card.types[0].id
    is_mdev = card.dialect is Dialect.MDEV
    intent = CreateVgpuIntent.model_validate({"type": kind, "uuids": uuids if is_mdev else (), **wish})
    names: list[str] = [parent.name for parent in card.parents] * intent.count
    places = tuple(Place(card.id, name, kind) for name in names[: intent.count])
    subjects = [*uuids] if is_mdev else [PciAddress(place.parent) for place in places]
    chosen = Placement(places, ("because",), certain=True)
    return REGISTRY.plan(plan_create(found, intent, chosen, subjects, FACTS, texts or {}))


def written(plan: Plan) -> list[tuple[str, str]]:
    return [(step.target, step.value) for step in plan.steps if step.action == "write"]


def effects(steps_of: Iterable[Step]) -> list[str]:
    return [f"{step.action} {step.target} {step.value}".strip() for step in steps_of]


def mdev(uuid: Uuid = ONE, **more: object) -> Vgpu:
    known = Vgpu(uuid, Dialect.MDEV, card=PF, parent=VF, type=KIND.id, profile="A2-4C", owner=OURS)
    return replace(known, **more)  # type: ignore[arg-type] # each test names its own


def of_vendor(**more: object) -> Vgpu:
    known = Vgpu(VF, Dialect.VENDOR, card=PF, parent=VF, type="1155", profile="L40S-4Q", owner=OURS)
    return replace(known, **more)  # type: ignore[arg-type] # each test names its own


def recorded(*names: str, persistent: bool = False) -> dict[str, Created]:
    return {name: Created(name, PF, f"{VF}/{KIND.id}", "t", persistent) for name in names}


def remove(  # noqa: PLR0913 - one parameter for each option
    *there: Vgpu,
    names: tuple[Subject, ...] | None = None,
    texts: Mapping[str, str] | None = None,
    known: Mapping[str, Created] = NOTHING,
    holders: tuple[Holder, ...] = (),
    unread: int = 0,
    foreign: bool = False,
    force: bool = False,
    definition: bool = False,
) -> Plan:
    """Those vGPUs, all that are named."""
    going = names or tuple(Uuid(v.id) if "-" in v.id else PciAddress(v.id) for v in there)
    intent = RemoveVgpuIntent(vgpus=going, foreign=foreign, definition=definition, force_holders=force)
    found = Holders(devices=(), holders=holders, unread=unread)
    return REGISTRY.plan(plan_remove(Vgpus((MDEV,), there), intent, FACTS, texts or {}, known, found))


def guest(subject: Subject = ONE, kind: HolderKind = HolderKind.GUEST) -> Holder:
    return Holder(address=subject, kind=kind, pid=4711, name="qemu", path="/dev/vfio/20", how="open")


class TestMaking:
    def test_an_mdev_is_its_uuid_written_once(self) -> None:
        plan = create()
        assert written(plan) == [(f"/sys/class/mdev_bus/{VF}/mdev_supported_types/nvidia-754/create", ONE)]
        (change,) = plan.changes
        assert (change.kind, change.before, change.after) == ("mdev", "", f"{VF}/nvidia-754")
        assert creates(change)
        assert [(f.kind, f.subject) for f in plan.facts] == [("function", PF), ("function", VF)]
        assert ([(c.kind, c.subjects) for c in plan.checks], plan.subjects) == ([("vGPUs", (PF,))], (ONE,))
        assert not REGISTRY.is_forged(plan)

    def test_one_on_a_device_of_no_bus_has_no_facts(self) -> None:
        plan = create(MBOCHS)
        assert written(plan) == [("/sys/class/mdev_bus/mbochs/mdev_supported_types/mbochs-small/create", ONE)]
        assert plan.facts == ()
        assert not REGISTRY.is_forged(plan)

    def test_a_vf_gets_its_type_by_number(self) -> None:
        plan = create(VENDOR, count=2)
        home = "/sys/bus/pci/devices/{}/nvidia/current_vgpu_type"
        assert written(plan) == [(home.format(VF), "1155"), (home.format(NEXT), "1155")]
        assert plan.subjects == (VF, NEXT)
        assert not REGISTRY.is_forged(plan)

    def test_several_are_made_before_any_is_set(self) -> None:
        plan = create(MDEV, uuids=(ONE, TWO), count=2, parameters=(("frame_rate_limiter", "0"),), persistent=True)
        assert [step.target.rpartition("/")[2] for step in plan.steps] == [
            "create",
            "create",
            "vgpu_params",
            "vgpu_params",
            ONE,
            TWO,
        ]
        assert [step.action for step in plan.steps[-2:]] == ["file", "file"], "last: it is there by then"

    @pytest.mark.parametrize("state", [state for state in VgpuState if state is not VgpuState.DEFINED])
    def test_a_uuid_that_is_taken_is_refused_wherever_it_is(self, state: VgpuState) -> None:
        with pytest.raises(DeviceInUse, match=f"there is a vGPU {ONE} already, on {NEXT}"):
            create(MDEV, mdev(parent=NEXT, state=state, owner=FOREIGN))

    def test_one_that_is_defined_alike_is_started(self) -> None:
        assert written(create(MDEV, mdev(state=VgpuState.DEFINED, owner=FOREIGN)))

    @pytest.mark.parametrize("other", [{"parent": NEXT}, {"type": "nvidia-755"}])
    def test_one_that_is_defined_otherwise_is_refused(self, other: dict[str, object]) -> None:
        with pytest.raises(DeviceInUse, match="is defined already, as"):
            create(MDEV, replace(mdev(state=VgpuState.DEFINED), **other))  # type: ignore[arg-type] # drawn

    def test_without_a_type_there_is_nothing_to_plan(self) -> None:
        with pytest.raises(BadSpec, match="type is missing"):
            asked(lambda: CreateVgpuIntent.model_validate({}))

    def test_names_of_types_travel_in_the_plan_where_the_kernel_stops_listing_them(self) -> None:
        plan = create(VENDOR)
        (names,) = plan.facts_of("vGPU types")
        assert (names.subject, names.values) == (PF, {"1155": "NVIDIA L40S-4Q"})
        assert not create().facts_of("vGPU types"), "mdev lists them all"


class TestNames:
    def test_mdevs_are_called_by_the_uuids_in_their_order(self) -> None:
        found = Vgpus((replace(MDEV, types=(replace(KIND, available=KIND.available),)),))
        intent = CreateVgpuIntent(type="A2-4C", count=2, uuids=(ONE, TWO))
        chosen, names = choose(found, intent)
        assert names == (ONE, TWO)
        assert [place.card for place in chosen.places] == [PF, PF]

    def test_too_few_uuids_are_refused(self) -> None:
        intent = CreateVgpuIntent(type="A2-4C", count=2, uuids=(ONE,))
        with pytest.raises(BadSpec, match="2 vGPUs need as many UUIDs, and there are 1"):
            choose(Vgpus((MDEV,)), intent)

    def test_vfs_are_called_by_their_addresses(self) -> None:
        intent = CreateVgpuIntent(type="L40S-4Q", count=1)
        chosen, (name,) = choose(Vgpus((VENDOR,)), intent)
        assert name == chosen.places[0].parent
        assert isinstance(name, PciAddress)


class TestParameters:
    def test_of_nvidia_are_one_list(self) -> None:
        plan = create(parameters=(("frame_rate_limiter", "0"), ("enable_profiling", "1")))
        assert written(plan)[1] == (f"{MDEVS}/{ONE}/nvidia/vgpu_params", "frame_rate_limiter=0, enable_profiling=1")
        assert any("before any guest" in note for note in plan.notes)

    def test_of_a_vf_are_below_it(self) -> None:
        plan = create(VENDOR, parameters=(("placement_id", "8"), ("enable_debugging", "1")))
        home = f"/sys/bus/pci/devices/{VF}/nvidia"
        assert written(plan)[1:] == [(f"{home}/placement_id", "8"), (f"{home}/vgpu_params", "enable_debugging=1")]

    def test_a_placement_is_for_one(self) -> None:
        with pytest.raises(BadSpec, match="for one vGPU"):
            create(uuids=(ONE, TWO), count=2, parameters=(("placement_id", "8"),))

    def test_of_other_drivers_are_named_as_files(self) -> None:
        with pytest.raises(BadSpec, match="is no parameter of a vGPU of mbochs"):
            create(MBOCHS, parameters=(("resolution", "640x480"),))
        plan = create(MBOCHS, parameters=(("vendor/resolution", "640x480"),))
        assert written(plan)[1] == (f"{MDEVS}/{ONE}/vendor/resolution", "640x480")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("../../x", "1"),
            ("driver/unbind", ONE),
            ("mdev_type/create", TWO),
            ("power/control", "on"),
            ("a/b/c", "1"),
            ("/etc/passwd", "x"),
            ("frl", "\u00e9"),
            ("frl", "0\n1"),
            ("frl", "x" * 1000),
            ("\x1b/x", "1"),
            ("subsystem/x", "1"),
        ],
    )
    def test_that_lead_elsewhere_are_refused(self, name: str, value: str) -> None:
        with pytest.raises(BadSpec, match="not a parameter of a vGPU") as caught:
            create(parameters=((name, value),))
        assert caught.value.hint
        assert len(caught.value.message) < 120

    @pytest.mark.parametrize(("name", "value"), [("a b", "1"), ("frl", "0,x=1"), ("", "1"), ("x" * 65, "1")])
    def test_that_would_be_several_in_the_list_are_refused(self, name: str, value: str) -> None:
        with pytest.raises(BadSpec, match=r"^not a parameter: "):
            create(parameters=((name, value),))

    @pytest.mark.parametrize(
        "names",
        [
            ("frl", "frl"),
            ("nvidia/vgpu_params", "frl"),
            ("nvidia/vgpu_params", "vgpu_params"),
            ("nvidia/a", "a"),
        ],
    )
    def test_are_given_once(self, names: tuple[str, ...]) -> None:
        with pytest.raises(BadSpec, match="a parameter is given twice"):
            create(VENDOR, parameters=tuple((name, "1") for name in names))

    def test_the_whole_list_and_a_placement_go_together(self) -> None:
        plan = create(VENDOR, parameters=(("nvidia/vgpu_params", "a=1"), ("placement_id", "8")))
        assert {value for _, value in written(plan)[1:]} == {"a=1", "8"}

    def test_of_a_vf_cannot_be_its_type(self) -> None:
        with pytest.raises(BadSpec, match="not a parameter"):
            create(VENDOR, parameters=(("nvidia/current_vgpu_type", "1"),))


class TestKeeping:
    """The texts were made by `mdevctl define` 1.2.0."""

    def test_a_definition_is_mdevctls_to_the_byte(self) -> None:
        plan = create(persistent=True)
        step = plan.steps[-1]
        assert (step.action, step.target) == ("file", DEFINITION)
        assert step.value == '{\n  "mdev_type": "nvidia-754",\n  "start": "auto",\n  "attrs": []\n}'

    def test_with_attributes_too(self) -> None:
        plan = create(persistent=True, parameters=(("frame_rate_limiter", "0"),))
        assert plan.steps[-1].value == (
            '{\n  "mdev_type": "nvidia-754",\n  "start": "auto",\n  "attrs": [\n    {\n'
            '      "nvidia/vgpu_params": "frame_rate_limiter=0"\n    }\n  ]\n}'
        )

    def test_a_vf_has_a_file_of_vfioctls_own(self) -> None:
        plan = create(VENDOR, persistent=True, parameters=(("placement_id", "8"),))
        assert plan.steps[-1].target == OWN_FILE
        assert json.loads(plan.steps[-1].value) == {
            "version": 1,
            "device": VF,
            "card": PF,
            "identity": "10de:25b6:10de:157e:030200",
            "type": "1155",
            "name": "NVIDIA L40S-4Q",
            "parameters": {"nvidia/placement_id": "8"},
        }

    def test_a_definition_that_says_the_same_is_left(self) -> None:
        text = definition_text(KIND.id, {})
        plan = create(persistent=True, texts={DEFINITION: text})
        assert not [step for step in plan.steps if step.action == "file"]
        assert plan.changes[-1].before == plan.changes[-1].after == text

    def test_one_that_says_otherwise_is_not_replaced(self) -> None:
        with pytest.raises(DeviceInUse, match="says something else already"):
            create(persistent=True, texts={DEFINITION: definition_text("nvidia-755", {})})

    def test_a_file_of_its_own_about_a_free_vf_is(self) -> None:
        """As after an update of the driver, which may number its types anew."""
        before = vgpu_text(PF, VF, VgpuType("42", name="NVIDIA L40S-4Q"), {})
        plan = create(VENDOR, persistent=True, texts={OWN_FILE: before})
        assert plan.changes[-1].before == before
        assert json.loads(plan.changes[-1].after)["type"] == "1155"


class TestRemoving:
    def test_an_mdev_is_asked_for_and_then_told_to_go(self) -> None:
        plan = remove(mdev())
        assert effects(plan.steps) == [f"unheld {ONE}", f"write {MDEVS}/{ONE}/remove 1"]
        assert not REGISTRY.is_forged(plan)

    def test_a_vf_is_set_to_no_type(self) -> None:
        plan = remove(of_vendor())
        assert effects(plan.steps) == [f"unheld {VF}", f"write /sys/bus/pci/devices/{VF}/nvidia/current_vgpu_type 0"]
        assert not REGISTRY.is_forged(plan)

    def test_several_are_checked_together_and_first(self) -> None:
        plan = remove(mdev(), mdev(TWO, parent=NEXT))
        assert plan.steps[0].target == f"{ONE} {TWO}"
        assert len(plan.steps) == 3

    @pytest.mark.parametrize("vgpu_", [mdev(owner=FOREIGN), of_vendor(owner=FOREIGN)])
    def test_what_others_made_is_left_alone_unless_told(self, vgpu_: Vgpu) -> None:
        with pytest.raises(Foreign, match=f"vfioctl did not create {vgpu_.id}") as caught:
            remove(vgpu_)
        assert isinstance(caught.value, ConflictError)
        assert caught.value.exit_code == 4
        assert "--foreign" in caught.value.hint
        assert caught.value.facts == {"foreign": [vgpu_.id]}
        assert len(remove(vgpu_, foreign=True).steps) == 2

    def test_one_of_others_among_ones_own_refuses_all(self) -> None:
        with pytest.raises(Foreign, match=TWO) as caught:
            remove(mdev(), mdev(TWO, owner=FOREIGN))
        assert ONE not in caught.value.message

    @pytest.mark.parametrize("owner", [OURS, FOREIGN])
    @pytest.mark.parametrize("force", [True, False])
    def test_a_zombie_cannot_be_helped(self, owner: str, force: bool) -> None:
        with pytest.raises(DeviceInUse, match="was removed while it was open"):
            remove(mdev(state=VgpuState.ZOMBIE, owner=owner), force=force)

    @pytest.mark.parametrize("dialect", [Dialect.SRIOV, Dialect.XE])
    @pytest.mark.parametrize("owner", [OURS, FOREIGN])
    def test_a_vf_does_not_go_by_itself(self, dialect: Dialect, owner: str) -> None:
        with pytest.raises(BadSpec, match="VFs are removed together") as caught:
            remove(of_vendor(dialect=dialect, type="vf", owner=owner))
        assert caught.value.hint == "turn off all VFs of the card"
        assert caught.value.next_command == f"vfioctl sriov off {PF}{' --foreign' if owner == FOREIGN else ''}"

    def test_an_orphan_can_go(self) -> None:
        assert len(remove(mdev(state=VgpuState.ORPHAN)).steps) == 2

    def test_what_is_not_there_is_unknown(self) -> None:
        with pytest.raises(UnknownDevice, match="there is no vGPU"):
            remove(mdev(), names=(TWO,))

    def test_what_it_was_set_to_comes_back_with_it(self) -> None:
        plan = remove(mdev(attributes={"vgpu_params": "frame_rate_limiter=0\n"}))
        assert [(c.kind, c.before, c.after) for c in plan.changes] == [
            ("mdev", f"{VF}/{KIND.id}", ""),
            ("parameter", "frame_rate_limiter=0", ""),
        ]
        assert len(plan.steps) == 2, "it goes with the vGPU: nothing is written to it"


class TestHolders:
    @pytest.mark.parametrize("kind", [HolderKind.GUEST, HolderKind.PROCESS, HolderKind.VFIO_GROUP])
    def test_refuse_unless_forced(self, kind: HolderKind) -> None:
        with pytest.raises(DeviceInUse, match="qemu") as caught:
            remove(mdev(), holders=(guest(kind=kind),))
        assert caught.value.next_command == f"vfioctl holders {ONE}" or ONE in caught.value.message
        plan = remove(mdev(), holders=(guest(kind=kind),), force=True)
        assert any("it may stay a zombie" in note for note in plan.notes)

    def test_of_another_vgpu_do_not(self) -> None:
        assert remove(mdev(), mdev(TWO), names=(ONE,), holders=(guest(TWO),)).steps

    def test_that_a_vf_is_a_vgpu_is_no_holder_of_it(self) -> None:
        assert remove(of_vendor(), holders=(guest(VF, HolderKind.VGPU),)).steps

    def test_that_could_not_be_read_are_told(self) -> None:
        assert any("could not be read" in note for note in remove(mdev(), unread=3).notes)


class TestForgetting:
    TEXT = definition_text(KIND.id, {})
    DEFINED = Definition(DEFINITION, KIND.id, "auto")

    def test_what_was_kept_goes_before_the_vgpu(self) -> None:
        plan = remove(
            mdev(definition=self.DEFINED), known=recorded(ONE, persistent=True), texts={DEFINITION: self.TEXT}
        )
        assert effects(plan.steps) == [
            f"unheld {ONE}",
            f"file {DEFINITION}",
            f"write {MDEVS}/{ONE}/remove 1",
        ]
        assert plan.notes == ()

    def test_a_definition_of_others_stays_and_is_told(self) -> None:
        plan = remove(mdev(definition=self.DEFINED), known=recorded(ONE), texts={DEFINITION: self.TEXT})
        assert not [step for step in plan.steps if step.action == "file"]
        assert any(f"stays defined in {DEFINITION}: mdevctl creates it again at boot" in note for note in plan.notes)
        by_hand = Definition(DEFINITION, KIND.id, "manual")
        plan = remove(mdev(definition=by_hand), known=recorded(ONE), texts={DEFINITION: self.TEXT})
        assert any("mdevctl can start it again; --definition removes that too" in note for note in plan.notes)

    def test_a_definition_of_others_goes_where_that_is_asked_for(self) -> None:
        defined = mdev(definition=self.DEFINED)
        with pytest.raises(Foreign, match=f"did not write {DEFINITION}"):
            remove(defined, known=recorded(ONE), texts={DEFINITION: self.TEXT}, definition=True)
        plan = remove(defined, known=recorded(ONE), texts={DEFINITION: self.TEXT}, definition=True, foreign=True)
        assert effects(plan.steps)[1] == f"file {DEFINITION}"
        assert plan.notes == ()
        assert not REGISTRY.is_forged(plan)

    def test_what_is_only_defined_is_forgotten(self) -> None:
        defined = mdev(state=VgpuState.DEFINED, definition=self.DEFINED, owner=FOREIGN)
        with pytest.raises(Foreign):
            remove(defined, texts={DEFINITION: self.TEXT})
        plan = remove(defined, texts={DEFINITION: self.TEXT}, foreign=True)
        assert effects(plan.steps) == [f"file {DEFINITION}"]
        assert not REGISTRY.is_forged(plan)

    @pytest.mark.parametrize("text", ['{\n\t"mdev_type": "x",\r\n}', "\x00", "{\u00e9}", "x" * 65_537])
    def test_a_text_that_could_not_be_put_back_is_left(self, text: str) -> None:
        defined = mdev(state=VgpuState.DEFINED, definition=self.DEFINED)
        with pytest.raises(BadSpec, match="is not plain text") as caught:
            remove(defined, texts={DEFINITION: text})
        assert caught.value.hint == f"mdevctl undefine --uuid {ONE}"

    def test_a_text_by_another_hand_is_taken_as_it_is(self) -> None:
        text = '{"mdev_type":\t"nvidia-754"\n}'
        plan = remove(mdev(state=VgpuState.DEFINED, definition=self.DEFINED), texts={DEFINITION: text})
        assert plan.changes[0].before == text

    def test_of_two_of_one_name_the_live_one_goes(self) -> None:
        both = (mdev(state=VgpuState.DEFINED, parent=NEXT, definition=self.DEFINED, owner=FOREIGN), mdev())
        assert effects(remove(*both, names=(ONE,)).steps)[-1] == f"write {MDEVS}/{ONE}/remove 1"

    def test_of_a_vf_its_own_file_goes_too(self) -> None:
        plan = remove(of_vendor(), known=recorded(VF, persistent=True), texts={OWN_FILE: "{}"})
        assert effects(plan.steps)[1] == f"file {OWN_FILE}"


class TestRollback:
    """Planned from whatever is found, with the changes as they were recorded."""

    def found(self, plan: Plan, **found: str | None) -> Found:
        """As after all of it, but for the kinds named; nothing is there of `gone`."""
        values = {c.key: found.get(c.kind, c.after) for c in plan.changes}
        return Found(values, frozenset(), {c.key: c for c in plan.changes})

    def back(self, plan: Plan, **found: str | None) -> list[str]:
        return self.restored(plan, self.found(plan, **found))

    def restored(self, plan: Plan, found: Found) -> list[str]:
        mine = [change for change in plan.changes if change.key in found.changes]
        changes = [c for each in mine if (c := REGISTRY.resource(each).restore(each, found))]
        return effects(owned.step for owned in REGISTRY.steps(changes))

    def test_of_a_vgpu_with_all_that_belongs_to_it(self) -> None:
        plan = create(parameters=(("frame_rate_limiter", "0"),), persistent=True)
        assert self.back(plan) == [f"unheld {ONE}", f"file {DEFINITION}", f"write {MDEVS}/{ONE}/remove 1"]

    def test_of_one_that_never_came_is_nothing(self) -> None:
        plan = create(parameters=(("frame_rate_limiter", "0"),), persistent=True)
        assert self.back(plan, mdev="", parameter=None, definition="") == []

    def test_of_one_that_is_somebody_elses_by_now_is_nothing(self) -> None:
        assert self.back(create(), mdev=f"{NEXT}/{KIND.id}") == []
        plan = create(parameters=(("frame_rate_limiter", "0"),))
        assert self.back(plan, mdev=f"{NEXT}/{KIND.id}") == [], "nor are its parameters"

    def test_of_a_zombie_nothing_can_be_done(self) -> None:
        assert self.back(create(), mdev=ZOMBIE) == []

    def removal(self) -> tuple[Plan, str]:
        text = definition_text(KIND.id, {})
        vgpu_ = mdev(attributes={"vgpu_params": "frame_rate_limiter=0"})
        return remove(vgpu_, known=recorded(ONE, persistent=True), texts={DEFINITION: text}), text

    def test_of_a_removal_creates_it_again_and_then_sets_it(self) -> None:
        plan, text = self.removal()
        for parameter in (None, ""):
            assert self.back(plan, parameter=parameter) == [
                f"write /sys/class/mdev_bus/{VF}/mdev_supported_types/{KIND.id}/create {ONE}",
                f"write {MDEVS}/{ONE}/nvidia/vgpu_params frame_rate_limiter=0",
                f"file {DEFINITION} {text}",
            ]

    def test_of_a_removal_sets_one_that_is_back_already(self) -> None:
        """A recovery was interrupted."""
        plan, text = self.removal()
        back = f"{VF}/{KIND.id}"
        written_again = f"write {MDEVS}/{ONE}/nvidia/vgpu_params frame_rate_limiter=0"
        assert self.back(plan, mdev=back, parameter="", definition=text) == [written_again]
        assert self.back(plan, mdev=back, parameter="x=1", definition=text) == [], "others have set it since"

    def test_of_a_removal_that_was_not_begun_sets_nothing(self) -> None:
        """Whatever has its name by then is somebody else's."""
        plan, text = self.removal()
        found = self.found(plan, parameter="", definition=text)
        mine = {key: change for key, change in found.changes.items() if change.kind != "mdev"}
        values = {key: found.values[key] for key in mine}
        assert self.restored(plan, Found(values, frozenset(), mine)) == []

    def test_of_a_vf_is_its_type(self) -> None:
        home = f"/sys/bus/pci/devices/{VF}/nvidia/current_vgpu_type"
        assert self.back(create(VENDOR)) == [f"unheld {VF}", f"write {home} 0"]
        assert self.back(remove(of_vendor())) == [f"write {home} 1155"]

    def test_forward_creates_only_what_is_not_there(self) -> None:
        plan = create(uuids=(ONE, TWO), count=2, parameters=(("frame_rate_limiter", "0"),))
        values: dict[Key, str | None] = {c.key: c.after for c in plan.changes}
        values |= {("mdev", TWO): "", ("parameter", f"{MDEVS}/{TWO}/nvidia/vgpu_params"): None}
        found = Found(values, frozenset(), {c.key: c for c in plan.changes})
        changes = [c for each in plan.changes if (c := REGISTRY.resource(each).finish(each, found))]
        assert effects(owned.step for owned in REGISTRY.steps(changes)) == [
            f"write /sys/class/mdev_bus/{NEXT}/mdev_supported_types/{KIND.id}/create {TWO}",
            f"write {MDEVS}/{TWO}/nvidia/vgpu_params frame_rate_limiter=0",
        ]


class TestSteps:
    def test_nothing_written_means_a_space(self) -> None:
        """The kernel calls no attribute for an empty write."""
        name = f"{MDEVS}/{ONE}/nvidia/vgpu_params"
        clearing = Change(kind=PARAMETER, name=name, subject=ONE, before="x=1", after="")
        assert Parameter().write(clearing, "").value == " "

    def test_a_parameter_goes_with_its_vgpu(self) -> None:
        name = f"{MDEVS}/{ONE}/nvidia/vgpu_params"
        going = Change(kind=PARAMETER, name=name, subject=ONE, before="x=1", after="")
        assert REGISTRY.steps([going]) == ()

    def test_a_zombie_is_not_removed_again(self) -> None:
        gone = Change(kind=MDEV_KIND, name=ONE, subject=ONE, before=ZOMBIE, after="")
        assert REGISTRY.steps([gone]) == ()

    def test_they_are_in_the_one_order_that_is_safe(self) -> None:
        phases = [step.phase for step in create(persistent=True, parameters=(("x", "1"),)).steps]
        assert phases == [Phase.CREATE, Phase.SET, Phase.PERSIST]
        text = definition_text(KIND.id, {})
        known = recorded(ONE, persistent=True)
        defined = Definition(DEFINITION, KIND.id, "auto")
        phases = [step.phase for step in remove(mdev(definition=defined), known=known, texts={DEFINITION: text}).steps]
        assert phases == [Phase.CHECK, Phase.FORGET, Phase.REMOVE]


class TestForgedPlans:
    """Whoever wrote a plan: it does what its changes take, and of the kind that was asked for."""

    def forged(self, plan: Plan, **parts: object) -> bool:
        """With steps as its changes take them, unless they are among the parts."""
        steps = parts.pop("steps", None)
        known = {name: getattr(plan, name) for name in ("intent", "facts", "changes", "checks", "notes")}
        draft = Draft(**(known | parts))
        made = (owned.step for owned in REGISTRY.steps(draft.changes)) if steps is None else steps
        return REGISTRY.is_forged(Plan.of(draft, made))  # type: ignore[arg-type] # by name

    def test_what_was_planned_follows(self) -> None:
        assert not self.forged(create())
        assert not self.forged(create(VENDOR, count=2, persistent=True, parameters=(("x", "1"),)))
        assert not self.forged(remove(mdev()))

    @pytest.mark.parametrize(
        "extra",
        [
            Change(kind="service", name="sshd.service", subject=PF, before="active", after="inactive"),
            Change(
                kind="power", name=f"/sys/bus/pci/devices/{PF}/power/control", subject=PF, before="auto", after="on"
            ),
            Change(kind="lock", name=f"/proc/driver/nvidia/gpus/{PF}/unbindLock", subject=PF, before="0", after="1"),
            Change(kind="binding", name=PF, subject=PF, before="nvidia", after="vfio-pci, override vfio-pci"),
            Change(kind="VFs", name=f"/sys/bus/pci/devices/{PF}/sriov_numvfs", subject=PF, before="4", after="0"),
        ],
        ids=lambda change: change.kind,
    )
    def test_one_about_vgpus_sets_nothing_else(self, extra: Change) -> None:
        plan = create()
        assert self.forged(plan, changes=(*plan.changes, extra))

    def test_one_about_drivers_makes_no_vgpu(self) -> None:
        intent = BindIntent(devices=(PF,))
        assert self.forged(create(), intent=intent)
        assert self.forged(remove(mdev()), intent=intent)

    def test_one_that_creates_removes_nothing_and_the_other_way_round(self) -> None:
        going = remove(mdev()).changes
        assert self.forged(create(uuids=(TWO,)), changes=(*create(uuids=(TWO,)).changes, *going))
        assert self.forged(remove(mdev()), changes=create().changes)

    def test_only_what_is_named_is_removed_and_created(self) -> None:
        assert self.forged(remove(mdev()), changes=remove(mdev(TWO)).changes)
        assert self.forged(create(), changes=create(uuids=(TWO,)).changes)

    def test_parameters_and_definitions_are_of_what_is_created(self) -> None:
        other = create(uuids=(TWO,), parameters=(("x", "1"),), persistent=True).changes
        for change in other[1:]:
            assert self.forged(create(), changes=(*create().changes, change))

    def test_one_about_vgpus_loads_nothing(self) -> None:
        plan = create()
        load = Step(phase=Phase.LOAD, action="load", target="evil", why="")
        assert self.forged(plan, steps=(load, *plan.steps))

    @pytest.mark.parametrize("change", ["target", "value", "action", "fewer", "more"])
    def test_steps_are_those_of_the_changes(self, change: str) -> None:
        plan = create(persistent=True)
        first, *rest = plan.steps
        spoilt: dict[str, tuple[Step, ...]] = {
            "target": (first.model_copy(update={"target": "/sys/bus/pci/rescan"}), *rest),
            "value": (first.model_copy(update={"value": TWO}), *rest),
            "action": (first.model_copy(update={"action": "file"}), *rest),
            "fewer": tuple(rest),
            "more": (first, *rest, first),
        }
        assert self.forged(plan, steps=spoilt[change])
