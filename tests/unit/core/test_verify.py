"""Verification: a fresh look at settings, groups and devices, and what becomes of a device that answers no more."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.conftest import marks_of
from tests.hosts.machines import REGISTRY, SCREEN, STOPPABLE, copy, differing, in_use, machine, original, state
from tests.unit.core.test_resources import GPU, NAMES, setting
from vfioctl.binding.checks import ANSWERS, VIABLE
from vfioctl.binding.model.binding import Binding
from vfioctl.binding.model.intents import BindIntent
from vfioctl.binding.resources.driver import binding_change
from vfioctl.core.action import Context
from vfioctl.core.change import Change, CheckRequest, Draft, JournalState, Plan, Result
from vfioctl.core.marks import MarkKind
from vfioctl.core.reading import ANSWER_TIMEOUT, read_changes, read_facts
from vfioctl.core.verify import dead, is_done, verify_changes, verify_checks
from vfioctl.errors import DeviceDead, KernelRefused, VerifyError
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.recorded.tree import Node, Tree
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.session import Session

HGX = PciAddress("0000:1b:00.0")


@pytest.mark.parametrize(("kind", "timeout"), [("binding", ANSWER_TIMEOUT), ("reset method", None)])
def test_only_a_driver_is_given_longer_to_answer(kind: str, timeout: float | None) -> None:
    """It may be starting, and holds its device's lock meanwhile."""

    class Recorded(Simulated):
        waits: ClassVar[list[float | None]] = []

        def survey(self, *args: Any, **options: Any) -> Any:
            self.waits.append(options["timeout"])
            return super().survey(*args, **options)

    read_changes(Recorded(copy(original("workstation")), ""), REGISTRY, [setting(kind)])
    assert Recorded.waits == [timeout]


def context(kernel: Simulated, settle: float = 0.0) -> Context:
    return Context(kernel, BindIntent(devices=()), settle)


def left(kernel: Simulated, *changes: Change) -> list[str]:
    """What of the changes that may fail is not as it was to be. Raises VerifyError."""
    return verify_changes(REGISTRY, context(kernel), changes).left


def checked(*requests: CheckRequest) -> Plan:
    return REGISTRY.plan(Draft(BindIntent(devices=()), checks=requests))


def host_that_shows(**texts: str) -> Simulated:
    """A host with the files of settings that are named, by kind."""
    tree = copy(original("workstation"))
    for name, text in texts.items():
        tree.put(NAMES[name], text)
    return Simulated(tree, "")


def was(kind: str, before: str, after: str, *, may_fail: bool = False) -> Change:
    return setting(kind, before=before, after=after).model_copy(update={"may_fail": may_fail})


