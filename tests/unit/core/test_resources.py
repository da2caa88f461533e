"""Every resource that is registered: what a plan from elsewhere could have written, and the way back."""

from __future__ import annotations

import errno
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts.machines import REGISTRY, copy, original, unhurried
from vfioctl.access.model.record import Record
from vfioctl.binding.model.binding import KERNEL_CHOICE, Binding
from vfioctl.binding.model.definition import DeviceDefinition, Identity
from vfioctl.binding.model.intents import BindIntent
from vfioctl.claims.model.access import Access
from vfioctl.claims.model.cdi import CdiDevice
from vfioctl.containers.cdi.files import text_of
from vfioctl.core.change import Change, Draft, Phase
from vfioctl.core.resource import Found
from vfioctl.domain.model.hook import SCRIPT, script
from vfioctl.errors import BadDocument, KernelRefused
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.host_paths import FIRMWARE_FRAMEBUFFERS
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.persist.packaged import packaged
from vfioctl.sharing.allowing.values import Note
from vfioctl.sharing.mps.daemon import Told
from vfioctl.sharing.mps.share import Limits
from vfioctl.units import Uuid
from vfioctl.vgpu.model.kinds import VGPUS, ZOMBIE, creates, removes

GPU = PciAddress("0000:41:00.0")
MDEV = Uuid("4e8c5df7-c4fa-4719-904f-5579cd5ac35f")
HOME = f"/sys/bus/pci/devices/{GPU}"
NAMES = {
    "power": f"{HOME}/power/control",
    "d3cold": f"{HOME}/d3cold_allowed",
    "console": "/sys/class/vtconsole/vtcon1/bind",
    "framebuffer": "efi-framebuffer.0",
    "lock": f"/proc/driver/nvidia/gpus/{GPU}/unbindLock",
    "persistence": str(GPU),
    "service": "nvidia-persistenced.service",
    "reset method": f"{HOME}/reset_method",
    "module": "vfio-pci",
    "binding": str(GPU),
    "reset": f"{HOME}/reset",
    "rom": f"{HOME}/rom",
    "mdev": str(MDEV),
    "kept vGPU": str(MDEV),
    "vGPU type": f"{HOME}/nvidia/current_vgpu_type",
    "parameter": f"{HOME}/nvidia/vgpu_params",
    "VFs": f"{HOME}/sriov_numvfs",
    "autoprobe": f"{HOME}/sriov_drivers_autoprobe",
    "NVIDIA VFs": str(GPU),
    "profile": f"{HOME}/sriov_admin/vf1/profile/exec_quantum_ms",
    "definition": f"/etc/vfioctl/vgpu.d/{GPU}.json",
    "device definition": f"/etc/vfioctl/devices.d/{GPU}.toml",
    "udev rule": f"/etc/udev/rules.d/61-vfioctl-{GPU}.rules",
    "driverctl override": f"/etc/driverctl.d/pci-{GPU}",
    "installed file": "/etc/udev/rules.d/62-vfioctl-boot.rules",
    "enabled unit": "/etc/systemd/system/sysinit.target.wants/vfioctl-early.service",
    "CDI file": "/var/run/cdi/vfioctl.json",
    "access": "/run/vfioctl/access/12",
    "permissions": "/dev/vfio/12",
    "cgroup_devices": "/system.slice/a.scope",
    "unit_devices": "a.scope",
    "allow_note": "/run/vfioctl/allowed/a.scope",
    "mps environment": "/run/vfioctl/mps/0000-41-00.0.env",
    "compute mode": str(GPU),
    "mps daemon": "0000-41-00.0",
    "mps limit": "0000-41-00.0/threads",
    "domain": "qemu:///system web1",
    "hook": SCRIPT,
    "disk image": "qemu:///system default web1.qcow2",
    "seed": "qemu:///system default web1-seed-000000000000.iso",
}
OF_AN_MDEV = {
    "mdev": str(MDEV),
    "kept vGPU": str(MDEV),
    "parameter": f"/sys/bus/mdev/devices/{MDEV}/nvidia/vgpu_params",
    "definition": f"/etc/mdevctl.d/0000:41:00.4/{MDEV}",
}
AT_BOOT = DeviceDefinition(
    address=GPU,
    driver="vfio-pci",
    identity=Identity(
        vendor="10de",
        device="2330",
        subsystem_vendor="10de",
        subsystem_device="16c1",
        class_code="030200",
        path="0000:40/01.1/00.0",
        twins=True,
    ),
)
VALUE = {
    "framebuffer": "simpledrm",
    "mdev": "0000:41:00.4/nvidia-754",
    "kept vGPU": "0000:41:00.4/nvidia-754",
    "persistence": "0",
    "service": "active",
    "rom": "on",
    "module": "loaded",
    "binding": "nvidia",
    "power": "on",
    "device definition": AT_BOOT.text,
    "udev rule": AT_BOOT.rule,
    "installed file": packaged()["/etc/udev/rules.d/62-vfioctl-boot.rules"],
    "enabled unit": "../vfioctl-early.service",
    "access": Record(Access(1000), "0:0:600").text,
    "permissions": "1000:0:600",
    "cgroup_devices": "c 195:1, c 226:0",
    "unit_devices": "auto",
    "allow_note": Note("/system.slice/a.scope", "auto", "closed\n/dev/null rw").text,
    "mps environment": Told("0000-41-00.0", GPU, f"GPU-{MDEV}", "Default", Limits(40, 2 << 30)).text,
    "compute mode": "Exclusive_Process",
    "mps daemon": "active",
    "mps limit": "40",
    "CDI file": text_of("vfioctl/vfio", [CdiDevice(GPU, "/dev/vfio/12")]),
    "domain": "<domain><name>web1</name></domain>",
    "hook": script("/usr/bin/vfioctl"),
    "disk image": "42949672960 on qcow2 /images/debian.qcow2",
    "seed": json.dumps({"sha256": "0" * 64, "instance_id": "web1", "hostname": "web1", "user_data": "/etc/web1"}),
}
KINDS = [resource.kind for parts in REGISTRY.parts.values() for resource in parts.resources]
OF_THE_HOST = ("console", "framebuffer", "service", "module")
SAID_IN_WORDS = ("binding", "unit_devices")
FREE_TEXT = ("parameter", "definition", "device definition", "udev rule", "installed file", "access", "allow_note")
OF_THEIR_OWN = (
    *("mdev", "vGPU type", "VFs", "NVIDIA VFs", "autoprobe", "parameter", "profile", "definition", "kept vGPU"),
    *("device definition", "udev rule", "driverctl override", "installed file", "enabled unit"),
    *("CDI file", "access", "permissions", "domain", "hook", "disk image", "seed"),
    *("cgroup_devices", "unit_devices", "allow_note"),
    *("mps environment", "compute mode", "mps daemon", "mps limit"),
)
"""Kinds that the tests of the vGPU, persist, claims, domain and sharing subsystems take back."""
NOT_TAKEN_BACK = ("module", "reset", "rom", "binding", "persistence", "power")
VALUES = st.text("abcdefghijklmnopqrstuvwxyz0123456789_ -", max_size=64)


