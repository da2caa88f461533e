"""What is set so that a driver lets go, what is put back and what is left to others, and who lets go by that."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts.machines import (
    DAEMON,
    DCGM,
    DESKTOP,
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
from tests.unit.core.test_settings import GPU, NAMES, setting
from vfioctl.binding.model.circumstances import NOTHING_KNOWN, Circumstances
from vfioctl.binding.plan.release import (
    GPU_SERVICES,
    excused,
    idle_services,
    to_finish,
    to_put_back,
    to_release,
    warnings,
)
from vfioctl.binding.plan.steps import steps
from vfioctl.core.change import Binding, Intent, Plan, Result, Step, StepKind, Verb
from vfioctl.core.setting import Reading, Setting, SettingKind
from vfioctl.errors import DeviceInUse
from vfioctl.host import Host, gpu_services
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.holders import Holder, HolderKind
from vfioctl.inventory.model.values import PciAddress

OTHER = PciAddress("0000:42:00.0")
GONE = {
    SettingKind.POWER: "on",
    SettingKind.D3COLD: "0",
    SettingKind.CONSOLE: "0",
    SettingKind.FRAMEBUFFER: "",
    SettingKind.LOCK: "1",
    SettingKind.PERSISTENCE: "0",
    SettingKind.SERVICE: "inactive",
}
"""What each kind is set to."""
THERE = {
    SettingKind.POWER: "auto",
    SettingKind.D3COLD: "1",
    SettingKind.CONSOLE: "1",
    SettingKind.FRAMEBUFFER: "efi-framebuffer",
    SettingKind.LOCK: "0",
    SettingKind.PERSISTENCE: "1",
    SettingKind.SERVICE: "active",
}
ODD = {kind: "vesa-framebuffer" if kind == SettingKind.FRAMEBUFFER else "odd" for kind in THERE}
"""What somebody else may have set it to."""


def reading(kind: SettingKind, value: str | None) -> Reading:
    return Reading(kind=kind, name=NAMES[kind], address=GPU, value=value)


def let_go(*readings: Reading, leaving: Sequence[PciAddress] = (GPU,)) -> tuple[Setting, ...]:
    return to_release(leaving, Circumstances(readings=readings))


def made(kind: SettingKind) -> Setting:
    return setting(kind, before=THERE[kind], after=GONE[kind])


class TestWhatIsSet:
    @pytest.mark.parametrize("kind", THERE)
    def test_each_kind_lets_go_and_is_remembered(self, kind: SettingKind) -> None:
        assert let_go(reading(kind, THERE[kind])) == (made(kind),)

    @pytest.mark.parametrize("kind", THERE)
    def test_nothing_of_functions_that_stay(self, kind: SettingKind) -> None:
        assert let_go(reading(kind, THERE[kind]), leaving=[OTHER]) == ()
        assert let_go(reading(kind, THERE[kind]), leaving=[]) == ()

    @pytest.mark.parametrize("kind", [kind for kind in THERE if kind != SettingKind.POWER])
    def test_nothing_that_has_let_go_already(self, kind: SettingKind) -> None:
        assert let_go(reading(kind, GONE[kind])) == ()

    def test_power_even_when_it_is_on_for_vfio_sets_it_anew(self) -> None:
        assert let_go(reading(SettingKind.POWER, "on")) == (setting(SettingKind.POWER, before="on", after="on"),)

    @pytest.mark.parametrize("kind", [k for k in THERE if k not in (SettingKind.PERSISTENCE, SettingKind.LOCK)])
    def test_nothing_that_cannot_be_read(self, kind: SettingKind) -> None:
        assert let_go(reading(kind, None)) == ()

    def test_a_lock_that_cannot_be_read_counts_as_open(self) -> None:
        (found,) = let_go(reading(SettingKind.LOCK, None))
        assert (found.before, found.after) == ("0", "1")

    def test_persistence_that_is_unknown_counts_as_on(self) -> None:
        (found,) = let_go(reading(SettingKind.PERSISTENCE, None))
        assert (found.before, found.after) == ("unknown", "0")

    def test_only_power_of_what_comes_from_another_vfio_driver(self) -> None:
        readings = tuple(reading(kind, THERE[kind]) for kind in THERE)
        found = to_release([], Circumstances(readings=readings), from_vfio=[GPU])
        assert [each.kind for each in found] == [SettingKind.POWER]

    @pytest.mark.parametrize("state", ["inactive", "failed", "activating", "deactivating", "unknown"])
    def test_no_service_that_is_not_active(self, state: str) -> None:
        assert let_go(reading(SettingKind.SERVICE, state)) == ()

    def test_no_reset_method(self) -> None:
        assert let_go(reading(SettingKind.RESET_METHOD, "flr bus")) == ()


def put_back(one: Setting, now: str | None) -> tuple[Setting, ...]:
    return to_put_back([one], {one.key: now})


class TestWhatIsPutBack:
    @pytest.mark.parametrize("kind", THERE)
    def test_is_what_is_still_as_it_was_left(self, kind: SettingKind) -> None:
        assert put_back(made(kind), GONE[kind]) == (setting(kind, before=GONE[kind], after=THERE[kind]),)

    @pytest.mark.parametrize("kind", [k for k in THERE if k not in (SettingKind.POWER, SettingKind.PERSISTENCE)])
    def test_is_nothing_that_somebody_else_has_set_since(self, kind: SettingKind) -> None:
        assert put_back(made(kind), ODD[kind]) == ()
        assert put_back(made(kind), THERE[kind]) == ()

    @pytest.mark.parametrize("kind", [kind for kind in THERE if kind != SettingKind.PERSISTENCE])
    def test_is_nothing_that_has_gone_or_cannot_be_read(self, kind: SettingKind) -> None:
        assert put_back(made(kind), None) == ()
        assert to_put_back([made(kind)], {}) == ()

    @pytest.mark.parametrize("now", ["on", "auto"])
    def test_is_power_whatever_it_is_now_for_each_driver_sets_it(self, now: str) -> None:
        (back,) = put_back(made(SettingKind.POWER), now)
        assert (back.before, back.after) == (now, "auto")

    @pytest.mark.parametrize("now", [None, "0", "1"])
    def test_is_persistence_that_nvml_does_not_tell_of_a_gpu_that_is_not_nvidias(self, now: str | None) -> None:
        (back,) = put_back(made(SettingKind.PERSISTENCE), now)
        assert (back.before, back.after) == ("0", "1")

    @pytest.mark.parametrize("kind", [kind for kind in THERE if kind != SettingKind.FRAMEBUFFER])
    @pytest.mark.parametrize("now", [None, "0", "1", "on"])
    def test_is_nothing_whose_value_was_unknown(self, kind: SettingKind, now: str | None) -> None:
        assert put_back(setting(kind, before="unknown", after=GONE[kind]), now) == ()

    @pytest.mark.parametrize(("now", "back"), [("bus", True), ("flr bus", True), ("flr", False), (None, False)])
    def test_is_what_holds_only_during_a_change(self, now: str | None, back: bool) -> None:
        methods = setting(SettingKind.RESET_METHOD, before="flr bus", after="flr bus", during="bus")
        found = put_back(methods, now)
        assert [each.after for each in found] == (["flr bus"] if back else [])

    @unhurried
    @given(st.lists(st.sampled_from(list(THERE)), unique=True), st.data())
    def test_leads_back_to_what_was_and_no_further(self, kinds: list[SettingKind], data: st.DataObject) -> None:
        recorded = [made(kind) for kind in kinds]
        now = {NAMES[k]: data.draw(st.sampled_from([GONE[k], THERE[k], ODD[k], None])) for k in kinds}
        back = to_put_back(recorded, {one.key: now[one.name] for one in recorded})
        assert [one.kind for one in back] == [one.kind for one in recorded if one.kind in {b.kind for b in back}]
        for one in back:
            assert one.after == THERE[one.kind]
            if one.kind not in (SettingKind.POWER, SettingKind.PERSISTENCE):
                assert now[one.name] == GONE[one.kind]


class TestWhatIsFinished:
    @pytest.mark.parametrize("kind", THERE)
    def test_is_what_is_there(self, kind: SettingKind) -> None:
        (found,) = to_finish([made(kind)], {(kind, NAMES[kind]): ODD[kind]})
        assert (found.before, found.after) == (ODD[kind], GONE[kind])

    @pytest.mark.parametrize("kind", THERE)
    def test_is_nothing_that_has_gone_but_persistence(self, kind: SettingKind) -> None:
        found = to_finish([made(kind)], {})
        assert found == ((made(kind),) if kind == SettingKind.PERSISTENCE else ())

    def test_a_method_for_the_time_of_a_reset_stays_one(self) -> None:
        methods = setting(SettingKind.RESET_METHOD, before="flr bus", after="flr bus", during="bus")
        (found,) = to_finish([methods], {methods.key: "bus"})
        assert (found.during, found.after) == ("bus", "flr bus")


# -- who lets go by it -----------------------------------------------------------------------------------


def holder(unit: str | None, address: PciAddress = GPU) -> Holder:
    return Holder(address=address, kind=HolderKind.PROCESS, pid=7, name="x", unit=unit)


def intent(*stopping: str) -> Intent:
    return Intent(verb=Verb.BIND, devices=(GPU,), stop_services=stopping)


def stopping(*units: str) -> list[Setting]:
    return [setting(SettingKind.SERVICE, unit, before="active", after="inactive") for unit in units]


class TestWhoLetsGo:
    def test_whoever_is_in_a_service_that_is_stopped(self) -> None:
        assert excused(holder("gdm.service"), stopping("gdm.service"), intent("gdm.service"))
        assert not excused(holder("sddm.service"), stopping("gdm.service"), intent("gdm.service"))

    def test_nobody_in_a_service_that_may_be_stopped_and_is_not(self) -> None:
        assert not excused(holder(DCGM), [], intent(DCGM))

    def test_the_persistence_daemon_when_the_mode_goes_off(self) -> None:
        off = [made(SettingKind.PERSISTENCE)]
        assert excused(holder(DAEMON), off, intent())
        assert not excused(holder(DAEMON, OTHER), off, intent()), "of another GPU it says nothing"
        assert not excused(holder(DCGM), off, intent())
        assert not excused(holder(DAEMON), [], intent())

    @pytest.mark.parametrize("unit", ["session-2.scope", "org.gnome.Shell@wayland.service", "pipewire.service"])
    def test_a_session_when_what_shows_it_is_stopped(self, unit: str) -> None:
        inside = holder(unit).model_copy(update={"in_session": True})
        assert excused(inside, stopping("gdm.service"), intent("gdm.service"))
        assert not excused(inside, stopping(DCGM), intent(DCGM)), "no session ends with that"
        assert not excused(inside, stopping("ollama.service"), intent("ollama.service")), "nor with any other"
        assert not excused(inside, [], intent("gdm.service"))
        assert not excused(holder(unit), stopping("gdm.service"), intent("gdm.service")), "it is in no session"

    @pytest.mark.parametrize(
        "unit", ["gdm3.service", "sddm.service", "display-manager.service", "ly@tty2.service", "lightdm.service"]
    )
    def test_a_session_with_any_display_manager(self, unit: str) -> None:
        inside = holder("session-2.scope").model_copy(update={"in_session": True})
        assert excused(inside, stopping(unit), intent(unit))
        for other in (f"x{unit}", unit.replace("@tty2", "").replace(".service", "-helper.service")):
            assert not excused(inside, stopping(other), intent(other))

    @pytest.mark.parametrize("unit", [None, "docker-0123.scope", "init.scope", "sessions.service"])
    def test_nobody_else(self, unit: str | None) -> None:
        assert not excused(holder(unit), stopping(*STOPPABLE), intent(*STOPPABLE))

    def test_no_display_manager_is_among_the_services_that_only_look_after_gpus(self) -> None:
        assert gpu_services() == GPU_SERVICES
        assert all("nvidia" in name or "dcgm" in name for name in GPU_SERVICES)


# -- what a reader is told -------------------------------------------------------------------------------


def told(one: Function, *settings: Setting, asleep: bool | None = None) -> list[str]:
    return list(warnings([one], settings, NOTHING_KNOWN.model_copy(update={"idle_devices_sleep": asleep})))


class TestWarnings:
    FINE = function("41:00.0", reset_methods=("flr",))

    def test_there_are_none_of_a_gpu_that_can_be_reset_and_shows_nothing(self) -> None:
        assert told(self.FINE, made(SettingKind.POWER), made(SettingKind.LOCK)) == []

    def test_a_console_goes_dark(self) -> None:
        dark = [made(SettingKind.CONSOLE), made(SettingKind.FRAMEBUFFER)]
        assert told(self.FINE, *dark) == [
            "0000:41:00.0 goes dark: it shows the text console (vtcon1, efi-framebuffer.0)"
        ]
        boot = self.FINE.model_copy(update={"boot_vga": True})
        assert told(boot) == ["0000:41:00.0 goes dark: it shows the boot messages and the text console"]

    def test_what_cannot_be_reset_keeps_what_is_in_it(self) -> None:
        stubborn = self.FINE.model_copy(update={"reset_methods": ()})
        assert told(stubborn) == ["0000:41:00.0 cannot be reset: what one guest leaves in it, the next one finds"]
        assert told(stubborn.model_copy(update={"class_code": "040300"})) == []
        assert told(stubborn.model_copy(update={"unknown": {"reset_method": "EIO"}})) == []

    def test_a_kernel_that_names_no_methods_may_reset_it_all_the_same(self) -> None:
        older = Circumstances(can_be_reset=frozenset({GPU}))
        assert list(warnings([self.FINE.model_copy(update={"reset_methods": ()})], (), older)) == []

    def test_a_mode_that_was_unknown_is_not_put_back(self) -> None:
        unknown = setting(SettingKind.PERSISTENCE, before="unknown", after="0")
        assert told(self.FINE, unknown) == [
            "the persistence mode of 0000:41:00.0 is unknown: it goes off, and is not put back"
        ]

    def test_a_service_that_holds_nothing_is_not_stopped_and_that_is_said(self) -> None:
        named = intent("gdm.service", "a.service", DCGM)
        assert list(idle_services(named, stopping("gdm.service"))) == [
            "a.service is not stopped: it holds none of these, does not run, or is no unit here"
        ]

    @pytest.mark.parametrize("asleep", [True, False, None])
    def test_what_sleeps_deeply_is_kept_awake(self, asleep: bool | None) -> None:
        found = told(self.FINE.model_copy(update={"power_state": "D3cold"}), asleep=asleep)
        assert any("power/control is set to on" in text for text in found) == (asleep is not False)


# -- on a host in use ------------------------------------------------------------------------------------


@pytest.fixture
def host(fast_folder: Path) -> Host:
    return machine(copy(in_use()), fast_folder / "x.db")


def planned(host: Host, gpu: PciAddress) -> Plan:
    return host.plan_bind([gpu], stop_services=STOPPABLE, allow_boot_vga=True)


def kinds_in_order(plan: Plan, among: Sequence[Step]) -> list[SettingKind]:
    """The kinds of settings that those steps make."""
    known = {each.name: each.kind for each in plan.settings}
    names = [step.value if "/platform/" in step.target else step.target for step in among]
    found = [known.get(name) for name in names]
    return [kind for kind, _ in groupby(filter(None, found))]


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
        found = [effect(step) for step in effects_of(plan) if step.address == TRAINING]
        assert sorted(found[:2]) == sorted(order[:2])
        assert found[2:] == order[2:]
        assert [step.kind for step in plan.steps].index(StepKind.CHECK) == 5

    def test_the_screen_is_let_go_of_in_the_one_order_that_works(self, host: Host) -> None:
        found = [effect(step) for step in effects_of(planned(host, SCREEN))]
        assert found[:3] == [
            (f"unit:{DESKTOP}", "inactive"),
            ("/sys/class/vtconsole/vtcon1/bind", "0"),
            ("/sys/bus/platform/drivers/efi-framebuffer/unbind", "efi-framebuffer.0"),
        ]

    @pytest.mark.parametrize("gpu", [TRAINING, SCREEN])
    def test_all_comes_back_in_the_other_order(self, host: Host, gpu: PciAddress) -> None:
        before = state(host.kernel.tree)  # type: ignore[attr-defined] # it is simulated
        plan = planned(host, gpu)
        host.apply(plan)
        back = host.plan_unbind([gpu])
        forth = kinds_in_order(plan, [step for step in plan.steps if not step.may_fail])
        forth.remove(SettingKind.POWER)
        if SettingKind.LOCK in forth:
            forth.remove(SettingKind.LOCK)
        assert kinds_in_order(back, [step for step in back.steps if step.may_fail]) == [SettingKind.POWER, *forth[::-1]]
        assert host.apply(back).result == Result.DONE
        assert state(host.kernel.tree) == before  # type: ignore[attr-defined] # it is simulated

    def test_a_service_that_may_not_be_stopped_holds(self, host: Host) -> None:
        with pytest.raises(DeviceInUse, match="nv-hostengine") as caught:
            host.plan_bind([TRAINING], stop_services=[DAEMON])
        assert [each["unit"] for each in caught.value.facts["holders"]] == [DCGM]  # type: ignore[attr-defined]

    def test_a_service_that_holds_nothing_of_it_is_left_alone(self, host: Host) -> None:
        plan = planned(host, PciAddress("0000:04:00.0"))
        assert SettingKind.SERVICE not in {each.kind for each in plan.settings}

    def test_what_somebody_set_meanwhile_is_left_to_them(self, host: Host) -> None:
        host.apply(planned(host, SCREEN))
        host.kernel.set_unit(DESKTOP, active=True)
        host.kernel.write("/sys/class/vtconsole/vtcon1/bind", "1")
        back = host.plan_unbind([SCREEN])
        assert not {SettingKind.SERVICE, SettingKind.CONSOLE} & {each.kind for each in back.settings}
        assert host.apply(back).result == Result.DONE

    def test_a_process_in_the_graphical_session_is_asked_again_after_the_desktop_has_gone(self, host: Host) -> None:
        tree = host.kernel.tree  # type: ignore[attr-defined] # it is simulated
        add_process(tree, 1894, "gnome-shell", "0::/user.slice/user-1000.slice/session-2.scope", "/dev/dri/card0")
        before = state(tree)
        plan = planned(host, SCREEN)
        with pytest.raises(DeviceInUse, match="gnome-shell") as caught:
            host.apply(plan)
        assert caught.value.restored.endswith("put back as before")
        assert state(tree) == before


def test_on_the_way_the_lock_is_taken_last_and_given_back_first() -> None:
    now = {GPU: Binding(driver="nvidia", driver_override=None)}
    goal = {GPU: Binding(driver="vfio-pci", driver_override="vfio-pci")}
    forth = [step.target.rpartition("/")[2] for step in steps(now, goal, settings=(made(SettingKind.LOCK),))]
    assert forth == [GPU, "driver_override", "unbindLock", "unbind", "drivers_probe"]
    half = {GPU: Binding(driver="nvidia", driver_override="vfio-pci")}
    back = steps(half, now, settings=(made(SettingKind.LOCK).back_from("1"),))
    assert [(step.target.rpartition("/")[2], step.value) for step in back] == [
        ("unbindLock", "0"),
        ("driver_override", "\n"),
    ]
