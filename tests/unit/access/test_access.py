"""Who may open the device nodes of claims, on simulated hosts."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from tests.unit.conftest import Run
from vfioctl.access.api import AccessApi
from vfioctl.access.model.record import Record, record_in
from vfioctl.access.plan.permissions import changes
from vfioctl.claims.model.access import ACCESS, Access, access_in, labelled_access
from vfioctl.claims.model.difference import DifferenceKind, Fix
from vfioctl.core.change import Plan
from vfioctl.errors import BadSpec, KernelRefused
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.live.permissions import permissions_of, set_permissions
from vfioctl.kernel.simulated.faults import Fault
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.placement.model.request import ClaimRequest

GPU, OTHER = PciAddress("0000:1b:00.0"), PciAddress("0000:43:00.0")
NODE, NOTE = "/dev/vfio/21", "/run/vfioctl/access/21"
ROOT, ADA, TEAM = "0:0:600", "1000:0:600", "0:2000:660"


@pytest.fixture
def host() -> Host:
    return Host.simulated("hgx8")


def kernel(host: Host) -> Simulated:
    assert isinstance(host.session.kernel, Simulated)
    return host.session.kernel


def claim(host: Host, access: str, device: PciAddress = GPU, owner: str = "user/ada") -> str:
    labels = {ACCESS: access} if access else {}
    made = host.claims.create(ClaimRequest(owner=owner, devices=(device,), labels=labels))
    assert not made.problem
    return made.claim.id


class TestAccess:
    @pytest.mark.parametrize(
        ("text", "access"),
        [("1000", Access(1000, 0)), (":2000", Access(0, 2000)), ("1000:2000", Access(1000, 2000))],
    )
    def test_is_a_user_a_group_or_both(self, text: str, access: Access) -> None:
        assert access_in(text) == access
        assert labelled_access(access.text) == access

    def test_names_are_looked_up(self) -> None:
        assert access_in("nobody") == Access(65534, 0)
        assert access_in("nobody:daemon") == Access(65534, 1)

    @pytest.mark.parametrize(
        "text", ["", ":", "root", "0", "nosuchuser", ":nosuchgroup", "4294967295", "1" * 30, "-1", "1:2:3", "٣", "a\nb"]
    )
    def test_others_are_refused(self, text: str) -> None:
        with pytest.raises(BadSpec):
            access_in(text)

    @pytest.mark.parametrize("text", ["", "ada", "1000", "1000:", ":1", "1:2:3", "99999999999:0", "4294967295:0"])
    def test_a_label_has_numbers(self, text: str) -> None:
        with pytest.raises(BadSpec):
            labelled_access(text)


class TestNotes:
    def test_are_read_as_they_are_written(self) -> None:
        record = Record(Access(1000, 2000), "0:107:660")
        assert record_in(record.text) == record

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "VFIOCTL_OWNER=1000",
            Record(Access(1000, 0), ROOT).text + "\nMODE=666",
            Record(Access(1000, 0), ROOT).text.replace("MODE=600", "MODE=666"),
            Record(Access(1000, 0), ROOT).text.replace("OWNER=1000", "OWNER=01000"),
        ],
    )
    def test_others_are_none(self, text: str) -> None:
        assert record_in(text) is None


class TestPlan:
    """`changes`, for one node: (who may, note, now) -> (permissions, note) after."""

    GIVEN = Record(Access(1000, 0), ROOT)

    @pytest.mark.parametrize(
        ("wanted", "note", "now", "after"),
        [
            (None, "", ROOT, {}),
            (Access(1000, 0), "", ROOT, {NODE: ADA, NOTE: GIVEN.text}),
            (Access(1000, 0), GIVEN.text, ADA, {}),
            (Access(1000, 0), GIVEN.text, ROOT, {NODE: ADA}),
            (Access(0, 2000), GIVEN.text, ADA, {NODE: TEAM, NOTE: Record(Access(0, 2000), ROOT).text}),
            (Access(1000, 0), "", "0:107:660", {NODE: ADA, NOTE: Record(Access(1000, 0), "0:107:660").text}),
            (None, GIVEN.text, ADA, {NODE: ROOT, NOTE: ""}),
            (None, GIVEN.text, "0:107:660", {NOTE: ""}),
            (None, GIVEN.text, "", {NOTE: ""}),
            (None, "anything", ROOT, {NOTE: ""}),
            (Access(1000, 0), "anything", ROOT, {NODE: ADA, NOTE: GIVEN.text}),
            (Access(1000, 0), "", "", {}),
            (Access(1000, 0), GIVEN.text, "", {NOTE: ""}),
        ],
    )
    def test_changes_what_differs(self, wanted: Access | None, note: str, now: str, after: dict[str, str]) -> None:
        made = changes({NODE: wanted} if wanted else {}, {"21": note} if note else {}, {NODE: now} if now else {})
        assert {change.name: change.after for change in made} == after


class TestClaims:
    def test_give_access_and_take_it_back(self, host: Host) -> None:
        id_ = claim(host, "1000:0")
        assert kernel(host).permissions(NODE) == ADA
        assert "VFIOCTL_OWNER=1000" in kernel(host).read(NOTE)
        host.claims.release(id_)
        assert not kernel(host).has(NOTE)
        with pytest.raises(KernelRefused):
            kernel(host).permissions(NODE)

    def test_a_device_that_stays_on_vfio_is_roots_again(self, host: Host) -> None:
        host.apply(host.binding.plan_bind([GPU]))
        id_ = claim(host, "0:2000")
        assert kernel(host).permissions(NODE) == TEAM
        host.claims.release(id_)
        assert kernel(host).permissions(NODE) == ROOT
        assert not kernel(host).has(NOTE)

    def test_those_that_name_nobody_change_nothing(self, host: Host) -> None:
        claim(host, "")
        assert kernel(host).permissions(NODE) == ROOT
        assert [entry.plan.intent.verb for entry in host.history()] == ["bind"]

    def test_one_does_not_touch_the_nodes_of_another(self, host: Host) -> None:
        claim(host, "1000:0")
        other = claim(host, "0:2000", OTHER, "vm/web1")
        assert kernel(host).permissions("/dev/vfio/27") == TEAM
        host.claims.release(other)
        assert kernel(host).permissions(NODE) == ADA

    def test_who_had_access_has_none_after_a_transfer(self, host: Host) -> None:
        id_ = claim(host, "1000:0")
        given = host.claims.transfer(id_, "user/eve")
        assert (given.claim.labels, given.problem) == ({}, "")
        assert kernel(host).permissions(NODE) == ROOT
        host.claims.transfer(id_, "user/eve", Access(1001))
        assert kernel(host).permissions(NODE) == "1001:0:600"

    def test_a_label_that_is_no_access_is_told_and_the_claim_holds(self, host: Host) -> None:
        made = host.claims.create(ClaimRequest(owner="user/ada", devices=(GPU,), labels={ACCESS: "everybody"}))
        assert "not the access of a claim" in made.problem
        assert made.claim.state == "held"
        assert kernel(host).permissions(NODE) == ROOT

    def test_a_node_that_udev_handles_meanwhile_is_planned_again(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = AccessApi.plan

        def planned(api: AccessApi) -> Plan | None:
            made = plan(api)
            if kernel(host).permissions(NODE) == ROOT:
                kernel(host).set_permissions(NODE, "0:1:666")
            return made

        monkeypatch.setattr(AccessApi, "plan", planned)
        claim(host, "1000:0")
        assert kernel(host).permissions(NODE) == ADA

    def test_files_that_are_no_notes_are_left_alone(self, host: Host) -> None:
        kernel(host).tree.put("/run/vfioctl/access/.21.4711", "half a note")
        id_ = claim(host, "1000:0")
        host.claims.release(id_)
        assert kernel(host).children("/run/vfioctl/access") == [".21.4711"]

    def test_a_failure_is_rolled_back_and_told(self) -> None:
        host = Host.simulated("hgx8", faults=[Fault(8, "errno", errno.EPERM)])
        made = host.claims.create(ClaimRequest(owner="user/ada", devices=(GPU,), labels={ACCESS: "1000:0"}))
        assert "who may open the device nodes was not set" in made.problem
        assert kernel(host).permissions(NODE) == ROOT
        assert not kernel(host).has(NOTE)
        (difference,) = host.claims.reconciling.compare().differences
        assert (difference.kind, difference.claim, difference.fix) == (DifferenceKind.ACCESS, made.claim.id, Fix.RENEW)

    def test_what_another_program_has_set_is_found_and_mended(self, host: Host) -> None:
        id_ = claim(host, "1000:0")
        kernel(host).set_permissions(NODE, "0:0:666")
        (difference,) = host.claims.reconciling.compare().differences
        assert (difference.claim, difference.fix) == (id_, Fix.RENEW)
        host.claims.reconciling.fix([difference])
        assert kernel(host).permissions(NODE) == ADA


class TestCommand:
    def test_gives_access(self, run: Run) -> None:
        made = run("claim create --owner user/ada --device gpu0 --access nobody --yes --json --simulate hgx8")
        assert made.code == 0
        shown = run(f"claim show {made.document['id']} --simulate hgx8").out
        assert "access=65534:0" in shown
        assert run("reconcile --simulate hgx8").code == 0
        assert run(f"claim release {made.document['id']} --yes --simulate hgx8").code == 0

    @pytest.mark.parametrize("words", ["--access nosuchuser", "--access root", "--label access=1000:0"])
    def test_refuses_what_is_nobody(self, run: Run, words: str) -> None:
        answer = run(f"claim create --owner user/ada --device gpu0 {words} --yes --simulate hgx8")
        assert (answer.code, answer.out) == (2, "")
        assert "hint:" in answer.err
        assert run("claim list --simulate hgx8").out.startswith("No claims")


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a device node, and gives it to others")
class TestFiles:
    @pytest.fixture
    def node(self, tmp_path: Path) -> Path:
        node = tmp_path / "node"
        try:
            os.mknod(node, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("this container may make no device nodes")
        return node

    def test_of_a_node_are_set(self, node: Path) -> None:
        set_permissions(str(node), "1000:2000:660")
        assert permissions_of(node.stat()) == "1000:2000:660"

    def test_of_nothing_else(self, node: Path, tmp_path: Path) -> None:
        plain, link = tmp_path / "plain", tmp_path / "link"
        plain.write_text("")
        link.symlink_to(node)
        for path in (plain, link, tmp_path / "missing"):
            with pytest.raises(OSError):  # noqa: PT011 - ENODEV, ENODEV, ENOENT
                set_permissions(str(path), "1000:0:600")
        assert permissions_of(node.stat()) == ROOT
        assert plain.stat().st_uid == 0