def subject_of(kind: str) -> str:
    own = {
        "installed file": "boot",
        "enabled unit": "boot",
        "mdev": MDEV,
        "kept vGPU": MDEV,
        "CDI file": "vfioctl/vfio",
        "access": "group-12",
        "permissions": "group-12",
        "domain": "domain/web1",
        "hook": "hook",
        **dict.fromkeys(("cgroup_devices", "unit_devices", "allow_note"), "cgroup:/system.slice/a.scope"),
    }
    volumes = {each: f"volume/{NAMES[each].rpartition(' ')[2]}" for each in ("disk image", "seed")}
    return {**own, **volumes}.get(kind, GPU)


def setting(kind: str, name: str | None = None, subject: str | None = None, **parts: str | bool | None) -> Change:
    """A change that no plan would be refused for. Raises ValueError."""
    empty = VALUE[kind] if kind in SAID_IN_WORDS else ""
    known: dict[str, object] = {"kind": kind, "name": NAMES[kind] if name is None else name}
    known |= {"subject": subject or subject_of(kind), "before": empty, "after": empty}
    change = Change.model_validate(known | parts)
    REGISTRY.resource(change).validate(change)
    return change


def test_every_kind_that_is_registered_is_tested() -> None:
    assert {*NAMES} == {*KINDS}


