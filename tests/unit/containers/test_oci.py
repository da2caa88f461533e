"""Editing config.json: what is added, what is refused, and that no other user can turn it against root."""

from __future__ import annotations

import copy
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

from tests.unit.conftest import Run
from tests.unit.containers.test_cdi import GPU, NOBODY, OTHER, Ledger, a_claim, needs_root
from tests.users import as_nobody
from vfioctl.claims.model.claim import ClaimState
from vfioctl.containers.api import OciApi
from vfioctl.containers.oci.bundle import bundle_in, opened_config, replace_config
from vfioctl.containers.oci.document import DeviceNode, injected, read_config, written
from vfioctl.errors import BadDocument, BadSpec, Busy, ConflictError, HostError
from vfioctl.host import Host

CONTROL, NODE, SECOND = (
    DeviceNode("/dev/vfio/vfio", 10, 196),
    DeviceNode("/dev/vfio/21", 239, 0),
    DeviceNode("/dev/vfio/27", 239, 1),
)
DENY = {"allow": False, "access": "rwm"}
CONFIG: dict[str, Any] = {
    "ociVersion": "1.0.2",
    "process": {"args": ["sh"], "terminal": False},
    "root": {"path": "rootfs"},
    "linux": {"resources": {"devices": [DENY], "memory": {"limit": 9007199254740993}}, "namespaces": [{"type": "pid"}]},
}


def edited(document: Any = None, claim: str = "c1", *devices: DeviceNode) -> dict[str, Any]:
    return injected(CONFIG if document is None else document, claim, devices or (CONTROL, NODE)).document


