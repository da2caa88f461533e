"""What was promised, and what each device was before: kept exactly as long as it is true."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.hosts.machines import REGISTRY, copy, function, inventory_of, machine, original, state
from vfioctl.binding.model.binding import Binding
from vfioctl.binding.model.intents import BindIntent, UnbindIntent
from vfioctl.binding.plan.bind import plan_bind, plan_unbind
from vfioctl.binding.records import recorded_bindings, recorded_settings
from vfioctl.core.change import Change, CheckRequest, Draft, Fact, JournalState, Plan
from vfioctl.core.journal import Journal
from vfioctl.core.marks import Mark, MarkKind
from vfioctl.core.snapshot import read_unfinished
from vfioctl.errors import Foreign, StoreDamaged, Unfinished
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.protocol import DRIVERS_PROBE, PCI_DEVICES, PCI_DRIVERS
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.session import Session
from vfioctl.units import Uuid
from vfioctl.vgpu.ledger.reading import read_records
from vfioctl.vgpu.model.intents import CreateVgpuIntent, RemoveVgpuIntent, SetVfsIntent
from vfioctl.vgpu.model.kinds import CHECK, DEFINITION, MDEV, TYPE_NAMES, VF_COUNT, VGPU_TYPE

GPU, OTHER = PciAddress("0000:41:00.0"), PciAddress("0000:c1:00.0")
IDENTITY = "10de:2330:10de:16c1:030200"
BOOT, NOW = "boot-1", "2026-01-01T00:00:00+00:00"
NATIVE = Binding("nvidia")


@pytest.fixture
def journal(fast_folder: Path) -> Journal:
    return Session(Simulated(Tree(), ""), fast_folder / "ledger.db").journal


def bind(*addresses: PciAddress, driver: str | None = "nvidia", driver_override: str | None = None) -> Plan:
    """A bind of those functions, each in a group of its own."""
    host = inventory_of(
        *(
            function(address, iommu_group=number, driver=driver, driver_override=driver_override)
            for number, address in enumerate(addresses)
        )
    )
    return REGISTRY.plan(plan_bind(host, BindIntent(devices=addresses)))


def unbind(*addresses: PciAddress) -> Plan:
    host = inventory_of(
        *(
            function(address, iommu_group=number, driver="vfio-pci", driver_override="vfio-pci")
            for number, address in enumerate(addresses)
        )
    )
    return REGISTRY.plan(plan_unbind(host, UnbindIntent(devices=addresses), {}))


def records(journal: Journal, boot: str = BOOT, identity: str = IDENTITY) -> Mapping[PciAddress, Binding]:
    return recorded_bindings(journal.store, {GPU: identity, OTHER: identity}, boot_id=boot)


def done(journal: Journal, plan: Plan, state: JournalState = JournalState.DONE, boot: str = BOOT) -> int:
    entry = journal.begin(plan, boot_id=boot, now=NOW)
    journal.end(entry, state, boot_id=BOOT, now=NOW, why="why")
    return entry


class TestEntries:
    def test_without_a_ledger_there_are_none(self, journal: Journal) -> None:
        assert (journal.entries(), journal.unfinished(), records(journal)) == ((), (), {})

    def test_are_open_until_they_end(self, journal: Journal) -> None:
        plan = bind(GPU)
        number = journal.begin(plan, boot_id=BOOT, now=NOW)
        (entry,) = journal.entries()
        assert (entry.id, entry.plan, entry.state, entry.boot_id) == (number, plan, JournalState.OPEN, BOOT)
        assert (entry.began, entry.ended, entry.why) == (NOW, None, "")
        journal.end(entry.id, JournalState.DONE, boot_id=BOOT, now="later", why="because")
        (entry,) = journal.entries()
        assert (entry.state, entry.ended, entry.why) == (JournalState.DONE, "later", "because")

    def test_are_listed_with_the_newest_first(self, journal: Journal) -> None:
        numbers = [done(journal, bind(GPU)) for _ in range(3)]
        assert [entry.id for entry in journal.entries()] == numbers[::-1]
        assert [entry.id for entry in journal.entries(most=2)] == numbers[:0:-1]
        assert journal.entries(most=0) == ()

    @pytest.mark.parametrize(
        ("end", "unfinished"),
        [
            (JournalState.DONE, False),
            (JournalState.BACK, False),
            (JournalState.REBOOTED, False),
            (JournalState.STUCK, True),
        ],
    )
    def test_keep_their_devices_while_unfinished(
        self,
        journal: Journal,
        end: JournalState,
        unfinished: bool,
    ) -> None:
        entry = done(journal, bind(GPU), end)
        assert [each.id for each in journal.unfinished()] == ([entry] if unfinished else [])
        journal.begin(bind(OTHER), boot_id=BOOT, now=NOW)
        if unfinished:
            with pytest.raises(Unfinished, match=GPU) as caught:
                journal.begin(bind(GPU), boot_id=BOOT, now=NOW)
            assert caught.value.next_command == "vfioctl recover"
        else:
            journal.begin(bind(GPU), boot_id=BOOT, now=NOW)

    def test_under_way_are_told_without_their_plans(self, journal: Journal) -> None:
        third, fourth = PciAddress("0000:01:00.0"), PciAddress("0000:02:00.0")
        done(journal, bind(OTHER))
        under_way = journal.begin(bind(GPU), boot_id=BOOT, now=NOW)
        stuck = journal.begin(bind(third, fourth), boot_id=BOOT, now=NOW)
        journal.end(stuck, JournalState.STUCK, boot_id=BOOT, now=NOW)
        with journal.store.transaction() as db:
            db.execute("UPDATE journal SET plan = 'not json'")
        told = [(change.journal, change.subjects) for change in read_unfinished(journal.store)]
        assert told == [(stuck, (str(third), str(fourth))), (under_way, (str(GPU),))]

    def test_that_cannot_have_all_their_devices_have_none(self, journal: Journal) -> None:
        journal.begin(bind(OTHER), boot_id=BOOT, now=NOW)
        with pytest.raises(Unfinished, match=OTHER):
            journal.begin(bind(GPU, OTHER), boot_id=BOOT, now=NOW)
        assert len(journal.entries()) == 1
        assert journal.begin(bind(GPU), boot_id=BOOT, now=NOW) == 2

    @pytest.mark.parametrize("text", ["", "{}", "not json", '{"version": 2}', '{"version": 1, "steps": []}'])
    def test_that_hold_no_plan_are_damage(self, journal: Journal, text: str) -> None:
        number = journal.begin(bind(GPU), boot_id=BOOT, now=NOW)
        with journal.store.transaction() as db:
            db.execute("UPDATE journal SET plan = ?", (text,))
        for ask in (journal.entries, journal.unfinished):
            with pytest.raises(StoreDamaged, match=f"entry {number} holds no plan"):
                ask()
        with pytest.raises(StoreDamaged, match="holds no plan"):
            journal.end(number, JournalState.DONE, boot_id=BOOT, now=NOW)


class TestRecords:
    def test_a_bind_records_what_was_before(self, journal: Journal) -> None:
        done(journal, bind(GPU, driver_override="nvidia"))
        assert records(journal) == {GPU: Binding("nvidia", "nvidia")}

    def test_what_had_no_driver_is_recorded_too(self, journal: Journal) -> None:
        done(journal, bind(GPU, driver=None))
        assert records(journal) == {GPU: Binding(None)}

    def test_a_record_is_there_from_the_promise_on(self, journal: Journal) -> None:
        journal.begin(bind(GPU), boot_id=BOOT, now=NOW)
        assert records(journal) == {GPU: NATIVE}

    @pytest.mark.parametrize("end", [JournalState.BACK, JournalState.REBOOTED])
    def test_a_bind_that_was_undone_has_none(self, journal: Journal, end: JournalState) -> None:
        done(journal, bind(GPU), end)
        assert records(journal) == {}

    def test_of_another_boot_or_another_device_are_not_used(self, journal: Journal) -> None:
        done(journal, bind(GPU))
        assert records(journal, boot="boot-2") == {}
        assert records(journal, identity="10de:2331:10de:16c1:030200") == {}
        assert recorded_bindings(journal.store, {OTHER: IDENTITY}, boot_id=BOOT) == {}
        assert records(journal) == {GPU: NATIVE}

    def test_of_another_boot_are_replaced(self, journal: Journal) -> None:
        done(journal, bind(GPU))
        done(journal, bind(GPU, driver=None), boot="boot-2")
        assert records(journal, boot="boot-2") == {GPU: Binding(None)}
        assert records(journal) == {}

    def test_stay_through_a_bind_from_one_vfio_driver_to_another(self, journal: Journal) -> None:
        done(journal, bind(GPU))
        there = function(GPU, driver="vfio-pci", driver_override="vfio-pci")
        intent = BindIntent(devices=(GPU,), driver="nvgrace_gpu_vfio_pci")
        done(journal, REGISTRY.plan(plan_bind(inventory_of(there), intent)))
        assert records(journal) == {GPU: NATIVE}

    def test_stay_for_a_device_that_has_lost_its_driver_meanwhile(self, journal: Journal) -> None:
        done(journal, bind(GPU))
        again = bind(GPU, driver=None, driver_override="vfio-pci")
        done(journal, again, JournalState.BACK)
        assert records(journal) == {GPU: NATIVE}
        done(journal, again)
        assert records(journal) == {GPU: NATIVE}

    def test_are_renewed_for_a_device_that_somebody_gave_back_by_hand(self, journal: Journal) -> None:
        done(journal, bind(GPU))
        done(journal, bind(GPU, driver="nouveau"))
        assert records(journal) == {GPU: Binding("nouveau")}

    def test_end_when_the_device_is_returned(self, journal: Journal) -> None:
        done(journal, bind(GPU, OTHER))
        done(journal, unbind(GPU))
        assert records(journal) == {OTHER: NATIVE}

    @pytest.mark.parametrize("end", [JournalState.BACK, JournalState.STUCK])
    def test_stay_when_returning_fails(self, journal: Journal, end: JournalState) -> None:
        done(journal, bind(GPU))
        done(journal, unbind(GPU), end)
        assert records(journal) == {GPU: NATIVE}


def mark(address: PciAddress, kind: MarkKind = MarkKind.WEDGED, why: str = "w", ticket: str = "1:2") -> Mark:
    return Mark(address=address, kind=kind, since=NOW, why=why, ticket=ticket)


class TestMarks:
    def test_without_a_ledger_there_are_none(self, journal: Journal) -> None:
        assert journal.marks(boot_id=BOOT) == {}
        assert not journal.store.file.exists()

    def test_are_said_in_one_boot(self, journal: Journal) -> None:
        journal.mark([mark(GPU), mark(OTHER, MarkKind.DEAD, ticket="")], boot_id=BOOT)
        assert journal.marks(boot_id=BOOT) == {GPU: mark(GPU), OTHER: mark(OTHER, MarkKind.DEAD, ticket="")}
        assert journal.marks(boot_id="boot-2") == {}

    def test_the_last_word_on_each_counts(self, journal: Journal) -> None:
        for why in ("one", "two"):
            journal.mark([mark(GPU, why=why)], boot_id=BOOT)
        journal.mark([mark(GPU, MarkKind.DEAD, why="three")], boot_id=BOOT)
        assert [(m.kind, m.why) for m in journal.marks(boot_id=BOOT).values()] == [(MarkKind.DEAD, "three")]

    def test_are_taken_back_one_by_one(self, journal: Journal) -> None:
        journal.mark([mark(GPU), mark(OTHER)], boot_id=BOOT)
        journal.unmark([GPU], boot_id=BOOT)
        assert journal.marks(boot_id=BOOT).keys() == {OTHER}
        journal.mark([mark(GPU, MarkKind.DEAD)], boot_id=BOOT)
        journal.unmark([GPU, OTHER], boot_id=BOOT)
        assert journal.marks(boot_id=BOOT).keys() == {GPU}, "what is dead does not live again by that"
        journal.unmark([], boot_id="boot-2")
        assert journal.marks(boot_id=BOOT) == {}, "of an earlier boot they are forgotten"

    def test_of_no_kind_cannot_be_made(self, journal: Journal) -> None:
        journal.mark([], boot_id=BOOT)
        with pytest.raises(StoreDamaged), journal.store.transaction() as db:
            db.execute("INSERT INTO mark VALUES ('0000:41:00.0', 'odd', 'b', 't', 'w', '')")


class TestSettings:
    """What was set for devices that are still with VFIO."""

    D3COLD = Change(kind="d3cold", name=f"{PCI_DEVICES}/{GPU}/d3cold_allowed", subject=GPU, before="1", after="0")

    def plan(self, plan: Plan) -> Plan:
        return REGISTRY.plan(Draft(plan.intent, plan.facts, (*plan.changes, self.D3COLD)))

    def settings(self, journal: Journal, boot: str = BOOT) -> tuple[Change, ...]:
        return recorded_settings(journal.store, REGISTRY, boot_id=boot)

    def test_are_those_of_the_bind_that_took_them(self, journal: Journal) -> None:
        assert self.settings(journal) == ()
        done(journal, self.plan(bind(GPU, OTHER)))
        assert self.settings(journal) == (self.D3COLD,)
        assert self.settings(journal, "boot-2") == ()
        done(journal, unbind(GPU))
        assert self.settings(journal) == (), "the other one's were never set"

    def test_end_when_the_device_is_returned(self, journal: Journal) -> None:
        done(journal, self.plan(bind(GPU)))
        done(journal, unbind(GPU))
        assert self.settings(journal) == ()

    @pytest.mark.parametrize("end", [JournalState.BACK, JournalState.REBOOTED])
    def test_of_a_bind_that_was_undone_are_none(self, journal: Journal, end: JournalState) -> None:
        done(journal, self.plan(bind(GPU)), end)
        assert self.settings(journal) == ()

    def test_are_not_those_of_an_unbind(self, journal: Journal) -> None:
        done(journal, bind(GPU))
        entry = journal.begin(self.plan(unbind(GPU)), boot_id=BOOT, now=NOW)
        assert self.settings(journal) == ()
        journal.end(entry, JournalState.BACK, boot_id=BOOT, now=NOW)
        assert self.settings(journal) == ()


ONE, TWO = Uuid("4e8c5df7-c4fa-4719-904f-5579cd5ac35f"), Uuid("5e8c5df7-c4fa-4719-904f-5579cd5ac35f")
PF, VF, NEXT = (PciAddress(f"0000:41:00.{n}") for n in (0, 4, 5))
OF_THE_CARD = (CheckRequest(kind=CHECK, subjects=(PF,)),)


def create(uuid: Uuid = ONE, *, persistent: bool = False) -> Plan:
    """A mediated device on the first VF."""
    made = Change(kind=MDEV, name=uuid, subject=uuid, before="", after=f"{VF}/nvidia-754")
    intent = CreateVgpuIntent(type="nvidia-754", uuids=(uuid,), persistent=persistent)
    file = f"/etc/mdevctl.d/{VF}/{uuid}"
    return REGISTRY.plan(Draft(intent, (), (made, *defined(uuid, file, persistent)), OF_THE_CARD))


def create_on_vfs(*vfs: PciAddress, kind: str = "1155", names: Fact | None = None, persistent: bool = False) -> Plan:
    """NVIDIA's other way: a type for each VF."""
    made = [
        Change(kind=VGPU_TYPE, name=f"{PCI_DEVICES}/{vf}/nvidia/current_vgpu_type", subject=vf, before="0", after=kind)
        for vf in vfs
    ]
    kept = [each for vf in vfs for each in defined(vf, f"/etc/vfioctl/vgpu.d/{vf}.json", persistent)]
    intent = CreateVgpuIntent(type=kind, count=len(vfs), persistent=persistent)
    return REGISTRY.plan(Draft(intent, (names,) if names else (), (*made, *kept), OF_THE_CARD))