def test_of_kinds_that_nobody_registers_nothing_is_known() -> None:
    with pytest.raises(BadDocument, match="no resource 'odd' is known here"):
        REGISTRY.resource(Change(kind="odd", name="x", subject=GPU, before="", after=""))


class TestNames:
    @pytest.mark.parametrize("kind", KINDS)
    def test_of_each_kind_there_is_one_form(self, kind: str) -> None:
        assert setting(kind).key == (kind, NAMES[kind])
        for name in {*NAMES.values(), *OF_AN_MDEV.values()} - {NAMES[kind]}:
            if kind != "module" or name not in (MDEV, "efi-framebuffer"):  # a module may be called anything
                self.refused(kind, name)

    @pytest.mark.parametrize("kind", KINDS)
    def test_of_a_mediated_device_there_are_few(self, kind: str) -> None:
        for each in {*NAMES.values(), *OF_AN_MDEV.values()}:
            if kind == "module" and each == MDEV:
                continue  # a module may be called anything
            if each == OF_AN_MDEV.get(kind) or (kind in OF_THE_HOST and each == NAMES[kind]):
                assert setting(kind, each, MDEV).subject == MDEV
            else:
                self.refused(kind, each, MDEV)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(
        "spoil",
        [
            lambda name: f"{name}\n",
            lambda name: f" {name}",
            lambda name: f"{name}\0",
            lambda name: f"../{name}",
            lambda name: f"{name}/../../../../etc/passwd",
            lambda _: "/etc/passwd",
            lambda _: "",
            lambda _: "..",
            lambda name: f"-{name}",
            lambda name: name.replace("0000:41:00.0", ".."),
            lambda name: name * 200,
            lambda name: name.replace("0", "\u0660"),
            lambda name: f"{name};reboot",
            lambda name: f"{name} x",
        ],
    )
    def test_that_a_hostile_plan_could_carry_are_refused(self, kind: str, spoil: object) -> None:
        assert callable(spoil)
        for subject, names in ((None, NAMES), (MDEV, OF_AN_MDEV)):
            name = spoil(names.get(kind, ""))
            if name != names.get(kind):
                self.refused(kind, name, subject)

    @pytest.mark.parametrize("kind", [k for k, name in NAMES.items() if GPU in name])
    def test_of_another_function_are_refused(self, kind: str) -> None:
        self.refused(kind, NAMES[kind].replace(GPU, "0000:42:00.0"))
        self.refused(kind, NAMES[kind].replace(GPU, "41:00.0"))
        self.refused(kind, NAMES[kind].replace(GPU, MDEV))

    @pytest.mark.parametrize("kind", OF_AN_MDEV)
    def test_of_another_mediated_device_are_refused(self, kind: str) -> None:
        for other in ("5e8c5df7-c4fa-4719-904f-5579cd5ac35f", MDEV.upper(), MDEV[:8], GPU, "*"):
            if kind == "definition" and other == MDEV.upper():
                continue  # a file may be spelt so, and is then that one
            self.refused(kind, OF_AN_MDEV[kind].replace(MDEV, other), MDEV)

    @pytest.mark.parametrize(
        "file",
        [
            "driver/unbind",
            "driver/bind",
            "driver/module/x",
            "mdev_type/create",
            "subsystem/drivers_probe",
            "remove",
            "iommu_group/type",
            "power/control",
            "iommu/x",
            "vfio-dev/vfio0",
            "uevent",
            "nvidia/../remove",
            "a/b/c",
            "nvidia/",
            "/remove",
            ".nvidia/x",
            "nvidia/.x",
            "NVIDIA/X",
        ],
    )
    def test_of_parameters_are_the_drivers_own_files(self, file: str) -> None:
        """A mediated device's folder has links to its driver, its type and its bus: all of these take orders."""
        self.refused("parameter", f"/sys/bus/mdev/devices/{MDEV}/{file}", MDEV)

    @pytest.mark.parametrize("file", ["vendor/resolution", "intel_vgpu/vgpu_id", "nvidia/placement_id"])
    def test_of_parameters(self, file: str) -> None:
        name = f"/sys/bus/mdev/devices/{MDEV}/{file}"
        assert setting("parameter", name, MDEV, after="1").name == name

    @pytest.mark.parametrize(
        "file",
        ["nvidia/current_vgpu_type", "driver_override", "sriov_numvfs", "remove", "reset", "vendor/x", "nvidia", "rom"],
    )
    def test_of_a_vfs_parameters_are_below_its_vendors_folder(self, file: str) -> None:
        self.refused("parameter", f"{HOME}/{file}")

    @pytest.mark.parametrize(
        "name",
        [
            f"/etc/mdevctl.d/../{MDEV}",
            f"/etc/mdevctl.d/{MDEV}",
            f"/etc/mdevctl.d/a/b/{MDEV}",
            f"/etc/cron.d/x/{MDEV}",
            f"/etc/mdevctl.d/scripts.d/callouts/{MDEV}",
            f"/etc/mdevctl.d/a/{MDEV}.json",
            f"/etc/mdevctl.d//{MDEV}",
            f"/etc/mdevctl.d/.a/{MDEV}",
            f"/etc/vfioctl/vgpu.d/{MDEV}.json",
            f"/etc/vfioctl/{MDEV}.json",
        ],
    )
    def test_of_definitions_are_two_places(self, name: str) -> None:
        self.refused("definition", name, MDEV)
        self.refused("definition", name.replace(MDEV, GPU).replace("vgpu.d/", "vgpu.d/x/"))

    @pytest.mark.parametrize(
        "scope",
        ["pf/profile/..", "vf0/profile/x", "vf01/profile/x", "vf1/x", "vf1/stop", ".bulk_profile/x", "vf1/profile/X"],
    )
    def test_of_profiles_are_those_of_the_pf_and_the_vfs(self, scope: str) -> None:
        self.refused("profile", f"{HOME}/sriov_admin/{scope}")

    @pytest.mark.parametrize(
        "name", ["sshd.socket", "a/b.service", ".service", "@x.service", "x.service.d", "x.Service", "x" * 300]
    )
    def test_that_are_no_services_are_refused(self, name: str) -> None:
        self.refused("service", name)

    @pytest.mark.parametrize("name", ["gdm.service", "user@1000.service", "a\\x2db.service", "dcgm-exporter.service"])
    def test_of_services(self, name: str) -> None:
        assert setting("service", name).name == name

    @unhurried
    @given(st.sampled_from(KINDS), st.text(max_size=60), st.sampled_from([GPU, MDEV]), st.booleans())
    def test_whatever_is_taken_leads_nowhere_else(
        self,
        kind: str,
        name: str,
        subject: str,
        after_all: bool,
    ) -> None:
        known = NAMES if subject == GPU else OF_AN_MDEV
        try:
            taken = setting(kind, f"{known.get(kind, '').rpartition('/')[0]}/{name}" if after_all else name, subject)
        except ValueError:
            return
        assert ".." not in taken.name.split("/")
        assert re.fullmatch(r"[ -~]+", taken.name)

    def refused(self, kind: str, name: str, subject: str | None = None) -> None:
        with pytest.raises(ValueError, match=r"^not |^neither |at most 255 characters") as caught:
            setting(kind, name, subject)
        assert len(str(caught.value)) < 400