def with_part(place: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(CONFIG)
    *above, last = place.split(".")
    inner: Any = document
    for name in above:
        inner = inner[name]
    inner[last] = value
    return document


class TestDocument:
    def test_nodes_rules_and_annotations_are_added(self) -> None:
        done = injected(CONFIG, "c1", (CONTROL, NODE))
        assert [node["path"] for node in done.document["linux"]["devices"]] == ["/dev/vfio/vfio", "/dev/vfio/21"]
        assert done.document["linux"]["resources"]["devices"] == [
            DENY,
            {"allow": True, "type": "c", "major": 10, "minor": 196, "access": "rw"},
            {"allow": True, "type": "c", "major": 239, "minor": 0, "access": "rw"},
        ]
        assert done.document["annotations"] == {"vfioctl.claim": "c1", "vfioctl.nodes": "/dev/vfio/vfio,/dev/vfio/21"}
        assert done.changes == (
            "+ device /dev/vfio/vfio c 10:196",
            "+ device /dev/vfio/21 c 239:0",
            "+ allow c 10:196 rw",
            "+ allow c 239:0 rw",
            "+ annotation vfioctl.claim=c1",
            "+ annotation vfioctl.nodes=/dev/vfio/vfio,/dev/vfio/21",
        )

    def test_everything_else_stays(self) -> None:
        before, after = copy.deepcopy(CONFIG), edited()
        assert before == CONFIG, "the document given is not changed"
        for document in (before, after):
            document.pop("annotations", None)
            document["linux"].pop("devices", None)
            document["linux"]["resources"].pop("devices")
        assert after == before

    def test_twice_is_once(self) -> None:
        once = edited()
        again = injected(once, "c1", (CONTROL, NODE))
        assert (again.document, again.changes) == (once, ())

    def test_a_group_that_has_another_number_now_is_replaced(self) -> None:
        after = injected(edited(), "c1", (CONTROL, SECOND))
        assert [node["path"] for node in after.document["linux"]["devices"]] == ["/dev/vfio/vfio", "/dev/vfio/27"]
        minors = [rule.get("minor") for rule in after.document["linux"]["resources"]["devices"]]
        assert minors == [None, 196, 1]
        assert "- device /dev/vfio/21 c 239:0" in after.changes

    def test_other_numbers_of_a_node_are_corrected_and_its_owner_stays(self) -> None:
        document = edited()
        document["linux"]["devices"][1] |= {"minor": 7, "uid": 5}
        (_, node) = edited(document)["linux"]["devices"]
        assert node == {"path": "/dev/vfio/21", "type": "c", "major": 239, "minor": 0, "uid": 5}

    def test_a_rule_before_a_denial_has_no_effect_and_is_moved(self) -> None:
        document = edited()
        document["linux"]["resources"]["devices"].append(DENY)
        rules = edited(document)["linux"]["resources"]["devices"]
        assert rules[:2] == [DENY, DENY]
        assert [rule["allow"] for rule in rules[2:]] == [True, True]

    @pytest.mark.parametrize("place", ["linux.devices", "linux.resources", "linux.resources.devices", "annotations"])
    def test_null_and_missing_parts_are_made(self, place: str) -> None:
        assert len(edited(with_part(place, None))["linux"]["devices"]) == 2

    @pytest.mark.parametrize(
        ("place", "value"),
        [
            ("linux", None),
            ("linux", []),
            ("linux.devices", {}),
            ("linux.devices", ["/dev/x"]),
            ("linux.devices", [{"path": 1, "type": "c", "major": 1, "minor": 1}]),
            ("linux.devices", [{"path": "/dev/x", "type": "c", "major": "1", "minor": 1}]),
            ("linux.devices", [{"path": "/dev/x", "type": "c", "major": True, "minor": 1}]),
            ("linux.devices", [{"path": "/dev/x", "type": "c"}]),
            ("linux.devices", [{"path": "/dev/x", "type": "p"}, {"path": "/dev/x", "type": "p"}]),
            ("linux.resources", "all"),
            ("linux.resources.devices", [{"access": "rwm"}]),
            ("linux.resources.devices", [{"allow": 1}]),
            ("linux.resources.devices", [{"allow": True, "access": 7}]),
            ("annotations", []),
            ("annotations", {"a": 1}),
        ],
    )
    def test_what_is_not_understood_is_refused(self, place: str, value: Any) -> None:
        with pytest.raises(BadDocument, match=r"config\.json"):
            edited(with_part(place, value))

    def test_another_claims_devices_are_refused(self) -> None:
        with pytest.raises(ConflictError, match="devices of claim c1 already"):
            edited(edited(), "c2")
        for spelled in ("/dev/vfio/99", "/dev/vfio/devices/vfio3", "/dev//vfio/99", "//dev/vfio/./99"):
            path = spelled.replace("//", "/").replace("/./", "/")
            there = [{"path": spelled, "type": "c", "major": 239, "minor": 9}]
            with pytest.raises(ConflictError, match=f"{path} already"):
                edited(with_part("linux.devices", there))
        for named in ("/dev/gpu", "/dev/null"):
            there = [{"path": named, "type": "c", "major": 239, "minor": 9}]
            with pytest.raises(ConflictError, match=f"{named} already, a node of VFIO"):
                edited(with_part("linux.devices", there))
        for harmless in (
            {"type": "c", "major": 239, "minor": 0},
            {"type": "b", "major": 239, "minor": 9},
            {"type": "p"},
        ):
            assert len(edited(with_part("linux.devices", [{"path": "/dev/x", **harmless}]))["linux"]["devices"]) == 3
        plain = with_part("linux.devices", [{"path": "/dev/vfio/vfio", "type": "c", "major": 10, "minor": 196}])
        assert len(edited(plain)["linux"]["devices"]) == 2

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"[]",
            b"{}",
            b'{"ociVersion": 1}',
            b'{"ociVersion": "1", "a": 1, "a": 2}',
            b'{"ociVersion": "1", "a": NaN}',
            b'{"ociVersion": "1", "a": 1e999}',
            b"\xff",
            b"[" * 100_000,
        ],
    )
    def test_what_could_not_be_written_back_is_refused(self, data: bytes) -> None:
        with pytest.raises(BadDocument):
            read_config(data)

    @pytest.mark.parametrize("indent", [None, 2, "\t"])
    @pytest.mark.parametrize("end", ["", "\n"])
    def test_the_text_keeps_its_form(self, indent: int | str | None, end: str) -> None:
        separators = (",", ":") if indent is None else None
        before = (json.dumps(CONFIG, indent=indent, separators=separators) + end).encode()
        assert written(read_config(before), before) == before

    @given(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(1 << 70), 1 << 70)
            | st.text()
            | st.floats(allow_nan=False, allow_infinity=False),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
            max_leaves=20,
        )
    )
    def test_any_other_part_survives(self, part: Any) -> None:
        before = json.dumps({**CONFIG, "hooks": part}).encode()
        done = injected(read_config(before), "c1", (CONTROL, NODE))
        assert json.loads(written(done.document, before))["hooks"] == part


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    place = tmp_path / "bundle"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(CONFIG))
    return place


@pytest.fixture
def host() -> Host:
    found = Host.simulated("hgx8")
    found.apply(found.binding.plan_bind([GPU, OTHER]))
    return found


