"""Which GPUs a cgroup may open, on simulated hosts: by a program, by systemd, refused paths, holders, rollback."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.conftest import Run
from vfioctl.core.change import Plan
from vfioctl.core.events import StepEvent
from vfioctl.errors import BadDocument, BadSpec, HostError, KernelRefused, StalePlan, UnknownDevice
from vfioctl.host import Host
from vfioctl.kernel import device_program
from vfioctl.kernel.device_lists import CGROUPS, DeviceProgram
from vfioctl.kernel.live import device_programs, unit_devices
from vfioctl.kernel.simulated.faults import Fault
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.sharing.allowing.api import AllowApi
from vfioctl.sharing.allowing.values import Note, cgroup_in, note_file, note_in

CONTAINER = "/system.slice/docker-116f54c41d0405dbb10e7b04ebc31e262a5b8c85c1233fcf36eaee344d91ae58.scope"
SERVICE, UNIT = "/system.slice/nvidia-persistenced.service", "nvidia-persistenced.service"
HOLDER = 3107
"""It is in the container, and has /dev/nvidia0 open."""


@pytest.fixture
def host() -> Host:
    return Host.simulated("busy")


@pytest.fixture
def owned(host: Host) -> Host:
    """The host whose systemd owns the cgroup of a service."""
    kernel(host).tree.properties.setdefault(f"unit:{UNIT}", {})["cgroup"] = SERVICE
    kernel(host).tree.put(
        "/proc/devices", "Character devices:\n  1 mem\n 29 fb\n195 nvidia\n226 drm\n243 vfio\n511 nvidia-uvm\n"
    )
    return host


def kernel(host: Host) -> Simulated:
    assert isinstance(host.session.kernel, Simulated)
    return host.session.kernel


def api(host: Host) -> AllowApi:
    return AllowApi(host.session)


def allow(host: Host, *gpus: str, cgroup: str = CONTAINER) -> Plan:
    plan = api(host).plan_allow(cgroup, gpus)
    host.apply(plan)
    return plan


def refused(host: Host, cgroup: str = CONTAINER) -> set[str]:
    return {n for program in kernel(host).device_programs(cgroup) for n in program.refused or ()}


class TestByProgram:
    def test_nodes_of_other_gpus_are_refused(self, host: Host) -> None:
        allow(host, "gpu0")
        assert {"c 195:1", "c 195:2", "c 226:0", "c 226:128"} <= refused(host)
        assert not {"c 195:0", "c 195:255", "c 195:254", "c 226:1", "c 226:129"} & refused(host)
        (allowed,) = api(host).allowed(CONTAINER)
        assert allowed.mechanisms == ("bpf",)
        assert [str(gpu) for gpu in allowed.gpus] == ["0000:01:00.0"]

    def test_what_all_gpus_of_a_driver_share_goes_with_the_last_of_them(self, host: Host) -> None:
        allow(host, "gpu4")  # amdgpu
        assert {"c 195:255", "c 195:254", "c 195:0"} <= refused(host)
        allow(host, "gpu4", "gpu2")
        assert not {"c 195:255", "c 195:254"} & refused(host)

    def test_devices_that_are_no_gpus_are_never_refused(self, host: Host) -> None:
        allow(host, "gpu1")
        majors = {number.partition(":")[0] for number in refused(host)}
        assert not majors & {"c 1", "c 5", "c 10", "c 116"}  # memory, terminals, /dev/vfio/vfio, sound

    def test_another_list_replaces_it(self, host: Host) -> None:
        allow(host, "gpu0")
        allow(host, "gpu2")
        assert "c 195:0" in refused(host)
        assert len(kernel(host).device_programs(CONTAINER)) == 1

    def test_the_same_list_again_changes_nothing(self, host: Host) -> None:
        allow(host, "gpu0")
        assert api(host).plan_allow(CONTAINER, ["gpu0"]).nothing_to_do

    def test_disallow_removes_only_what_vfioctl_attached(self, host: Host) -> None:
        kernel(host).tree.properties[f"sim:cgroup:{CONTAINER}"] = {"others": "sd_devices"}
        allow(host, "gpu0")
        host.apply(api(host).plan_disallow(CONTAINER))
        assert [program.name for program in kernel(host).device_programs(CONTAINER)] == ["sd_devices"]
        assert api(host).plan_disallow(CONTAINER).nothing_to_do
        assert api(host).allowed() == ()

    def test_a_cgroup_that_is_gone_is_no_error_for_disallow(self, host: Host) -> None:
        assert api(host).plan_disallow("/gone").nothing_to_do

    def test_it_may_go_between_plan_and_removal(self, host: Host) -> None:
        allow(host, "gpu0")
        plan = api(host).plan_disallow(CONTAINER)
        tree = kernel(host).tree

        def end(event: StepEvent) -> None:
            if event.kind == "begin":
                tree.remove(f"/proc/{HOLDER}")

        host.apply(plan, progress=end)
        assert f"/proc/{HOLDER}" not in tree.directories

    def test_a_plan_is_stale_when_the_list_has_changed(self, host: Host) -> None:
        plan = api(host).plan_allow(CONTAINER, ["gpu0"])
        allow(host, "gpu2")
        with pytest.raises(StalePlan):
            host.apply(plan)

    def test_a_refused_change_leaves_what_was(self, host: Host) -> None:
        allow(host, "gpu0")
        before = refused(host)
        kernel(host)._faults = (Fault(at=len(kernel(host).writes) + 1, kind="EPERM", errno=errno.EPERM),)
        with pytest.raises(KernelRefused):
            allow(host, "gpu2")
        assert refused(host) == before

    def test_holders_of_refused_nodes_are_shown(self, host: Host) -> None:
        plan = allow(host, "gpu2")
        assert any(f"process {HOLDER} " in note and "not revoked" in note for note in plan.notes)
        (allowed,) = api(host).allowed()
        assert [(holder.pid, holder.number) for holder in allowed.holders] == [(HOLDER, "c 195:0")]
        allow(host, "gpu0")
        assert not api(host).allowed()[0].holders

    def test_holders_in_other_cgroups_are_not(self, host: Host) -> None:
        allow(host, "gpu2", cgroup="/user.slice")
        assert HOLDER not in {holder.pid for holder in api(host).allowed()[0].holders}

    def test_lists_of_cgroups_above_apply_too(self, host: Host) -> None:
        allow(host, "gpu2", cgroup="/system.slice")
        plan = allow(host, "gpu0")
        assert any(note.startswith("/system.slice refuses c 195:0") for note in plan.notes)
        (allowed,) = api(host).allowed(CONTAINER)
        assert allowed.gpus == ()
        assert "c 195:0" in allowed.above["/system.slice"]


class TestBySystemd:
    def test_the_unit_that_owns_it_gets_a_list(self, owned: Host) -> None:
        allow(owned, "gpu0", cgroup=SERVICE)
        unit = kernel(owned).unit_devices(SERVICE)
        assert unit
        assert "char-mem rwm" in unit.allowed
        assert "/dev/char/195:0 rwm" in unit.allowed
        assert not refused(owned, SERVICE)
        (allowed,) = api(owned).allowed()
        assert (allowed.mechanisms, [str(gpu) for gpu in allowed.gpus]) == (("systemd",), ["0000:01:00.0"])

    def test_disallow_puts_back_what_it_had(self, owned: Host) -> None:
        kernel(owned).set_unit_devices(UNIT, "closed", ["/dev/null rw"])
        allow(owned, "gpu0", cgroup=SERVICE)
        allow(owned, "gpu2", cgroup=SERVICE)
        owned.apply(api(owned).plan_disallow(SERVICE))
        unit = kernel(owned).unit_devices(SERVICE)
        assert unit
        assert (unit.policy, unit.allowed) == ("closed", ("/dev/null rw",))
        assert not kernel(owned).has(note_file(UNIT))

    def test_what_somebody_has_set_since_stays(self, owned: Host) -> None:
        allow(owned, "gpu0", cgroup=SERVICE)
        kernel(owned).set_unit_devices(UNIT, "strict", ["/dev/zero r"])
        plan = api(owned).plan_disallow(SERVICE)
        assert any("since" in note for note in plan.notes)
        owned.apply(plan)
        unit = kernel(owned).unit_devices(SERVICE)
        assert unit
        assert unit.policy == "strict"

    def test_a_failure_rolls_back_settings_and_note(self, owned: Host) -> None:
        kernel(owned)._faults = (Fault(at=len(kernel(owned).writes) + 2, kind="EIO", errno=errno.EIO),)
        with pytest.raises(KernelRefused):
            allow(owned, "gpu0", cgroup=SERVICE)
        unit = kernel(owned).unit_devices(SERVICE)
        assert unit
        assert unit.allowed == ()
        assert not kernel(owned).has(note_file(UNIT))

    def test_a_cgroup_below_the_unit_is_not_its_own(self, owned: Host) -> None:
        kernel(owned).tree.put_directory(f"{CGROUPS}{SERVICE}/inner")
        allow(owned, "gpu0", cgroup=f"{SERVICE}/inner")
        assert refused(owned, f"{SERVICE}/inner")

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"after": 1, "before": "", "cgroup": "/a"}', "\0"])
    def test_a_damaged_note_costs_only_itself(self, owned: Host, text: str) -> None:
        allow(owned, "gpu0")
        kernel(owned).tree.put(note_file(UNIT), text)
        assert note_in(text) is None
        assert [allowed.cgroup for allowed in api(owned).allowed()] == [CONTAINER]
        allow(owned, "gpu0", cgroup=SERVICE)

    def test_a_note_is_read_as_it_is_written(self) -> None:
        note = Note("/system.slice/a\\x2db.service", "auto", "auto\n/dev/null rw")
        assert note_in(note.text) == note


def assert_unrestricted(owned: Host, cgroup: str) -> None:
    unit = kernel(owned).unit_devices(cgroup)
    assert unit
    assert (unit.policy, unit.allowed) == ("auto", ())


class TestNotes:
    """Notes are kept by the name of the unit; a cgroup of the same name may be another one's."""

    OTHER = f"/user.slice/user-1000.slice/{UNIT}"

    def test_a_list_of_another_cgroup_of_the_same_name_leaves_the_note(self, owned: Host) -> None:
        allow(owned, "gpu0", cgroup=SERVICE)
        kernel(owned).tree.put(f"{CGROUPS}{self.OTHER}/cgroup.procs", "")
        allow(owned, "gpu2", cgroup=self.OTHER)
        assert [each.cgroup for each in api(owned).allowed()] == [SERVICE, self.OTHER]
        owned.apply(api(owned).plan_disallow(self.OTHER))
        owned.apply(api(owned).plan_disallow(SERVICE))
        assert_unrestricted(owned, SERVICE)

    def test_of_a_unit_in_another_slice_the_list_is_removed_too(self, owned: Host) -> None:
        allow(owned, "gpu0", cgroup=SERVICE)
        moved = f"/machine.slice/{UNIT}"
        kernel(owned).tree.properties[f"unit:{UNIT}"]["cgroup"] = moved
        owned.apply(api(owned).plan_disallow(moved))
        assert_unrestricted(owned, moved)

    def test_of_a_unit_that_does_not_run_the_list_is_removed_too(self, owned: Host) -> None:
        """What systemctl has set stays when a unit is stopped, and holds when it starts again."""
        allow(owned, "gpu0", cgroup=SERVICE)
        kernel(owned).tree.properties[f"unit:{UNIT}"]["cgroup"] = ""
        tree = kernel(owned).tree
        for path, text in [*tree.files.items()]:
            if path.endswith("/cgroup") and SERVICE in text:
                tree.remove(path.removesuffix("/cgroup"))
        assert [each.cgroup for each in api(owned).allowed()] == [SERVICE]
        owned.apply(api(owned).plan_disallow(SERVICE))
        facts = kernel(owned).tree.properties[f"unit:{UNIT}"]
        assert (facts["DevicePolicy"], facts["DeviceAllow"]) == ("auto", "")
        assert api(owned).allowed() == ()

    def test_a_unit_whose_own_files_are_read_later_is_refused(self, owned: Host) -> None:
        """The next daemon-reload would undo it."""
        kernel(owned).tree.properties[f"unit:{UNIT}"]["later"] = "/etc/systemd/system/a.service.d/override.conf"
        with pytest.raises(HostError, match=r"daemon-reload: /etc/.*/override\.conf sets"):
            api(owned).plan_allow(SERVICE, ["gpu0"])

    @pytest.mark.parametrize(
        ("name", "text", "is_later"),
        [
            ("override.conf", "[Service]\nDeviceAllow = char-drm rw\n", True),
            ("override.conf", "[Service]\nNice=5\n# DeviceAllow=x\n", False),
            ("10-early.conf", "[Service]\nDevicePolicy=closed\n", False),
            ("50-DeviceAllow.conf", "[Service]\nDeviceAllow=\n", False),
            ("50-DevicePolicy.conf", "[Service]\nDevicePolicy=auto\n", False),
        ],
    )
    def test_files_that_systemd_reads_later(self, tmp_path: Path, name: str, text: str, is_later: bool) -> None:
        (tmp_path / name).write_text(text)
        said = f"LoadState=loaded\nControlGroup=/a.service\nDropInPaths={tmp_path / name}\nDevicePolicy=auto\n"
        unit = unit_devices.shown("a.service", "/a.service", said)
        assert unit
        assert bool(unit.later) == is_later

    @pytest.mark.parametrize(
        ("state", "own", "is_its"),
        [
            ("loaded", "/a.service", True),
            ("loaded", "", True),
            ("loaded", "/b.service", False),
            ("not-found", "", False),
        ],
    )
    def test_a_unit_that_does_not_run_has_no_cgroup(self, state: str, own: str, is_its: bool) -> None:
        said = f"LoadState={state}\nControlGroup={own}\nDevicePolicy=auto\n"
        assert bool(unit_devices.shown("a.service", "/a.service", said)) == is_its


