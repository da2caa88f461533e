"""Settings as values: what a plan from elsewhere could have written, and the way back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.machines import unhurried
from vfioctl.kernel.seam import FIRMWARE_FRAMEBUFFERS
from vfioctl.model.setting import Reading, Setting, SettingKind
from vfioctl.model.values import PciAddress

GPU = PciAddress("0000:41:00.0")
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
}
VALUES = st.text("abcdefghijklmnopqrstuvwxyz0123456789_ -", max_size=64)


def setting(kind: SettingKind, name: str | None = None, **parts: str | None) -> Setting:
    known: dict[str, object] = {"kind": kind, "name": NAMES[kind] if name is None else name, "address": GPU}
    return Setting.model_validate(known | {"before": "", "after": ""} | parts)


class TestNames:
    @pytest.mark.parametrize("kind", SettingKind)
    def test_of_each_kind_there_is_one_form(self, kind: SettingKind) -> None:
        assert setting(kind).key == (kind, NAMES[kind])
        for other, name in NAMES.items():
            if other != kind:
                self.refused(kind, name)

    @pytest.mark.parametrize("kind", SettingKind)
    @pytest.mark.parametrize(
        "spoil",
        [
            lambda name: f"{name}\n", lambda name: f" {name}", lambda name: f"{name}\0", lambda name: f"../{name}",
            lambda name: f"{name}/../../../../etc/passwd", lambda _: "/etc/passwd", lambda _: "", lambda _: "..",
            lambda name: f"-{name}", lambda name: name.replace("0000:41:00.0", ".."), lambda name: name * 200,
            lambda name: name.replace("0", "\u0660"), lambda name: f"{name};reboot", lambda name: f"{name} x",
        ],
    )  # fmt: skip
    def test_that_a_hostile_plan_could_carry_are_refused(self, kind: SettingKind, spoil: object) -> None:
        assert callable(spoil)
        name = spoil(NAMES[kind])
        if name != NAMES[kind]:
            self.refused(kind, name)

    @pytest.mark.parametrize("kind", [k for k, name in NAMES.items() if GPU in name])
    def test_of_another_function_are_refused(self, kind: SettingKind) -> None:
        self.refused(kind, NAMES[kind].replace(GPU, "0000:42:00.0"))
        self.refused(kind, NAMES[kind].replace(GPU, "41:00.0"))

    @pytest.mark.parametrize(
        "name", ["sshd.socket", "a/b.service", ".service", "@x.service", "x.service.d", "x.Service", "x" * 300]
    )
    def test_that_are_no_services_are_refused(self, name: str) -> None:
        self.refused(SettingKind.SERVICE, name)

    @pytest.mark.parametrize("name", ["gdm.service", "user@1000.service", "a\\x2db.service", "dcgm-exporter.service"])
    def test_of_services(self, name: str) -> None:
        assert setting(SettingKind.SERVICE, name).name == name

    @unhurried
    @given(st.sampled_from(SettingKind), st.text(max_size=60))
    def test_whatever_is_taken_leads_nowhere_else(self, kind: SettingKind, name: str) -> None:
        try:
            taken = setting(kind, name)
        except ValidationError:
            return
        assert ".." not in taken.name.split("/")
        assert re.fullmatch(r"[ -~]+", taken.name)

    def refused(self, kind: SettingKind, name: str) -> None:
        with pytest.raises(ValidationError, match="not the name of a") as caught:
            setting(kind, name)
        assert len(str(caught.value.errors()[0]["msg"])) < 200


class TestValues:
    @pytest.mark.parametrize("part", ["before", "after", "during"])
    @pytest.mark.parametrize(
        "value", ["\n", "1\n", "../x", "a/b", "A", "x" * 65, "\0", "\u0661", "1;2", "a.b", "$(x)", "\x1b[2J"]
    )
    def test_that_nobody_writes_are_refused(self, part: str, value: str) -> None:
        for kind in SettingKind:
            with pytest.raises(ValidationError, match="not the value of a"):
                setting(kind, **{part: value})

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
    @given(st.sampled_from([k for k in SettingKind if k != SettingKind.FRAMEBUFFER]), VALUES, VALUES, VALUES)
    def test_is_from_what_is_now_to_what_was(self, kind: SettingKind, before: str, after: str, now: str) -> None:
        made = setting(kind, before=before, after=after, during="x")
        back = made.back_from(now)
        assert (back.before, back.after, back.during) == (now, before, None)
        assert (back.key, back.address) == (made.key, made.address)
        assert back.back_from(before).after == now

    @pytest.mark.parametrize("kind", SettingKind)
    def test_of_what_is_as_it_was_is_idle_but_for_power(self, kind: SettingKind) -> None:
        assert setting(kind).idle == (kind != SettingKind.POWER), "a driver sets that as it binds"
        value = "simpledrm" if kind == SettingKind.FRAMEBUFFER else "1"
        assert not setting(kind, after=value).idle
        assert not setting(kind, during=value).idle


def test_a_setting_and_its_reading_have_the_same_key() -> None:
    for kind, name in NAMES.items():
        assert Reading(kind=kind, name=name, address=GPU, value=None).key == setting(kind).key
