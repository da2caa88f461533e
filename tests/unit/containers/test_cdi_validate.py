"""The validator of CDI documents, against hand-written rules of the specification and mutated valid documents."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfioctl.claims.model.cdi import CdiDevice, checked_kind, device_name, file_name, subject_called
from vfioctl.containers.cdi.files import devices_in, text_of
from vfioctl.containers.cdi.validate import MOST_BYTES, VERSIONS, needed_version, problems_of
from vfioctl.errors import BadSpec
from vfioctl.inventory.model.values import PciAddress
from vfioctl.units import Uuid

FULL: dict[str, Any] = {
    "cdiVersion": "1.1.0",
    "kind": "vendor.example/class.one",
    "annotations": {"vendor.example/why": "a test"},
    "devices": [
        {
            "name": "0000:41:00.0",
            "annotations": {"slot": "1"},
            "containerEdits": {
                "env": ["A=b", "EMPTY="],
                "deviceNodes": [
                    {
                        "path": "/dev/vfio/1",
                        "hostPath": "/dev/vfio/1",
                        "type": "c",
                        "major": 239,
                        "minor": 0,
                        "fileMode": 0o600,
                        "permissions": "rwm",
                        "uid": 0,
                        "gid": 36,
                    }
                ],
                "mounts": [
                    {"hostPath": "/usr/lib/x", "containerPath": "/usr/lib/x", "options": ["ro"], "type": "bind"}
                ],
                "hooks": [
                    {"hookName": "createRuntime", "path": "/usr/bin/x", "args": ["x"], "env": ["A=b"], "timeout": 5}
                ],
                "intelRdt": {
                    "closID": "one",
                    "l3CacheSchema": "L3:0=f",
                    "memBwSchema": "MB:0=20",
                    "schemata": ["L3:0=f"],
                    "enableMonitoring": True,
                },
                "additionalGids": [36],
                "netDevices": [{"hostInterfaceName": "eth1", "name": "eth0"}],
            },
        },
        {"name": "b", "containerEdits": {"env": ["A=b"], "additionalGids": [36]}},
    ],
    "containerEdits": {"deviceNodes": [{"path": "/dev/vfio/vfio"}]},
}
"""Every field of CDI 1.1.0 that this one refuses nowhere."""
REQUIRED = {
    "cdiVersion",
    "kind",
    "devices",
    "name",
    "path",
    "hostPath",
    "containerPath",
    "hookName",
    "hostInterfaceName",
}
Path = tuple[str | int, ...]


def paths(value: Any, here: Path = ()) -> list[Path]:
    """The place of each field and item of a document."""
    children: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        children = [*value.items()]
    elif isinstance(value, list):
        children = [*enumerate(value)]
    return [place for key, child in children for place in ((*here, key), *paths(child, (*here, key)))]


def holder(document: Any, place: Path) -> Any:
    for key in place[:-1]:
        document = document[key]
    return document


def changed(place: Path, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(FULL)
    holder(document, place)[place[-1]] = value
    return document


def problems(document: Any) -> tuple[str, ...]:
    return problems_of(json.dumps(document))


FIELDS = [place for place in paths(FULL) if isinstance(place[-1], str)]
OBJECTS = [(), *(place for place in paths(FULL) if isinstance(holder(FULL, place)[place[-1]], dict))]
FREE = [place for place in OBJECTS if place and place[-1] == "annotations"]


def test_a_document_with_every_field_is_valid() -> None:
    assert problems(FULL) == ()


@pytest.mark.parametrize("place", [place for place in OBJECTS if place not in FREE], ids=str)
def test_an_unknown_field_is_named_with_its_place(place: Path) -> None:
    (problem,) = problems(changed((*place, "colour"), "red"))
    assert problem.endswith("'colour': not a field of CDI")
    assert problem.startswith(str(place[0])) if place else problem.startswith("'colour'")


@pytest.mark.parametrize("place", FIELDS, ids=str)
def test_a_field_of_another_spelling_is_refused(place: Path) -> None:
    if place[:-1] in FREE:
        return
    document = copy.deepcopy(FULL)
    fields = holder(document, place)
    fields[str(place[-1]).upper()] = fields.pop(place[-1])
    assert any("not a field of CDI" in problem for problem in problems(document))


@pytest.mark.parametrize("place", FIELDS, ids=str)
def test_a_missing_field_is_missed_where_it_is_required(place: Path) -> None:
    document = copy.deepcopy(FULL)
    del holder(document, place)[place[-1]]
    in_nodes = ("deviceNodes" in place, place[-1]) == (True, "hostPath")
    of_device = place[-1] == "containerEdits" and len(place) > 1
    required = (place[-1] in REQUIRED and not in_nodes and place[:-1] not in FREE) or of_device
    assert any(problem.endswith(f"{place[-1]}: missing") for problem in problems(document)) == required
    if not required:
        assert problems(document) == ()


WRONG_TYPES: dict[type, list[Any]] = {
    str: [None, 1, True, [], {}],
    int: [None, "1", True, 1.5, -1, 1 << 40, [], {}],
    bool: [None, 0, "true"],
    list: [None, "x", {}, 1],
    dict: [None, "x", [], 1],
}


@pytest.mark.parametrize("place", paths(FULL), ids=str)
def test_a_value_of_another_type_is_refused(place: Path) -> None:
    value = holder(FULL, place)[place[-1]]
    for wrong in WRONG_TYPES[type(value)]:
        found = problems(changed(place, wrong))
        assert found, f"{place} = {wrong!r}"
        assert str(place[0]) in found[0]


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("cdiVersion",), "0.2.0", "is not one of 0.3.0"),
        (("cdiVersion",), "2.0.0", "is not one of"),
        (("cdiVersion",), "v1.0.0", "is not one of"),
        (("cdiVersion",), "1.0.0", "cdiVersion: netDevices needs at least 1.1.0"),
        (("kind",), "noslash", "is not a kind"),
        (("kind",), "/class", "is not a kind"),
        (("kind",), "1vendor/class", "is not a kind"),
        (("kind",), "vendor-/class", "is not a kind"),
        (("kind",), "vendor/class/more", "is not a kind"),
        (("kind",), "vend\u00f6r/class", "is not a kind"),
        (("devices",), [], "remove it"),
        (("devices", 0, "name"), "", "is not a name of a device"),
        (("devices", 0, "name"), "-a", "is not a name of a device"),
        (("devices", 0, "name"), "a-", "is not a name of a device"),
        (("devices", 0, "name"), "a/b", "is not a name of a device"),
        (("devices", 0, "name"), "a b", "is not a name of a device"),
        (("devices", 0, "name"), "b", "devices: b is there twice"),
        (("devices", 1, "containerEdits"), {}, "change nothing"),
        (("devices", 1, "containerEdits"), {"env": []}, "change nothing"),
        (("devices", 1, "containerEdits", "env"), ["A"], "is not NAME=VALUE"),
        (("devices", 1, "containerEdits", "env"), ["=b"], "is not NAME=VALUE"),
        (("annotations",), {"a b": "x"}, "is not the name of an annotation"),
        (("annotations",), {"x" * 64: "x"}, "is not the name of an annotation"),
    ],
)
def test_values_that_are_refused(place: Path, value: Any, said: str) -> None:
    assert any(said in problem for problem in problems(changed(place, value))), problems(changed(place, value))


NODE: Path = ("devices", 0, "containerEdits", "deviceNodes", 0)


@pytest.mark.parametrize("path", ["", "dev/vfio/1", "/", "/dev//vfio", "/dev/../etc", "/dev/./x", "/dev/x/", "/dev/\0"])
@pytest.mark.parametrize("field", ["path", "hostPath"])
def test_paths_of_nodes_are_absolute(path: str, field: str) -> None:
    assert problems(changed((*NODE, field), path))


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("permissions", ["", "none", "r", "mrw"], ["rr", "x", "rw "]),
        ("type", ["", "b", "c", "u", "p"], ["d", "C"]),
        ("fileMode", [0, 0o7777], [0o10000]),
        ("major", [0, 4095], [-1, 1 << 32]),
    ],
)
def test_values_of_nodes(field: str, good: list[Any], bad: list[Any]) -> None:
    assert not any(problems(changed((*NODE, field), value)) for value in good)
    assert all(problems(changed((*NODE, field), value)) for value in bad)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no JSON"),
        ("[]", "the document: not an object"),
        ('{"kind": "a/b", "kind": "a/b"}', "'kind' is there twice"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": NaN}', "NaN is not a number"),
        ('{"a": ' + "1" * 5000 + "}", "no JSON"),
        (b"\xff{}", "not UTF-8"),
        (" " * (MOST_BYTES + 1), "larger than 4 MiB"),
    ],
)
def test_what_is_no_document_at_all(text: str | bytes, said: str) -> None:
    (problem,) = problems_of(text)
    assert said in problem


def test_a_large_hostile_document_takes_no_longer_than_reading_it() -> None:
    device = {"name": "a", "containerEdits": {"env": ["A=b"]}}
    many: dict[str, Any] = {
        "cdiVersion": "0.5.0",
        "kind": "a/b",
        "devices": [{**device, "name": f"a{n}"} for n in range(40_000)],
    }
    many["devices"].append(device | {"name": "a7"})
    begin = time.monotonic()
    assert problems(many) == ("devices: a7 is there twice",)
    wrong = "{" + ", ".join(f'"x{n}": 1' for n in range(100_000)) + ', "x99999": 2}'
    assert problems_of(wrong) == ("'x99999' is there twice in one object",)
    assert len(problems_of("{" + ", ".join(f'"x{n}": 1' for n in range(100_000)) + "}")) == 100
    assert time.monotonic() - begin < 20


SINCE = {
    "0.4.0": {"mounts": [{"hostPath": "/a", "containerPath": "/a", "type": "bind"}]},
    "0.5.0": {"deviceNodes": [{"path": "/dev/a", "hostPath": "/dev/b"}]},
    "0.7.0": {"additionalGids": [1]},
    "1.1.0": {"netDevices": [{"hostInterfaceName": "a", "name": "b"}]},
}


@pytest.mark.parametrize("version", SINCE)
@pytest.mark.parametrize("common", [False, True])
def test_a_version_must_be_at_least_that_of_its_fields(version: str, common: bool) -> None:
    plain: dict[str, Any] = {"env": ["A=b"]}
    document: dict[str, Any] = {
        "cdiVersion": "0.3.0",
        "kind": "a/b",
        "devices": [{"name": "a", "containerEdits": plain}],
    }
    assert problems(document) == ()
    if common:
        document["containerEdits"] = SINCE[version]
    else:
        document["devices"][0]["containerEdits"] = SINCE[version]
    for each in VERSIONS:
        document["cdiVersion"] = each
        assert bool(problems(document)) == (VERSIONS.index(each) < VERSIONS.index(version)), each
    assert needed_version(document)[0] == version


def test_names_need_versions_too() -> None:
    def needed(kind: str, name: str) -> str:
        edits = {"env": ["A=b"]}
        return needed_version({"kind": kind, "devices": [{"name": name, "containerEdits": edits}]})[0]

    assert needed("vendor.example/class", "a0") == "0.3.0"
    assert needed("vendor.example/class", "0a") == "0.5.0"
    assert needed("vendor.example/class.x", "a0") == "0.6.0"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(paths(FULL)), JSON)
def test_any_single_change_is_accepted_or_has_a_reason(place: Path, value: Any) -> None:
    """A changed document that is accepted could be read back as it is; one that is refused says where."""
    document = changed(place, value)
    found = problems(document)
    assert all(": " in problem and problem.isprintable() for problem in found)
    if not found:
        assert json.loads(json.dumps(document)) == document
        assert isinstance(value, type(holder(FULL, place)[place[-1]]))


@given(st.binary(max_size=200))
def test_no_bytes_break_the_validator(data: bytes) -> None:
    assert isinstance(problems_of(data), tuple)


# -- vfioctl's own documents ---------------------------------------------------------------------------

SUBJECTS = st.builds(
    lambda domain, bus, device, function: PciAddress(f"{domain:04x}:{bus:02x}:{device:02x}.{function}"),
    st.integers(0, 0x10FFF),
    st.integers(0, 255),
    st.integers(0, 31),
    st.integers(0, 7),
) | st.uuids().map(lambda uuid: Uuid(str(uuid)))
NODES = st.integers(0, 4095).map(lambda number: f"/dev/vfio/{number}") | st.integers(0, 4095).map(
    lambda number: f"/dev/vfio/devices/vfio{number}"
)
DEVICES = st.lists(
    st.builds(CdiDevice, SUBJECTS, NODES), unique_by=lambda device: device.subject, min_size=1, max_size=9
)
KINDS = st.from_regex(r"\A[a-z]([a-z0-9._-]{0,9}[a-z0-9])?/[a-z]([a-z0-9._-]{0,9}[a-z0-9])?\Z")


@given(KINDS, DEVICES)
def test_own_documents_are_valid_and_read_back(kind: str, devices: list[CdiDevice]) -> None:
    text = text_of(checked_kind(kind), devices)
    assert problems_of(text) == ()
    assert set(devices_in(text, kind)) == set(devices)
    assert text_of(kind, reversed(devices)) == text
    document = json.loads(text)
    assert document["cdiVersion"] <= "0.5.0" or "." in kind.partition("/")[2], "podman 4.3 takes at most 0.5.0"
    for device in document["devices"]:
        assert len(device["containerEdits"]["deviceNodes"]) == 1, "exactly one node for each device"
    common = document.get("containerEdits", {}).get("deviceNodes", [])
    legacy = any("/devices/" not in device.node for device in devices)
    assert [node["path"] for node in common] == ["/dev/vfio/vfio"] * legacy


@given(SUBJECTS)
def test_a_name_leads_back_to_its_device(subject: PciAddress | Uuid) -> None:
    assert subject_called(device_name(subject)) == subject
    assert ":" not in device_name(subject)


def test_without_devices_there_is_no_document() -> None:
    assert text_of("a/b", []) == ""
    assert devices_in("", "a/b") == ()


OWN = text_of(
    "vfioctl/vfio", [CdiDevice(PciAddress("41:00.0"), "/dev/vfio/12"), CdiDevice(PciAddress("42:00.0"), "/dev/vfio/13")]
)
HOOK = {"hooks": [{"hookName": "createRuntime", "path": "/tmp/x"}]}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("containerEdits",), HOOK),
        (("devices", 0, "containerEdits"), HOOK),
        (("devices", 0, "containerEdits", "deviceNodes", 0, "path"), "/dev/sda"),
        (("devices", 0, "containerEdits", "deviceNodes", 0, "path"), "/dev/vfio/../sda"),
        (("devices", 0, "containerEdits", "deviceNodes", 0, "permissions"), "rwm"),
        (("devices", 0, "containerEdits", "deviceNodes", 0, "hostPath"), "/dev/sda"),
        (("devices", 0, "name"), "gpu0"),
        (("devices", 0, "name"), "0000-42-00.0"),
        (("kind",), "other/kind"),
        (("devices",), []),
        (("cdiVersion",), "0.6.0"),
    ],
)
def test_nothing_else_passes_for_vfioctls_own(place: Path, value: Any) -> None:
    """Such a file says what is run and mounted as root: a plan file may bring nothing of that kind."""
    document = json.loads(OWN)
    holder(document, place)[place[-1]] = value
    with pytest.raises(ValueError, match="not the value of a CDI file"):
        devices_in(json.dumps(document, indent=2), "vfioctl/vfio")


@pytest.mark.parametrize("kind", ["", "a", "a/", "/b", "a/b/c", "a b/c", "../x", "a/..", "a/b\n", "a" * 127 + "/b"])
def test_kinds_that_are_refused(kind: str) -> None:
    with pytest.raises(BadSpec):
        checked_kind(kind)


def test_the_name_of_a_file_follows_from_the_kind() -> None:
    assert file_name("vfioctl/vfio") == "vfioctl.json"
    assert file_name("nvidia.com/pgpu") == "vfioctl-nvidia.com-pgpu.json"