class TestValues:
    @pytest.mark.parametrize("part", ["before", "after", "during"])
    @pytest.mark.parametrize(
        "value", ["\n", "1\n", "../x", "a//b", "A", "x" * 65, "\0", "\u0661", "1;2", "a.b", "$(x)", "\x1b[2J"]
    )
    def test_that_nobody_writes_are_refused(self, part: str, value: str) -> None:
        for kind in (kind for kind in KINDS if kind not in (*FREE_TEXT, *SAID_IN_WORDS)):
            with pytest.raises(ValueError, match="not the value of a"):
                setting(kind, None, None, **{part: value})

    @pytest.mark.parametrize("part", ["before", "after", "during"])
    @pytest.mark.parametrize("value", ["\n", "a\nb", "\0", "\u0661", "\x1b[2J", "a\tb", "x" * 1001, "\x7f", "\u00e9"])
    def test_of_parameters_are_one_plain_line(self, part: str, value: str) -> None:
        with pytest.raises(ValueError, match="not the value of a parameter"):
            setting("parameter", None, None, **{part: value})

    @pytest.mark.parametrize("value", ["\0", "\u0661", "\x1b[2J", "x" * 65_537, "\x7f", "\r\n"])
    def test_of_definitions_are_plain_text(self, value: str) -> None:
        with pytest.raises(ValueError, match="not the text of a definition"):
            setting("definition", after=value)
        assert setting("definition", before='{\n\t"start": "auto"\n}').before, "as others may have written it"

    @pytest.mark.parametrize(
        "value",
        [
            "mtty",
            "mtty/",
            "/mtty-2",
            "../nvidia-1",
            "a/b/c",
            "0000:41:00.4/..",
            "0000:41:00.4/.x",
            "a b/c",
            "a/b\n",
            "Zombie",
            "0",
            "x" * 65 + "/a",
            "a/" + "x" * 65,
        ],
    )
    def test_of_a_mediated_device_are_its_parent_and_its_type(self, value: str) -> None:
        with pytest.raises(ValueError, match="not the value of a mdev"):
            setting("mdev", after=value)

    @pytest.mark.parametrize(
        "value", ["0000:41:00.4/nvidia-754", "mtty/mtty-2", "0000:00:02.0/i915-GVTg_V5_4", "zombie"]
    )
    def test_of_a_mediated_device(self, value: str) -> None:
        assert setting("mdev", before=value).before == value
        if value == ZOMBIE:
            with pytest.raises(ValueError, match="zombie"):
                setting("mdev", after=value)
        else:
            assert setting("mdev", after=value).after == value

    @pytest.mark.parametrize("kind", ["vGPU type", "VFs", "NVIDIA VFs"])
    @pytest.mark.parametrize("value", ["-1", "+1", "1 ", "0x1", "on", "1" * 10, "a-1"])
    def test_of_counts_and_types_are_numbers(self, kind: str, value: str) -> None:
        with pytest.raises(ValueError, match="not the value of a"):
            setting(kind, after=value)

    @pytest.mark.parametrize("driver", [*FIRMWARE_FRAMEBUFFERS, ""])
    def test_of_a_framebuffer_are_the_drivers_of_firmware(self, driver: str) -> None:
        assert setting("framebuffer", before=driver, after="").before == driver

    @pytest.mark.parametrize("driver", ["serial8250", "efi", "simple-framebuffer ", "xsimpledrm", "1"])
    def test_of_a_framebuffer_are_no_other_drivers(self, driver: str) -> None:
        with pytest.raises(ValueError, match="not the value of a framebuffer"):
            setting("framebuffer", before=driver)

    def test_may_be_unknown(self) -> None:
        assert setting("persistence", before="unknown", after="0").before == "unknown"


