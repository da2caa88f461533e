"""Settings as values: what a plan from elsewhere could have written, and the way back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.hosts.machines import unhurried
from vfioctl.core.setting import VGPU_KINDS, ZOMBIE, Reading, Setting, SettingKind
from vfioctl.inventory.model.values import PciAddress, Subject, Uuid
from vfioctl.kernel.protocol import FIRMWARE_FRAMEBUFFERS

GPU = PciAddress("0000:41:00.0")
MDEV = Uuid("4e8c5df7-c4fa-4719-904f-5579cd5ac35f")
HOME = f"/sys/bus/pci/devices/{GPU}"
NAMES = {
    SettingKind.POWER: f"{HOME}/power/control",
    SettingKind.D3COLD: f"{HOME}/d3cold_allowed",
    SettingKind.CONSOLE: "/sys/class/vtconsole/vtcon1/bind",
    SettingKind.FRAMEBUFFER: "efi-framebuffer.0",
    SettingKind.LOCK: f"/proc/driver/nvidia/gpus/{GPU}/unbindLock",
    SettingKind.PERSISTENCE: str(GPU),
    SettingKind.SERVICE: "nvidia-persistenced.service",
    SettingKind.RESET_METHOD: f"{HOME}/reset_method",
    SettingKind.MDEV: str(MDEV),
    SettingKind.VGPU_TYPE: f"{HOME}/nvidia/current_vgpu_type",
    SettingKind.PARAMETER: f"{HOME}/nvidia/vgpu_params",
    SettingKind.VF_COUNT: f"{HOME}/sriov_numvfs",
    SettingKind.AUTOPROBE: f"{HOME}/sriov_drivers_autoprobe",
    SettingKind.NVIDIA_VFS: str(GPU),
    SettingKind.PROFILE: f"{HOME}/sriov_admin/vf1/profile/exec_quantum_ms",
    SettingKind.KEPT: f"/etc/vfioctl/vgpu.d/{GPU}.json",
}
OF_AN_MDEV = {
    SettingKind.MDEV: str(MDEV),
    SettingKind.PARAMETER: f"/sys/bus/mdev/devices/{MDEV}/nvidia/vgpu_params",
    SettingKind.KEPT: f"/etc/mdevctl.d/0000:41:00.4/{MDEV}",
}
VALUE = {
    SettingKind.FRAMEBUFFER: "simpledrm",
    SettingKind.MDEV: "0000:41:00.4/nvidia-754",
}
OF_THE_HOST = (SettingKind.CONSOLE, SettingKind.FRAMEBUFFER, SettingKind.SERVICE)
FREE_TEXT = (SettingKind.PARAMETER, SettingKind.KEPT)
OF_THEIR_OWN = (
    SettingKind.FRAMEBUFFER,
    SettingKind.MDEV,
    SettingKind.VGPU_TYPE,
    SettingKind.VF_COUNT,
    SettingKind.NVIDIA_VFS,
    SettingKind.AUTOPROBE,
)
VALUES = st.text("abcdefghijklmnopqrstuvwxyz0123456789_ -", max_size=64)


def subject_of(kind: SettingKind) -> Subject:
    return MDEV if kind == SettingKind.MDEV else GPU


def setting(kind: SettingKind, name: str | None = None, address: Subject | None = None, **parts: str | None) -> Setting:
    known: dict[str, object] = {"kind": kind, "name": NAMES[kind] if name is None else name}
    known |= {"address": address or subject_of(kind), "before": "", "after": ""}
    return Setting.model_validate(known | parts)


class TestNames:
    @pytest.mark.parametrize("kind", SettingKind)
    def test_of_each_kind_there_is_one_form(self, kind: SettingKind) -> None:
        assert setting(kind).key == (kind, NAMES[kind])
        for name in {*NAMES.values(), *OF_AN_MDEV.values()} - {NAMES[kind]}:
            self.refused(kind, name)

    @pytest.mark.parametrize("kind", SettingKind)
    def test_of_a_mediated_device_there_are_few(self, kind: SettingKind) -> None:
        for each in {*NAMES.values(), *OF_AN_MDEV.values()}:
            if each == OF_AN_MDEV.get(kind) or (kind in OF_THE_HOST and each == NAMES[kind]):
                assert setting(kind, each, MDEV).address == MDEV
            else:
                self.refused(kind, each, MDEV)

    @pytest.mark.parametrize("kind", SettingKind)
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
    def test_that_a_hostile_plan_could_carry_are_refused(self, kind: SettingKind, spoil: object) -> None:
        assert callable(spoil)
        for subject, names in ((None, NAMES), (MDEV, OF_AN_MDEV)):
            name = spoil(names.get(kind, ""))
            if name != names.get(kind):
                self.refused(kind, name, subject)

    @pytest.mark.parametrize("kind", [k for k, name in NAMES.items() if GPU in name])
    def test_of_another_function_are_refused(self, kind: SettingKind) -> None:
        self.refused(kind, NAMES[kind].replace(GPU, "0000:42:00.0"))
        self.refused(kind, NAMES[kind].replace(GPU, "41:00.0"))
        self.refused(kind, NAMES[kind].replace(GPU, MDEV))

    @pytest.mark.parametrize("kind", OF_AN_MDEV)
    def test_of_another_mediated_device_are_refused(self, kind: SettingKind) -> None:
        for other in ("5e8c5df7-c4fa-4719-904f-5579cd5ac35f", MDEV.upper(), MDEV[:8], GPU, "*"):
            if kind == SettingKind.KEPT and other == MDEV.upper():
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
        self.refused(SettingKind.PARAMETER, f"/sys/bus/mdev/devices/{MDEV}/{file}", MDEV)

    @pytest.mark.parametrize("file", ["vendor/resolution", "intel_vgpu/vgpu_id", "nvidia/placement_id"])
    def test_of_parameters(self, file: str) -> None:
        name = f"/sys/bus/mdev/devices/{MDEV}/{file}"
        assert setting(SettingKind.PARAMETER, name, MDEV, after="1").name == name

    @pytest.mark.parametrize(
        "file",
        ["nvidia/current_vgpu_type", "driver_override", "sriov_numvfs", "remove", "reset", "vendor/x", "nvidia", "rom"],
    )
    def test_of_a_vfs_parameters_are_below_its_vendors_folder(self, file: str) -> None:
        self.refused(SettingKind.PARAMETER, f"{HOME}/{file}")

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
        self.refused(SettingKind.KEPT, name, MDEV)
        self.refused(SettingKind.KEPT, name.replace(MDEV, GPU).replace("vgpu.d/", "vgpu.d/x/"))

    @pytest.mark.parametrize(
        "scope",
        ["pf/profile/..", "vf0/profile/x", "vf01/profile/x", "vf1/x", "vf1/stop", ".bulk_profile/x", "vf1/profile/X"],
    )
    def test_of_profiles_are_those_of_the_pf_and_the_vfs(self, scope: str) -> None:
        self.refused(SettingKind.PROFILE, f"{HOME}/sriov_admin/{scope}")

    @pytest.mark.parametrize(
        "name", ["sshd.socket", "a/b.service", ".service", "@x.service", "x.service.d", "x.Service", "x" * 300]
    )
    def test_that_are_no_services_are_refused(self, name: str) -> None:
        self.refused(SettingKind.SERVICE, name)

    @pytest.mark.parametrize("name", ["gdm.service", "user@1000.service", "a\\x2db.service", "dcgm-exporter.service"])
    def test_of_services(self, name: str) -> None:
        assert setting(SettingKind.SERVICE, name).name == name

    @unhurried
    @given(st.sampled_from(SettingKind), st.text(max_size=60), st.sampled_from([GPU, MDEV]), st.booleans())
    def test_whatever_is_taken_leads_nowhere_else(
        self,
        kind: SettingKind,
        name: str,
        subject: Subject,
        after_all: bool,
    ) -> None:
        known = NAMES if subject == GPU else OF_AN_MDEV
        try:
            taken = setting(kind, f"{known.get(kind, '').rpartition('/')[0]}/{name}" if after_all else name, subject)
        except ValidationError:
            return
        assert ".." not in taken.name.split("/")
        assert re.fullmatch(r"[ -~]+", taken.name)

    def refused(self, kind: SettingKind, name: str, address: Subject | None = None) -> None:
        with pytest.raises(ValidationError, match="not the name of a") as caught:
            setting(kind, name, address)
        assert len(str(caught.value.errors()[0]["msg"])) < 200


class TestValues:
    @pytest.mark.parametrize("part", ["before", "after", "during"])
    @pytest.mark.parametrize(
        "value", ["\n", "1\n", "../x", "a//b", "A", "x" * 65, "\0", "\u0661", "1;2", "a.b", "$(x)", "\x1b[2J"]
    )
    def test_that_nobody_writes_are_refused(self, part: str, value: str) -> None:
        for kind in (kind for kind in SettingKind if kind not in FREE_TEXT):
            with pytest.raises(ValidationError, match="not the value of a"):
                setting(kind, None, None, **{part: value})

    @pytest.mark.parametrize("part", ["before", "after", "during"])
    @pytest.mark.parametrize("value", ["\n", "a\nb", "\0", "\u0661", "\x1b[2J", "a\tb", "x" * 1001, "\x7f", "\u00e9"])
    def test_of_parameters_are_one_plain_line(self, part: str, value: str) -> None:
        with pytest.raises(ValidationError, match="not the value of a parameter"):
            setting(SettingKind.PARAMETER, None, None, **{part: value})

    @pytest.mark.parametrize("value", ["\0", "\u0661", "\x1b[2J", "x" * 65_537, "\x7f", "\r\n"])
    def test_of_definitions_are_plain_text(self, value: str) -> None:
        with pytest.raises(ValidationError, match="not the value of a definition"):
            setting(SettingKind.KEPT, after=value)
        assert setting(SettingKind.KEPT, before='{\n\t"start": "auto"\n}').before, "as others may have written it"

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
        with pytest.raises(ValidationError, match="not the value of a mdev"):
            setting(SettingKind.MDEV, after=value)

    @pytest.mark.parametrize(
        "value", ["0000:41:00.4/nvidia-754", "mtty/mtty-2", "0000:00:02.0/i915-GVTg_V5_4", "zombie"]
    )
    def test_of_a_mediated_device(self, value: str) -> None:
        assert setting(SettingKind.MDEV, after=value).after == value

    @pytest.mark.parametrize("kind", [SettingKind.VGPU_TYPE, SettingKind.VF_COUNT, SettingKind.NVIDIA_VFS])
    @pytest.mark.parametrize("value", ["-1", "+1", "1 ", "0x1", "on", "1" * 10, "a-1"])
    def test_of_counts_and_types_are_numbers(self, kind: SettingKind, value: str) -> None:
        with pytest.raises(ValidationError, match="not the value of a"):
            setting(kind, after=value)

    @pytest.mark.parametrize("driver", [*FIRMWARE_FRAMEBUFFERS, ""])
    def test_of_a_framebuffer_are_the_drivers_of_firmware(self, driver: str) -> None:
        assert setting(SettingKind.FRAMEBUFFER, before=driver, after="").before == driver

    @pytest.mark.parametrize("driver", ["serial8250", "efi", "simple-framebuffer ", "xsimpledrm", "1"])
    def test_of_a_framebuffer_are_no_other_drivers(self, driver: str) -> None:
        with pytest.raises(ValidationError, match="not the value of a framebuffer"):
            setting(SettingKind.FRAMEBUFFER, before=driver)

    def test_may_be_unknown(self) -> None:
        assert setting(SettingKind.PERSISTENCE, before="unknown", after="0").before == "unknown"


class TestTheWayBack:
    @unhurried
    @given(st.sampled_from([k for k in SettingKind if k not in OF_THEIR_OWN]), VALUES, VALUES, VALUES)
    def test_is_from_what_is_now_to_what_was(self, kind: SettingKind, before: str, after: str, now: str) -> None:
        made = setting(kind, before=before, after=after, during="x")
        back = made.back_from(now)
        assert (back.before, back.after, back.during) == (now, before, None)
        assert (back.key, back.address) == (made.key, made.address)
        assert back.back_from(before).after == now

    def test_of_autoprobe_keeps_it_off_meanwhile(self) -> None:
        made = setting(SettingKind.AUTOPROBE, before="1", after="1", during="0")
        assert made.back_from("0") == setting(SettingKind.AUTOPROBE, before="0", after="1", during="0")

    @pytest.mark.parametrize("kind", [SettingKind.VF_COUNT, SettingKind.NVIDIA_VFS])
    def test_of_a_count_is_the_count_before(self, kind: SettingKind) -> None:
        back = setting(kind, before="2", after="4", during="0").back_from("0")
        assert (back.before, back.after, back.during) == ("0", "2", None)

    @pytest.mark.parametrize("kind", SettingKind)
    def test_of_what_is_as_it_was_is_idle_but_for_power(self, kind: SettingKind) -> None:
        assert setting(kind).idle == (kind != SettingKind.POWER), "a driver sets that as it binds"
        value = VALUE.get(kind, "1")
        assert not setting(kind, after=value).idle
        assert not setting(kind, during=value).idle


class TestVgpus:
    """Which settings are vGPUs, and which way they go."""

    @pytest.mark.parametrize(
        ("kind", "before", "after", "made", "removed"),
        [
            (SettingKind.MDEV, "", "mtty/mtty-2", True, False),
            (SettingKind.MDEV, "mtty/mtty-2", "", False, True),
            (SettingKind.MDEV, ZOMBIE, "", False, True),
            (SettingKind.MDEV, "", "", False, False),
            (SettingKind.VGPU_TYPE, "0", "1155", True, False),
            (SettingKind.VGPU_TYPE, "1155", "0", False, True),
            (SettingKind.VGPU_TYPE, "0", "0", False, False),
            (SettingKind.VF_COUNT, "0", "4", False, False),
            (SettingKind.KEPT, "x", "", False, False),
        ],
    )
    def test_come_and_go(
        self,
        kind: SettingKind,
        before: str,
        after: str,
        made: bool,
        removed: bool,
    ) -> None:
        one = setting(kind, before=before, after=after)
        assert (one.makes, one.removes) == (made, removed)
        assert one.is_vgpu is (kind in (SettingKind.MDEV, SettingKind.VGPU_TYPE))

    def test_what_is_about_vgpus_is_nothing_of_a_change_of_drivers(self) -> None:
        assert set(OF_AN_MDEV) <= VGPU_KINDS
        assert not VGPU_KINDS & {SettingKind.SERVICE, SettingKind.POWER, SettingKind.LOCK, SettingKind.RESET_METHOD}


def test_a_setting_and_its_reading_have_the_same_key() -> None:
    for kind in set(SettingKind) - VGPU_KINDS:
        assert Reading(kind=kind, name=NAMES[kind], address=GPU, value=None).key == setting(kind).key
