"""DevicePolicy and DeviceAllow of units: what they list, and what they lose. Also systemctl's answers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfioctl.kernel.device_lists import UnitDevices, is_unit
from vfioctl.kernel.live.unit_devices import shown
from vfioctl.sharing.allowing.entries import Classes, allows, classes_in, notes, restricted
from vfioctl.sharing.allowing.values import Setting

DEVICES = """Character devices:
  1 mem
  4 /dev/vc/0
  4 tty
 10 misc
195 nvidia
195 nvidiactl
226 drm
243 vfio
509 nvidia-uvm
510 odd*name

Block devices:
  8 sd
226 notdrm
"""
KNOWN = frozenset(
    {"c 226:0", "c 226:1", "c 226:128", "c 226:129", "c 243:0", "c 243:7", "c 195:0", "c 195:1", "c 510:4"}
)
CLASSES = Classes(classes_in(DEVICES), KNOWN | {"c 1:3"}, {"/dev/nvidia1": "c 195:1", "/dev/null": "c 1:3"})
REFUSED = {"c 195:1", "c 226:1", "c 226:129", "c 243:0"}
ALLOWED = {"c 195:0", "c 226:0", "c 226:128"}
OPEN = Setting("auto")


def entries(setting: Setting) -> set[str]:
    return set(restricted(setting, CLASSES, refused=REFUSED, allowed=ALLOWED).entries)


def test_a_unit_without_a_list_keeps_every_class_without_a_refused_node() -> None:
    listed = entries(OPEN)
    assert {"block-* rwm", "char-mem rwm", "char-misc rwm", "char-nvidia-uvm rwm"} <= listed
    assert not {line for line in listed if line.startswith(("char-nvidia ", "char-drm", "char-vfio", "char-*"))}
    assert {"/dev/char/226:0 rwm", "/dev/char/243:7 rwm", "/dev/char/195:0 rwm"} <= listed


def test_a_unit_that_may_open_nothing_more_may_not_open_everything() -> None:
    """Its only node is refused, and the GPU that is allowed has none."""
    only = Setting("auto", ("/dev/nvidia1 rw",))
    assert restricted(only, CLASSES, refused=REFUSED, allowed=()) == Setting("closed")


def test_a_class_whose_name_is_a_pattern_is_listed_by_its_nodes() -> None:
    assert "/dev/char/510:4 rwm" in entries(OPEN)
    assert not any("odd" in line for line in entries(OPEN))


@settings(deadline=None)
@given(st.sets(st.sampled_from(sorted(KNOWN))), st.sets(st.sampled_from(sorted(KNOWN))))
def test_refuses_what_it_should_and_keeps_all_else_that_is_known(refused: set[str], allowed: set[str]) -> None:
    allowed -= refused
    setting = restricted(OPEN, CLASSES, refused=refused, allowed=allowed)
    for number in CLASSES.known:
        assert allows(setting, CLASSES, number) == (number not in refused), number


@settings(deadline=None)
@given(
    st.sets(
        st.sampled_from(
            ["/dev/null rw", "/dev/nvidia1 rw", "char-nvidia* rw", "char-drm rwm", "char-* r", "/dev/char/243:0 rw"]
        ),
        min_size=1,
    )
)
def test_a_list_that_was_there_never_allows_a_refused_node(present: set[str]) -> None:
    setting = restricted(Setting("closed", tuple(present)), CLASSES, refused=REFUSED, allowed=ALLOWED)
    assert setting.policy == "closed"
    assert not any(allows(setting, CLASSES, number) for number in REFUSED)
    assert all(allows(setting, CLASSES, number) for number in ALLOWED)
    assert ("/dev/null rw" in setting.entries) == ("/dev/null rw" in present)


def test_a_node_has_one_entry_with_all_its_access() -> None:
    present = Setting("closed", ("char-drm r", "char-d* w"))
    setting = restricted(present, CLASSES, refused=REFUSED, allowed={"c 226:0"})
    assert setting.entries == ("/dev/char/226:0 rw", "/dev/char/226:128 rw")


def test_a_list_that_was_there_gets_nothing_but_the_gpu() -> None:
    setting = restricted(Setting("closed", ("/dev/null rw",)), CLASSES, refused=REFUSED, allowed={"c 195:0"})
    assert setting.entries == ("/dev/char/195:0 rw", "/dev/null rw")


def test_says_what_else_a_unit_loses() -> None:
    told = " ".join(notes(OPEN, CLASSES, REFUSED))
    assert "/dev/null" in told
    assert "drm, nvidia, nvidiactl, vfio" in told
    assert "appears later" in told


@pytest.mark.parametrize("text", ["", "garbage", "Character devices:\n\n x y z\n", "\0" * 50, "Block devices:\n 8 sd"])
def test_any_text_of_proc_devices_is_read(text: str) -> None:
    assert classes_in(text) == {}


SHOWN = """LoadState=loaded
ControlGroup=/system.slice/a.service
DevicePolicy=closed
DeviceAllow=char-pts rwm
DeviceAllow=/dev/null rw
"""


def test_the_owner_of_a_cgroup_is_the_unit_with_its_path() -> None:
    unit = shown("a.service", "/system.slice/a.service", SHOWN)
    assert unit == UnitDevices("a.service", "closed", ("/dev/null rw", "char-pts rwm"))


@pytest.mark.parametrize("cgroup", ["/a.service", "/user.slice/user-1000.slice/user@1000.service/app.slice/a.service"])
def test_a_unit_of_the_same_name_elsewhere_is_not_the_owner(cgroup: str) -> None:
    assert shown("a.service", cgroup, SHOWN) is None


@pytest.mark.parametrize(
    "name", ["", "a", "a.service/..", "--help.service\n", "a.timer", "é.service", "a" * 300 + ".slice"]
)
def test_other_names_are_no_unit(name: str) -> None:
    assert not is_unit(name)
