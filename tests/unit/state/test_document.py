"""The document: what is written can be read, and what anyone may have written is refused with the place."""

from __future__ import annotations

import builtins
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts.machines import NAMES, original
from tests.unit.state.documents import shown, with_vf, with_vgpu
from vfioctl.errors import BadDocument, MissingLibrary
from vfioctl.host import Host
from vfioctl.state.files.read import LARGEST, read_state, state_in
from vfioctl.state.files.write import toml_text, yaml_text
from vfioctl.state.model.document import HostState, VgpuGoal
from vfioctl.untrusted_text import parse_toml

IDENTITY = {
    "vendor": "10de",
    "device": "2330",
    "subsystem_vendor": "10de",
    "subsystem_device": "16c1",
    "class_code": "030200",
    "path": "0000:15/01.0/00.0",
    "twins": False,
}
GPU = {"address": "0000:1b:00.0", "driver": "vfio-pci", "identity": IDENTITY}
VF = {"address": "0000:1b:00.4", "vf": {"of": "0000:1b:00.0", "number": 0}}
MDEV = {"uuid": "c0ffee00-0000-4000-8000-000000000000", "parent": "0000:1b:00.0", "type": "nvidia-1"}


def document(*devices: Any, vgpus: Any = (), **more: Any) -> bytes:
    return json.dumps({"version": 1, "devices": devices, "vgpus": vgpus, **more}).encode()


def read(text: bytes) -> HostState:
    return state_in(text, "x.json")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("write", "file"), [(toml_text, "x.toml"), (yaml_text, "x.yaml")])
def test_what_is_written_is_read(name: str, write: Callable[[HostState], str], file: str) -> None:
    state = shown(Host.recorded(name))
    assert state.devices
    assert state_in(write(state).encode(), file) == state


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=100), st.booleans())
def test_any_text_of_a_vgpu_is_written_and_read(text: str, at_boot: bool) -> None:
    goal = VgpuGoal(uuid=None, parent="mtty", type=text, at_boot=at_boot, parameters={"mtty/x-y": text})
    state = HostState(version=1, vgpus=(goal,))
    assert state_in(toml_text(state).encode(), "-") == state
    assert state_in(yaml_text(state).encode(), "x.yml") == state


def test_defaults_are_left_out() -> None:
    state = read(document(GPU, VF, vgpus=[MDEV]))
    assert parse_toml(toml_text(state)) == {"version": 1, "devices": [GPU, VF], "vgpus": [MDEV]}