def found(change: Change, now: str | None, *more: tuple[Change, str]) -> Found:
    """What a look has found: of that change, and of others."""
    return Found({change.key: now, **{other.key: text for other, text in more}})


def restored(change: Change, now: str | None, *more: tuple[Change, str]) -> Change | None:
    return REGISTRY.resource(change).restore(change, found(change, now, *more))


def finished(change: Change, now: str | None, *more: tuple[Change, str]) -> Change | None:
    return REGISTRY.resource(change).finish(change, found(change, now, *more))


def steps_of(change: Change) -> list[tuple[Phase, str, bool]]:
    return [(step.phase, step.value, step.may_fail) for step in REGISTRY.resource(change).steps(change)]


@pytest.mark.parametrize("kind", ["power", "d3cold"])
def test_files_that_take_the_lock_of_the_device_are_read_by_a_worker(kind: str) -> None:
    each = setting(kind)
    assert tuple(REGISTRY.resource(each).blocking(each)) == (each.name,)


class TestTheWayBack:
    @unhurried
    @given(st.sampled_from([k for k in KINDS if k not in (*OF_THEIR_OWN, *NOT_TAKEN_BACK)]), VALUES, VALUES, VALUES)
    def test_is_from_what_is_now_to_what_was(self, kind: str, before: str, after: str, other: str) -> None:
        made = Change(kind=kind, name=NAMES[kind], subject=GPU, before=before, after=after, during="x")
        for now in (after, "x"):
            back = restored(made, now)
            assert back
            assert (back.before, back.after, back.during) == (now, before, None)
            assert (back.key, back.subject) == (made.key, made.subject)
        if other not in (after, "x"):
            assert restored(made, other) is None, "somebody else has set that, and it is theirs"
        assert restored(made, None) is None, "its file is gone"

    @pytest.mark.parametrize("kind", ["power", "d3cold", "console", "framebuffer", "persistence", "service"])
    def test_may_fail_where_it_would_take_the_device_away_again(self, kind: str) -> None:
        back = restored(Change(kind=kind, name=NAMES[kind], subject=GPU, before="1", after="0"), "0")
        assert back
        assert [(phase, may_fail) for phase, _, may_fail in steps_of(back)] == [(Phase.SETTLE, True)]

    def test_of_power_is_taken_whatever_it_is_now(self) -> None:
        made = setting("power", before="auto", after="on")
        for now in ("on", "auto"):
            back = restored(made, now)
            assert back
            assert (back.before, back.after) == (now, "auto")
            assert steps_of(back) == [(Phase.SETTLE, "auto", True)], "each driver sets it as it binds"
        assert restored(made, None) is None

    def test_of_a_persistence_mode_needs_no_look(self) -> None:
        made = setting("persistence", before="1", after="0")
        back = restored(made, None)
        assert back
        assert (back.before, back.after, back.may_fail) == ("0", "1", True)

    def test_of_a_persistence_mode_that_was_unknown_is_none(self) -> None:
        assert restored(setting("persistence", before="unknown", after="0"), None) is None

    @pytest.mark.parametrize(("driver", "goes_off"), [("nvidia", True), ("vfio-pci", False), ("no driver", False)])
    def test_of_a_persistence_mode_goes_off_only_while_nvidia_has_the_gpu(self, driver: str, goes_off: bool) -> None:
        """NVML knows no other: as when an unbind is undone, or a bind is finished."""
        binding = setting("binding", before="nvidia", after="vfio-pci")
        unbound = setting("persistence", before="0", after="1")
        assert bool(restored(unbound, None, (binding, driver))) is goes_off
        bound = setting("persistence", before="1", after="0")
        assert bool(finished(bound, None, (binding, driver))) is goes_off
        assert restored(bound, None, (binding, driver)), "it comes back with the driver"

    def test_of_a_binding_is_from_whatever_it_is(self) -> None:
        made = setting("binding", before="nvidia", after="vfio-pci, override vfio-pci")
        for now in ("nvidia", "no driver, override vfio-pci", "nouveau"):
            back = restored(made, now)
            assert back
            assert (back.before, back.after) == (now, "nvidia")

    def test_of_a_reset_and_of_a_module_is_none(self) -> None:
        assert restored(setting("reset", after=GPU), None) is None
        assert restored(setting("module", after="loaded"), "loaded") is None

    def test_of_a_module_is_told_by_its_directory(self) -> None:
        kernel = Simulated(copy(original("workstation")), "")
        there, missing = setting("module", "vfio-pci"), setting("module", "no-such-module")
        kernel.tree.put("/sys/module/vfio_pci/refcnt", "0")
        assert REGISTRY.resource(there).read(kernel, there) == "loaded"
        assert REGISTRY.resource(missing).read(kernel, missing) is None

    def test_of_a_rom_switches_it_off_whatever_it_is(self) -> None:
        back = restored(setting("rom", before="off", after="off", during="on"), None)
        assert back
        assert steps_of(back) == [(Phase.SET, "0\n", False)]

    def test_of_a_rom_that_is_not_there_is_done_already(self) -> None:
        """Most functions have none: that one could not be read must not become a rollback that failed."""
        kernel = Simulated(copy(original("workstation")), "")
        made = setting("rom", before="off", after="off", during="on")
        back = restored(made, None)
        assert back
        rom = REGISTRY.resource(back)
        assert rom.is_done_anyway(kernel, back, KernelRefused(back.name, errno.ENOENT, "0\n"))
        assert not rom.is_done_anyway(kernel, made, KernelRefused(back.name, errno.ENOENT)), "it was to be read"
        assert not rom.is_done_anyway(kernel, back, KernelRefused(back.name, errno.EIO, "0\n"))

    def test_of_autoprobe_keeps_it_off_meanwhile(self) -> None:
        made = setting("autoprobe", before="1", after="1", during="0")
        count = setting("VFs", before="2", after="0")
        back = REGISTRY.resource(made).restore(
            made, Found({made.key: "0", count.key: "0"}, changes={count.key: count, made.key: made})
        )
        assert back
        assert (back.before, back.after, back.during) == ("0", "1", "0")

    @pytest.mark.parametrize("kind", ["VFs", "NVIDIA VFs"])
    def test_of_a_count_is_the_count_before(self, kind: str) -> None:
        back = restored(setting(kind, before="2", after="4", during="0"), "0")
        assert back
        assert (back.before, back.after, back.during) == ("0", "2", None)

    @pytest.mark.parametrize(
        "kind", [k for k in KINDS if k not in ("reset", "module", "driverctl override", "kept vGPU")]
    )
    def test_of_what_is_as_it_was_takes_no_step_but_for_power(self, kind: str) -> None:
        as_it_is = VALUE.get(kind, "") if kind in (*SAID_IN_WORDS, "power") else ""
        same = setting(kind, before=as_it_is, after=as_it_is)
        assert bool(steps_of(same)) == (kind == "power"), "a driver sets that as it binds"
        other = {"binding": "vfio-pci", "unit_devices": "closed"}.get(kind, VALUE.get(kind, "1"))
        assert steps_of(setting(kind, before=as_it_is, after=other))


