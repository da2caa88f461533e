"""The engine: nothing before its time, nothing half done, and a rollback from everywhere."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import pytest

from tests.conftest import marks_of
from tests.hosts.machines import (
    NAMES,
    REGISTRY,
    STOPPABLE,
    TRAINING,
    copy,
    effect,
    effects_of,
    in_use,
    machine,
    original,
    settings_that_differ,
    state,
)
from vfioctl.binding.model.binding import Binding
from vfioctl.binding.model.intents import BindIntent
from vfioctl.binding.resources.driver import binding_change, module_change
from vfioctl.core.change import Change, Draft, JournalState, Phase, Plan, Result, Step
from vfioctl.core.events import EventKind, StepEvent
from vfioctl.core.journal import Journal
from vfioctl.errors import (
    BadDocument,
    Busy,
    HostError,
    KernelRefused,
    NotPermitted,
    StalePlan,
    StoreDamaged,
    Stuck,
    Unfinished,
    VerifyError,
    VfioctlError,
)
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.protocol import DRIVERS_PROBE, IOMMU_GROUPS, PCI_DEVICES, PCI_DRIVERS, Unanswered
from vfioctl.kernel.recorded.host import Recorded
from vfioctl.kernel.recorded.tree import Node, Tree
from vfioctl.kernel.simulated import rules
from vfioctl.kernel.simulated.faults import DIE, HANG, Fault, SimulatedDeath
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.session import Session

T = TypeVar("T")
CONTENT = ("intent", "facts", "changes", "checks", "notes")
GPU, AUDIO = PciAddress("0000:0b:00.0"), PciAddress("0000:0b:00.1")


class ScriptedHost:
    """A workstation, a ledger, and the plan to bind the card at 0b:00."""

    def __init__(self, ledger: Path, kernel: type[Simulated] = Simulated, faults: tuple[Fault, ...] = ()) -> None:
        self.tree, self.ledger = copy(original("workstation")), ledger
        self.before = state(self.tree)
        self.kernel = kernel(self.tree, "simulated", faults=faults)
        self.host = Host(Session(self.kernel, ledger, settle=0.0, lock_wait=0.0))
        self.plan = self.host.binding.plan_bind([GPU])
        self.effects = effects_of(self.plan)
        self.writes = len(self.effects)

    def fails(self, kind: type[VfioctlError]) -> VfioctlError:
        with pytest.raises(kind) as caught:
            self.host.apply(self.plan)
        return caught.value

    @property
    def untouched(self) -> bool:
        return self.kernel.writes == [] and self.host.history() == () and state(self.tree) == self.before

    @property
    def device(self) -> str:
        return self.tree.resolve(f"{PCI_DEVICES}/{GPU}")


@pytest.fixture
def work(fast_folder: Path) -> ScriptedHost:
    return ScriptedHost(fast_folder / "x.db")


# -- before the first write ------------------------------------------------------------------------------


class TestBefore:
    @pytest.mark.parametrize("fact", ["driver", "override", "group", "identity", "gone", "member"])
    def test_a_plan_is_stale_when_any_fact_has_changed(self, work: ScriptedHost, fact: str) -> None:
        tree, who = work.tree, AUDIO if fact == "member" else GPU
        if fact == "driver":
            rules.write(tree, f"{PCI_DRIVERS}/nvidia/unbind", GPU)
        elif fact in ("override", "member"):
            rules.write(tree, f"{PCI_DEVICES}/{who}/driver_override", "none")
        elif fact == "group":
            tree.put_link(f"{work.device}/iommu_group", "../../../kernel/iommu_groups/99")
        elif fact == "identity":
            tree.put(f"{work.device}/modalias", tree.files[f"{work.device}/modalias"].replace("1E04", "1E05"))
        else:
            tree.remove(f"{PCI_DEVICES}/{GPU}")
        error = work.fails(StalePlan)
        assert error.message == f"{who} changed after the plan was made"
        assert [each is None for each in error.facts["found"]] == [fact == "gone"]  # type: ignore[attr-defined] # a list
        assert (work.kernel.writes, work.host.history()) == ([], ())

    def test_a_fact_of_a_stranger_that_the_plan_rests_on_counts(self, fast_folder: Path) -> None:
        tree = copy(original("shared-group"))
        host = machine(tree, fast_folder / "x.db")
        plan = host.binding.plan_bind(["01:00.0"], with_group=True)
        bridge = next(fact.subject for fact in plan.facts if str(fact.values["identity"]).endswith("060400"))
        tree.put(f"{tree.resolve(f'{PCI_DEVICES}/{bridge}')}/driver_override", "x")
        with pytest.raises(StalePlan, match=bridge):
            host.apply(plan)

    def test_nothing_to_do_is_success_and_leaves_no_trace(self, work: ScriptedHost) -> None:
        work.host.apply(work.plan)
        writes = list(work.kernel.writes)
        outcome = work.host.apply(work.host.binding.plan_bind([GPU]))
        assert outcome.result == Result.NOTHING
        assert [fact.values["driver"] for fact in outcome.found if fact.subject == GPU] == ["vfio-pci"]
        assert work.kernel.writes == writes
        assert len(work.host.history()) == 1

    def test_nothing_to_do_may_be_stale_too(self, work: ScriptedHost) -> None:
        work.host.apply(work.plan)
        plan = work.host.binding.plan_bind([GPU])
        rules.write(work.tree, f"{PCI_DRIVERS}/vfio-pci/unbind", GPU)
        with pytest.raises(StalePlan):
            work.host.apply(plan)

    def test_files_that_cannot_be_written_are_all_named(self, fast_folder: Path) -> None:
        class Restricted(Simulated):
            def writable(self, path: str) -> bool:
                return not path.endswith(("0b:00.1/driver_override", "/drivers_probe", "nvidia/unbind"))

        work = ScriptedHost(fast_folder / "x.db", Restricted)
        files = [
            f"{PCI_DEVICES}/{AUDIO}/driver_override",
            f"{PCI_DRIVERS}/nvidia/unbind",
            DRIVERS_PROBE,
        ]
        work.tree.put(DRIVERS_PROBE, "")
        work.tree.put(f"{PCI_DRIVERS}/nvidia/unbind", "")
        error = work.fails(NotPermitted)
        assert error.facts == {"files": sorted(files)}
        assert all(file in error.message for file in files)
        assert "root" in error.hint
        assert work.untouched

    def test_a_read_only_host_says_that_it_is(self, fast_folder: Path) -> None:
        host = Host(Session(Recorded(original("workstation"), "recorded"), fast_folder / "x.db", settle=0.0))
        with pytest.raises(NotPermitted, match="a recorded host is read-only") as caught:
            host.apply(host.binding.plan_bind([GPU]))
        assert "--simulate" in caught.value.hint
        assert os.listdir(fast_folder) == []
        assert host.recover() == ()

    def test_a_read_only_host_cannot_be_recovered(self, fast_folder: Path) -> None:
        work = ScriptedHost(fast_folder / "x.db", faults=(Fault(2, DIE),))
        with pytest.raises(SimulatedDeath):
            work.host.apply(work.plan)
        with pytest.raises(NotPermitted, match="read-only"):
            Host(Session(Recorded(work.tree, ""), work.ledger)).recover()

    def test_an_unfinished_change_comes_first(self, fast_folder: Path) -> None:
        work = ScriptedHost(fast_folder / "x.db", faults=(Fault(1, HANG),))
        work.fails(Stuck)
        error = work.fails(Unfinished)
        assert error.next_command == "vfioctl recover"

    def test_an_unfinished_change_comes_before_nothing_to_do(self, fast_folder: Path) -> None:
        with died(fast_folder / "x.db", ScriptedHost(fast_folder / "y.db").writes) as work:
            plan = work.host.binding.plan_bind([GPU])
            assert plan.nothing_to_do
            with pytest.raises(Unfinished, match=GPU):
                work.host.apply(plan)
            other = work.host.binding.plan_bind(["05:00.0"])
            assert work.host.apply(other).result == Result.DONE

    def test_the_promise_is_made_before_the_first_write(self, fast_folder: Path) -> None:
        class Watched(Simulated):
            def write(self, path: str, value: str) -> None:
                (entry,) = Session(self, fast_folder / "x.db").journal.entries()
                assert entry.state == JournalState.OPEN
                assert entry.boot_id == self.read("/proc/sys/kernel/random/boot_id")
                super().write(path, value)

            def load(self, module: str) -> None:
                assert Session(self, fast_folder / "x.db").unfinished()
                super().load(module)

        work = ScriptedHost(fast_folder / "x.db", Watched)
        assert work.host.apply(work.plan).result == Result.DONE


class TestForgedPlans:
    """A plan file may be anybody's: its id shows that it is whole, not that it is honest."""

    @pytest.mark.parametrize("name", NAMES)
    def test_a_plan_of_ours_follows_from_its_changes(self, name: str, fast_folder: Path) -> None:
        host = machine(copy(original(name)), fast_folder / "x.db")
        for gpu in host.inventory().numbered_gpus.values():
            try:
                plan = host.binding.plan_bind([gpu], with_group=True, allow_boot_vga=True)
            except VfioctlError:
                continue
            assert not REGISTRY.is_forged(plan)
            if plan.nothing_to_do:
                continue
            host.apply(plan)
            assert not REGISTRY.is_forged(host.binding.plan_unbind([gpu]))

    @pytest.mark.parametrize(
        "step",
        [
            Step(phase=Phase.SET, target="/etc/passwd", value="x", why=""),
            Step(phase=Phase.AIM, target=f"{PCI_DEVICES}/0000:05:00.0/driver_override", value="x", why=""),
            Step(phase=Phase.LOAD, action="load", target="../evil", why=""),
            Step(phase=Phase.LOAD, action="load", target="--remove", why=""),
        ],
        ids=lambda step: step.target,
    )
    def test_a_step_more_is_refused(self, work: ScriptedHost, step: Step) -> None:
        self.refused(work, (step, *work.plan.steps))

    def test_a_step_less_or_another_order_is_refused(self, work: ScriptedHost) -> None:
        for number in range(len(work.plan.steps)):
            self.refused(work, work.plan.steps[:number] + work.plan.steps[number + 1 :])
        self.refused(work, work.plan.steps[::-1])
        self.refused(work, ())

    def test_changes_that_do_not_begin_at_the_facts_are_refused(self, work: ScriptedHost) -> None:
        bent = binding_change(GPU, Binding("../../../../etc"), Binding("vfio-pci", "vfio-pci"))
        others = [change for change in work.plan.changes if change.key != bent.key]
        self.refused(work, changes=(bent, *others))
        self.refused_whole(work, changes=(bent, *others))
        elsewhere = binding_change(GPU, Binding("nouveau"), Binding("vfio-pci", "vfio-pci"))
        self.refused_whole(work, changes=(elsewhere, *others))
        self.refused_whole(work, facts=work.plan.facts[1:])
        self.refused_whole(work, facts=())

    def test_facts_that_lack_what_every_function_has_are_refused(self, work: ScriptedHost) -> None:
        bare = tuple(fact.model_copy(update={"values": {"identity": "x"}}) for fact in work.plan.facts)
        self.refused_whole(work, facts=bare)

    @pytest.mark.parametrize("kind", ["fact", "check", "change"])
    def test_kinds_that_nobody_registers_are_refused(self, work: ScriptedHost, kind: str) -> None:
        odd = work.plan.changes[0].model_copy(update={"kind": "odd"})
        if kind == "change":
            self.refused(work, changes=(*work.plan.changes, odd))
        elif kind == "check":
            self.refused(work, checks=(work.plan.checks[0].model_copy(update={"kind": "odd"}),))
        else:
            self.refused(work, facts=(work.plan.facts[0].model_copy(update={"kind": "odd"}), *work.plan.facts))

    @pytest.mark.parametrize(
        "changed",
        [{"after": "auto"}, {"before": "on"}, {"during": "auto"}],
        ids=str,
    )
    def test_settings_that_the_steps_do_not_make_are_refused(self, work: ScriptedHost, changed: dict[str, str]) -> None:
        power = next(change for change in work.plan.changes if change.kind == "power")
        others = tuple(change for change in work.plan.changes if change is not power)
        if "after" in changed:
            self.refused(work, changes=(power.model_copy(update=changed), *others))
        settings = [change for change in work.plan.changes if change.kind in ("power", "d3cold")]
        self.refused(work, changes=tuple(change for change in work.plan.changes if change not in settings))
        self.refused(work, changes=tuple(change for change in work.plan.changes if change is not settings[0]))
        self.refused(work, changes=tuple(change for change in work.plan.changes if change is not settings[1]))

    def test_settings_of_functions_that_the_plan_does_not_know_are_refused(self, work: ScriptedHost) -> None:
        file = f"{PCI_DEVICES}/0000:05:00.0/d3cold_allowed"
        self.refused_more(work, Change(kind="d3cold", name=file, subject="0000:05:00.0", before="1", after="0"))

    def test_modules_of_functions_that_the_plan_does_not_know_are_refused(self, work: ScriptedHost) -> None:
        self.refused_more(work, module_change("evil", "0000:05:00.0"))

    @pytest.mark.parametrize("unit", ["sshd.service", "display-manager.service"])
    def test_services_that_nobody_allowed_to_stop_are_refused(self, work: ScriptedHost, unit: str) -> None:
        more = Change(kind="service", name=unit, subject=GPU, before="active", after="inactive")
        self.refused_more(work, more)
        self.refused_more(work, more.model_copy(update={"after": "active", "during": "inactive"}))

    @pytest.mark.parametrize(
        "file",
        [f"{PCI_DEVICES}/{GPU}/reset", f"{PCI_DEVICES}/{GPU}/reset_subordinate", "/etc/passwd", "/proc/sysrq-trigger"],
    )
    def test_a_reset_that_is_none_of_a_bind_is_refused(self, work: ScriptedHost, file: str) -> None:
        reset = Change(kind="reset", name=file, subject=GPU, before="", after=GPU)
        self.refused_more(work, reset)
        self.refused(work, changes=(*work.plan.changes, reset))

    @pytest.mark.parametrize(
        "file",
        [
            f"{PCI_DEVICES}/0000:05:00.0/reset",
            f"{PCI_DEVICES}/../reset",
            f"{PCI_DEVICES}/{GPU}/remove",
            "/etc/passwd",
            f"{PCI_DEVICES}/{GPU}/reset\n",
            f"{PCI_DEVICES}/../reset_subordinate",
            None,
        ],
    )
    def test_a_reset_of_something_else_is_refused(self, work: ScriptedHost, file: str | None) -> None:
        work.plan = work.host.binding.plan_reset("0a:00.0", force_holders=True)
        others = tuple(change for change in work.plan.changes if change.kind != "reset")
        if file is None:
            self.refused(work, changes=others)
            return
        (reset,) = work.plan.changes_of("reset")
        self.refused_whole(work, changes=(*others, reset.model_copy(update={"name": file})))
        stranger = Change(kind="reset", name=file, subject="0000:05:00.0", before="", after="0000:05:00.0")
        self.refused_whole(work, changes=(*others, stranger))

    def refused_more(self, work: ScriptedHost, more: Change) -> None:
        self.refused_whole(work, changes=(*work.plan.changes, more))

    def refused_whole(self, work: ScriptedHost, **content: object) -> None:
        """Though the steps are those that the changes take."""
        draft = drafted(work.plan, content)
        self.refused(work, tuple(owned.step for owned in REGISTRY.steps(draft.changes)), **content)

    def refused(self, work: ScriptedHost, steps: tuple[Step, ...] | None = None, **content: object) -> None:
        made = Plan.of(drafted(work.plan, content), work.plan.steps if steps is None else steps)
        forged = work.host.read_plan(made.model_dump_json())
        with pytest.raises(BadDocument, match=r"do not follow|is known here"):
            work.host.apply(forged)
        assert work.untouched