class TestSettings:
    def test_as_they_were_to_be_are_verified(self) -> None:
        kernel = host_that_shows(power="on", d3cold="0", console="0")
        made = [was("power", "auto", "on"), was("d3cold", "1", "0"), was("console", "1", "0")]
        verified = verify_changes(REGISTRY, context(kernel), made)
        assert (verified.left, [*verified.found.values()]) == ([], ["on", "0", "0"])
        assert left(kernel) == []

    @pytest.mark.parametrize(
        ("found", "one", "name"),
        [
            ("auto", was("power", "auto", "on"), f"{GPU} power/control"),
            ("1", was("d3cold", "1", "0"), f"{GPU} d3cold_allowed"),
            ("1", was("console", "1", "0"), "/sys/class/vtconsole/vtcon1/bind"),
        ],
    )
    def test_that_a_guest_needs_must_hold(self, found: str, one: Change, name: str) -> None:
        with pytest.raises(VerifyError, match=f"{name} should be {one.after}, and is {found}") as caught:
            left(host_that_shows(**{one.kind: found}), one)
        assert "udev" in caught.value.hint
        assert caught.value.facts == {
            "wanted": {f"{one.kind} {one.name}": one.after},
            "found": {f"{one.kind} {one.name}": found},
        }

    @pytest.mark.parametrize(
        ("found", "one", "name"),
        [
            ("auto", was("power", "auto", "on", may_fail=True), f"{GPU} power/control"),
            ("on", was("power", "on", "auto", may_fail=True), f"{GPU} power/control"),
            ("0", was("d3cold", "0", "1", may_fail=True), f"{GPU} d3cold_allowed"),
            ("0", was("console", "0", "1", may_fail=True), "/sys/class/vtconsole/vtcon1/bind"),
        ],
    )
    def test_that_were_there_before_are_told_when_they_did_not_come_back(
        self, found: str, one: Change, name: str
    ) -> None:
        assert left(host_that_shows(**{one.kind: found}), one) == [f"{name} should be {one.after}, and is {found}"]

    def test_a_framebuffer_that_stays_away_is_told(self) -> None:
        one = was("framebuffer", "", "efi-framebuffer", may_fail=True)
        assert left(host_that_shows(), one) == ["efi-framebuffer.0 should be efi-framebuffer, and is none"]
        assert left(Simulated(copy(in_use()), ""), one) == []

    def test_a_service_that_is_not_as_it_was_is_told(self) -> None:
        tree = copy(in_use())
        for name in STOPPABLE:
            tree.properties[f"unit:{name}"]["state"] = "failed"
        ones = [setting("service", name, before="inactive", after="active", may_fail=True) for name in STOPPABLE]
        assert len(left(Simulated(tree, ""), *ones)) == len(STOPPABLE)

    @pytest.mark.parametrize("one", [was("console", "1", "0"), was("power", "auto", "on"), was("d3cold", "1", "0")])
    def test_whose_file_has_gone_are_no_failure(self, one: Change) -> None:
        assert left(host_that_shows(), one) == []

    def test_that_only_the_driver_knows_are_not_asked_for(self) -> None:
        assert left(host_that_shows(lock="0"), was("lock", "0", "1"), was("persistence", "1", "0")) == []

    @pytest.mark.parametrize("may_fail", [False, True])
    def test_that_must_hold_are_waited_for(self, may_fail: bool) -> None:
        """What may fail is looked at once: nobody waits for a console that does not come back."""

        class Slow(Simulated):
            asked = 0

            def read(self, path: str) -> str:
                if path == NAMES["d3cold"]:
                    Slow.asked += 1
                    if Slow.asked == 3:
                        self.tree.put(path, "0")
                return super().read(path)

        tree = copy(original("workstation"))
        tree.put(NAMES["d3cold"], "1")
        one = was("d3cold", "1", "0", may_fail=may_fail)
        verified = verify_changes(REGISTRY, context(Slow(tree, ""), 20.0), [one])
        assert (Slow.asked, len(verified.left)) == ((1, 1) if may_fail else (3, 0))


class Daemon(Simulated):
    """A kernel beside which something sets power/control to auto whenever anybody has written it."""

    def write(self, path: str, value: str) -> None:
        super().write(path, value)
        if path.endswith("/power/control"):
            self.tree.put(self.tree.resolve(path), "auto")


def bound(ledger: Path, kernel: type[Simulated] = Simulated) -> tuple[Tree, Host]:
    """The big server with its first GPU on VFIO, and then that kernel."""
    tree = copy(original("hgx8"))
    first = machine(tree, ledger)
    first.apply(first.binding.plan_bind([HGX]))
    return tree, Host(Session(kernel(tree, ""), ledger, settle=0.0, lock_wait=0.0))


class TestPower:
    def test_that_does_not_stay_on_is_no_success_for_a_bind(self, fast_folder: Path) -> None:
        tree = copy(original("hgx8"))
        host = Host(Session(Daemon(tree, ""), fast_folder / "x.db", settle=0.0, lock_wait=0.0))
        with pytest.raises(VerifyError, match=r"power/control should be on, and is auto") as caught:
            host.apply(host.binding.plan_bind([HGX]))
        assert "put back as before" in caught.value.restored
        assert "power/control should be on, and is auto" in caught.value.restored
        assert host.history()[0].state == JournalState.BACK
        left = differing(state(tree), state(original("hgx8")))
        assert [text.rpartition("/")[2] for text in left] == ["control: 'auto', not 'on'"]

    def test_that_does_not_come_back_is_told_after_an_unbind(self, fast_folder: Path) -> None:
        _, host = bound(fast_folder / "x.db", Daemon)
        with pytest.raises(
            VerifyError, match=r"unbound, but not everything was restored: .*power/control should be on, and"
        ):
            host.apply(host.binding.plan_unbind([HGX]))
        assert host.history()[0].state == JournalState.DONE
        assert host.inventory().by_address[HGX].driver == "nvidia"


