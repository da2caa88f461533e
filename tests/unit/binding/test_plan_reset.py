"""One device reset: by which method, what else that would hit, and what is refused."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hosts.machines import REGISTRY, copy, differing, function, inventory_of, machine, original, state
from vfioctl.binding.model.binding import binding_in
from vfioctl.binding.model.conditions import Circumstances
from vfioctl.binding.model.intents import ResetIntent
from vfioctl.binding.plan.reset import plan_reset, reset_with
from vfioctl.core.change import Draft, JournalState, Plan, Result
from vfioctl.core.marks import Mark, MarkKind
from vfioctl.errors import BadSpec, DeviceDead, DeviceInUse, HostError, KernelRefused, Stuck, VfioctlError
from vfioctl.host import Host
from vfioctl.inventory.model.functions import Function, Nvml
from vfioctl.inventory.model.holders import Holder, HolderKind, Holders
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated.faults import DIE, HANG, Fault, SimulatedDeath
from vfioctl.kernel.simulated.host import Simulated

DEVICES = "/sys/bus/pci/devices"
PORT = "0000:40:01.0"
BRIDGE = function("40:01.0", "060400", driver="pcieport", iommu_group=2)
VFIO = {"driver": "vfio-pci", "driver_override": "vfio-pci"}
GPU = function("41:00.0", upstream=PORT, reset_methods=("flr", "bus"), **VFIO)
AUDIO = function("41:00.1", "040300", upstream=PORT, reset_methods=("bus",), **VFIO)
ALL_FILES = frozenset({*(f"{DEVICES}/{f.address}/reset" for f in (GPU, AUDIO)), f"{DEVICES}/{PORT}/reset_subordinate"})


def planned(
    *functions: Function, files: frozenset[str] = ALL_FILES, holders: tuple[Holder, ...] = (), **wishes: object
) -> Plan:
    known: dict[str, object] = {"devices": ("0000:41:00.0",)}
    intent = ResetIntent.model_validate(known | wishes)
    found = Holders(devices=intent.devices, holders=holders)
    return REGISTRY.plan(plan_reset(inventory_of(BRIDGE, *functions), intent, Circumstances(holders=found), files))


def refused(kind: type[VfioctlError], *functions: Function, **wishes: object) -> VfioctlError:
    with pytest.raises(kind) as caught:
        planned(*functions, **wishes)  # type: ignore[arg-type] # as they are named
    assert caught.value.hint
    return caught.value


def reset_by(plan: Plan) -> str | None:
    """The file whose writing resets; nothing where nothing does."""
    names = [change.name for change in plan.changes_of("reset")]
    assert len(names) <= 1
    return names[0] if names else None


def writes(plan: Plan) -> list[tuple[str, str]]:
    return [(step.target.removeprefix(f"{DEVICES}/"), step.value) for step in plan.steps if step.action == "write"]


def with_methods(*methods: str) -> Function:
    return replace(GPU, reset_methods=methods)


class TestMethods:
    def test_the_kernels_first_is_taken_as_it_is(self) -> None:
        plan = planned(GPU, AUDIO)
        assert writes(plan) == [("0000:41:00.0/reset", "1")]
        assert reset_by(plan) == f"{DEVICES}/0000:41:00.0/reset"
        assert plan.changes_of("reset method") == ()
        assert plan.notes == ("0000:41:00.0 is reset by flr: what is in it is lost",)
        text = binding_in(plan.facts[0]).text
        assert [(c.before, c.after) for c in plan.changes_of("binding")] == [(text, text)]

    def test_another_is_the_only_one_for_the_time_of_the_reset(self) -> None:
        plan = planned(with_methods("flr", "pm"), method="pm")
        assert writes(plan) == [
            ("0000:41:00.0/reset_method", "pm"),
            ("0000:41:00.0/reset", "1"),
            ("0000:41:00.0/reset_method", "flr pm"),
        ]
        assert [step.may_fail for step in plan.steps if "method" in step.target] == [False, True]
        assert [(c.before, c.after, c.during) for c in plan.changes_of("reset method")] == [("flr pm", "flr pm", "pm")]

    def test_who_holds_it_is_asked_before(self) -> None:
        assert [step.action for step in planned(GPU, method="flr").steps] == ["unheld", "write"]
        free = replace(with_methods("flr"), driver=None)
        assert [step.action for step in planned(free).steps] == ["unheld", "write"]

    def test_one_that_it_has_not_is_refused_and_those_that_it_has_are_named(self) -> None:
        error = refused(BadSpec, GPU, method="x" * 1000)
        assert len(error.message) < 200
        assert error.hint == "it has flr, bus"

    def test_without_any_only_the_power_can_reset_it(self) -> None:
        assert "power" in refused(HostError, with_methods(), files=frozenset()).hint

    def test_a_kernel_that_names_none_chooses_by_itself(self) -> None:
        older = replace(with_methods(), reset_unnamed=True)
        plan = planned(older)
        assert "leave out --method" in refused(BadSpec, older, method="flr").hint
        assert writes(plan) == [("0000:41:00.0/reset", "1")]
        assert plan.changes_of("reset method") == ()

    def test_without_a_file_there_is_none(self) -> None:
        assert "has no reset file" in refused(HostError, GPU, files=frozenset()).message

    def test_a_bridge_is_refused(self) -> None:
        assert "is a bridge" in refused(BadSpec, GPU, devices=(PORT,)).message

    def test_its_native_driver_is_not_told(self) -> None:
        native = replace(GPU, driver="amdgpu", driver_override=None)
        assert (
            "amdgpu is not notified of the reset, and may lose 0000:41:00.0 until it is bound again"
            in planned(native).notes
        )

    def test_the_boot_display_is_refused(self) -> None:
        shown = replace(GPU, driver="amdgpu", driver_override=None, boot_vga=True)
        error = refused(DeviceInUse, shown)
        assert "boot display" in error.message
        assert error.next_command == "vfioctl bind 0000:41:00.0 --allow-boot-vga"
        assert reset_by(planned(shown, force_holders=True))

    @pytest.mark.parametrize(("mode", "refuses"), [(None, True), (True, True), (False, False)])
    def test_a_gpu_that_nvidia_keeps_open_is_refused(self, mode: bool | None, refuses: bool) -> None:
        said = Nvml(persistence_mode=mode)
        native = replace(GPU, driver="nvidia", driver_override=None, nvml=said)
        if refuses:
            error = refused(DeviceInUse, native)
            assert "persistence mode" in error.message
            assert error.next_command == "vfioctl bind 0000:41:00.0"
        else:
            assert reset_by(planned(native))


class TestTheBus:
    def test_alone_on_it_the_function_is_reset_by_its_own_file(self) -> None:
        plan = planned(GPU, method="bus")
        assert reset_by(plan) == f"{DEVICES}/0000:41:00.0/reset"
        assert [c.during for c in plan.changes_of("reset method")] == ["bus"]

    def test_siblings_in_use_are_named_and_refuse_it(self) -> None:
        busy = replace(AUDIO, driver="snd_hda_intel")
        error = refused(DeviceInUse, GPU, busy, method="bus")
        assert error.message.endswith("would also hit 0000:41:00.1 (10de:2330, snd_hda_intel)")
        assert error.facts == {"hit": ["0000:41:00.1"]}

    @pytest.mark.parametrize("driver", [None, "vfio-pci", "mlx5_vfio_pci"])
    def test_siblings_that_are_idle_are_reset_with_it_where_the_kernel_can(self, driver: str | None) -> None:
        idle = replace(AUDIO, driver=driver)
        plan = planned(GPU, idle, method="bus")
        assert reset_by(plan) == f"{DEVICES}/{PORT}/reset_subordinate"
        assert [fact.subject for fact in plan.facts] == ["0000:41:00.0", "0000:41:00.1"]
        assert any(note.startswith("0000:41:00.1 (") and note.endswith(" is reset with it") for note in plan.notes)
        (check,) = (step for step in plan.steps if step.action == "unheld")
        assert check.target.split() == ["0000:41:00.0", "0000:41:00.1"]

    def test_with_siblings_an_older_kernel_has_no_way(self) -> None:
        error = refused(HostError, GPU, AUDIO, method="bus", files=ALL_FILES - {f"{DEVICES}/{PORT}/reset_subordinate"})
        assert "has siblings: 0000:41:00.1" in error.message
        assert "reset_subordinate" in error.hint

    def test_it_is_the_way_of_a_function_that_has_no_other(self) -> None:
        assert reset_by(planned(GPU, AUDIO, devices=("0000:41:00.1",))) == f"{DEVICES}/{PORT}/reset_subordinate"

    def test_what_is_below_another_bridge_or_on_another_bus_is_not_hit(self) -> None:
        host = inventory_of(
            BRIDGE, GPU, AUDIO, function("42:00.0", upstream=PORT), function("41:01.0", upstream="0000:40:02.0")
        )
        assert reset_with(host, GPU.address) == ("0000:41:00.0", "0000:41:00.1")

    def test_a_vf_and_a_function_without_a_bridge_are_alone(self) -> None:
        vf = function("41:00.2", upstream=PORT, physfn="41:00.0")
        root = function("00:02.0", upstream=None)
        host = inventory_of(BRIDGE, GPU, vf, root)
        assert reset_with(host, vf.address) == (vf.address,)
        assert reset_with(host, root.address) == (root.address,)


class TestForgeries:
    """What a plan from elsewhere may have reset: what was asked for, by a file of its own or of the bridge above."""

    def forged(self, plan: Plan, **update: str) -> Plan:
        changes = [c.model_copy(update=update) if c.kind == "reset" else c for c in plan.changes]
        return REGISTRY.plan(Draft(plan.intent, plan.facts, tuple(changes), plan.checks, plan.notes))

    def test_the_plan_itself_is_none(self) -> None:
        for method in ("flr", "bus"):
            plan = planned(GPU, AUDIO, method=method)
            assert self.forged(plan) == plan
            assert not REGISTRY.is_forged(plan)

    @pytest.mark.parametrize(
        "update",
        [
            {"name": f"{DEVICES}/0000:42:00.0/reset"},
            {"name": f"{DEVICES}/0000:42:00.0/remove"},
            {"name": "/proc/sysrq-trigger"},
            {"subject": "0000:41:00.1"},
            {"before": "1"},
            {"during": "1"},
            {"after": ""},
            {"after": "0000:41:00.0"},
            {"after": "0000:41:00.0 0000:41:00.1 0000:42:00.0"},
            {"after": "0000:41:00.0 x"},
        ],
        ids=str,
    )
    def test_another_file_or_fewer_who_are_asked_for_is(self, update: dict[str, str]) -> None:
        assert REGISTRY.is_forged(self.forged(planned(GPU, AUDIO, method="bus"), **update))


class TestWhoIsInTheWay:
    HOLDER = Holder(address=GPU.address, kind=HolderKind.GUEST, pid=7, name="qemu", guest="win11", path="/dev/vfio/1")

    @pytest.mark.parametrize("kind", [HolderKind.MDEV, HolderKind.VGPU, HolderKind.VF])
    def test_a_function_with_vgpus_or_vfs_is_refused(self, kind: HolderKind) -> None:
        other = Holder(address=AUDIO.address, kind=kind, name="a vGPU")
        planned(GPU, AUDIO, holders=(other,), force_holders=True)
        own = replace(other, address=GPU.address)
        assert "a vGPU" in str(refused(DeviceInUse, GPU, AUDIO, holders=(own,), force_holders=True))

    def test_a_holder_refuses_it(self) -> None:
        error = refused(DeviceInUse, GPU, holders=(self.HOLDER,))
        assert "is held by qemu (process 7, guest win11): /dev/vfio/1" in error.message

    def test_a_holder_of_a_sibling_refuses_a_bus_reset_only(self) -> None:
        other = replace(self.HOLDER, address=AUDIO.address)
        refused(DeviceInUse, GPU, AUDIO, method="bus", holders=(other,))
        assert reset_by(planned(GPU, AUDIO, holders=(other,)))

    def test_it_can_be_forced_and_says_so(self) -> None:
        plan = planned(GPU, holders=(self.HOLDER,), force_holders=True)
        assert "--force-holders" in plan.notes[-1]

    def test_a_disk_in_use_cannot(self) -> None:
        disk = replace(self.HOLDER, kind=HolderKind.DISK, pid=None)
        refused(DeviceInUse, GPU, holders=(disk,), force_holders=True)

    @pytest.mark.parametrize(("kind", "error"), [(MarkKind.WEDGED, DeviceInUse), (MarkKind.DEAD, DeviceDead)])
    def test_a_marked_function_is_refused(self, kind: MarkKind, error: type[VfioctlError]) -> None:
        mark = Mark(address=GPU.address, kind=kind, since="2026-01-01", why="a test", ticket="")
        refused(error, replace(GPU, mark=mark))
        sibling = replace(AUDIO, mark=mark)
        refused(error, GPU, sibling, method="bus")
        assert reset_by(planned(GPU, sibling, method="flr")), "it is not touched"


# -- carried out -----------------------------------------------------------------------------------------


def host_with_siblings(ledger: Path, *faults: Fault) -> Host:
    """The workstation, its boot GPU and sound card on VFIO, and a kernel that can reset what is below a bridge."""
    tree = copy(original("workstation"))
    port = tree.resolve(f"{DEVICES}/{TestCarriedOut.GPU}").rpartition("/")[0]
    for path in (f"{DEVICES}/{TestCarriedOut.GPU}", f"{DEVICES}/{TestCarriedOut.AUDIO}"):
        tree.put(f"{tree.resolve(path)}/reset_method", "flr bus")
    tree.put(f"{port}/reset_subordinate", "")
    first = machine(tree, ledger)
    first.apply(first.binding.plan_bind([TestCarriedOut.GPU], allow_boot_vga=True))
    return machine(tree, ledger, faults)


def resets(tree: Tree, address: str) -> str:
    return tree.properties.get(f"sim:{address}", {}).get("resets", "0")


class TestCarriedOut:
    GPU, AUDIO = "0000:0a:00.0", "0000:0a:00.1"

    def kernel(self, host: Host) -> Simulated:
        assert isinstance(host.session.kernel, Simulated)
        return host.session.kernel

    def test_one_function_alone(self, fast_folder: Path) -> None:
        host = host_with_siblings(fast_folder / "x.db")
        tree = self.kernel(host).tree
        before = state(tree)
        outcome = host.apply(host.binding.plan_reset(self.GPU))
        assert outcome.result == Result.DONE
        assert (resets(tree, self.GPU), resets(tree, self.AUDIO)) == ("1", "0")
        assert not differing(state(tree), before)
        assert {fact.values["driver"] for fact in outcome.found} == {"vfio-pci"}

    def test_all_below_the_bridge(self, fast_folder: Path) -> None:
        host = host_with_siblings(fast_folder / "x.db")
        tree = self.kernel(host).tree
        before = state(tree)
        host.apply(host.binding.plan_reset(self.GPU, method="bus"))
        assert (resets(tree, self.GPU), resets(tree, self.AUDIO)) == ("1", "1")
        assert not differing(state(tree), before), "the methods are all there again"

    @pytest.mark.parametrize("at", [1, 2])
    def test_a_refused_write_puts_the_methods_back(self, fast_folder: Path, at: int) -> None:
        host = host_with_siblings(fast_folder / "x.db", Fault(at, "errno", errno.ENOTTY))
        tree = self.kernel(host).tree
        before = state(tree)
        with pytest.raises(KernelRefused) as caught:
            host.apply(host.binding.plan_reset(self.GPU, method="bus"))
        assert caught.value.kernel_said.startswith("ENOTTY")
        assert caught.value.restored
        assert not differing(state(tree), before)

    @pytest.mark.parametrize("forward", [False, True])
    @pytest.mark.parametrize("at", [1, 2, 3])
    def test_a_death_is_recovered(self, fast_folder: Path, at: int, forward: bool) -> None:
        host = host_with_siblings(fast_folder / "x.db", Fault(at, DIE))
        tree = self.kernel(host).tree
        before = state(tree)
        with pytest.raises(SimulatedDeath):
            host.apply(host.binding.plan_reset(self.GPU, method="bus"))
        (outcome,) = machine(tree, fast_folder / "x.db").recover(forward=forward)
        assert outcome.result == (Result.DONE if forward else Result.BACK)
        assert not differing(state(tree), before)
        assert int(resets(tree, self.GPU)) == (at > 1) + forward, "forward, it is reset: whether it was, nothing tells"

    def test_one_that_hangs_is_marked(self, fast_folder: Path) -> None:
        host = host_with_siblings(fast_folder / "x.db", Fault(1, HANG))
        with pytest.raises(Stuck):
            host.apply(host.binding.plan_reset(self.GPU))
        assert host.history()[0].state == JournalState.STUCK

    def test_who_opens_it_meanwhile_is_seen_before_it_is_written(self, fast_folder: Path) -> None:
        host = host_with_siblings(fast_folder / "x.db")
        tree = self.kernel(host).tree
        plan = host.binding.plan_reset(self.GPU, method="bus")
        group = host.inventory().by_address[PciAddress(self.GPU)].iommu_group
        tree.put("/proc/77/comm", "qemu-system-x86")
        tree.put("/proc/77/cmdline", "qemu-system-x86_64\0-name\0win11\0")
        tree.put_link("/proc/77/fd/9", f"/dev/vfio/{group}")
        before = state(tree)
        with pytest.raises(DeviceInUse, match=r"qemu-system-x86 \(process 77"):
            host.apply(plan)
        assert (resets(tree, self.GPU), resets(tree, self.AUDIO)) == ("0", "0")
        assert not differing(state(tree), before)
        assert host.history()[0].state == JournalState.BACK