def drafted(plan: Plan, content: dict[str, object]) -> Draft:
    """The plan's parts, some of them others."""
    parts = {name: getattr(plan, name) for name in CONTENT}
    return Draft(**parts | content)


AT_THE_END = (EventKind.VERIFY, EventKind.CLOSED)


def steps_begun(events: Sequence[StepEvent]) -> list[Step]:
    return [event.step for event in events if event.kind == EventKind.BEGIN and event.step]


# -- the steps -------------------------------------------------------------------------------------------


class TestTheSteps:
    def test_it_takes_the_steps_of_the_plan_in_order_and_tells_each_before(self, work: ScriptedHost) -> None:
        events: list[tuple[StepEvent, int]] = []
        began = time.monotonic()
        outcome = work.host.apply(work.plan, progress=lambda event: events.append((event, len(work.kernel.writes))))
        most = time.monotonic() - began
        total = len(work.plan.steps)
        both = [(step, n, total) for n, step in enumerate(work.plan.steps, start=1)]
        for kind in (EventKind.BEGIN, EventKind.END):
            assert [(e.step, e.number, e.total) for e, _ in events if e.kind == kind] == both
        assert [e.kind for e, _ in events] == [*[EventKind.BEGIN, EventKind.END] * total, *AT_THE_END]
        assert [writes for e, writes in events if e.kind == EventKind.BEGIN and e.step in work.effects] == [
            *range(work.writes)
        ]
        assert [e.at for e, _ in events] == sorted(e.at for e, _ in events)
        limits = {
            e.step.target.rpartition("/")[2]: e.timeout for e, _ in events if e.kind == EventKind.BEGIN and e.step
        }
        assert (limits["vfio-pci"], limits["unbind"]) == (60.0, 30.0)
        assert work.kernel.writes == [effect(step) for step in work.effects]
        assert outcome.plan == work.plan
        assert 0 < outcome.seconds <= most
        assert {fact.subject: fact.values["driver"] for fact in outcome.found}[GPU] == "vfio-pci"
        assert outcome.changes == work.plan.changes, "as found, and as planned"

    def test_a_variant_driver_goes_by_the_name_that_it_registers(
        self, fast_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(rules._DRIVER_OF_MODULE, "nvgrace_gpu_vfio_pci", "nvgrace-gpu-vfio-pci")
        tree = copy(original("gh200"))
        before = state(tree)
        host = machine(tree, fast_folder / "x.db")
        plan = host.binding.plan_bind(["gpu0"])
        (change, *_) = plan.changes_of("binding")
        assert Binding.parse(change.after).driver == "nvgrace_gpu_vfio_pci"
        assert host.apply(plan).result == Result.DONE
        gpu = host.inventory().by_address[PciAddress(change.subject)]
        assert (gpu.driver, gpu.driver_override) == ("nvgrace-gpu-vfio-pci", "nvgrace-gpu-vfio-pci")
        assert host.binding.plan_bind(["gpu0"]).nothing_to_do
        assert host.apply(host.binding.plan_unbind(["gpu0"])).result == Result.DONE
        assert state(tree) == before

    def test_a_module_that_cannot_be_loaded_puts_everything_back(self, fast_folder: Path) -> None:
        class Bare(Simulated):
            def load(self, module: str) -> None:
                raise HostError(f"module {module} could not be loaded")

        work = ScriptedHost(fast_folder / "x.db", Bare)
        assert "put back as before" in work.fails(HostError).restored
        assert state(work.tree) == work.before
        assert work.host.history()[0].state == JournalState.BACK


# -- verified --------------------------------------------------------------------------------------------


class Inert(Simulated):
    """A kernel on which a probe of the GPU for vfio-pci succeeds and binds nothing."""

    def write(self, path: str, value: str) -> None:
        device = self.tree.resolve(f"{PCI_DEVICES}/{GPU}")
        if path == DRIVERS_PROBE and value == GPU and self.tree.files[f"{device}/driver_override"] == "vfio-pci":
            self.writes.append((path, value))
        else:
            super().write(path, value)


class TestVerified:
    def test_a_probe_that_bound_nothing_is_no_success(self, fast_folder: Path) -> None:
        work = ScriptedHost(fast_folder / "x.db", Inert)
        error = work.fails(VerifyError)
        assert error.message == f"{GPU} should be vfio-pci, override vfio-pci, and is no driver, override vfio-pci"
        assert error.facts == {
            "wanted": {f"binding {GPU}": "vfio-pci, override vfio-pci"},
            "found": {f"binding {GPU}": "no driver, override vfio-pci"},
        }
        assert "dmesg" in error.hint
        assert error.restored.endswith("put back as before")
        assert state(work.tree) == work.before
        assert work.host.history()[0].state == JournalState.BACK

    def test_a_device_that_vanished_is_no_success(self, fast_folder: Path) -> None:
        class Fragile(Simulated):
            def write(self, path: str, value: str) -> None:
                super().write(path, value)
                if len(self.writes) == last:
                    self.tree.remove(f"{PCI_DEVICES}/{GPU}")

        last = ScriptedHost(fast_folder / "y.db").writes
        work = ScriptedHost(fast_folder / "x.db", Fragile)
        error = work.fails(Stuck)
        assert f"{GPU} should be vfio-pci, override vfio-pci, and is gone" in error.message
        assert "has gone from the PCI bus" in error.message
        assert work.host.history()[0].state == JournalState.STUCK

    def test_a_driver_may_take_its_time(self, fast_folder: Path) -> None:
        class Slow(Inert):
            asked = 0

            def survey(
                self,
                reader: Callable[..., Callable[[str], T]],
                subjects: Iterable[str],
                *,
                args: Sequence[object] = (),
                timeout: float | None = None,
                total: float | None = None,
            ) -> Iterator[tuple[str, T | Unanswered]]:
                if len(self.writes) == last:
                    Slow.asked += 1
                if Slow.asked == 3:
                    Simulated.write(self, DRIVERS_PROBE, GPU)
                    Simulated.write(self, f"{PCI_DEVICES}/{GPU}/power/control", "on")
                return super().survey(reader, subjects, args=args, timeout=timeout, total=total)

        last = ScriptedHost(fast_folder / "y.db").writes
        work = ScriptedHost(fast_folder / "x.db", Slow)
        patient = Host(Session(work.kernel, work.ledger, settle=20.0, lock_wait=0.0))
        assert patient.apply(work.plan).result == Result.DONE

    @pytest.mark.parametrize("answer", ["no", "EIO"])
    def test_a_group_that_the_kernel_calls_not_viable_is_no_success(self, fast_folder: Path, answer: str) -> None:
        class Contrary(Simulated):
            def viable(self, group: int) -> bool:
                assert group == 12
                if answer == "no":
                    return False
                raise KernelRefused("/dev/vfio/12", errno.EIO)

        work = ScriptedHost(fast_folder / "x.db", Contrary)
        error = work.fails(VerifyError if answer == "no" else KernelRefused)
        assert "12" in error.message
        assert error.restored
        assert state(work.tree) == work.before

    @pytest.mark.parametrize("cdevs", [True, False])
    def test_without_group_nodes_device_nodes_will_do(self, fast_folder: Path, cdevs: bool) -> None:
        class Modern(Simulated):
            def viable(self, group: int) -> bool:
                raise KernelRefused(f"/dev/vfio/{group}", errno.ENOENT)

        work = ScriptedHost(fast_folder / "x.db", Modern)
        if cdevs:
            work.tree.put_node("/dev/vfio/devices/vfio0", Node("c", 511, 0))
            assert work.host.apply(work.plan).result == Result.DONE
        else:
            assert work.fails(KernelRefused).restored


# -- interrupted -----------------------------------------------------------------------------------------


class Interrupting(Simulated):
    """A kernel during whose so-manieth write something happens, before or after it took effect."""

    moment, late, what = 0, False, staticmethod(lambda: None)

    def write(self, path: str, value: str) -> None:
        now = len(self.writes) + 1 == type(self).moment
        if now and not type(self).late:
            self.writes.append((path, value))
            type(self).what()
        super().write(path, value)
        if now and type(self).late:
            type(self).what()


def ctrl_c() -> None:
    raise KeyboardInterrupt


def at_the_terminal() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def left_alone() -> None:
    """The terminal has gone, and more than one says so."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)


@pytest.mark.alone
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("what", [ctrl_c, at_the_terminal, terminated, left_alone])
def test_an_interrupt_in_any_write_puts_everything_back(
    fast_folder: Path,
    what: Callable[[], None],
    late: bool,
) -> None:
    for at in range(1, ScriptedHost(fast_folder / "x.db").writes + 1):
        kernel = type("At", (Interrupting,), {"moment": at, "late": late, "what": staticmethod(what)})
        work = ScriptedHost(fast_folder / f"{at}.db", kernel)
        with pytest.raises(KeyboardInterrupt) as caught:
            work.host.apply(work.plan)
        assert getattr(caught.value, "restored", "").endswith("put back as before")
        assert state(work.tree) == work.before, at
        assert work.host.history()[0].state == JournalState.BACK
        assert work.host.recover() == ()


@pytest.mark.alone
def test_a_second_interrupt_waits_until_everything_is_back(fast_folder: Path) -> None:
    def twice() -> None:
        if len(kernel_writes) == 0:
            kernel_writes.append(1)
            raise KeyboardInterrupt

    kernel_writes: list[int] = []

    class Impatient(Interrupting):
        moment, late, what = 5, True, staticmethod(twice)

        def write(self, path: str, value: str) -> None:
            if kernel_writes:
                os.kill(os.getpid(), signal.SIGINT)
            super().write(path, value)

    work = ScriptedHost(fast_folder / "x.db", Impatient)
    with pytest.raises(KeyboardInterrupt):
        work.host.apply(work.plan)
    assert state(work.tree) == work.before
    assert work.host.history()[0].state == JournalState.BACK


def test_a_wait_for_the_lock_has_an_event(work: ScriptedHost) -> None:
    events: list[StepEvent] = []
    kernel, lock = work.host.session.kernel, work.host.session.store.lock_file
    with kernel.exclusive(lock, wait=0), pytest.raises(Busy):
        work.host.apply(work.plan, progress=events.append)
    assert [(event.kind, event.timeout) for event in events] == [(EventKind.LOCK, 0.0)]


def test_a_write_that_never_returns_ends_the_events(fast_folder: Path) -> None:
    work = ScriptedHost(fast_folder / "x.db", faults=(Fault(5, HANG),))
    events: list[StepEvent] = []

    def interrupting(event: StepEvent) -> None:
        events.append(event)
        if event.kind == EventKind.FAILED:
            raise KeyboardInterrupt

    with pytest.raises(Stuck) as caught:
        work.host.apply(work.plan, progress=interrupting)
    assert (events[-1].kind, events[-1].error) == (EventKind.FAILED, caught.value)
    assert work.host.history()[0].state == JournalState.STUCK


def test_a_bug_is_not_wrapped_and_leaves_the_journal_open(work: ScriptedHost) -> None:
    def buggy(event: StepEvent) -> None:
        if event.number == 4:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work.host.apply(work.plan, progress=buggy)
    assert work.host.history()[0].state == JournalState.OPEN
    work.host.recover()
    assert state(work.tree) == work.before


@pytest.mark.parametrize("at", [5, 9, 13])
def test_an_interrupt_after_which_the_rollback_fails_is_stuck(fast_folder: Path, at: int) -> None:
    kernel = type("At", (Interrupting,), {"moment": at, "late": True, "what": staticmethod(ctrl_c)})
    work = ScriptedHost(fast_folder / "x.db", kernel, (Fault(at + 1, "errno", errno.EIO),))
    error = work.fails(Stuck)
    assert error.message.startswith("interrupted; and the rollback failed: writing")
    assert (error.next_command, error.kernel_said) == ("vfioctl recover", "EIO: Input/output error")
    assert work.host.history()[0].why.startswith("interrupted; then, rolling back: ")
    machine(work.tree, work.ledger).recover()
    assert state(work.tree) == work.before


def test_a_setting_that_cannot_be_put_back_is_told_and_stops_nothing(fast_folder: Path) -> None:
    kernel = type("At", (Interrupting,), {"moment": 4, "late": True, "what": staticmethod(ctrl_c)})
    # after the four that were made come four of power/control on the way back, and then d3cold_allowed
    work = ScriptedHost(fast_folder / "x.db", kernel, (Fault(9, "errno", errno.EIO),))
    with pytest.raises(KeyboardInterrupt) as caught:
        work.host.apply(work.plan)
    told = getattr(caught.value, "restored", "")
    kept = f"{PCI_DEVICES}/0000:0b:00.0/d3cold_allowed"
    assert " put back as before; but writing '1' to " in told
    assert "0000:0b:00.0 d3cold_allowed should be 1, and is 0" in told
    assert settings_that_differ(work.tree, original("workstation")) == {work.tree.resolve(kept)}
    assert work.host.history()[0].state == JournalState.BACK


# -- the rollback ----------------------------------------------------------------------------------------


class TestRollback:
    def test_a_device_that_had_no_driver_has_none_again(self, work: ScriptedHost) -> None:
        rules.write(work.tree, f"{PCI_DRIVERS}/nvidia/unbind", GPU)
        before = state(work.tree)
        work.host.apply(work.host.binding.plan_bind([GPU]))
        work.host.apply(work.host.binding.plan_unbind([GPU]))
        assert state(work.tree) == before

    @pytest.mark.parametrize("override", ["nvidia", "vfio-pci", "none"])
    def test_the_previous_override_is_there_again(self, work: ScriptedHost, override: str) -> None:
        rules.write(work.tree, f"{PCI_DEVICES}/{GPU}/driver_override", override)
        before = state(work.tree)
        work.host.apply(work.host.binding.plan_bind([GPU]))
        work.host.apply(work.host.binding.plan_unbind([GPU]))
        assert state(work.tree) == before

    def test_without_a_record_a_death_at_each_write_leaves_before_or_after(self, fast_folder: Path) -> None:
        def on_vfio(ledger: Path, faults: tuple[Fault, ...]) -> tuple[Tree, Host]:
            tree = copy(original("workstation"))
            host = machine(tree, fast_folder / "other.db")
            host.apply(host.binding.plan_bind([GPU]))
            (fast_folder / "other.db").unlink()
            return tree, machine(tree, ledger, faults)

        tree, host = on_vfio(fast_folder / "x.db", ())
        start, before = copy(tree), state(tree)
        plan = host.binding.plan_unbind([GPU])
        assert any("no record" in note for note in plan.notes)
        host.apply(plan)
        after = state(tree)
        card = tree.resolve(f"{PCI_DEVICES}/{GPU}").removesuffix("0")
        assert settings_that_differ(tree, original("workstation")) == {
            f"{card}{number}/d3cold_allowed" for number in range(4)
        }, "what no record tells"
        done = copy(tree)
        assert {**after, "settings": ()} == {**state(original("workstation")), "settings": ()}
        for at in range(1, len(effects_of(plan)) + 1):
            tree, host = on_vfio(fast_folder / f"{at}.db", (Fault(at, DIE),))
            with pytest.raises(SimulatedDeath):
                host.apply(host.binding.plan_unbind([GPU]))
            heir = machine(tree, fast_folder / f"{at}.db")
            (outcome,) = heir.recover()
            expected, twin = (after, done) if outcome.result == Result.COMPLETE else (before, start)
            assert {**state(tree), "settings": ()} == {**expected, "settings": ()}, at
            asleep = {f"{card}{number}/power/control" for number in range(4)}  # vfio-pci's doing, and not planned for
            assert settings_that_differ(tree, twin) <= (set() if twin is done else asleep)

    def test_a_disk_that_fills_up_meanwhile_loses_nothing(
        self, work: ScriptedHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object, **__: object) -> None:
            raise StoreDamaged("the ledger is full")

        monkeypatch.setattr(Journal, "end", full)
        work.fails(StoreDamaged)
        assert work.host.history()[0].state == JournalState.OPEN
        monkeypatch.undo()
        (outcome,) = work.host.recover()
        assert outcome.result == Result.COMPLETE
        assert work.host.inventory().by_address[GPU].driver == "vfio-pci"

    def test_a_full_disk_does_not_hide_that_everything_is_back(
        self, fast_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object, **__: object) -> None:
            raise StoreDamaged("the ledger is full")

        work = ScriptedHost(fast_folder / "x.db", faults=(Fault(6, "errno", errno.EIO),))
        monkeypatch.setattr(Journal, "end", full)
        error = work.fails(KernelRefused)
        assert error.restored.endswith("put back as before; the journal could not be updated: vfioctl recover")
        assert state(work.tree) == work.before
        monkeypatch.undo()
        assert [outcome.result for outcome in work.host.recover()] == [Result.BACK]
        assert work.host.history()[0].state == JournalState.BACK

    def test_progress_tells_the_steps_back_too(self, fast_folder: Path) -> None:
        fatal = ScriptedHost(fast_folder / "y.db").effects[10]
        work = ScriptedHost(fast_folder / "x.db", faults=(Fault(11, "errno", errno.EIO),))
        events: list[StepEvent] = []
        with pytest.raises(KernelRefused) as caught:
            work.host.apply(work.plan, progress=events.append)
        forth = [*work.plan.steps[: work.plan.steps.index(fatal) + 1]]
        told = steps_begun(events)
        assert told[: len(forth)] == forth
        rollback = next(n for n, event in enumerate(events) if event.kind == EventKind.ROLLBACK)
        failed = events[rollback - 1]
        assert (failed.kind, failed.step, failed.error) == (EventKind.FAILED, fatal, caught.value)
        assert events[rollback][1:4] == (fatal, failed.number, failed.total)
        assert events[rollback].error is caught.value
        assert [event.kind for event in events[-2:]] == [*AT_THE_END]
        assert events[-1].error is caught.value
        back = [step.target.rpartition("/")[2] for step in told[len(forth) :]]
        assert [name for name, _ in groupby(back)] == [
            "driver_override",
            "drivers_probe",
            "driver_override",
            "control",
            "d3cold_allowed",
        ]


def kernel_of(host: Host) -> Simulated:
    assert isinstance(host.session.kernel, Simulated)
    return host.session.kernel


def asked(plan: Plan) -> str:
    """The first device that was asked for."""
    assert isinstance(plan.intent, BindIntent)
    return plan.intent.devices[0]


@contextmanager
def died(ledger: Path, at: int) -> Iterator[ScriptedHost]:
    """A machine whose bind died after that write."""
    work = ScriptedHost(ledger, faults=(Fault(at, DIE),))
    with pytest.raises(SimulatedDeath):
        work.host.apply(work.plan)
    work.host = machine(work.tree, ledger)
    yield work


class TestRecovery:
    def test_forward_finishes_what_was_meant(self, fast_folder: Path) -> None:
        with died(fast_folder / "x.db", 5) as work:
            events: list[StepEvent] = []
            (outcome,) = work.host.recover(forward=True, progress=events.append)
        assert outcome.result == Result.DONE
        begun = [event.number for event in events if event.kind == EventKind.BEGIN]
        assert begun == list(range(1, len(begun) + 1))
        assert [event.kind for event in events[-2:]] == [*AT_THE_END]
        assert work.host.inventory().by_address[GPU].driver == "vfio-pci"
        assert work.host.history()[0].state == JournalState.DONE
        work.host.apply(work.host.binding.plan_unbind([GPU]))
        assert state(work.tree) == work.before

    def test_forward_loads_a_module_once_for_all_functions(self, fast_folder: Path) -> None:
        with died(fast_folder / "x.db", 2) as work:
            for path in (f"{PCI_DRIVERS}/vfio-pci", "/sys/module/vfio_pci"):
                work.tree.remove(path)
            events: list[StepEvent] = []
            work.host.recover(forward=True, progress=events.append)
        assert [(step.phase, step.target) for step in steps_begun(events) if step.action == "load"] == [
            (Phase.LOAD, "vfio-pci")
        ]
        assert work.host.inventory().by_address[GPU].driver == "vfio-pci"

    def test_keeps_its_hands_off_a_persistence_mode_that_is_not_nvidias_any_more(self, fast_folder: Path) -> None:
        """NVML knows only the GPUs that nvidia has: what cannot be asked of it is no failure either."""
        tree, ledger = copy(in_use()), fast_folder / "x.db"
        host = machine(tree, ledger)
        host.apply(host.binding.plan_bind([TRAINING], stop_services=STOPPABLE))
        before = state(tree)
        with pytest.raises(SimulatedDeath):
            machine(tree, ledger, (Fault(2, DIE),)).apply(host.binding.plan_unbind([TRAINING]))
        heir = machine(tree, ledger)
        assert heir.recover()[0].result == Result.BACK
        assert heir.history()[0].why == "", "and there is nothing to tell"
        assert not [path for path, _ in kernel_of(heir).writes if path.startswith("nvml:")]
        assert state(tree) == before

    def test_after_a_reboot_has_nothing_to_put_back(self, fast_folder: Path) -> None:
        with died(fast_folder / "x.db", 5) as work:
            fresh = copy(original("workstation"))
            fresh.put("/proc/sys/kernel/random/boot_id", "11111111-1111-1111-1111-111111111111")
            kernel = Simulated(fresh, "")
            assert Host(Session(kernel, work.ledger)).recover()[0].result == Result.REBOOTED
            assert kernel.writes == []
            assert work.host.history()[0].state == JournalState.REBOOTED

    def test_of_other_boots_leaves_changes_of_this_one_alone(self, fast_folder: Path) -> None:
        """As when vGPUs are created again at boot, while somebody else makes a change."""
        ledger, tree = fast_folder / "x.db", copy(original("hgx8"))
        for gpu in ("gpu0", "gpu1"):
            host = machine(tree, ledger, (Fault(2, DIE),))
            with pytest.raises(SimulatedDeath):
                host.apply(host.binding.plan_bind([gpu]))
            if gpu == "gpu0":
                tree = copy(original("hgx8"))
                tree.put("/proc/sys/kernel/random/boot_id", "11111111-1111-1111-1111-111111111111")
        host = machine(tree, ledger)
        (outcome,) = host.recover(of_this_boot=False)
        assert outcome.result == Result.REBOOTED
        assert [entry.state for entry in host.history()] == [JournalState.OPEN, JournalState.REBOOTED]

    def test_of_what_was_done_already_only_says_so(self, fast_folder: Path) -> None:
        with died(fast_folder / "x.db", ScriptedHost(fast_folder / "y.db").writes) as work:
            (planned,) = work.host.plan_recovery()
            (outcome,) = work.host.recover()
        assert (planned.result, planned.steps) == (Result.COMPLETE, ())
        assert outcome.result == Result.COMPLETE
        assert work.host.history()[0].state == JournalState.DONE
        assert work.host.inventory().by_address[GPU].driver == "vfio-pci"

    def test_forward_to_a_group_that_is_not_viable_is_stuck(
        self, fast_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Simulated, "viable", lambda *_: False)
        with died(fast_folder / "x.db", 5) as work:
            with pytest.raises(Stuck, match="not viable"):
                work.host.recover(forward=True)
            assert work.host.recover()[0].result == Result.BACK
        assert state(work.tree) == work.before

    def test_of_a_device_that_has_vanished_is_stuck_and_stays_open(self, fast_folder: Path) -> None:
        with died(fast_folder / "x.db", 5) as work:
            link = work.tree.links[f"{PCI_DEVICES}/{GPU}"]
            work.tree.remove(f"{PCI_DEVICES}/{GPU}")
            for forward in (False, True):
                with pytest.raises(Stuck, match=f"{GPU} has gone from the PCI bus") as caught:
                    work.host.recover(forward=forward)
                assert "rescan" in caught.value.hint
                assert work.host.history()[0].state == JournalState.STUCK
            work.tree.put_link(f"{PCI_DEVICES}/{GPU}", link)
            assert work.host.recover()[0].result == Result.BACK
        assert state(work.tree) == work.before

    def test_of_a_write_that_is_refused_is_stuck_with_what_the_kernel_said(self, fast_folder: Path) -> None:
        with died(fast_folder / "x.db", 5) as work:
            with pytest.raises(Stuck, match="could not be finished") as caught:
                machine(work.tree, work.ledger, (Fault(1, "errno", errno.EBUSY),)).recover()
            assert caught.value.kernel_said == "EBUSY: Device or resource busy"
            assert caught.value.next_command == "vfioctl recover"

    def test_of_several_changes_takes_the_newest_first(self, fast_folder: Path) -> None:
        with died(fast_folder / "x.db", 5) as work:
            second = machine(work.tree, work.ledger, (Fault(2, DIE),))
            with pytest.raises(SimulatedDeath):
                second.apply(second.binding.plan_bind(["05:00.0"]))
            first, other = work.host.recover()
        assert [asked(outcome.plan) for outcome in (first, other)] == ["0000:05:00.0", GPU]
        assert state(work.tree) == work.before

    def test_of_several_changes_finishes_all_but_those_that_are_stuck(self, fast_folder: Path) -> None:
        with died(fast_folder / "x.db", 5) as work:
            second = machine(work.tree, work.ledger, (Fault(1, HANG),))
            with pytest.raises(Stuck):
                second.apply(second.binding.plan_bind(["05:00.0"]))
            with pytest.raises(Stuck, match=r"0000:05:00\.0 is still wedged") as caught:
                work.host.recover()
        assert caught.value.restored == "0000:0b:00.0, 0000:0b:00.1, 0000:0b:00.2, 0000:0b:00.3: put back"
        assert caught.value.facts["others"] == []
        states = [(asked(entry.plan), entry.state) for entry in work.host.history()]
        assert states == [("0000:05:00.0", JournalState.STUCK), (GPU, JournalState.BACK)]
        assert marks_of(work.host).keys() == {"0000:05:00.0"}
        work.kernel.release("0000:05:00.0")
        assert [outcome.result for outcome in work.host.recover()] == [Result.BACK]
        assert not marks_of(work.host), "what was wedged is no longer"
        assert state(work.tree) == work.before

    def test_of_changes_that_are_all_stuck_names_the_others(self, fast_folder: Path) -> None:
        work = ScriptedHost(fast_folder / "x.db", faults=(Fault(1, HANG),))
        work.fails(Stuck)
        second = machine(work.tree, work.ledger, (Fault(1, HANG),))
        with pytest.raises(Stuck):
            second.apply(second.binding.plan_bind(["05:00.0"]))
        with pytest.raises(Stuck, match=r"0000:05:00\.0 is still wedged") as caught:
            work.host.recover()
        others = caught.value.facts["others"]
        assert isinstance(others, list)
        assert [text.partition(":00.0 ")[2][:15] for text in others] == ["is still wedged"]
        assert caught.value.restored == ""
        for forward, wanted in ((False, Result.BACK), (True, Result.DONE)):
            for repair in work.host.plan_recovery(forward=forward):
                assert (repair.result, repair.steps) == (wanted, ())
                assert "is still wedged" in repair.refused

    def test_interrupted_can_be_done_again(self, fast_folder: Path) -> None:
        with died(fast_folder / "x.db", 9) as work:
            kernel = type("At", (Interrupting,), {"moment": 3, "what": staticmethod(ctrl_c)})(work.tree, "")
            with pytest.raises(KeyboardInterrupt):
                Host(Session(kernel, work.ledger, settle=0.0, lock_wait=0.0)).recover()
            work.host.recover()
        assert state(work.tree) == work.before

    def test_with_nothing_to_finish_does_nothing(self, work: ScriptedHost) -> None:
        assert work.host.recover() == ()
        assert work.untouched


def test_a_group_that_has_lost_a_member_is_stale(work: ScriptedHost) -> None:
    work.tree.remove(f"{IOMMU_GROUPS}/12/devices/{AUDIO}")
    work.tree.remove(f"{PCI_DEVICES}/{AUDIO}")
    assert AUDIO in work.fails(StalePlan).message


class TestLog:
    """One record for each change, with what a journal can be asked by."""

    def told(self, caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
        records = [record for record in caplog.records if record.name == "vfioctl.changes"]
        assert {record.__dict__["verb"] for record in records} <= {"bind"}
        assert {record.__dict__["devices"].split()[0] for record in records} <= {GPU}
        return [(record.levelname, record.getMessage()) for record in records]

    def test_has_what_was_done(self, work: ScriptedHost, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        work.host.apply(work.plan)
        assert self.told(caplog) == [("INFO", f"bind {GPU}: done")]
        assert caplog.records[-1].__dict__["plan_id"] == work.plan.id

    def test_has_what_was_refused_or_taken_back(self, fast_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        work = ScriptedHost(fast_folder / "x.db", faults=(Fault(6, "errno", errno.EIO),))
        error = work.fails(KernelRefused)
        assert self.told(caplog) == [("ERROR", f"bind {GPU}: KernelRefused: {error.message}")]

    def test_has_what_was_interrupted(self, fast_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        kernel = type("At", (Interrupting,), {"moment": 4, "what": staticmethod(ctrl_c)})
        work = ScriptedHost(fast_folder / "x.db", kernel)
        with pytest.raises(KeyboardInterrupt):
            work.host.apply(work.plan)
        assert self.told(caplog) == [("ERROR", f"bind {GPU}: interrupted")]

    def test_has_what_was_recovered(self, fast_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        with died(fast_folder / "x.db", 5) as work:
            work.host.recover()
        assert self.told(caplog) == [("INFO", f"recover bind {GPU}: put back")]