class TestDeadDevices:
    def die(self, tree: Tree) -> None:
        tree.properties.setdefault(f"sim:{HGX}", {})["dead"] = "1"

    def test_are_those_whose_configuration_space_is_all_ones(self) -> None:
        tree = copy(original("mi300x"))
        kernel = Simulated(tree, "")
        everyone = [PciAddress(name) for name in kernel.children("/sys/bus/pci/devices")]
        plan = checked(CheckRequest(kind=ANSWERS, subjects=tuple(everyone)))
        assert dead(REGISTRY, context(kernel), plan) == {}, "a VF's ids read as ones, and it lives"
        tree.properties.setdefault(f"sim:{everyone[3]}", {})["dead"] = "1"
        assert dead(REGISTRY, context(kernel), plan).keys() == {everyone[3]}

    def test_are_not_those_that_cannot_be_read(self) -> None:
        class Refusing(Simulated):
            def config(self, address: str) -> bytes:
                raise KernelRefused(f"/sys/bus/pci/devices/{address}/config", errno.EPERM)

        kernel = Refusing(copy(original("hgx8")), "")
        assert dead(REGISTRY, context(kernel), checked(CheckRequest(kind=ANSWERS, subjects=(HGX,)))) == {}

    def test_after_an_unbind_it_is_marked_and_told_and_kept_from_guests(self, fast_folder: Path) -> None:
        tree, host = bound(fast_folder / "x.db")
        self.die(tree)
        with pytest.raises(DeviceDead) as caught:
            host.apply(host.binding.plan_unbind([HGX]))
        assert caught.value.exit_code == 3
        assert caught.value.message.startswith(f"{HGX} unbound, but {HGX} is dead: ")
        assert caught.value.restored == ""
        assert host.history()[0].state == JournalState.DONE
        self.is_kept_from_guests(host)

    def is_kept_from_guests(self, host: Host) -> None:
        mark = host.inventory().by_address[HGX].mark
        assert mark is not None
        assert (mark.kind, mark.ticket) == (MarkKind.DEAD, "")
        assert host.inventory().by_address[HGX].unknown == {}, "it is read like any other"
        for plan in (host.binding.plan_bind, host.binding.plan_unbind):
            with pytest.raises(DeviceDead, match="is dead: its configuration space"):
                plan([HGX])
        with pytest.raises(DeviceDead):
            host.binding.plan_reset(HGX)
        assert host.binding.plan_bind(["0000:43:00.0"]).steps, "others can be bound"

    def test_after_a_reset_too(self, fast_folder: Path) -> None:
        tree = copy(original("hgx8"))
        host = machine(tree, fast_folder / "x.db")
        tree.properties.setdefault(f"sim:{HGX}", {})["dies_on_reset"] = "1"
        with pytest.raises(DeviceDead, match=f"{HGX} reset, but {HGX} is dead"):
            host.apply(host.binding.plan_reset(HGX, force_holders=True))
        assert host.history()[0].state == JournalState.DONE
        self.is_kept_from_guests(host)

    def test_the_next_boot_forgets_it(self, fast_folder: Path) -> None:
        tree, host = bound(fast_folder / "x.db")
        self.die(tree)
        with pytest.raises(DeviceDead):
            host.apply(host.binding.plan_unbind([HGX]))
        booted = copy(original("hgx8"))
        booted.put("/proc/sys/kernel/random/boot_id", "11111111-1111-1111-1111-111111111111")
        later = machine(booted, fast_folder / "x.db")
        assert later.inventory().by_address[HGX].mark is None
        assert later.apply(later.binding.plan_bind([HGX])).result == Result.DONE

    def test_a_bind_asks_nothing_of_it(self, fast_folder: Path) -> None:
        class Private(Simulated):
            def config(self, address: str) -> bytes:
                pytest.fail(f"the configuration space of {address} was read")

        tree = copy(original("hgx8"))
        host = Host(Session(Private(tree, ""), fast_folder / "x.db", settle=0.0, lock_wait=0.0))
        assert host.apply(host.binding.plan_bind([HGX])).result == Result.DONE

    def test_when_its_driver_did_not_take_it_that_is_told_as_well(self, fast_folder: Path) -> None:
        class Gone(Simulated):
            def write(self, path: str, value: str) -> None:
                if path.endswith("/drivers_probe") and value == HGX and not self.writes[-1][0].endswith("_override"):
                    raise KernelRefused(path, errno.EINVAL, value)
                super().write(path, value)

        tree, host = bound(fast_folder / "x.db", Gone)
        self.die(tree)
        before = state(tree)
        with pytest.raises(KernelRefused) as caught:
            host.apply(host.binding.plan_unbind([HGX]))
        assert f"{HGX} is dead: " in caught.value.message
        assert caught.value.restored
        assert not differing(state(tree), before)
        assert marks_of(host)[HGX].kind == MarkKind.DEAD