class TestForward:
    @pytest.mark.parametrize("kind", ["power", "d3cold", "console", "framebuffer", "service", "lock"])
    def test_is_from_what_is_now_to_what_was_meant(self, kind: str) -> None:
        made = Change(kind=kind, name=NAMES[kind], subject=GPU, before="1", after="0")
        for now in ("0", "1", "x"):
            assert finished(made, now) == made.model_copy(update={"before": now})
        assert finished(made, None) is None, "its file is gone"

    def test_resets_once_more(self) -> None:
        made = setting("reset", after=GPU)
        assert finished(made, None) == made

    def test_loads_a_module_that_is_not_there(self) -> None:
        made = setting("module", after="loaded")
        assert (finished(made, None), finished(made, "loaded")) == (made, None)

    @pytest.mark.parametrize("kind", ["power", "d3cold", "console", "framebuffer", "service"])
    def test_is_not_done_while_a_setting_is_as_before(self, kind: str) -> None:
        made = Change(kind=kind, name=NAMES[kind], subject=GPU, before="1", after="0")
        assert not REGISTRY.resource(made).shows_done(made, "1")
        assert REGISTRY.resource(made).shows_done(made, "0")

    @pytest.mark.parametrize("after", ["0", "1"])
    def test_of_a_persistence_mode_only_the_order_tells(self, after: str) -> None:
        """It is off before the function is unbound; that it is on again is the last step, which no fact tells."""
        made = Change(kind="persistence", name=NAMES["persistence"], subject=GPU, before="", after=after)
        assert REGISTRY.resource(made).shows_done(made, None) == (after == "0")

    def test_is_not_done_while_the_driver_is_still_to_be_chosen(self) -> None:
        goal = Binding(KERNEL_CHOICE, None).text
        made = Change(kind="binding", name=GPU, subject=GPU, before="vfio-pci", after=goal)
        resource = REGISTRY.resource(made)
        free, taken = Binding(None, None).text, Binding("nvidia", None).text
        assert (resource.matches(made, free), resource.shows_done(made, free)) == (True, False)
        assert resource.shows_done(made, taken)

    @pytest.mark.parametrize("kind", ["reset", "rom"])
    def test_no_fact_tells_whether_it_was_done(self, kind: str) -> None:
        made = Change(kind=kind, name=NAMES[kind], subject=GPU, before="", after=GPU)
        assert not REGISTRY.resource(made).shows_done(made, None)