WRONG = [
    (document(version=2), "version must be at most 1"),
    (b"{}", "version is missing"),
    (b"[]", "no table of settings"),
    (document(x=1), "x is not known"),
    (document({**GPU, "drivr": "nvidia"}), "devices.0.drivr is not known"),
    (document({**GPU, "identity": {**IDENTITY, "serial": "1"}}), "devices.0.identity.serial is not known"),
    (document({**GPU, "vfs": "4"}), "devices.0.vfs must be a whole number"),
    (document({**GPU, "vfs": 4.0}), "devices.0.vfs must be a whole number"),
    (document({**GPU, "vfs": True}), "devices.0.vfs must be a whole number"),
    (document({**GPU, "vfs": -1}), "devices.0.vfs must be at least 0"),
    (document({**GPU, "driver": 1}), "devices.0.driver must be a text"),
    (document({**GPU, "driver": "../x"}), "devices.0.driver must match"),
    (document({**GPU, "driver": "a\nb"}), "devices.0.driver must match"),
    (document({**GPU, "driver_at_boot": 'x", RUN+="y'}), "devices.0.driver_at_boot must match"),
    (document({**GPU, "boot_display": "yes"}), "devices.0.boot_display must be true or false"),
    (document({**GPU, "address": "gpu0"}), "devices.0.address: not a PCI address: 'gpu0'"),
    (document({**GPU, "identity": None}), "0000:1b:00.0 needs either identity or vf"),
    (document(GPU, {**VF, "identity": IDENTITY}), "0000:1b:00.4 needs either identity or vf"),
    (document({**GPU, "identity": {**IDENTITY, "path": "../../x"}}), "devices.0.identity.path must match"),
    (document(GPU, GPU), "0000:1b:00.0 is there twice"),
    (document(VF), "0000:1b:00.0, the PF of 0000:1b:00.4, is not among the devices"),
    (document(GPU, VF, {**VF, "address": "0000:1b:00.5", "vf": {"of": "0000:1b:00.4", "number": 0}}), "is not among"),
    (document({**GPU, "vfs": 0}, VF), "0000:1b:00.4 is VF 0 of 0000:1b:00.0, which is to have 0"),
    (document(vgpus=[MDEV]), "0000:1b:00.0, the parent of a vGPU, is not among the devices"),
    (document(GPU, vgpus=[MDEV, MDEV]), "is there twice"),
    (document(GPU, vgpus=[{**MDEV, "uuid": "x"}]), "vgpus.0.uuid: not a UUID"),
    (document(GPU, vgpus=[{**MDEV, "state": "gone"}]), "vgpus.0.state must be present or absent"),
    (document(GPU, vgpus=[{**MDEV, "parent": "../mtty"}]), "vgpus.0.parent must match"),
    (document(GPU, vgpus=[{**MDEV, "parameters": {"../../x": "1"}}]), "no parameter of a vGPU"),
    (document(GPU, vgpus=[{**MDEV, "parameters": {"a/b": "\x1b[2J"}}]), "no parameter of a vGPU"),
    (document(GPU, vgpus=[{**MDEV, "parameters": {f"a{n}": "1" for n in range(33)}}]), "more than 32 parameters"),
    (document(*[VF] * 4097), "devices must have at most 4096 items"),
    (b'{"version": 1, "version": 1}', "is there twice in one object"),
    (b'{"version": NaN}', "is not a number of JSON"),
    (b"\xff", "not UTF-8"),
    (b"[" * 100_000, "nested too deeply"),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_said_with_its_place(text: bytes, message: str) -> None:
    with pytest.raises(BadDocument) as caught:
        read(text)
    assert message in caught.value.message
    assert caught.value.message.startswith("x.json")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.toml", "version = 1\nversion = 1", "not understood"),
        ("x.toml", "version = 2026-01-01", "2026-01-01 is neither text, number"),
        ("x.toml", "a." * 40 + "b = 1", "nested too deeply"),
        ("x.yaml", "version: 1\nversion: 1", "is there twice"),
        ("x.yaml", "a: &a [1]\nb: *a", "aliases are not allowed"),
        ("x.yaml", "!!python/object/apply:os.system [reboot]", "could not determine a constructor"),
        ("x.yaml", "1: 2", "no table of settings"),
        ("x.yaml", "", "no table of settings"),
        ("x.yml", "version: 2026-01-01", "2026-01-01 is neither text, number"),
    ],
)
def test_each_language_has_its_own_refusals(name: str, text: str, message: str) -> None:
    with pytest.raises(BadDocument, match=message):
        state_in(text.encode(), name)


class TestFile:
    def test_that_is_too_large(self, tmp_path: Path) -> None:
        (tmp_path / "x.toml").write_bytes(b"#" * (LARGEST + 1))
        with pytest.raises(BadDocument, match="larger than 1 MiB"):
            read_state(str(tmp_path / "x.toml"))

    def test_that_is_none(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        for name, why in (("fifo", "it is a FIFO"), ("nothing", "No such file"), ("", "Is a directory")):
            with pytest.raises(BadDocument, match=why):
                read_state(f"{tmp_path}/{name}")
        with pytest.raises(BadDocument, match="cannot be read"):
            read_state("")

    def test_stdin_is_toml(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"version = 1\n")))
        assert read_state("-") == HostState(version=1)

    def test_yaml_without_pyyaml_says_what_to_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        load = builtins.__import__

        def without(name: str, *more: Any) -> Any:
            if name == "yaml":
                raise ImportError(name)
            return load(name, *more)

        monkeypatch.setattr(builtins, "__import__", without)
        with pytest.raises(MissingLibrary, match="YAML needs PyYAML") as caught:
            state_in(b"version: 1", "x.yaml")
        assert "pip install 'vfioctl" in caught.value.hint
        assert state_in(b"version = 1", "x.toml").version == 1


def test_the_helpers_make_valid_documents() -> None:
    state = shown(Host.recorded("l40s"))
    pf = next(device.address for device in state.devices if device.vfs)
    assert with_vf(state, "0000:41:01.0", pf, 4).devices[-1].vf
    assert with_vgpu(state, "0000:41:00.4", "x", "c0ffee00-0000-4000-8000-000000000000").vgpus[-1].uuid
    assert original("l40s").files