class TestUnread:
    """As with net.core.bpf_jit_harden=2: the kernel shows other instructions than were loaded."""

    @pytest.fixture
    def hidden(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> Host:
        programs = Simulated.device_programs

        def unread(self: Simulated, cgroup: str) -> list[DeviceProgram]:
            return [program._replace(refused=None) for program in programs(self, cgroup)]

        monkeypatch.setattr(Simulated, "device_programs", unread)
        return host

    def test_a_list_is_set_and_removed(self, hidden: Host) -> None:
        allow(hidden, "gpu0")
        (program,) = kernel(hidden).device_programs(CONTAINER)
        assert program.name == device_program.NAME
        hidden.apply(api(hidden).plan_disallow(CONTAINER))
        assert kernel(hidden).device_programs(CONTAINER) == []


class TestPaths:
    @pytest.mark.parametrize("text", ["/a/b", "a/b", "/a/b/", f"{CGROUPS}/a/b"])
    def test_forms_of_one_path(self, text: str) -> None:
        assert cgroup_in(text) == "/a/b"

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "/",
            CGROUPS,
            f"{CGROUPS}/",
            "/..",
            "/a/../b",
            "/a/./b",
            "/a//b",
            "/a\x00",
            "/a\nb",
            "/\x1b[2J",
            "/" + "a" * 300,
            "/\udc80",
            "/a/\u202eb",
            "/" + "é" * 200,
        ],
    )
    def test_others_are_refused(self, text: str, host: Host) -> None:
        with pytest.raises(BadSpec):
            api(host).plan_allow(text, ["gpu0"])
        with pytest.raises(BadSpec):
            api(host).plan_disallow(text)
        with pytest.raises(BadSpec):
            api(host).allowed(text)

    @settings(deadline=None)
    @given(st.text(max_size=300))
    def test_no_text_leaves_the_mount(self, text: str) -> None:
        try:
            path = cgroup_in(text)
        except BadSpec:
            return
        assert os.path.normpath(CGROUPS + path) == CGROUPS + path
        assert len(path.encode()) <= 255

    def test_links_are_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to("real")
        with pytest.raises(KernelRefused) as refusal:
            device_programs.programs("/link", str(tmp_path))
        assert refusal.value.symbol in ("ELOOP", "ENOTDIR")

    def test_a_directory_that_is_no_cgroup_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        with pytest.raises((HostError, KernelRefused)):
            device_programs.programs("/real", str(tmp_path))