class TestOrder:
    """What a service holds is released first and taken again last."""

    @pytest.mark.parametrize(
        ("kind", "released", "again"),
        [("service", "inactive", "active"), ("persistence", "0", "1"), ("console", "0", "1"), ("d3cold", "0", "1")],
    )
    def test_is_before_the_unbinding_or_after_all_else(self, kind: str, released: str, again: str) -> None:
        assert steps_of(setting(kind, before=again, after=released)) == [(Phase.RELEASE, released, False)]
        assert [phase for phase, *_ in steps_of(setting(kind, before=released, after=again))] == [Phase.SETTLE]

    def test_a_framebuffer_is_unbound_and_bound_by_its_name(self) -> None:
        away = setting("framebuffer", before="simpledrm")
        (step,) = REGISTRY.resource(away).steps(away)
        assert (step.target, step.value) == ("/sys/bus/platform/drivers/simpledrm/unbind", "efi-framebuffer.0")
        again = setting("framebuffer", after="simpledrm")
        (step,) = REGISTRY.resource(again).steps(again)
        assert (step.target, step.value) == ("/sys/bus/platform/drivers/simpledrm/bind", "efi-framebuffer.0")

    def test_a_reset_method_holds_for_one_reset(self) -> None:
        made = setting("reset method", before="flr bus", after="flr bus", during="bus", may_fail=True)
        assert steps_of(made) == [(Phase.RELEASE, "bus", False), (Phase.SETTLE, "flr bus", True)]

    def test_a_unit_that_hangs_wedges_no_device(self) -> None:
        stop = setting("service", before="active", after="inactive")
        (step,) = REGISTRY.resource(stop).steps(stop)
        assert (step.action, step.subject) == ("service", "")


