"""What ordinary users may know of root's ledger: claims and the last changes, without what may be secret."""

from __future__ import annotations

import json
import os
import sys
from grp import getgrgid
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.machines import copy, original
from tests.unit.conftest import Run
from tests.users import NOBODY, as_nobody, as_root
from vfioctl import published_ledger, sources
from vfioctl.access.api import AccessApi
from vfioctl.claims.model.access import ACCESS
from vfioctl.core import published
from vfioctl.core.caller import this_process
from vfioctl.core.published import MOST_CHANGES
from vfioctl.core.snapshot import history_in
from vfioctl.errors import BadSpec, NotPermitted, StoreDamaged, VfioctlError
from vfioctl.host import Host
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.opening import CommandSession
from vfioctl.placement.model.claims import Owner
from vfioctl.placement.model.request import ClaimRequest

GPU = "0000:01:00.0"
SECRET = "hunter2"  # noqa: S105 - it is looked for in what is published

pytestmark = as_root


@pytest.fixture
def session(fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> CommandSession:
    fast_folder.chmod(0o755)
    monkeypatch.setattr(sys, "argv", ["vfioctl", "bind", "--token", SECRET])
    kernel = Simulated(copy(original("laptop")), "simulated")
    ledger, public = fast_folder / "private" / "ledger.db", fast_folder / "public" / "public.json"
    session = CommandSession(kernel, ledger, settle=0.0, lock_wait=0.0, public=public)
    monkeypatch.setattr(sources, "live", lambda *_: session)
    return session


@pytest.fixture
def host(session: CommandSession) -> Host:
    return Host(session)


def public(host: Host) -> Path:
    file = host.session.published._file
    assert file
    return file


def claimed(host: Host) -> str:
    request = ClaimRequest(
        owner=Owner("vm/web1"), devices=(host.find([GPU])[0],), labels={"password": SECRET}, ttl=60.0
    )
    return host.claims.create(request, key=SECRET).claim.id


def refused(work: Any, kind: type[VfioctlError]) -> str:
    """The refusal that another user gets, which must be of this kind."""

    def ask() -> str:
        try:
            work()
        except kind as error:
            return f"{error.message}; {error.hint}"
        return "not refused"

    return str(as_nobody(ask))


class TestClaims:
    def test_are_listed_without_what_may_be_secret(self, host: Host) -> None:
        claim = host.claims.claim(claimed(host))
        assert claim.labels
        assert SECRET in claim.command
        shown = claim._replace(labels={}, key="", command="", why="")
        assert as_nobody(lambda: [claim == shown for claim in host.claims.claims()]) == [True]
        assert as_nobody(lambda: host.claims.claim(claim.id[:5]) == shown)
        assert as_nobody(lambda: [host.claims.request(claim), host.claims.events(claim)]) == [{}, []]
        assert SECRET not in public(host).read_text()

    def test_are_no_longer_once_they_have_ended(self, host: Host) -> None:
        claim = claimed(host)
        host.claims.release(claim)
        assert as_nobody(host.claims.claims) == []
        ended = "only root may read claims that have ended"
        assert ended in refused(lambda: host.claims.claim(claim), NotPermitted)
        assert ended in refused(lambda: host.claims.claims(live_only=False), NotPermitted)
        assert ended in refused(lambda: host.history(owner="vm/web1"), NotPermitted)
        assert "not a claim" in refused(lambda: host.claims.claim("x"), BadSpec)

    def test_reserve_their_devices_as_before(self, host: Host) -> None:
        claim = claimed(host)
        reserved = as_nobody(lambda: [[r.subject, r.by, r.owner] for r in host.session.reservations()])
        assert [GPU, f"claim {claim}", "vm/web1"] in reserved

    def test_are_shown_by_the_commands(self, host: Host, run: Run) -> None:
        claim = claimed(host)

        def look() -> Any:
            answers = [run(line) for line in ("claim list", f"claim show {claim}", "claim list --json")]
            return [[answer.code, answer.out, answer.err] for answer in answers]

        listed, shown, document = as_nobody(look)
        assert (listed[0], shown[0], document[0]) == (0, 0, 0)
        assert claim in listed[1]
        assert "vm/web1" in shown[1]
        assert "only root and the group vfioctl may read the labels and the command of a claim" in shown[2]
        assert json.loads(document[1])["claims"][0]["id"] == claim

    def test_that_the_document_has_none_of(self, host: Host) -> None:
        claimed(host)
        document = json.loads(public(host).read_text())
        wrong: tuple[object, ...] = ([], {}, None, {"live": [[1]]}, {"live": 5})
        for records in wrong:
            public(host).write_text(json.dumps(document | {"records": {"claims": records}}))
            assert "run it as root" in refused(host.claims.claims, StoreDamaged)


class TestHistory:
    def test_says_what_when_and_who_and_no_more(self, host: Host) -> None:
        host.apply(host.binding.plan_bind([GPU]))
        (entry,) = host.history()

        def look() -> Any:
            assert host.change("1") == host.change(entry.plan.id[:6]) == host.history(device=GPU)[0]
            return [json.loads(change.model_dump_json()) for change in host.history()]

        (known,) = as_nobody(look)
        own = json.loads(entry.model_dump_json())
        for field in ("id", "state", "boot_id", "began", "ended", "made_for", "under_way"):
            assert known[field] == own[field]
        assert known["caller"] == own["caller"] | {"command": ""}
        assert known["plan"]["id"] == entry.plan.id
        assert known["plan"]["intent"] == {"verb": "bind", "subjects": list(entry.plan.subjects)}
        assert (known["plan"]["changes"], known["plan"]["steps"]) == ([], [])
        assert "only root may read" in known["plan"]["notes"][0]
        assert SECRET not in public(host).read_text()

    def test_has_the_last_changes_and_all_that_are_unfinished(self, host: Host) -> None:
        plan = host.binding.plan_bind([GPU])
        boot = host.session.boot_id
        host.session.journal.begin(plan, boot_id=boot, now="t", caller=this_process())
        empty = plan.model_copy(update={"changes": ()})
        with host.session.store.transaction() as db:
            query = "INSERT INTO journal (plan, state, boot_id, began) VALUES (?, 'done', ?, '2026-01-01')"
            db.executemany(query, [(empty.model_dump_json(), boot)] * (MOST_CHANGES + 5))
        host.session.publish()
        numbers = as_nobody(lambda: [change.id for change in host.history()])
        assert numbers == [*range(MOST_CHANGES + 6, 6, -1), 1]
        assert as_nobody(lambda: [change.id for change in host.unfinished()]) == [1]
        assert as_nobody(lambda: len(host.history(most=3))) == 3
        why = refused(lambda: host.change("3"), NotPermitted)
        assert "only root may read changes other than the last 50 and the unfinished ones" in why

    def test_names_a_bounded_number_of_devices(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vfioctl.core.snapshot.MOST_SUBJECTS", 1)
        host.apply(host.binding.plan_bind([GPU]))
        (entry,) = host.history()
        assert len(entry.plan.subjects) > 1
        assert as_nobody(lambda: [list(change.plan.subjects) for change in host.history()]) == [
            [entry.plan.subjects[0]]
        ]

    def test_whose_plan_is_damaged_costs_that_plan(self, host: Host) -> None:
        host.apply(host.binding.plan_bind([GPU]))
        host.apply(host.binding.plan_unbind([GPU]))
        with host.session.store.transaction() as db:
            db.execute("UPDATE journal SET plan = 'not json', began = 'another time' WHERE id = 1")
        host.session.publish()
        assert as_nobody(lambda: [[c.id, c.plan.intent.verb] for c in host.history()]) == [[2, "unbind"], [1, ""]]

    def test_is_shown_by_the_commands(self, host: Host, run: Run) -> None:
        host.apply(host.binding.plan_bind([GPU]))

        def look() -> Any:
            answers = [run(line) for line in ("history", "history show 1", "history show 1 --json", "history show 7")]
            return [[answer.code, answer.out, answer.err] for answer in answers]

        listed, shown, document, missing = as_nobody(look)
        assert (listed[0], shown[0], document[0], missing[0]) == (0, 0, 0, 3)
        assert f"bind {GPU}" in listed[1]
        assert listed[2] == "vfioctl: only root may read changes other than the last 50 and the unfinished ones\n"
        assert f"Change 1: bind {GPU}" in shown[1]
        assert "only root may read what it changed" in shown[1]
        assert "only root may read changes other than" in missing[2]

    def test_of_an_earlier_release_is_not_there(self, host: Host) -> None:
        host.apply(host.binding.plan_bind([GPU]))
        document = json.loads(public(host).read_text())
        del document["history"]
        public(host).write_text(json.dumps(document | {"version": 1}))
        why = refused(host.history, StoreDamaged)
        assert "an earlier release has published" in why
        assert "the next change as root publishes it" in why

    @pytest.mark.parametrize(
        "row", [[], [1], 5, ["x"] * 12, [1, "p", "v", [5], "done", "b", "t", None, "u", "", None, ""]]
    )
    def test_that_is_no_such_document_is_refused(self, host: Host, row: object) -> None:
        host.apply(host.binding.plan_bind([GPU]))
        document = json.loads(public(host).read_text())
        public(host).write_text(json.dumps(document | {"history": [row]}))
        with pytest.raises(ValueError, match=r"."):
            published.read(str(public(host)))

    def test_is_read_from_plans_once(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        host.apply(host.binding.plan_bind([GPU]))
        monkeypatch.setattr("vfioctl.core.snapshot._plan_of", None)
        store = host.session.store
        none: tuple[published.PublishedChange, ...] = ()
        assert [change.verb for change in store.read(lambda db: history_in(db, store.file), none)] == ["bind"]


def test_root_reads_the_ledger_and_others_what_is_published(host: Host) -> None:
    assert not host.session.reads_published
    host.apply(host.binding.plan_bind([GPU]))
    assert not host.session.reads_published
    assert as_nobody(lambda: host.session.reads_published)
    assert os.stat(public(host)).st_size < 1 << 20


class TestTheGroup:
    """Its members also read labels, keys and command lines. Here it is nogroup, which nobody is in."""

    @pytest.fixture(autouse=True)
    def _group(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(published_ledger, "GROUP", getgrgid(NOBODY).gr_name)

    def file(self, host: Host) -> Path:
        return public(host).with_name("group.json")

    def test_reads_live_claims_as_root_does(self, host: Host, run: Run) -> None:
        claim = host.claims.claim(claimed(host))
        status = self.file(host).stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (0, NOBODY, 0o640)
        assert as_nobody(lambda: [claim == shown for shown in host.claims.claims()]) == [True]
        assert as_nobody(lambda: [c.id for c in host.claims.labelled("password")]) == [claim.id]
        code, out, err = as_nobody(lambda: list(run(f"claim show {claim.id}")))
        assert (code, f"password={SECRET}" in out) == (0, True)
        assert "only root may read the request and the events of a claim\n" in err
        assert SECRET not in public(host).read_text()

    def test_may_know_who_may_open_nodes(self, host: Host) -> None:
        gpu = host.find([GPU])[0]
        host.apply(host.binding.plan_bind([GPU]))
        request = ClaimRequest(owner=Owner("vm/web1"), devices=(gpu,), labels={ACCESS: "1000:0"})
        host.claims.create(request)
        node = next(nodes.group for nodes in host.claims.nodes(host.claims.claims()[0]).values())
        assert node
        assert isinstance(host.session.kernel, Simulated)
        host.session.kernel.set_permissions(node, "0:0:600")

        def known() -> list[object]:
            facts = host.doctor.facts()
            differences = list(AccessApi(host.session).differences(facts.inventory, ()))
            return [facts.labels_hidden, len(facts.lock_limits), len(differences)]

        assert known() == as_nobody(known) == [False, 1, 1]
        self.file(host).write_text("")
        assert as_nobody(known) == [True, 0, 0]

    def test_reads_what_all_users_do_when_its_document_is_damaged(self, host: Host) -> None:
        claim = host.claims.claim(claimed(host))
        for damage in ("", "{", json.dumps({"version": 2, "boot_id": "another"})):
            self.file(host).write_text(damage)
            assert as_nobody(lambda: [dict(c.labels) for c in host.claims.claims()]) == [{}]
        host.claims.release(claim.id)
        assert as_nobody(host.claims.claims) == [], "the next change has mended it"
        assert json.loads(self.file(host).read_text())["records"]["claims"]["live"] == []

    def test_has_no_document_once_there_is_no_such_group(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        claim = claimed(host)
        assert self.file(host).exists()
        monkeypatch.setattr(published_ledger, "GROUP", "no-such-group")
        host.claims.release(claim)
        assert not self.file(host).exists()

    def test_of_another_number_gets_a_new_document(self, host: Host) -> None:
        claimed(host)
        os.chown(self.file(host), 0, 1)
        host.session.publish()
        assert self.file(host).stat().st_gid == NOBODY
        self.file(host).chmod(0o644)
        host.session.publish()
        assert self.file(host).stat().st_mode & 0o777 == 0o640
