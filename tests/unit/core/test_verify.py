"""The proof: a fresh look at settings, groups and devices, and what becomes of a device that answers no more."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.hosts.machines import SCREEN, STOPPABLE, copy, differing, in_use, machine, original, state
from tests.unit.core.test_settings import GPU, NAMES, setting
from vfioctl.binding.plan.steps import Bindings
from vfioctl.core.change import Binding, JournalState, Result
from vfioctl.core.setting import Setting, SettingKind
from vfioctl.core.verify import dead, verify_bindings, verify_settings, verify_viable
from vfioctl.errors import DeviceDead, KernelRefused, VerifyError
from vfioctl.host import Host
from vfioctl.inventory.model.functions import MarkKind
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.recorded.tree import Node, Tree
from vfioctl.kernel.simulated.host import Simulated

HGX = PciAddress("0000:1b:00.0")
ON_VFIO: Bindings = {GPU: Binding(driver="vfio-pci", driver_override="vfio-pci")}
NATIVE: Bindings = {GPU: Binding(driver="nvidia", driver_override=None)}


def host_that_shows(**texts: str) -> Simulated:
    """A host with the files of settings that are named, by kind."""
    tree = copy(original("workstation"))
    for name, text in texts.items():
        tree.put(NAMES[SettingKind[name]], text)
    return Simulated(tree, "")


def was(kind: SettingKind, before: str, after: str) -> Setting:
    return setting(kind, before=before, after=after)


class TestSettings:
    def test_as_they_were_to_be_are_proved(self) -> None:
        kernel = host_that_shows(POWER="on", D3COLD="0", CONSOLE="0")
        made = [
            was(SettingKind.POWER, "auto", "on"),
            was(SettingKind.D3COLD, "1", "0"),
            was(SettingKind.CONSOLE, "1", "0"),
        ]
        assert verify_settings(kernel, made, ON_VFIO) == []
        assert verify_settings(kernel, [], ON_VFIO) == []

    @pytest.mark.parametrize(
        ("kind", "found", "one"),
        [
            ("POWER", "auto", was(SettingKind.POWER, "auto", "on")),
            ("D3COLD", "1", was(SettingKind.D3COLD, "1", "0")),
            ("CONSOLE", "1", was(SettingKind.CONSOLE, "1", "0")),
        ],
    )
    def test_that_a_guest_needs_must_hold(self, kind: str, found: str, one: Setting) -> None:
        with pytest.raises(VerifyError, match=f"{one.name} should be {one.after} and is {found}") as caught:
            verify_settings(host_that_shows(**{kind: found}), [one], ON_VFIO)
        assert "udev" in caught.value.hint

    @pytest.mark.parametrize(
        ("kind", "found", "one"),
        [
            ("POWER", "auto", was(SettingKind.POWER, "auto", "on")),
            ("POWER", "on", was(SettingKind.POWER, "on", "auto")),
            ("D3COLD", "0", was(SettingKind.D3COLD, "0", "1")),
            ("CONSOLE", "0", was(SettingKind.CONSOLE, "0", "1")),
        ],
    )
    def test_that_were_there_before_are_told_when_they_did_not_come_back(
        self, kind: str, found: str, one: Setting
    ) -> None:
        left = verify_settings(host_that_shows(**{kind: found}), [one], NATIVE)
        assert left == [f"{one.name} should be {one.after} again and is {found}"]

    def test_a_framebuffer_that_stays_away_is_told(self) -> None:
        one = was(SettingKind.FRAMEBUFFER, "", "efi-framebuffer")
        assert verify_settings(host_that_shows(), [one], NATIVE) == [
            "efi-framebuffer.0 should be efi-framebuffer again and is off"
        ]
        back = Simulated(copy(in_use()), "")
        assert verify_settings(back, [one], NATIVE) == []

    def test_a_service_that_is_not_as_it_was_is_told(self) -> None:
        tree = copy(in_use())
        for name in STOPPABLE:
            tree.properties[f"unit:{name}"]["state"] = "failed"
        ones = [setting(SettingKind.SERVICE, name, before="inactive", after="active") for name in STOPPABLE]
        assert len(verify_settings(Simulated(tree, ""), ones, NATIVE)) == len(STOPPABLE)

    @pytest.mark.parametrize("kind", [SettingKind.CONSOLE, SettingKind.POWER, SettingKind.D3COLD])
    def test_whose_file_has_gone_are_no_failure(self, kind: SettingKind) -> None:
        assert verify_settings(host_that_shows(), [was(kind, "1", "0")], ON_VFIO) == []

    def test_that_only_the_driver_knows_are_not_asked_for(self) -> None:
        made = [was(SettingKind.LOCK, "0", "1"), was(SettingKind.PERSISTENCE, "1", "0")]
        assert verify_settings(host_that_shows(LOCK="0"), made, ON_VFIO) == []


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
    first.apply(first.plan_bind([HGX]))
    return tree, Host(kernel(tree, ""), ledger, settle=0.0, lock_wait=0.0)


class TestPower:
    def test_that_does_not_stay_on_is_no_success_for_a_bind(self, fast_folder: Path) -> None:
        tree = copy(original("hgx8"))
        host = Host(Daemon(tree, ""), fast_folder / "x.db", settle=0.0, lock_wait=0.0)
        with pytest.raises(VerifyError, match=r"power/control should be on and is auto") as caught:
            host.apply(host.plan_bind([HGX]))
        assert "put back as before" in caught.value.restored
        assert "power/control should be on again and is auto" in caught.value.restored
        assert host.history()[0].state == JournalState.BACK
        left = differing(state(tree), state(original("hgx8")))
        assert [text.rpartition("/")[2] for text in left] == ["control: 'auto', not 'on'"]

    def test_that_does_not_come_back_is_told_after_an_unbind(self, fast_folder: Path) -> None:
        _, host = bound(fast_folder / "x.db", Daemon)
        with pytest.raises(VerifyError, match=r"unbound, but not all is as it was: .*power/control should be on again"):
            host.apply(host.plan_unbind([HGX]))
        assert host.history()[0].state == JournalState.DONE
        assert host.inventory().by_address[HGX].driver == "nvidia"


class TestDeadDevices:
    def die(self, tree: Tree) -> None:
        tree.properties.setdefault(f"sim:{HGX}", {})["dead"] = "1"

    def test_are_those_whose_configuration_space_is_all_ones(self) -> None:
        tree = copy(original("mi300x"))
        kernel = Simulated(tree, "")
        everyone = [PciAddress(name) for name in kernel.children("/sys/bus/pci/devices")]
        assert dead(kernel, everyone) == (), "a VF's ids read as ones, and it lives"
        tree.properties.setdefault(f"sim:{everyone[3]}", {})["dead"] = "1"
        assert dead(kernel, everyone) == (everyone[3],)

    def test_are_not_those_that_cannot_be_read(self) -> None:
        class Refusing(Simulated):
            def config(self, address: str) -> bytes:
                raise KernelRefused(f"/sys/bus/pci/devices/{address}/config", errno.EPERM)

        assert dead(Refusing(copy(original("hgx8")), ""), [HGX]) == ()

    def test_after_an_unbind_it_is_marked_and_told_and_kept_from_guests(self, fast_folder: Path) -> None:
        tree, host = bound(fast_folder / "x.db")
        self.die(tree)
        with pytest.raises(DeviceDead) as caught:
            host.apply(host.plan_unbind([HGX]))
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
        for plan in (host.plan_bind, host.plan_unbind):
            with pytest.raises(DeviceDead, match="is dead: its configuration space"):
                plan([HGX])
        with pytest.raises(DeviceDead):
            host.plan_reset(HGX)
        assert host.plan_bind(["0000:43:00.0"]).steps, "others can be bound"

    def test_after_a_reset_too(self, fast_folder: Path) -> None:
        tree = copy(original("hgx8"))
        host = machine(tree, fast_folder / "x.db")
        tree.properties.setdefault(f"sim:{HGX}", {})["dies_on_reset"] = "1"
        with pytest.raises(DeviceDead, match=f"{HGX} reset, but {HGX} is dead"):
            host.apply(host.plan_reset(HGX, force_holders=True))
        assert host.history()[0].state == JournalState.DONE
        self.is_kept_from_guests(host)

    def test_the_next_boot_forgets_it(self, fast_folder: Path) -> None:
        tree, host = bound(fast_folder / "x.db")
        self.die(tree)
        with pytest.raises(DeviceDead):
            host.apply(host.plan_unbind([HGX]))
        booted = copy(original("hgx8"))
        booted.put("/proc/sys/kernel/random/boot_id", "11111111-1111-1111-1111-111111111111")
        later = machine(booted, fast_folder / "x.db")
        assert later.inventory().by_address[HGX].mark is None
        assert later.apply(later.plan_bind([HGX])).result == Result.DONE

    def test_a_bind_asks_nothing_of_it(self, fast_folder: Path) -> None:
        class Private(Simulated):
            def config(self, address: str) -> bytes:
                pytest.fail(f"the configuration space of {address} was read")

        tree = copy(original("hgx8"))
        host = Host(Private(tree, ""), fast_folder / "x.db", settle=0.0, lock_wait=0.0)
        assert host.apply(host.plan_bind([HGX])).result == Result.DONE

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
            host.apply(host.plan_unbind([HGX]))
        assert f"{HGX} is dead: " in caught.value.message
        assert caught.value.restored
        assert not differing(state(tree), before)
        assert host._engine.marks()[HGX].kind == MarkKind.DEAD


class TestGroups:
    @pytest.mark.parametrize("nodes", ["cdevs", "none"])
    def test_without_a_node_only_device_nodes_will_do(self, nodes: str) -> None:
        tree = copy(original("workstation"))
        if nodes == "cdevs":
            tree.put_node("/dev/vfio/devices/vfio0", Node("c", 511, 0))
            verify_viable(Simulated(tree, ""), [12])
        else:
            with pytest.raises(KernelRefused):
                verify_viable(Simulated(tree, ""), [12])

    def test_without_groups_nobody_is_asked(self) -> None:
        verify_viable(Simulated(copy(original("iommu-off")), ""), [])


class TestBindings:
    def test_what_was_found_is_given_of_others_as_well(self) -> None:
        kernel = Simulated(copy(original("workstation")), "")
        one, other = PciAddress("0000:0b:00.0"), PciAddress("0000:0b:00.1")
        goals = {one: Binding(driver="nvidia", driver_override=None)}
        assert verify_bindings(kernel, goals, settle=0.0, also=[other]).keys() == {one, other}

    def test_a_device_that_is_not_there_is_wrong(self) -> None:
        kernel = Simulated(copy(original("workstation")), "")
        with pytest.raises(VerifyError, match=f"{GPU} should be on nvidia and is on gone"):
            verify_bindings(kernel, NATIVE, settle=0.0)


def test_a_screen_whose_console_does_not_come_back_stays_with_its_driver(fast_folder: Path) -> None:
    class Dark(Simulated):
        def write(self, path: str, value: str) -> None:
            super().write(path, value)
            if path.endswith("/vtcon1/bind") and value == "1":
                self.tree.put(self.tree.resolve(path), "0")

    tree = copy(in_use())
    host = Host(Dark(tree, ""), fast_folder / "x.db", settle=0.0, lock_wait=0.0)
    host.apply(host.plan_bind([SCREEN], allow_boot_vga=True, stop_services=STOPPABLE))
    with pytest.raises(VerifyError, match="vtcon1/bind should be 1 again and is 0"):
        host.apply(host.plan_unbind([SCREEN]))
    assert host.inventory().by_address[SCREEN].driver == "amdgpu"
    assert host.history()[0].state == JournalState.DONE
