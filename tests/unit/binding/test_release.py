"""What is set so that a driver releases a device, what is put back and what is left to others, and who releases it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    effect,
    effects_of,
    function,
    in_use,
    machine,
    state,
    unhurried,
)
from vfioctl.binding.api import units_to_stop
from vfioctl.binding.model.binding import Binding
from vfioctl.binding.model.conditions import GPU_SERVICES, NOTHING_KNOWN, Circumstances, Reading
from vfioctl.binding.plan.release import excused_by, idle_services, to_release, warnings
from vfioctl.binding.resources.driver import binding_change
from vfioctl.core.change import Change, Plan, Result, Step
from vfioctl.core.resource import Found
from vfioctl.errors import DeviceInUse
from vfioctl.host import Host
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.holders import Holder, HolderKind
from vfioctl.inventory.model.values import PciAddress

GPU = PciAddress("0000:41:00.0")
HOME = f"/sys/bus/pci/devices/{GPU}"
NAMES = {
    "power": f"{HOME}/power/control",
    "d3cold": f"{HOME}/d3cold_allowed",
    "console": "/sys/class/vtconsole/vtcon1/bind",
    "framebuffer": "efi-framebuffer.0",
    "lock": f"/proc/driver/nvidia/gpus/{GPU}/unbindLock",
    "persistence": str(GPU),
    "service": DAEMON,
    "reset method": f"{HOME}/reset_method",
}
OTHER = PciAddress("0000:42:00.0")
GONE = {
    "power": "on",
    "d3cold": "0",
    "console": "0",
    "framebuffer": "",
    "lock": "1",
    "persistence": "0",
    "service": "inactive",
}
"""What each kind is set to."""
THERE = {
    "power": "auto",
    "d3cold": "1",
    "console": "1",
    "framebuffer": "efi-framebuffer",
    "lock": "0",
    "persistence": "1",
    "service": "active",
}
ODD = {kind: "vesa-framebuffer" if kind == "framebuffer" else "odd" for kind in THERE}
"""What somebody else may have set it to."""


def reading(kind: str, value: str | None) -> Reading:
    return Reading(kind=kind, name=NAMES[kind], address=GPU, value=value)


def setting(
    kind: str, name: str = "", *, before: str, after: str, during: str | None = None, may_fail: bool = False
) -> Change:
    return Change(
        kind=kind,
        name=name or NAMES[kind],
        subject=GPU,
        before=before,
        after=after,
        during=during,
        may_fail=may_fail,
    )


def released(*readings: Reading, leaving: Sequence[PciAddress] = (GPU,)) -> tuple[Change, ...]:
    return to_release(leaving, Circumstances(readings=readings))


def made(kind: str) -> Change:
    return setting(kind, before=THERE[kind], after=GONE[kind])


class TestWhatIsSet:
    @pytest.mark.parametrize("kind", THERE)
    def test_each_kind_lets_go_and_is_remembered(self, kind: str) -> None:
        assert released(reading(kind, THERE[kind])) == (made(kind),)

    @pytest.mark.parametrize("kind", THERE)
    def test_nothing_of_functions_that_stay(self, kind: str) -> None:
        assert released(reading(kind, THERE[kind]), leaving=[OTHER]) == ()
        assert released(reading(kind, THERE[kind]), leaving=[]) == ()

    @pytest.mark.parametrize("kind", [kind for kind in THERE if kind != "power"])
    def test_nothing_that_has_let_go_already(self, kind: str) -> None:
        assert released(reading(kind, GONE[kind])) == ()

    def test_power_even_when_it_is_on_for_vfio_sets_it_anew(self) -> None:
        assert released(reading("power", "on")) == (setting("power", before="on", after="on"),)

    @pytest.mark.parametrize("kind", [k for k in THERE if k not in ("persistence", "lock")])
    def test_nothing_that_cannot_be_read(self, kind: str) -> None:
        assert released(reading(kind, None)) == ()

    def test_a_lock_that_cannot_be_read_counts_as_open(self) -> None:
        (found,) = released(reading("lock", None))
        assert (found.before, found.after) == ("0", "1")

    def test_persistence_that_is_unknown_counts_as_on(self) -> None:
        """To switch it off may fail then, and the check for holders decides."""
        (found,) = released(reading("persistence", None))
        assert (found.before, found.after, found.may_fail) == ("unknown", "0", True)
        assert not any(each.may_fail for each in released(reading("persistence", "1"), reading("lock", None)))

    def test_only_power_of_what_comes_from_another_vfio_driver(self) -> None:
        readings = tuple(reading(kind, THERE[kind]) for kind in THERE)
        found = to_release([], Circumstances(readings=readings), from_vfio=[GPU])
        assert [each.kind for each in found] == ["power"]

    @pytest.mark.parametrize("state", ["inactive", "failed", "activating", "deactivating", "unknown"])
    def test_no_service_that_is_not_active(self, state: str) -> None:
        assert released(reading("service", state)) == ()

    def test_no_reset_method(self) -> None:
        assert released(reading("reset method", "flr bus")) == ()


def put_back(one: Change, now: str | None) -> tuple[Change, ...]:
    back = REGISTRY.resource(one).restore(one, Found({one.key: now}))
    return (back,) if back else ()


def finished(one: Change, now: str | None) -> tuple[Change, ...]:
    forth = REGISTRY.resource(one).finish(one, Found({one.key: now}))
    return (forth,) if forth else ()


class TestWhatIsPutBack:
    @pytest.mark.parametrize("kind", THERE)
    def test_is_what_is_still_as_it_was_left(self, kind: str) -> None:
        expected = setting(kind, before=GONE[kind], after=THERE[kind], may_fail=kind != "lock")
        assert put_back(made(kind), GONE[kind]) == (expected,)

    @pytest.mark.parametrize("kind", [k for k in THERE if k not in ("power", "persistence")])
    def test_is_nothing_that_somebody_else_has_set_since(self, kind: str) -> None:
        assert put_back(made(kind), ODD[kind]) == ()
        assert put_back(made(kind), THERE[kind]) == ()

    @pytest.mark.parametrize("kind", [kind for kind in THERE if kind != "persistence"])
    def test_is_nothing_that_has_gone_or_cannot_be_read(self, kind: str) -> None:
        assert put_back(made(kind), None) == ()
        assert REGISTRY.resource(made(kind)).restore(made(kind), Found({})) is None

    @pytest.mark.parametrize("now", ["on", "auto"])
    def test_is_power_whatever_it_is_now_for_each_driver_sets_it(self, now: str) -> None:
        (back,) = put_back(made("power"), now)
        assert (back.before, back.after) == (now, "auto")

    @pytest.mark.parametrize(("driver", "must"), [("vfio-pci", True), ("nvidia", False), (None, False)])
    @pytest.mark.parametrize("before", ["on", "auto"])
    def test_is_power_that_keeps_awake_what_goes_back_to_vfio_and_that_must_not_fail(
        self, driver: str | None, must: bool, before: str
    ) -> None:
        one = setting("power", before=before, after="auto", may_fail=True)
        moved = binding_change(GPU, Binding(driver), Binding("nvidia"))
        back = REGISTRY.resource(one).restore(one, Found({one.key: "auto"}, changes={moved.key: moved}))
        assert back
        assert back.may_fail == (not must or before == "auto")

    @pytest.mark.parametrize("now", [None, "0", "1"])
    def test_is_persistence_that_nvml_does_not_tell_of_a_gpu_that_is_not_nvidias(self, now: str | None) -> None:
        (back,) = put_back(made("persistence"), now)
        assert (back.before, back.after) == ("0", "1")

    @pytest.mark.parametrize("now", [None, "0", "1", "on"])
    def test_is_no_mode_that_was_unknown(self, now: str | None) -> None:
        assert put_back(setting("persistence", before="unknown", after="0"), now) == ()

    @pytest.mark.parametrize("kind", [kind for kind in THERE if kind != "persistence"])
    def test_of_nothing_else_is_the_value_unknown(self, kind: str) -> None:
        one = setting(kind, before="unknown", after=GONE[kind])
        with pytest.raises(ValueError, match="not the value of a"):
            REGISTRY.resource(one).validate(one)

    @pytest.mark.parametrize("driver", ["nvidia", "vfio-pci", "no driver", None])
    def test_is_no_mode_that_nvidia_is_not_there_to_switch_off(self, driver: str | None) -> None:
        """On the way back from a return to nvidia, that may not have come so far; likewise on the way forward."""
        found = Found({("persistence", str(GPU)): None, ("binding", str(GPU)): driver})
        switched_on, switched_off = (setting("persistence", before=a, after=b) for a, b in ("01", "10"))
        resource, there = REGISTRY.resource(switched_on), driver in ("nvidia", None)
        assert (resource.restore(switched_on, found) is not None) == there
        assert (resource.finish(switched_off, found) is not None) == there
        assert resource.restore(switched_off, found)
        assert resource.finish(switched_on, found)

    @pytest.mark.parametrize(("now", "back"), [("bus", True), ("flr bus", True), ("flr", False), (None, False)])
    def test_is_what_holds_only_during_a_change(self, now: str | None, back: bool) -> None:
        methods = setting("reset method", before="flr bus", after="flr bus", during="bus")
        found = put_back(methods, now)
        assert [each.after for each in found] == (["flr bus"] if back else [])

    @unhurried
    @given(st.lists(st.sampled_from(list(THERE)), unique=True), st.data())
    def test_leads_back_to_what_was_and_no_further(self, kinds: list[str], data: st.DataObject) -> None:
        recorded = [made(kind) for kind in kinds]
        now = {NAMES[k]: data.draw(st.sampled_from([GONE[k], THERE[k], ODD[k], None])) for k in kinds}
        back = [each for one in recorded for each in put_back(one, now[one.name])]
        assert [one.kind for one in back] == [one.kind for one in recorded if one.kind in {b.kind for b in back}]
        for one in back:
            assert one.after == THERE[one.kind]
            if one.kind not in ("power", "persistence"):
                assert now[one.name] == GONE[one.kind]


class TestWhatIsFinished:
    @pytest.mark.parametrize("kind", THERE)
    def test_is_what_is_there(self, kind: str) -> None:
        (found,) = finished(made(kind), ODD[kind])
        assert found.after == GONE[kind]
        assert found.before == (THERE[kind] if kind == "persistence" else ODD[kind])

    @pytest.mark.parametrize("kind", THERE)
    def test_is_nothing_that_has_gone_but_persistence(self, kind: str) -> None:
        found = finished(made(kind), None)
        assert found == ((made(kind),) if kind == "persistence" else ())

    def test_a_method_for_the_time_of_a_reset_stays_one(self) -> None:
        methods = setting("reset method", before="flr bus", after="flr bus", during="bus")
        (found,) = finished(methods, "bus")
        assert (found.during, found.after) == ("bus", "flr bus")


# -- who lets go by it -----------------------------------------------------------------------------------


def holder(unit: str | None, address: PciAddress = GPU) -> Holder:
    return Holder(address=address, kind=HolderKind.PROCESS, pid=7, name="x", unit=unit)


def excused(holder: Holder, settings: Sequence[Change], stop_services: Sequence[str] = ()) -> bool:
    return excused_by(settings, stop_services)(holder)


def stopping(*units: str) -> list[Change]:
    return [setting("service", unit, before="active", after="inactive") for unit in units]


class TestWhoLetsGo:
    def test_whoever_is_in_a_service_that_is_stopped(self) -> None:
        assert excused(holder("gdm.service"), stopping("gdm.service"), ["gdm.service"])
        assert not excused(holder("sddm.service"), stopping("gdm.service"), ["gdm.service"])

    def test_nobody_in_a_service_that_may_be_stopped_and_is_not(self) -> None:
        assert not excused(holder(DCGM), [], [DCGM])

    def test_the_persistence_daemon_when_the_mode_goes_off(self) -> None:
        off = [made("persistence")]
        assert excused(holder(DAEMON), off, [])
        assert not excused(holder(DAEMON, OTHER), off, []), "of another GPU it says nothing"
        assert not excused(holder(DCGM), off, [])
        assert not excused(holder(DAEMON), [], [])

    @pytest.mark.parametrize("unit", ["session-2.scope", "org.gnome.Shell@wayland.service", "pipewire.service"])
    def test_a_session_when_what_shows_it_is_stopped(self, unit: str) -> None:
        inside = replace(holder(unit), in_session=True)
        assert excused(inside, stopping("gdm.service"), ["gdm.service"])
        assert not excused(inside, stopping(DCGM), [DCGM]), "no session ends with that"
        assert not excused(inside, stopping("ollama.service"), ["ollama.service"]), "nor with any other"
        assert not excused(inside, [], ["gdm.service"])
        assert not excused(holder(unit), stopping("gdm.service"), ["gdm.service"]), "it is in no session"

    @pytest.mark.parametrize(
        "unit", ["gdm3.service", "sddm.service", "display-manager.service", "ly@tty2.service", "lightdm.service"]
    )
    def test_a_session_with_any_display_manager(self, unit: str) -> None:
        inside = replace(holder("session-2.scope"), in_session=True)
        assert excused(inside, stopping(unit), [unit])
        for other in (f"x{unit}", unit.replace("@tty2", "").replace(".service", "-helper.service")):
            assert not excused(inside, stopping(other), [other])

    @pytest.mark.parametrize("unit", [None, "docker-0123.scope", "init.scope", "sessions.service"])
    def test_nobody_else(self, unit: str | None) -> None:
        assert not excused(holder(unit), stopping(*STOPPABLE), [*STOPPABLE])

    def test_no_display_manager_is_among_the_services_that_only_look_after_gpus(self) -> None:
        assert units_to_stop((), known=True) == GPU_SERVICES
        assert units_to_stop((), known=False) == ()
        assert all("nvidia" in name or "dcgm" in name for name in GPU_SERVICES)


# -- what a reader is told -------------------------------------------------------------------------------


def told(one: Function, *settings: Change, asleep: bool | None = None) -> list[str]:
    return list(warnings([one], settings, replace(NOTHING_KNOWN, idle_devices_sleep=asleep)))


class TestWarnings:
    FINE = function("41:00.0", reset_methods=("flr",))

    def test_there_are_none_of_a_gpu_that_can_be_reset_and_shows_nothing(self) -> None:
        assert told(self.FINE, made("power"), made("lock")) == []

    def test_a_console_goes_dark(self) -> None:
        dark = [made("console"), made("framebuffer")]
        assert told(self.FINE, *dark) == [
            "0000:41:00.0 goes dark: it shows the text console (vtcon1, efi-framebuffer.0)"
        ]
        boot = replace(self.FINE, boot_vga=True)
        assert told(boot) == ["0000:41:00.0 goes dark: it shows the boot messages and the text console"]

    def test_what_cannot_be_reset_keeps_what_is_in_it(self) -> None:
        stubborn = replace(self.FINE, reset_methods=())
        assert told(stubborn) == ["0000:41:00.0 cannot be reset: what one guest leaves in it, the next one finds"]
        assert told(replace(stubborn, class_code="040300")) == []
        assert told(replace(stubborn, unknown={"reset_method": "EIO"})) == []

    def test_a_kernel_that_names_no_methods_may_reset_it_all_the_same(self) -> None:
        assert told(replace(self.FINE, reset_methods=(), reset_unnamed=True)) == []

    def test_a_mode_that_was_unknown_is_not_put_back(self) -> None:
        unknown = setting("persistence", before="unknown", after="0")
        assert told(self.FINE, unknown) == [
            "the persistence mode of 0000:41:00.0 is unknown: unbind does not put it back"
        ]
        lost = replace(self.FINE, unknown={"nvml": "the GPU is lost"})
        assert told(lost, unknown) == [
            "the persistence mode of 0000:41:00.0 is unknown (the GPU is lost): unbind does not put it back"
        ]

    def test_a_service_that_holds_nothing_is_not_stopped_and_that_is_said(self) -> None:
        named = ["gdm.service", "a.service", DCGM]
        assert list(idle_services(named, stopping("gdm.service"))) == [
            "a.service is not stopped: it holds none of these, does not run, or is no unit here"
        ]

    @pytest.mark.parametrize("asleep", [True, False, None])
    def test_what_sleeps_deeply_is_kept_awake(self, asleep: bool | None) -> None:
        found = told(replace(self.FINE, power_state="D3cold"), asleep=asleep)
        assert any("power/control is set to on" in text for text in found) == (asleep is not False)


# -- on a host in use ------------------------------------------------------------------------------------


@pytest.fixture
def host(fast_folder: Path) -> Host:
    return machine(copy(in_use()), fast_folder / "x.db")


def planned(host: Host, gpu: PciAddress) -> Plan:
    return host.binding.plan_bind([gpu], stop_services=STOPPABLE, allow_boot_vga=True)


def kinds_in_order(plan: Plan, among: Sequence[Step]) -> list[str]:
    """The kinds of settings that those steps make."""
    known = {each.name: each.kind for each in plan.changes if each.kind != "binding"}
    names = [step.value if "/platform/" in step.target else step.target for step in among]
    return [kind for kind, _ in groupby(known[name] for name in names if name in known)]


class TestOnAHostInUse:
    def test_nvidias_gpu_is_let_go_of_in_the_one_order_that_works(self, host: Host) -> None:
        plan, home = planned(host, TRAINING), f"/sys/bus/pci/devices/{TRAINING}"
        order = [
            (f"unit:{DCGM}", "inactive"),
            (f"unit:{DAEMON}", "inactive"),
            (f"nvml:{TRAINING}", "0"),
            (f"{home}/d3cold_allowed", "0"),
            (f"{home}/driver_override", "vfio-pci"),
            (f"/proc/driver/nvidia/gpus/{TRAINING}/unbindLock", "1"),
            ("/sys/bus/pci/drivers/nvidia/unbind", TRAINING),
            ("/sys/bus/pci/drivers_probe", TRAINING),
            (f"{home}/power/control", "on"),
        ]
        found = [effect(step) for step in effects_of(plan) if step.subject in (TRAINING, "")]
        assert sorted(found[:2]) == sorted(order[:2])
        assert found[2:] == order[2:]
        assert [step.action for step in plan.steps].index("unheld") == 5

    def test_the_screen_is_let_go_of_in_the_one_order_that_works(self, host: Host) -> None:
        found = [effect(step) for step in effects_of(planned(host, SCREEN))]
        assert found[:3] == [
            (f"unit:{DESKTOP}", "inactive"),
            ("/sys/class/vtconsole/vtcon1/bind", "0"),
            ("/sys/bus/platform/drivers/efi-framebuffer/unbind", "efi-framebuffer.0"),
        ]

    @pytest.mark.parametrize("gpu", [TRAINING, SCREEN])
    def test_all_comes_back_in_the_other_order(self, host: Host, gpu: PciAddress) -> None:
        before = state(host.session.kernel.tree)  # type: ignore[attr-defined] # it is simulated
        plan = planned(host, gpu)
        host.apply(plan)
        back = host.binding.plan_unbind([gpu])
        forth = kinds_in_order(plan, [step for step in plan.steps if not step.may_fail])
        forth.remove("power")
        if "lock" in forth:
            forth.remove("lock")
        assert kinds_in_order(back, [step for step in back.steps if step.may_fail]) == ["power", *forth[::-1]]
        assert host.apply(back).result == Result.DONE
        assert state(host.session.kernel.tree) == before  # type: ignore[attr-defined] # it is simulated

    def test_a_service_that_may_not_be_stopped_holds(self, host: Host) -> None:
        with pytest.raises(DeviceInUse, match="nv-hostengine") as caught:
            host.binding.plan_bind([TRAINING], stop_services=[DAEMON])
        assert [each["unit"] for each in caught.value.facts["holders"]] == [DCGM]  # type: ignore[attr-defined]

    def test_a_service_that_holds_nothing_of_it_is_left_alone(self, host: Host) -> None:
        plan = planned(host, PciAddress("0000:04:00.0"))
        assert "service" not in {each.kind for each in plan.changes}

    def test_what_somebody_set_meanwhile_is_left_to_them(self, host: Host) -> None:
        host.apply(planned(host, SCREEN))
        host.session.kernel.set_unit(DESKTOP, active=True)
        host.session.kernel.write("/sys/class/vtconsole/vtcon1/bind", "1")
        back = host.binding.plan_unbind([SCREEN])
        assert not {"service", "console"} & {each.kind for each in back.changes}
        assert host.apply(back).result == Result.DONE

    def test_a_process_in_the_graphical_session_is_asked_again_after_the_desktop_has_gone(self, host: Host) -> None:
        tree = host.session.kernel.tree  # type: ignore[attr-defined] # it is simulated
        add_process(tree, 1894, "gnome-shell", "0::/user.slice/user-1000.slice/session-2.scope", "/dev/dri/card0")
        before = state(tree)
        plan = planned(host, SCREEN)
        with pytest.raises(DeviceInUse, match="gnome-shell") as caught:
            host.apply(plan)
        assert caught.value.restored.endswith("put back as before")
        assert state(tree) == before


class TestWithUnusableNvml:
    """As after an update of the driver without a reboot."""

    DIFFER = "driver and library versions differ: reload the driver or reboot"
    FREE = PciAddress("0000:04:00.0")

    @pytest.fixture
    def host(self, fast_folder: Path) -> Host:
        tree = copy(in_use())
        tree.properties["sim:nvml"] = {"error": self.DIFFER}
        return machine(tree, fast_folder / "x.db")

    def test_a_gpu_that_nobody_holds_is_bound_and_comes_back(self, host: Host) -> None:
        before = state(host.session.kernel.tree)  # type: ignore[attr-defined] # it is simulated
        plan = planned(host, self.FREE)
        (step,) = (step for step in plan.steps if step.action == "persistence")
        assert step.may_fail
        assert step.why.startswith("may fail: ")
        assert (
            f"the persistence mode of {self.FREE} is unknown ({self.DIFFER}): unbind does not put it back" in plan.notes
        )
        outcome = host.apply(plan)
        assert outcome.result == Result.DONE
        assert outcome.notes == (f"the persistence mode of {self.FREE} cannot be set: {self.DIFFER}",)
        assert host.history()[0].why == outcome.notes[0]
        back = host.binding.plan_unbind([self.FREE])
        assert not back.changes_of("persistence")
        assert host.apply(back).result == Result.DONE
        assert state(host.session.kernel.tree) == before  # type: ignore[attr-defined] # it is simulated

    def test_the_check_that_follows_decides(self, host: Host) -> None:
        """The daemon is expected to close the GPU when the mode goes off, which fails."""
        tree = host.session.kernel.tree  # type: ignore[attr-defined] # it is simulated
        before = state(tree)
        plan = host.binding.plan_bind([TRAINING], stop_services=[DCGM])
        with pytest.raises(DeviceInUse, match="nvidia-persiste") as caught:
            host.apply(plan)
        assert self.DIFFER in caught.value.kernel_said
        assert caught.value.restored.endswith(
            f"put back as before; the persistence mode of {TRAINING} was unknown, and may be off"
        )
        assert state(tree) == before

    def test_a_gpu_that_may_be_kept_open_is_not_reset(self, host: Host) -> None:
        with pytest.raises(DeviceInUse, match="persistence mode is unknown") as caught:
            host.binding.plan_reset(self.FREE)
        assert self.DIFFER in caught.value.message


def steps_of(*changes: Change) -> list[Step]:
    return [owned.step for owned in REGISTRY.steps(changes)]


def test_on_the_way_the_lock_is_taken_last_and_given_back_first() -> None:
    now, goal = Binding("nvidia"), Binding("vfio-pci", "vfio-pci")
    forth = [step.target.rpartition("/")[2] for step in steps_of(made("lock"), binding_change(GPU, now, goal))]
    assert forth == [GPU, "driver_override", "unbindLock", "unbind", "drivers_probe"]
    half = Binding("nvidia", "vfio-pci")
    back = steps_of(*put_back(made("lock"), "1"), binding_change(GPU, half, now))
    assert [(step.target.rpartition("/")[2], step.value) for step in back] == [
        ("unbindLock", "0"),
        ("driver_override", "\n"),
    ]