class TestVgpus:
    """Which changes are of vGPUs, and which way they go."""

    @pytest.mark.parametrize(
        ("kind", "before", "after", "created", "removed"),
        [
            ("mdev", "", "mtty/mtty-2", True, False),
            ("mdev", "mtty/mtty-2", "", False, True),
            ("mdev", ZOMBIE, "", False, True),
            ("mdev", "", "", False, False),
            ("vGPU type", "0", "1155", True, False),
            ("vGPU type", "1155", "0", False, True),
            ("vGPU type", "0", "0", False, False),
            ("VFs", "0", "4", False, False),
            ("definition", "x", "", False, False),
        ],
    )
    def test_come_and_go(
        self,
        kind: str,
        before: str,
        after: str,
        created: bool,
        removed: bool,
    ) -> None:
        one = setting(kind, before=before, after=after)
        assert (creates(one), removes(one)) == (created, removed)
        assert REGISTRY.resource(one).created is (kind in VGPUS)

    @pytest.mark.parametrize("kind", [resource.kind for resource in REGISTRY.parts["vgpu"].resources])
    def test_what_is_about_vgpus_is_nothing_of_a_change_of_drivers(self, kind: str) -> None:
        plan = REGISTRY.plan(Draft(BindIntent(devices=(GPU,)), (), (setting(kind),)))
        assert REGISTRY.is_forged(plan)