def defined(subject: str, file: str, persistent: bool) -> tuple[Change, ...]:
    return (Change(kind=DEFINITION, name=file, subject=subject, before="", after="{}"),) if persistent else ()


def remove(uuid: Uuid = ONE) -> Plan:
    gone = Change(kind=MDEV, name=uuid, subject=uuid, before=f"{VF}/nvidia-754", after="")
    return REGISTRY.plan(Draft(RemoveVgpuIntent(vgpus=(uuid,)), (), (gone,), OF_THE_CARD))


def count_of_vfs(before: str, after: str) -> Plan:
    count = Change(kind=VF_COUNT, name=f"{PCI_DEVICES}/{PF}/sriov_numvfs", subject=PF, before=before, after=after)
    return REGISTRY.plan(Draft(SetVfsIntent(devices=(PF,), vfs=int(after)), (), (count,), OF_THE_CARD))


class TestVgpus:
    """Whose a vGPU is: vfioctl's from the promise on, and as long as it may be there."""

    def made(self, journal: Journal, boot: str = BOOT) -> dict[str, tuple[str, bool]]:
        return {
            name: (each.place, each.persistent)
            for name, each in read_records(journal.store, boot_id=boot).created.items()
        }

    def test_is_known_before_it_is_made(self, journal: Journal) -> None:
        journal.begin(create(), boot_id=BOOT, now=NOW)
        assert self.made(journal) == {ONE: (f"{VF}/nvidia-754", False)}
        (each,) = read_records(journal.store, boot_id=BOOT).created.values()
        assert (each.id, each.card, each.since) == (ONE, PF, NOW)

    def test_of_a_vf_the_type_is_told_with_its_place(self, journal: Journal) -> None:
        done(journal, create_on_vfs(VF, NEXT))
        assert self.made(journal) == {
            VF: (f"{VF}/1155", False),
            NEXT: (f"{NEXT}/1155", False),
        }

    def test_of_vfs_their_pf_is_told_with_the_count(self, journal: Journal) -> None:
        done(journal, count_of_vfs("0", "4"))
        assert self.made(journal) == {PF: ("4", False)}
        done(journal, count_of_vfs("4", "2"))
        assert self.made(journal) == {PF: ("2", False)}
        done(journal, count_of_vfs("2", "0"))
        assert self.made(journal) == {}

    @pytest.mark.parametrize(
        ("end", "known"),
        [
            (JournalState.DONE, True),
            (JournalState.STUCK, True),
            (JournalState.BACK, False),
            (JournalState.REBOOTED, False),
        ],
    )
    def test_that_was_not_made_in_the_end_is_forgotten(
        self,
        journal: Journal,
        end: JournalState,
        known: bool,
    ) -> None:
        done(journal, create(), end)
        assert bool(self.made(journal)) is known

    @pytest.mark.parametrize(
        ("end", "known"),
        [
            (JournalState.DONE, False),
            (JournalState.STUCK, True),
            (JournalState.BACK, True),
            (JournalState.REBOOTED, True),
        ],
    )
    def test_that_was_not_removed_in_the_end_is_not(
        self,
        journal: Journal,
        end: JournalState,
        known: bool,
    ) -> None:
        done(journal, create())
        done(journal, remove(), end)
        assert bool(self.made(journal)) is known

    def test_of_an_earlier_boot_counts_only_where_it_is_kept(self, journal: Journal) -> None:
        done(journal, create())
        done(journal, create_on_vfs(VF, persistent=True))
        assert {*self.made(journal, "boot-2")} == set(), "an address is anybody's again"
        done(journal, create(persistent=True))
        assert len(self.made(journal, "boot-2")) == 1

    def test_of_an_earlier_boot_is_forgotten_with_the_next_change(self, journal: Journal) -> None:
        done(journal, create())
        done(journal, create_on_vfs(VF, persistent=True))
        done(journal, bind(GPU), boot="boot-2")
        assert {*self.made(journal)} == {VF}

    @pytest.mark.parametrize("end", [JournalState.DONE, JournalState.BACK])
    def test_that_is_kept_stays_so_when_it_is_made_once_more(self, journal: Journal, end: JournalState) -> None:
        """As after a boot, by its UUID: what keeps it is still there."""
        done(journal, create(persistent=True))
        done(journal, create(), end)
        assert self.made(journal) == {ONE: (f"{VF}/nvidia-754", True)}

    def test_that_is_made_elsewhere_is_known_there(self, journal: Journal) -> None:
        done(journal, create_on_vfs(VF))
        done(journal, create_on_vfs(VF, kind="1156"), JournalState.BACK)
        assert self.made(journal) == {VF: (f"{VF}/1155", False)}
        done(journal, create_on_vfs(VF, kind="1156"))
        assert self.made(journal) == {VF: (f"{VF}/1156", False)}

    def test_under_change_is_nobody_elses(self, journal: Journal) -> None:
        journal.begin(create(), boot_id=BOOT, now=NOW)
        with pytest.raises(Unfinished, match=ONE):
            journal.begin(remove(), boot_id=BOOT, now=NOW)
        journal.begin(create(TWO), boot_id=BOOT, now=NOW)

    def test_is_marked_like_a_function(self, journal: Journal) -> None:
        mark = Mark(address=ONE, kind=MarkKind.WEDGED, since=NOW, why="w", ticket="1:2")
        journal.mark([mark], boot_id=BOOT)
        assert journal.marks(boot_id=BOOT) == {ONE: mark}
        assert [*read_records(journal.store, boot_id=BOOT).wedged] == [ONE]
        journal.unmark([ONE], boot_id=BOOT)
        assert journal.marks(boot_id=BOOT) == {}

    def test_names_of_types_are_remembered_until_the_next_boot(self, journal: Journal) -> None:
        names = {PF: {"1155": "NVIDIA L40S-4Q", "1156": "x"}}
        named = Fact(kind=TYPE_NAMES, subject=PF, values=dict(names[PF]))
        journal.begin(create_on_vfs(VF, names=named), boot_id=BOOT, now=NOW)
        assert read_records(journal.store, boot_id=BOOT).names == names
        assert read_records(journal.store, boot_id="boot-2").names == {}, "another driver may count anew"

    def test_that_is_not_vfioctls_any_more_is_not_removed(self, journal: Journal) -> None:
        with pytest.raises(Foreign, match=f"vfioctl did not create {ONE}"):
            journal.begin(remove(), boot_id=BOOT, now=NOW)
        assert journal.entries() == (), "and no entry is left of it"