class TestRequests:
    def test_there_must_be_the_cgroup(self, host: Host) -> None:
        with pytest.raises(UnknownDevice):
            api(host).plan_allow("/nosuch", ["gpu0"])
        with pytest.raises(UnknownDevice):
            api(host).allowed("/nosuch")

    def test_it_must_be_a_gpu(self, host: Host) -> None:
        with pytest.raises(BadSpec, match="is no GPU"):
            api(host).plan_allow(CONTAINER, ["0000:01:00.1"])

    def test_a_plan_for_another_cgroup_is_forged(self, host: Host) -> None:
        plan = api(host).plan_allow(CONTAINER, ["gpu0"])
        other = plan.model_copy(update={"intent": plan.intent.model_copy(update={"cgroup": "/user.slice"})})
        with pytest.raises(BadDocument):
            host.apply(other)

    def test_a_host_without_cgroups_is_refused_clearly(self) -> None:
        with pytest.raises(KernelRefused):
            AllowApi(Host.recorded("busy").session).plan_allow(CONTAINER, ["gpu0"])


class TestCommands:
    def test_a_saved_plan_is_applied(self, run: Run, tmp_path: Path) -> None:
        planned = run("share", "allow", CONTAINER, "--device", "gpu0", "--dry-run", "--json", "--simulate", "busy")
        assert planned.code == 0
        file = tmp_path / "plan.json"
        file.write_text(planned.out)
        assert run("apply", str(file), "--simulate", "busy").code == 0
        shown = run("share", "allowed", "--json", "--simulate", "busy")
        assert [one["cgroup"] for one in shown.document["cgroups"]] == [CONTAINER]
        assert run("share", "disallow", CONTAINER, "--simulate", "busy").code == 0
        assert "restricts no cgroup" in run("share", "allowed", "--simulate", "busy").out

    def test_a_device_must_be_named(self, run: Run) -> None:
        assert run("share", "allow", CONTAINER, "--simulate", "busy").code == 2

    def test_holders_are_on_the_page(self, run: Run) -> None:
        run("share", "allow", CONTAINER, "--device", "gpu2", "--simulate", "busy")
        assert f"process {HOLDER} " in run("share", "allowed", CONTAINER, "--simulate", "busy").out
