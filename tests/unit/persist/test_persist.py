"""`bind --persistent`, `unbind --persistent` and `vfioctl persist` over simulated boots."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts.machines import original
from tests.hosts.vgpu_machines import BootableHost
from tests.unit.conftest import Answer, Golden, Run
from vfioctl.core.change import Result
from vfioctl.core.events import EventKind, StepEvent
from vfioctl.errors import BadDocument, DeviceInUse, DeviceMissing, HostError, UnknownDevice, VerifyError
from vfioctl.kernel.host_paths import DEVICES, UDEV_RULES
from vfioctl.persist.model.persistent import Owner, State

GPU, OTHER = "0000:43:00.0", "0000:52:00.0"


@pytest.fixture
def server(fast_folder: Path) -> BootableHost:
    return BootableHost(fast_folder, original("hgx8"))


@pytest.fixture
def bound(server: BootableHost) -> BootableHost:
    server.does(lambda host: host.binding.plan_bind([GPU], persistent=True))
    return server


def asked(run: Run, machine: BootableHost, line: str) -> Answer:
    return run(f"{line} --simulate", str(machine.file))


def files(machine: BootableHost) -> list[str]:
    return sorted(p for p in machine.tree.files if p.startswith((f"{DEVICES}/", f"{UDEV_RULES}/61-vfioctl-")))


def driver(machine: BootableHost, address: str = GPU) -> str | None:
    return machine.host.inventory().by_address[address].driver  # type: ignore[index]


class TestBind:
    def test_writes_the_definition_after_all_else_was_verified(self, server: BootableHost) -> None:
        events: list[StepEvent] = []
        host = server.host
        host.apply(host.binding.plan_bind([GPU], persistent=True), progress=events.append)
        verified = [e.kind for e in events].index(EventKind.VERIFY)
        written = [n for n, e in enumerate(events) if e.step and e.step.action == "file" and e.kind == EventKind.BEGIN]
        assert len(written) == 2
        assert min(written) > verified
        assert files(server) == [f"{UDEV_RULES}/61-vfioctl-{GPU}.rules", f"{DEVICES}/{GPU}.toml"]

    def test_that_fails_its_verification_writes_nothing(self, server: BootableHost) -> None:
        def spoil(event: StepEvent) -> None:
            """The driver is gone as soon as the last step has ended, as by a udev rule of someone else."""
            if event.kind == EventKind.VERIFY and driver(server) == "vfio-pci":
                server.other("/sys/bus/pci/drivers/vfio-pci/unbind", GPU)

        host = server.host
        with pytest.raises(VerifyError):
            host.apply(host.binding.plan_bind([GPU], persistent=True), progress=spoil)
        assert files(server) == []

    def test_again_changes_nothing(self, bound: BootableHost) -> None:
        assert bound.host.binding.plan_bind([GPU], persistent=True).nothing_to_do

    def test_of_a_bound_device_writes_the_files_only(self, server: BootableHost) -> None:
        server.does(lambda host: host.binding.plan_bind([GPU]))
        plan = server.host.binding.plan_bind([GPU], persistent=True)
        assert [change.kind for change in plan.changes] == ["device definition", "udev rule"]
        assert plan.intent.undone_by(plan) == (f"vfioctl persist remove {GPU}",)

    def test_takes_all_functions_of_a_card(self, fast_folder: Path) -> None:
        machine = BootableHost(fast_folder, original("workstation"))
        machine.does(lambda host: host.binding.plan_bind(["0b:00.0"], persistent=True))
        assert [f for f in files(machine) if f.endswith(".toml")] == [
            f"{DEVICES}/0000:0b:00.{number}.toml" for number in range(4)
        ]

    def test_says_how_a_twin_is_told_apart(self, server: BootableHost) -> None:
        (note,) = [n for n in server.host.binding.plan_bind([GPU], persistent=True).notes if "twins" in n]
        assert "known by its slot" in note

    def test_leaves_the_boot_display_alone_at_boot_unless_allowed(self, fast_folder: Path) -> None:
        machine = BootableHost(fast_folder, original("workstation"))
        (screen,) = [f.address for f in machine.host.inventory().functions if f.boot_vga]
        with pytest.raises(DeviceInUse, match="boot display"):
            machine.host.binding.plan_bind([screen], persistent=True)


class TestUnbind:
    def test_keeps_the_definition_and_says_so(self, bound: BootableHost) -> None:
        plan = bound.host.binding.plan_unbind([GPU])
        assert f"{GPU} is bound at the next boot again (--persistent: not)" in plan.notes
        bound.does(lambda host: host.binding.plan_unbind([GPU]))
        assert len(files(bound)) == 2

    def test_persistent_removes_it(self, bound: BootableHost) -> None:
        bound.does(lambda host: host.binding.plan_unbind([GPU], persistent=True))
        assert files(bound) == []
        assert driver(bound) == "nvidia"


class TestBoot:
    def test_restores_what_is_missing(self, bound: BootableHost) -> None:
        bound.boots()
        assert driver(bound) == "nvidia"
        (entry,) = bound.host.persist.persistent()
        assert (entry.state, entry.why) == (State.ABSENT, "it is on nvidia")
        restored = bound.host.persist.restore()
        assert [outcome.result for outcome in restored.outcomes] == [Result.DONE]
        assert driver(bound) == "vfio-pci"
        assert bound.host.persist.persistent()[0].state == State.READY
        assert not bound.host.persist.restore().outcomes, "again there is nothing to do"

    def test_of_a_damaged_definition_costs_that_one_only(self, bound: BootableHost) -> None:
        bound.does(lambda host: host.binding.plan_bind([OTHER], persistent=True))
        bound.boots()
        tree = bound.tree
        tree.put(f"{DEVICES}/{GPU}.toml", "version = 1\nnonsense")
        bound._keep(tree)
        restored = bound.host.persist.restore()
        ((file, error),) = restored.failures.items()
        assert (file, type(error)) == (f"{DEVICES}/{GPU}.toml", BadDocument)
        assert (driver(bound), driver(bound, OTHER)) == ("nvidia", "vfio-pci")

    def test_takes_nothing_in_place_of_a_missing_device(self, bound: BootableHost) -> None:
        bound.boots()
        tree = bound.tree
        text = tree.files[f"{DEVICES}/{GPU}.toml"]
        tree.put(f"{DEVICES}/{GPU}.toml", text.replace('\ndevice = "2330"', '\ndevice = "9999"'))
        bound._keep(tree)
        restored = bound.host.persist.restore(wait=30.0)  # which is not waited for
        (error,) = restored.failures.values()
        assert isinstance(error, DeviceMissing)
        assert driver(bound) == "nvidia"

    def test_a_dry_run_shows_a_plan_for_each(self, bound: BootableHost) -> None:
        bound.does(lambda host: host.binding.plan_bind([OTHER], persistent=True))
        bound.boots()
        restored = bound.host.persist.restore(dry_run=True)
        assert [plan.listed for plan in restored.plans] == [GPU, OTHER]
        assert driver(bound) == "nvidia"

    @pytest.mark.parametrize("off", ["argument", "file"])
    def test_can_be_switched_off(self, bound: BootableHost, run: Run, off: str) -> None:
        tree = bound.tree
        if off == "argument":
            tree.put("/proc/cmdline", "BOOT_IMAGE=/vmlinuz quiet vfioctl.disable ro")
        else:
            tree.put("/etc/vfioctl/disabled", "by root")
        bound._keep(tree)
        with pytest.raises(HostError, match="restoring is switched off"):
            bound.host.persist.restore()
        assert "Restoring is switched off" in asked(run, bound, "persist list").out


class TestRemove:
    def test_changes_nothing_now(self, bound: BootableHost) -> None:
        bound.does(lambda host: host.persist.plan_remove([GPU]))
        assert files(bound) == []
        assert driver(bound) == "vfio-pci"

    def test_of_several_names_of_which_one_is_wrong_removes_none(self, bound: BootableHost) -> None:
        with pytest.raises(UnknownDevice, match=f"vfioctl restores nothing for {OTHER}"):
            bound.host.persist.plan_remove([GPU, OTHER])
        assert len(files(bound)) == 2

    def test_of_a_damaged_definition(self, bound: BootableHost) -> None:
        tree = bound.tree
        tree.put(f"{DEVICES}/{GPU}.toml", "nonsense")
        bound._keep(tree)
        bound.does(lambda host: host.persist.plan_remove([GPU]))
        assert files(bound) == []


class TestFiles:
    """The definition and the udev rule of a device say the same, or the device is not well."""

    RULE = f"{UDEV_RULES}/61-vfioctl-{GPU}.rules"

    def entry(self, machine: BootableHost) -> tuple[State, str]:
        (entry,) = machine.host.persist.persistent()
        return entry.state, entry.why

    def test_a_rule_that_is_missing_or_another_is_told_and_written_anew(self, bound: BootableHost, run: Run) -> None:
        assert self.entry(bound) == (State.READY, "")
        text = bound.tree.files[self.RULE]
        bound.add(self.RULE, text.replace("0x2330", "0x2331"))
        assert self.entry(bound) == (
            State.FAILED,
            f"its udev rule is another: vfioctl bind {GPU} --persistent writes it",
        )
        bound.edit(lambda tree: tree.remove(self.RULE))
        assert self.entry(bound)[1].startswith("its udev rule is missing")
        answer = asked(run, bound, "persist check")
        assert answer.code == 4
        assert "bind it anew with --persistent" in answer.err
        bound.does(lambda host: host.binding.plan_bind([GPU], persistent=True))
        assert bound.tree.files[self.RULE] == text
        assert self.entry(bound) == (State.READY, "")

    def test_a_rule_without_a_definition_is_told_and_removed(self, bound: BootableHost) -> None:
        bound.edit(lambda tree: tree.remove(f"{DEVICES}/{GPU}.toml"))
        (entry,) = bound.host.persist.persistent()
        assert (entry.state, entry.file) == (State.FAILED, self.RULE)
        bound.does(lambda host: host.persist.plan_remove([GPU]))
        assert bound.host.persist.persistent() == ()
        assert self.RULE not in bound.tree.files

    @pytest.mark.parametrize("line", ["driver='vfio-pci'", 'driver="vfio-pci"', 'driver = "vfio-pci" # mine'])
    def test_a_line_that_only_python_reads_is_damage(self, bound: BootableHost, line: str) -> None:
        """The shell script that binds early would overlook the device."""
        file = f"{DEVICES}/{GPU}.toml"
        text = bound.tree.files[file]
        bound.add(file, f"# mine\n{text}")
        assert self.entry(bound) == (State.READY, ""), "a comment is none"
        bound.add(file, text.replace('driver = "vfio-pci"', line))
        state, why = self.entry(bound)
        assert (state, why) == (State.FAILED, f"vfioctl-early does not read this line: {line}")

    def test_are_removed_by_any_name_of_the_device(self, bound: BootableHost) -> None:
        bound.does(lambda host: host.persist.plan_remove(["gpu1"]))
        assert bound.host.persist.persistent() == ()


def test_check_tells_that_nothing_will_be_restored(bound: BootableHost, run: Run) -> None:
    assert asked(run, bound, "persist check").code == 0
    bound.add("/etc/vfioctl/disabled", "")
    answer = asked(run, bound, "persist check")
    assert (answer.code, "the next boot restores nothing" in answer.err) == (4, True)
    assert asked(run, bound, "persist check --json").code == 4


class TestOthers:
    def overridden(self, machine: BootableHost, address: str = GPU, driver_name: str = "vfio-pci") -> str:
        tree, file = machine.tree, f"/etc/driverctl.d/pci-{address}"
        tree.put(file, driver_name)
        machine._keep(tree)
        return file

    def test_are_listed_with_their_names(self, server: BootableHost) -> None:
        file = self.overridden(server)
        tree = server.tree
        tree.put("/proc/cmdline", "quiet vfio-pci.ids=10de:2330,1234:5678 ro")
        server._keep(tree)
        driverctl, ids = server.host.persist.persistent()
        assert (driverctl.name, driverctl.owner, driverctl.file) == (GPU, Owner.DRIVERCTL, file)
        assert (ids.owner, ids.name) == (Owner.COMMAND_LINE, "10de:2330,1234:5678")
        assert ids.why.count("0000:") == 8, "all eight GPUs of that model"

    def test_are_taken_over_when_their_device_is_bound(self, server: BootableHost) -> None:
        file = self.overridden(server)
        with pytest.raises(HostError, match="not on VFIO"):
            server.host.persist.plan_import()
        server.does(lambda host: host.binding.plan_bind([GPU]))
        plan = server.host.persist.plan_import()
        assert plan.intent.undone_by(plan) == (
            f"vfioctl persist remove {GPU}",
            f"driverctl --nosave set-override {GPU} vfio-pci",
        )
        server.host.apply(plan)
        assert file not in server.tree.files
        (entry,) = server.host.persist.persistent()
        assert (entry.owner, entry.state) == (Owner.VFIOCTL, State.READY)

    def test_are_not_taken_over_when_they_are_not_there(self, server: BootableHost) -> None:
        assert server.host.persist.plan_import().nothing_to_do
        self.overridden(server, driver_name="nvidia")
        with pytest.raises(UnknownDevice, match="neither driverctl, mdevctl nor ids"):
            server.host.persist.plan_import([GPU])

    def test_ids_that_stay_are_named(self, server: BootableHost) -> None:
        tree = server.tree
        tree.put("/proc/cmdline", "quiet vfio-pci.ids=10de:2330 ro")
        server._keep(tree)
        server.does(lambda host: host.binding.plan_bind([GPU]))
        notes = server.host.persist.plan_import([GPU]).notes
        still = "/proc/cmdline still gives vfio-pci ids=10de:2330, so every device with these: remove it there"
        assert still in notes

    @pytest.mark.parametrize("text", ["", "../../x", "a b", "x" * 100, "vfio-pci\nreboot"])
    def test_a_file_with_no_driver_in_it_is_ignored(self, server: BootableHost, text: str) -> None:
        self.overridden(server, driver_name=text)
        assert server.host.persist.persistent() == ()


def test_the_list(bound: BootableHost, run: Run, golden: Golden) -> None:
    bound.does(lambda host: host.binding.plan_bind([OTHER], persistent=True))
    bound.boots()
    bound.does(lambda host: host.binding.plan_bind([OTHER]))
    answer = asked(run, bound, "persist list")
    assert answer.code == 0
    golden("persist/list.txt", answer.out)
    golden("persist/list.json", asked(run, bound, "persist list --json").out)
    assert asked(run, bound, "persist check").code == 4
    assert asked(run, bound, "persist restore --yes").code == 0
    assert asked(run, bound, "persist check").code == 0


def test_an_interrupted_bind_leaves_no_definition(server: BootableHost) -> None:
    """The process ends before its first step; the next boot has nothing to restore, and recovers the change."""
    host = server.host
    plan = host.binding.plan_bind([GPU], persistent=True)

    def end(event: StepEvent) -> None:
        if event.kind == EventKind.VERIFY:
            raise SystemExit

    with pytest.raises(SystemExit):
        host.apply(plan, progress=end)
    assert files(server) == []
    server.boots()
    server.host.persist.restore()
    assert files(server) == []
    assert driver(server) == "nvidia"