class TestOnAHost:
    """The same, seen from the front door."""

    ADDRESS = PciAddress("0000:0b:00.0")

    @pytest.fixture
    def tree(self) -> Tree:
        return copy(original("workstation"))

    @pytest.fixture
    def host(self, tree: Tree, fast_folder: Path) -> Host:
        return machine(tree, fast_folder / "x.db")

    def test_what_was_before_comes_back_after_two_vfio_drivers(self, host: Host, tree: Tree) -> None:
        tree.put(f"{tree.resolve(f'{PCI_DEVICES}/{self.ADDRESS}')}/driver_override", "nvidia")
        before = state(tree)
        host.apply(host.binding.plan_bind([self.ADDRESS]))
        tree.put_directory(f"{PCI_DRIVERS}/other_vfio_pci")
        host.apply(host.binding.plan_bind([self.ADDRESS], driver="other_vfio_pci"))
        assert host.inventory().by_address[self.ADDRESS].driver == "other_vfio_pci"
        host.apply(host.binding.plan_unbind([self.ADDRESS]))
        assert state(tree) == before

    def test_after_a_reboot_the_kernel_chooses(self, host: Host, tree: Tree) -> None:
        host.apply(host.binding.plan_bind([self.ADDRESS]))
        tree.put("/proc/sys/kernel/random/boot_id", "11111111-1111-1111-1111-111111111111")
        plan = host.binding.plan_unbind([self.ADDRESS])
        assert any("no record here" in note for note in plan.notes)

    def test_a_device_lost_by_hand_comes_back_to_the_driver_it_had(self, host: Host, tree: Tree) -> None:
        before = state(tree)
        host.apply(host.binding.plan_bind([self.ADDRESS]))
        host.session.kernel.write(f"{PCI_DRIVERS}/vfio-pci/unbind", self.ADDRESS)
        host.apply(host.binding.plan_bind([self.ADDRESS]))
        host.apply(host.binding.plan_unbind([self.ADDRESS]))
        assert state(tree) == before

    def test_a_device_given_back_by_hand_is_left_alone(self, host: Host) -> None:
        host.apply(host.binding.plan_bind([self.ADDRESS]))
        for address in [f"0000:0b:00.{n}" for n in range(4)]:
            host.session.kernel.write(f"{PCI_DEVICES}/{address}/driver_override", "\n")
            host.session.kernel.write(f"{PCI_DRIVERS}/vfio-pci/unbind", address)
            host.session.kernel.write(DRIVERS_PROBE, address)
        assert host.binding.plan_unbind([self.ADDRESS]).nothing_to_do