class TestGroups:
    @pytest.mark.parametrize("nodes", ["cdevs", "none"])
    def test_without_a_node_only_device_nodes_will_do(self, nodes: str) -> None:
        tree = copy(original("workstation"))
        if nodes == "cdevs":
            tree.put_node("/dev/vfio/devices/vfio0", Node("c", 511, 0))
            assert verify_checks(REGISTRY, context(Simulated(tree, "")), self.asked) == {}
        else:
            with pytest.raises(KernelRefused):
                verify_checks(REGISTRY, context(Simulated(tree, "")), self.asked)

    def test_without_groups_nobody_is_asked(self) -> None:
        verify_checks(REGISTRY, context(Simulated(copy(original("iommu-off")), "")), checked())

    @property
    def asked(self) -> Plan:
        return checked(CheckRequest(kind=VIABLE, subjects=("12",)))


class TestBindings:
    NATIVE = binding_change(GPU, Binding("vfio-pci", "vfio-pci"), Binding("nvidia"))

    def test_the_facts_of_others_are_read_as_well(self, fast_folder: Path) -> None:
        host = machine(copy(original("shared-group")), fast_folder / "x.db")
        plan = host.binding.plan_bind(["01:00.0"], with_group=True)
        assert {fact.subject for fact in plan.facts} > set(plan.subjects)
        outcome = host.apply(plan)
        assert [fact.subject for fact in outcome.found] == [fact.subject for fact in plan.facts]
        now = read_facts(host.session.kernel, REGISTRY, plan.facts)
        assert outcome.found == tuple(now.values())

    def test_a_device_that_is_not_there_is_wrong(self) -> None:
        kernel = Simulated(copy(original("workstation")), "")
        with pytest.raises(VerifyError, match=f"{GPU} should be nvidia, and is gone"):
            left(kernel, self.NATIVE)


class TestDone:
    """Whether only the last entry in the journal was missing."""

    ADDRESS = "0000:0b:00.0"

    def done(self, host: Host, plan: Plan) -> bool:
        return is_done(REGISTRY, Context(host.session.kernel, plan.intent, 0.0), plan)

    def test_is_what_is_bound_as_it_was_to_be(self, fast_folder: Path) -> None:
        tree = copy(original("workstation"))
        host = machine(tree, fast_folder / "x.db")
        plan = host.binding.plan_bind([self.ADDRESS])
        assert not self.done(host, plan)
        host.apply(plan)
        assert self.done(host, plan)
        host.session.kernel.write(f"/sys/bus/pci/devices/{self.ADDRESS}/power/control", "auto")
        assert not self.done(host, plan), "a setting is still to be set"

    def test_is_nothing_that_no_guest_could_have(self, fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        host = machine(copy(original("workstation")), fast_folder / "x.db")
        plan = host.binding.plan_bind([self.ADDRESS])
        host.apply(plan)
        monkeypatch.setattr(Simulated, "viable", lambda *_: False)
        assert not self.done(host, plan)

    def test_is_no_reset(self, fast_folder: Path) -> None:
        host = machine(copy(original("hgx8")), fast_folder / "x.db")
        plan = host.binding.plan_reset(HGX, force_holders=True)
        host.apply(plan)
        assert not self.done(host, plan), "no fact tells"


def test_a_screen_whose_console_does_not_come_back_stays_with_its_driver(fast_folder: Path) -> None:
    class Dark(Simulated):
        def write(self, path: str, value: str) -> None:
            super().write(path, value)
            if path.endswith("/vtcon1/bind") and value == "1":
                self.tree.put(self.tree.resolve(path), "0")

    tree = copy(in_use())
    host = Host(Session(Dark(tree, ""), fast_folder / "x.db", settle=0.0, lock_wait=0.0))
    host.apply(host.binding.plan_bind([SCREEN], allow_boot_vga=True, stop_services=STOPPABLE))
    with pytest.raises(VerifyError, match="vtcon1/bind should be 1, and is 0"):
        host.apply(host.binding.plan_unbind([SCREEN]))
    assert host.inventory().by_address[SCREEN].driver == "amdgpu"
    assert host.history()[0].state == JournalState.DONE