class TestBundle:
    def test_the_nodes_of_the_claim(self, host: Host, bundle: Path) -> None:
        (bundle / "config.json").chmod(0o640)
        api = OciApi(host.session, Ledger(a_claim("c1", GPU)))
        assert api.inject(bundle, "c1", dry_run=True).changes
        assert json.loads((bundle / "config.json").read_text()) == CONFIG
        done = api.inject(bundle, "c1")
        assert done.nodes == ("/dev/vfio/vfio", "/dev/vfio/21")
        assert json.loads((bundle / "config.json").read_text())["annotations"]["vfioctl.claim"] == "c1"
        assert (bundle / "config.json").stat().st_mode & 0o7777 == 0o640
        assert [file.name for file in bundle.iterdir()] == ["config.json"]

    def test_a_claim_that_is_over_or_without_node_is_refused(self, host: Host, bundle: Path) -> None:
        over = OciApi(host.session, Ledger(a_claim("c1", GPU, state=ClaimState.RELEASED)))
        with pytest.raises(ConflictError, match="claim c1 is released"):
            over.inject(bundle, "c1")
        host.apply(host.binding.plan_unbind([GPU]))
        with pytest.raises(HostError, match="no group node"):
            OciApi(host.session, Ledger(a_claim("c1", GPU))).inject(bundle, "c1")
        assert json.loads((bundle / "config.json").read_text()) == CONFIG

    @pytest.mark.parametrize(
        ("make", "said"),
        [
            (lambda file: file.symlink_to("/etc/hostname"), "symbolic link"),
            (os.mkfifo, "FIFO"),
            (os.mkdir, "directory"),
            (lambda file: os.truncate(os.open(file, os.O_CREAT | os.O_WRONLY), 5 << 20), "larger than 4 MiB"),
            (lambda _: None, "No such file"),
        ],
        ids=["link", "fifo", "directory", "large", "none"],
    )
    def test_only_a_regular_file_is_read(self, bundle: Path, make: Callable[[Path], None], said: str) -> None:
        (bundle / "config.json").unlink()
        make(bundle / "config.json")
        with pytest.raises(HostError) as caught, opened_config(bundle):
            pass
        assert said in caught.value.kernel_said

    def test_a_file_that_somebody_changes_meanwhile_is_not_replaced(self, bundle: Path) -> None:
        with opened_config(bundle) as opened:
            (bundle / "config.json").write_text("{}")
            with pytest.raises(Busy):
                replace_config(opened, b"new")
        assert (bundle / "config.json").read_text() == "{}"

    @needs_root
    def test_the_owner_stays(self, bundle: Path) -> None:
        os.chown(bundle / "config.json", NOBODY, NOBODY)
        (bundle / "config.json").chmod(0o600)
        with opened_config(bundle) as opened:
            replace_config(opened, b"new")
        status = (bundle / "config.json").stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (NOBODY, NOBODY, 0o600)

    @needs_root
    def test_root_edits_nothing_in_a_directory_of_another_user(self, bundle: Path) -> None:
        os.chown(bundle, NOBODY, NOBODY)
        with pytest.raises(HostError) as caught, opened_config(bundle):
            pass
        assert "belongs to user 65534" in caught.value.kernel_said

    @needs_root
    def test_another_user_edits_a_bundle_of_its_own(self, bundle: Path) -> None:
        for path in (bundle, bundle / "config.json"):
            os.chown(path, NOBODY, NOBODY)
        for above in bundle.parents:
            if above.stat().st_mode & 0o001 == 0:
                above.chmod(0o711)

        def edit() -> None:
            with opened_config(bundle) as opened:
                replace_config(opened, b"new")

        assert as_nobody(edit) is None
        assert (bundle / "config.json").read_bytes() == b"new"


class TestStdin:
    def test_a_state_names_the_bundle(self) -> None:
        state = {"ociVersion": "1.0.2", "id": "x", "status": "creating", "pid": 7, "bundle": "/run/x"}
        assert bundle_in(json.dumps(state).encode()) == Path("/run/x")
        assert bundle_in(json.dumps(CONFIG).encode()) is None

    @pytest.mark.parametrize(
        "data", [b"", b"{}", b"[]", b'{"bundle": 1}', b'{"bundle": "relative"}', b'{"bundle": "/\\u0000"}', b"\xff"]
    )
    def test_anything_else_is_refused(self, data: bytes) -> None:
        with pytest.raises(BadDocument):
            bundle_in(data)

    def test_a_configuration_is_edited_and_returned(self, host: Host) -> None:
        api = OciApi(host.session, Ledger(a_claim("c1", GPU)))
        after = json.loads(api.filter(json.dumps(CONFIG).encode(), "c1"))
        assert after["annotations"]["vfioctl.claim"] == "c1"


class TestCommandLine:
    def test_a_claim_that_is_not_there(self, run: Run, bundle: Path) -> None:
        answer = run(f"oci inject {bundle} --claim none --json --simulate hgx8")
        assert answer.code == BadSpec.exit_code
        assert "no claim" in answer.document["error"]["message"]

    def test_stdin_that_is_no_state(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
        answer = run("oci inject --claim none --json --simulate hgx8")
        assert (answer.code, answer.document["error"]["kind"]) == (2, "BadDocument")
