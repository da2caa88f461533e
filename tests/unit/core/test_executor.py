"""The executor: who holds a device is asked again, a lock is only had when it reads so, what may fail stops nothing."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.conftest import marks_of
from tests.hosts.machines import (
    DAEMON,
    DCGM,
    DESKTOP,
    REGISTRY,
    SCREEN,
    STOPPABLE,
    TRAINING,
    add_process,
    copy,
    differing,
    effect,
    effects_of,
    in_use,
    machine,
    original,
    state,
)
from vfioctl.binding.model.binding import Binding
from vfioctl.binding.model.intents import BindIntent
from vfioctl.binding.resources.driver import binding_change
from vfioctl.core.action import Context
from vfioctl.core.change import Change, JournalState, Phase, Result, Step
from vfioctl.core.events import StepEvent
from vfioctl.core.executor import Executor, untouched, written
from vfioctl.core.registry import Owned
from vfioctl.errors import DeviceInUse, HostError, KernelRefused, Stuck, VerifyError, VfioctlError
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.open_nodes import Opened
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated.faults import HANG, Fault
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.session import Session

FREE, SHARED = PciAddress("0000:04:00.0"), PciAddress("0000:02:00.0")
PATIENT = 20.0
"""Seconds; no test waits so long."""


class ScriptedHost:
    """A host in use, and the plan to hand one of its GPUs over."""

    def __init__(
        self,
        folder: Path,
        kernel: type[Simulated] = Simulated,
        *,
        gpu: PciAddress = TRAINING,
        settle: float = 0.0,
        faults: tuple[Fault, ...] = (),
        tree: Tree | None = None,
    ) -> None:
        self.tree = tree or copy(in_use())
        self.kernel = kernel(self.tree, "simulated", faults=faults)
        self.host = Host(Session(self.kernel, folder / "x.db", settle=settle, lock_wait=0.0))
        self.before = state(self.tree)
        self.plan = self.host.binding.plan_bind([gpu], stop_services=STOPPABLE, allow_boot_vga=True)

    def fails(self, kind: type[VfioctlError]) -> VfioctlError:
        """The bind fails so, and everything is as before."""
        with pytest.raises(kind) as caught:
            self.host.apply(self.plan)
        assert caught.value.restored.endswith("put back as before")
        assert not differing(state(self.tree), self.before)
        assert self.host.history()[0].state == JournalState.BACK
        return caught.value

    def force(self, gpu: PciAddress) -> None:
        self.plan = self.host.binding.plan_bind([gpu], force_holders=True, allow_boot_vga=True)

    def holds(self, pid: int, *files: str) -> None:
        add_process(self.tree, pid, f"job-{pid}", "0::/user.slice/user-1000.slice/session-4.scope", *files)


class TestTheCheck:
    def test_who_came_after_the_plan_is_seen_and_all_is_put_back(self, fast_folder: Path) -> None:
        work = ScriptedHost(fast_folder, gpu=FREE)
        work.holds(77, "/dev/nvidia2")
        error = work.fails(DeviceInUse)
        assert f"{FREE} (AD102 [GeForce RTX 4090], nvidia) is held by job-77 (process 77" in error.message
        assert error.next_command == f"vfioctl holders {FREE}"
        assert [each["pid"] for each in error.facts["holders"]] == [77]  # type: ignore[attr-defined] # a list
        assert not any(path.endswith("/unbind") for path, _ in work.kernel.writes)

    def test_a_holder_of_a_companion_counts(self, fast_folder: Path) -> None:
        work = ScriptedHost(fast_folder, gpu=SCREEN)
        work.holds(77, "/dev/snd/controlC0")
        assert work.fails(DeviceInUse).message.startswith("0000:09:00.1 ")

    def test_services_and_modes_that_were_changed_for_it_come_back(self, fast_folder: Path) -> None:
        work = ScriptedHost(fast_folder)
        work.holds(77, "/dev/nvidia0")
        work.fails(DeviceInUse)
        undone = [(path, value) for path, value in work.kernel.writes if path.startswith(("unit:", "nvml:"))]
        assert (f"nvml:{TRAINING}", "0") in undone
        for subject, value in ((f"nvml:{TRAINING}", "1"), (f"unit:{DAEMON}", "active"), (f"unit:{DCGM}", "active")):
            assert undone.count((subject, value)) == 1

    def test_forced_it_refuses_nobody_who_can_be_forced(self, fast_folder: Path) -> None:
        work = ScriptedHost(fast_folder, gpu=SCREEN)
        work.force(SCREEN)
        work.holds(77, "/dev/dri/card0")
        assert work.host.apply(work.plan).result == Result.DONE

    def test_forced_nvidias_driver_still_decides_itself(self, fast_folder: Path) -> None:
        work = ScriptedHost(fast_folder, gpu=FREE)
        work.force(FREE)
        work.holds(77, "/dev/nvidia2")
        assert "did not grant unbindLock" in work.fails(DeviceInUse).message

    @pytest.mark.parametrize("settle", [0.0, PATIENT])
    def test_what_was_stopped_may_take_a_moment_to_let_go(self, fast_folder: Path, settle: float) -> None:
        class Slow(Simulated):
            asked = 0

            def open_nodes(self, pid: str) -> Opened:
                if pid == "77":
                    Slow.asked += 1
                if Slow.asked == 3:
                    self.tree.remove("/proc/77")
                return super().open_nodes(pid)

        work = ScriptedHost(fast_folder, Slow, settle=settle)
        work.holds(77, "/dev/nvidia0")
        if settle:
            assert work.host.apply(work.plan).result == Result.DONE
        else:
            work.fails(DeviceInUse)

    def test_where_nothing_was_stopped_nobody_waits(self, fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def never(_seconds: float) -> None:
            pytest.fail("it waited")

        work = ScriptedHost(fast_folder, gpu=FREE, settle=PATIENT)
        assert not {"service", "persistence"} & {step.action for step in work.plan.steps}
        assert Phase.RELEASE in {step.phase for step in work.plan.steps}, "a write has done what it does at once"
        work.holds(77, "/dev/nvidia2")
        monkeypatch.setattr("vfioctl.inventory.actions.time.sleep", never)
        work.fails(DeviceInUse)


class TestTheLock:
    def test_that_is_not_granted_puts_everything_back(self, fast_folder: Path) -> None:
        work = ScriptedHost(fast_folder)
        work.tree.properties.setdefault(f"sim:{TRAINING}", {})["in_use"] = "1"
        error = work.fails(DeviceInUse)
        assert error.message == (
            f"the nvidia driver did not grant unbindLock for {TRAINING}: it still counts users of the GPU"
        )
        assert "nvidia_drm" in error.hint
        assert not any(path.endswith("/unbind") for path, _ in work.kernel.writes)

    def test_is_asked_for_until_it_is_granted(self, fast_folder: Path) -> None:
        class Hesitant(Simulated):
            def write(self, path: str, value: str) -> None:
                super().write(path, value)
                if [path for path, _ in self.writes].count(lock) == 2:
                    self.tree.properties[f"sim:{TRAINING}"].pop("in_use", None)

        lock = f"/proc/driver/nvidia/gpus/{TRAINING}/unbindLock"
        work = ScriptedHost(fast_folder, Hesitant, settle=PATIENT)
        work.tree.properties.setdefault(f"sim:{TRAINING}", {})["in_use"] = "1"
        assert work.host.apply(work.plan).result == Result.DONE
        assert work.kernel.writes.count((lock, "1")) == 3

    def test_that_cannot_be_read_back_is_not_granted(self, fast_folder: Path) -> None:
        class Silent(Simulated):
            def write(self, path: str, value: str) -> None:
                super().write(path, value)
                if path == lock and value == "1":
                    self.tree.properties.setdefault(f"sim:{TRAINING}", {})["blocked"] = '["", ""]'
                elif path == lock:
                    self.tree.properties[f"sim:{TRAINING}"].pop("blocked", None)

        lock = f"/proc/driver/nvidia/gpus/{TRAINING}/unbindLock"
        work = ScriptedHost(fast_folder, Silent)
        with pytest.raises(Stuck):
            work.host.apply(work.plan)
        assert "did not grant unbindLock" in work.host.history()[0].why
        assert "no answer in 1 s" in work.host.history()[0].why

    def test_that_has_gone_is_not_granted(self, fast_folder: Path) -> None:
        class Brief(Simulated):
            def write(self, path: str, value: str) -> None:
                super().write(path, value)
                if path.endswith("/unbindLock"):
                    self.tree.remove(path)

        work = ScriptedHost(fast_folder, Brief)
        with pytest.raises(DeviceInUse, match="did not grant"):
            work.host.apply(work.plan)


class TestWhatMayFail:
    def test_is_told_when_all_is_done(self, fast_folder: Path) -> None:
        class Masked(Simulated):
            def set_unit(self, name: str, *, active: bool) -> None:
                if active:
                    error = HostError(f"starting {name} failed")
                    error.kernel_said = "Unit is masked."
                    raise error
                super().set_unit(name, active=active)

        work = ScriptedHost(fast_folder, Masked, gpu=SCREEN)
        work.host.apply(work.plan)
        with pytest.raises(VerifyError) as caught:
            work.host.apply(work.host.binding.plan_unbind([SCREEN]))
        assert f"starting {DESKTOP} failed (Unit is masked.)" in caught.value.message
        assert "unbound, but not everything was restored" in caught.value.message
        assert caught.value.restored == ""
        entry = work.host.history()[0]
        assert (entry.state, DESKTOP in entry.why) == (JournalState.DONE, True)
        assert work.host.inventory().by_address[SCREEN].driver == "amdgpu"
        left = differing(state(work.tree), work.before)
        assert left == [f"properties unit:{DESKTOP}: {{'state': 'inactive'}}, not {{'state': 'active'}}"]

    def test_each_failure_is_told(self, fast_folder: Path) -> None:
        work = ScriptedHost(fast_folder, gpu=SCREEN)
        work.host.apply(work.plan)
        back = work.host.binding.plan_unbind([SCREEN])
        effects = effects_of(back)
        soft = [at for at, step in enumerate(effects, start=1) if step.may_fail]
        assert len(soft) == len(effects) - soft[0] + 1, "they come last"
        faults = tuple(Fault(at, "errno", errno.EIO) for at in soft)
        kernel = Simulated(work.tree, "", faults=faults)
        with pytest.raises(VerifyError) as caught:
            Host(Session(kernel, fast_folder / "x.db", settle=0.0, lock_wait=0.0)).apply(back)
        for at in soft:
            assert effect(effects[at - 1])[0] in caught.value.message

    def test_a_stop_that_fails_is_not_among_it(self, fast_folder: Path) -> None:
        work = ScriptedHost(fast_folder, gpu=SCREEN, faults=(Fault(1, "errno", errno.EIO),))
        assert work.fails(KernelRefused).message.startswith("writing 'inactive' to unit:")


class TestWhatHangs:
    def test_is_told_with_its_function_and_who_holds_it(self, fast_folder: Path) -> None:
        host = machine(copy(original("busy")), fast_folder / "x.db")
        plan = host.binding.plan_unbind([SHARED], force_holders=True)
        with pytest.raises(Stuck) as caught:
            host.apply(plan)
        error = caught.value
        assert error.facts["address"] == SHARED
        assert {each["guest"] for each in error.facts["holders"]} == {"win11"}  # type: ignore[attr-defined] # a list
        assert "it is held by qemu-system-x86 (process 2684, libvirt-qemu, guest win11)" in error.hint
        assert error.next_command == "vfioctl recover"
        assert host.inventory().by_address[SHARED].mark

    def test_names_those_who_were_seen_when_nobody_can_be_seen_any_more(self, fast_folder: Path) -> None:
        work = ScriptedHost(fast_folder, gpu=SCREEN)
        work.force(SCREEN)
        work.holds(77, "/dev/dri/card0")
        unbind = next(n for n, s in enumerate(effects_of(work.plan), start=1) if s.target.endswith("/unbind"))
        work.kernel._faults = (Fault(unbind, HANG),)
        with pytest.raises(Stuck) as caught:
            work.host.apply(work.plan)
        assert 77 in [each["pid"] for each in caught.value.facts["holders"]]  # type: ignore[attr-defined] # a list

    def test_without_a_function_names_none(self, fast_folder: Path) -> None:
        class Deep(Simulated):
            def load(self, module: str) -> None:
                raise Stuck(f"modprobe {module} did not return")

        tree = copy(original("workstation"))
        host = Host(Session(Deep(tree, ""), fast_folder / "x.db", settle=0.0, lock_wait=0.0))
        with pytest.raises(Stuck) as caught:
            host.apply(host.binding.plan_bind(["0b:00.0"]))
        assert "address" not in caught.value.facts
        assert not marks_of(host)
        assert host.history()[0].state == JournalState.STUCK


# -- alone -----------------------------------------------------------------------------------------------


GPU = "0000:0b:00.0"


def overriding(*names: str, may_fail: bool = False) -> list[Step]:
    """One write to `driver_override` for each name; an empty one is of a file that is not there."""
    file = f"/sys/bus/pci/devices/{GPU}/driver_override"
    return [
        Step(phase=Phase.AIM, target=file if name else f"{file}s", value=name or "x", why="", may_fail=may_fail)
        for name in names
    ]


class Alone:
    """An executor without an engine around it."""

    def __init__(self) -> None:
        self.kernel = Simulated(copy(original("workstation")), "")
        self.told: list[tuple[str, str, int, int, int]] = []
        self.checked = 0

    def take(self, *todo: Step, stop_at: int = 0) -> list[str]:
        def check_interrupt() -> None:
            self.checked += 1
            if self.checked == stop_at:
                raise KeyboardInterrupt

        def tell(event: StepEvent) -> None:
            assert event.step
            self.told.append((event.kind, event.step.value, event.number, event.total, len(self.kernel.writes)))

        self.executor = Executor(REGISTRY, Context(self.kernel, BindIntent(devices=()), settle=0.0))
        change = binding_change(GPU, Binding("nvidia"), Binding("vfio-pci", "vfio-pci"))
        return self.executor.run([Owned(step, change) for step in todo], tell, check=check_interrupt)


class TestAlone:
    def test_each_step_has_an_event_before_and_after(self) -> None:
        work = Alone()
        assert work.take(*overriding("one", "two")) == []
        assert work.told == [
            ("begin", "one", 1, 2, 0),
            ("end", "one", 1, 2, 1),
            ("begin", "two", 2, 2, 1),
            ("end", "two", 2, 2, 2),
        ]

    def test_it_ends_with_the_first_that_fails(self) -> None:
        work = Alone()
        with pytest.raises(KernelRefused):
            work.take(*overriding("one", "", "two"))
        assert [value for _, value in work.kernel.writes] == ["one", "x"]

    def test_it_goes_on_after_what_may_fail(self) -> None:
        work = Alone()
        failures = work.take(*overriding("one"), *overriding("", may_fail=True), *overriding("two"))
        assert [value for _, value in work.kernel.writes] == ["one", "x", "two"]
        assert failures == [
            f"writing 'x' to /sys/bus/pci/devices/{GPU}/driver_overrides failed (ENOENT: No such file or directory)"
        ]

    def test_an_interrupt_before_the_first_step_has_begun_none(self) -> None:
        work = Alone()
        with pytest.raises(KeyboardInterrupt):
            work.take(*overriding("one"), stop_at=1)
        assert (work.executor.reached, work.executor.under_way) == (0, None)

    def test_it_goes_on_after_what_is_done_anyway(self) -> None:
        """As disabling the ROM of a function that has none."""
        work = Alone()
        rom = f"/sys/bus/pci/devices/{GPU}/roms"
        off = Owned(
            Step(phase=Phase.SET, target=rom, value="0\n", why=""),
            Change(kind="rom", name=rom, subject=GPU, before="on", after="off"),
        )
        (override,) = overriding("one")
        executor = Executor(REGISTRY, Context(work.kernel, BindIntent(devices=()), settle=0.0))
        bound = binding_change(GPU, Binding("nvidia"), Binding("vfio-pci", "vfio-pci"))
        assert executor.run([off, Owned(override, bound)], None, check=lambda: None) == []
        assert work.kernel.writes[-1][1] == "one"
        assert executor.reached == 2

    def test_it_stops_for_an_interrupt_between_steps(self) -> None:
        work = Alone()
        with pytest.raises(KeyboardInterrupt):
            work.take(*overriding("one", "two", "three"), stop_at=2)
        assert [value for _, value in work.kernel.writes] == ["one"]

    def test_what_has_gone_from_the_bus_is_not_asked_for(self) -> None:
        assert Alone().take(Step(phase=Phase.CHECK, action="unheld", target="0000:ff:00.0", why="")) == []

    def test_it_tells_how_far_it_came_and_which_step_was_refused(self) -> None:
        work = Alone()
        with pytest.raises(KernelRefused):
            work.take(*overriding("one", "", "two"))
        assert work.executor.reached == 1, "the second was begun, and did nothing"
        assert work.executor.refused
        assert work.executor.refused.step.target.endswith("/driver_overrides")

    def test_what_was_refused_and_may_fail_did_not_end_it(self) -> None:
        work = Alone()
        work.take(*overriding("", may_fail=True), *overriding("two"))
        assert (work.executor.reached, work.executor.refused) == (2, None)


def test_a_resource_is_written_once_its_last_step_was_begun(tmp_path: Path) -> None:
    host = Host(Session(Simulated(copy(original("hgx8")), ""), tmp_path / "ledger.db"))
    plan = host.binding.plan_bind(["gpu0"], force_holders=True)
    last = {owned.change.key: number for number, owned in enumerate(REGISTRY.steps(plan.changes), start=1)}
    assert last
    for key, number in last.items():
        assert key in written(REGISTRY, plan, number)
        assert key not in written(REGISTRY, plan, number - 1)


def test_what_is_created_is_untouched_until_its_first_step_was_begun(tmp_path: Path) -> None:
    host = Host(Session(Simulated(copy(original("a2")), ""), tmp_path / "ledger.db"))
    plan = host.vgpu.plan_create("A2-4C", count=2)
    created = {owned.change.key: at for at, owned in reversed([*enumerate(REGISTRY.steps(plan.changes), start=1)])}
    first = {key: at for key, at in created.items() if key[0] == "mdev"}
    assert len(first) == 2
    for key, at in first.items():
        assert key in untouched(REGISTRY, plan, at - 1)
        assert key not in untouched(REGISTRY, plan, at)
