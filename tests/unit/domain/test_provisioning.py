"""`vfioctl domain define`, `undefine`, `list` and `show`: on a simulated host, with libvirt's test driver."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.machines import copy, original
from tests.schema import schema_problems
from tests.unit.conftest import Answer, Golden, Run, program_in, timeless
from vfioctl import sources
from vfioctl.console.lazy import App
from vfioctl.core.change import Change
from vfioctl.domain.api import DomainApi
from vfioctl.domain.cli.domain import MODULES
from vfioctl.domain.document.differences import is_definition_of, is_still
from vfioctl.domain.document.mark import marked
from vfioctl.domain.document.reader import read_domain
from vfioctl.domain.document.xml import parse
from vfioctl.domain.resources.libvirt import DomainDefinition
from vfioctl.errors import BadDocument, HostError, KernelRefused, StalePlan, Stuck, VerifyError
from vfioctl.kernel.recorded.host import read_tree
from vfioctl.kernel.recorded.tree import form
from vfioctl.kernel.recorded.tree import parse as parse_host
from vfioctl.kernel.simulated.faults import Fault, SimulatedDeath
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.session import Session

pytest.importorskip("libvirt")
ROOT = Path(__file__).resolve().parents[3]
URI = "test:///default"
UUID, OTHER = "4e8c5df7-c4fa-4719-904f-5579cd5ac35f", "5e8c5df7-c4fa-4719-904f-5579cd5ac35f"
XML = """<domain type='kvm'><name>web1</name>
  <metadata><other:thing xmlns:other='urn:other' a='1'/></metadata>
  <memory unit='GiB'>4</memory><vcpu>2</vcpu>
  <cputune><vcpupin vcpu='0' cpuset='2'/><vcpupin vcpu='1' cpuset='3-5,^4'/></cputune>
  <numatune><memory mode='strict' nodeset='1'/></numatune>
  <os><type arch='x86_64' machine='q35'>hvm</type></os><on_crash>restart</on_crash>
  <devices><hostdev mode='subsystem' type='pci' managed='no'>
    <source><address bus='0x1b' slot='0' function='0'/></source></hostdev>
    <hostdev mode='subsystem' type='mdev' model='vfio-pci'>
    <source><address uuid='7e8c5df7-c4fa-4719-904f-5579cd5ac35f'/></source></hostdev></devices></domain>"""
DEVICES = ["0000:1b:00.0", "7e8c5df7-c4fa-4719-904f-5579cd5ac35f"]
# of somebody else: without vfioctl's metadata
FOREIGN = (
    f"<domain type='kvm'><name>db</name><uuid>{OTHER}</uuid><memory>1024</memory><os><type>hvm</type></os></domain>"
)


class Machine:
    """A simulated host in a file, its ledger, and the commands on it."""

    def __init__(self, run: Run, folder: Path) -> None:
        self._run, self.folder, self.host, self.ledger = run, folder, folder / "hgx8.host", folder / "ledger.db"
        self.host.write_text(form(copy(original("hgx8"))))

    def __call__(self, line: str, *, as_json: bool = True, connect: str = URI) -> Answer:
        words = [*line.split(), "--simulate", str(self.host), "--ledger", str(self.ledger), *(["--json"] * as_json)]
        return self._run("domain", *words, *(["--connect", connect] if connect else []))

    def define(self, xml: str, *words: str, as_json: bool = True) -> Answer:
        file = self.folder / "domain.xml"
        file.write_text(xml)
        return self(" ".join(("define", str(file), "--yes", *words)), as_json=as_json)

    def domains(self) -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in self("list").document["domains"]}

    def dying(self) -> Session:
        """A session of a process that dies after its first order to libvirt."""
        kernel = Simulated(read_tree(self.host), "simulated", file=self.host, faults=[Fault(1, "die")])
        return Session(kernel, self.ledger)

    def session(self, *faults: Fault) -> Session:
        return sources.simulated(Session, str(self.host), self.ledger, faults=faults)


@pytest.fixture
def machine(run: Run, tmp_path: Path) -> Machine:
    return Machine(run, tmp_path)


class TestDefine:
    def test_what_the_driver_drops_is_found_and_taken_back(self, machine: Machine) -> None:
        """libvirt's test driver does not know QEMU's namespace."""
        before = machine.domains()
        passed = "<qemu:commandline><qemu:arg value='-s'/></qemu:commandline></domain>"
        text = XML.replace("</domain>", passed)
        text = text.replace("<domain ", "<domain xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0' ", 1)
        done = machine.define(text)
        assert done.code == 6, done.err
        assert "such as <qemu:commandline>" in done.document["error"]["hint"]
        assert machine.domains() == before

    def test_any_part_that_is_dropped_is_named_and_taken_back(self, machine: Machine) -> None:
        """libvirt drops the pin of a vCPU that the domain does not have."""
        before = machine.domains()
        error = machine.define(XML.replace("vcpu='1'", "vcpu='7'")).document["error"]
        assert "without /domain/cputune/vcpupin[vcpu=7]/@cpuset" in error["message"]
        assert (error["restored"], machine.domains()) == ("domain/web1 put back as before", before)

    def test_what_somebody_else_defines_meanwhile_is_not_said_to_be_put_back(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The definition that verification reads is another's: it stays, and the message says so."""
        session = machine.session()
        session._settle = 0.0
        plan = DomainApi(session).definitions.plan_define(XML, connect=URI)
        tell, theirs = session.kernel.tell_libvirt, XML.replace("<vcpu>2<", "<vcpu>6<")

        def tell_with_another(uri: str, order: str, *words: str) -> None:
            tell(uri, order, *words)
            tell(uri, "undefine", "web1")
            tell(uri, "define", theirs)

        monkeypatch.setattr(session.kernel, "tell_libvirt", tell_with_another)
        with pytest.raises(VerifyError) as caught:
            session.apply(plan)
        assert caught.value.restored == (
            "domain web1 was not put back, and is 6 vCPUs, 4 GiB, 2 devices, not of vfioctl"
        )
        assert machine.domains()["web1"]["vcpus"] == 6
        assert "was not put back" in machine._run("history", "--ledger", str(machine.ledger)).out.replace("\n", " ")

    def test_list_and_show(self, machine: Machine) -> None:
        done = machine.define(XML)
        assert (done.code, done.document["result"]) == (0, "done"), done.err
        domain = machine.domains()["web1"]
        assert domain["devices"] == DEVICES
        assert (domain["state"], domain["ours"], domain["vcpus"], domain["memory_bytes"]) == (
            "defined",
            True,
            2,
            4 << 30,
        )
        assert (domain["nodes"], domain["pins"]) == ("1", [{"vcpu": 0, "cpus": "2"}, {"vcpu": 1, "cpus": "3,5"}])
        shown = machine("show web1").document
        assert schema_problems(machine("list").document, "domain-list") == []
        assert schema_problems(shown, "domain-show") == []
        assert shown["domain"] == domain
        assert (shown["live"], "urn:other" in shown["defined"]) == ("", True)
        assert machine(f"show {domain['uuid']} --xml", as_json=False).out.strip() == shown["defined"].strip()

    def test_again_changes_nothing(self, machine: Machine) -> None:
        machine.define(XML)
        uuid = machine.domains()["web1"]["uuid"]
        assert machine.define(XML).document["result"] == "nothing to do"
        assert machine.define(XML, "--dry-run").document["steps"] == []
        assert machine.domains()["web1"]["uuid"] == uuid

    @pytest.mark.parametrize(
        ("was", "becomes"),
        [
            ("<on_crash>restart", "<on_crash>preserve"),
            ("nodeset='1'", "nodeset='0'"),
            ("urn:other' a='1'", "urn:other'"),
        ],
    )
    def test_another_document_changes_it(self, machine: Machine, was: str, becomes: str) -> None:
        machine.define(XML)
        before = machine("show web1").document
        plan = machine.define(XML.replace(was, becomes), "--dry-run").document
        assert machine("show web1").document == before
        assert "web1 is defined already; its definition is replaced" in plan["notes"]
        (change,) = plan["changes"]
        assert change["before"].strip() == before["defined"].strip()
        assert machine.define(XML.replace(was, becomes)).document["result"] == "done"
        after = machine("show web1").document
        assert after["defined"] != before["defined"]
        assert after["domain"]["uuid"] == before["domain"]["uuid"]

    def test_the_plan_says_what_will_not_work(self, machine: Machine) -> None:
        assert not any("will not work" in note for note in machine.define(XML, "--dry-run").document["notes"])
        spoilt = XML.replace("vcpu='1' cpuset='3-5,^4'", "vcpu='7' cpuset='3'").replace("<vcpu>2", "<vcpu>1")
        notes = machine.define(spoilt, "--dry-run").document["notes"]
        assert any(note.startswith("it will not work as it is: /domain/cputune/vcpupin[2]") for note in notes), notes

    def test_the_plan_says_whose_name_no_claim_can_have(self, machine: Machine) -> None:
        said = "vfioctl will not start it: no owner of a claim can be called vm/my vm"
        without = XML[: XML.index("<cputune>")] + "<os><type arch='x86_64' machine='q35'>hvm</type></os></domain>"
        for text, is_said in (
            (XML.replace("web1", "my vm"), True),
            (XML, False),
            (without.replace("web1", "my vm"), False),
        ):
            notes = machine.define(text, "--dry-run").document["notes"]
            assert any(note.startswith(said) for note in notes) is is_said, notes

    @pytest.mark.parametrize(
        ("name", "said"),
        [("", "the document has no name"), ("<name>-f</name>", "commands take what begins with - for an option")],
    )
    def test_a_name_that_is_missing_or_an_option_is_refused(self, machine: Machine, name: str, said: str) -> None:
        refused = machine.define(XML.replace("<name>web1</name>", name))
        assert refused.code == 2
        error = refused.document["error"]
        assert said in f"{error['message']} {error['hint']}"

    def test_what_somebody_edited_is_changed_back(self, machine: Machine) -> None:
        machine.define(XML)
        edited = machine("show web1").document["defined"].replace("<on_crash>restart", "<on_crash>preserve")
        machine.session().kernel.tell_libvirt(URI, "define", edited)
        assert machine.define(XML).document["result"] == "done"
        assert "<on_crash>restart" in machine("show web1").document["defined"]

    def test_a_domain_of_somebody_else(self, machine: Machine) -> None:
        machine.session().kernel.tell_libvirt(URI, "define", FOREIGN)
        own = FOREIGN.replace(f"<uuid>{OTHER}</uuid>", "").replace("1024", "2048")
        refused = machine.define(own)
        assert (refused.code, refused.document["error"]["kind"]) == (4, "Foreign")
        assert "--replace" in refused.document["error"]["hint"]
        assert not machine.domains()["db"]["ours"]
        assert machine.define(own, "--replace").code == 0
        domain = machine.domains()["db"]
        assert (domain["ours"], domain["uuid"], domain["memory_bytes"]) == (True, OTHER, 2048 << 10)

    @pytest.mark.parametrize("level", ["info", "debug"])
    def test_no_log_has_a_password(self, machine: Machine, level: str) -> None:
        secret, begin = "S3cretPw", "<domain type='kvm'>"
        graphics = f"{begin}<devices><graphics type='vnc' passwd='{secret}'/></devices>"
        done = machine.define(FOREIGN.replace(begin, graphics), "--log-level", level)
        shown = machine(f"show db --log-level {level}")
        assert secret in machine.session().kernel.ask_libvirt(URI, "definition", "db")
        assert re.search(r"tell_libvirt .* <- 'define', 'a document of \d+ characters': done", done.err)
        assert secret not in done.err + shown.err

    def test_a_transient_domain_of_somebody_else(self, machine: Machine) -> None:
        machine.session().kernel.tell_libvirt(URI, "undefine", "test")
        assert machine.domains()["test"]["state"] == "transient"
        own = XML.replace("web1", "test")
        refused = machine.define(own)
        assert (refused.code, refused.document["error"]["kind"]) == (4, "Foreign")
        assert refused.document["error"]["message"] == "vfioctl did not define domain test"
        assert machine.domains()["test"]["state"] == "transient"
        assert machine.define(own, "--replace").code == 0
        assert machine.domains()["test"]["state"] == "running"

    def test_a_transient_domain_of_ours(self, machine: Machine) -> None:
        own = FOREIGN.replace(f"<uuid>{OTHER}</uuid>", "")
        machine.define(own)
        kernel = machine.session().kernel
        kernel.tell_libvirt(URI, "start", "db")
        kernel.tell_libvirt(URI, "undefine", "db")
        assert machine.domains()["db"]["state"] == "transient"
        assert machine.define(own).code == 0
        assert machine.domains()["db"]["state"] == "running"

    @pytest.mark.parametrize(
        ("name", "uuid", "says"),
        [("db", UUID, "and the document another one"), ("web9", OTHER, "domain db has the UUID")],
    )
    def test_a_clash_of_uuids(self, machine: Machine, name: str, uuid: str, says: str) -> None:
        machine.session().kernel.tell_libvirt(URI, "define", FOREIGN)
        document = XML.replace("<name>web1</name>", f"<name>{name}</name><uuid>{uuid}</uuid>")
        refused = machine.define(document, "--replace")
        assert (refused.code, refused.document["error"]["kind"]) == (4, "Foreign")
        assert says in refused.document["error"]["message"]
        assert sorted(machine.domains()) == ["db", "test"]

    @pytest.mark.parametrize("words", ["", "--dry-run"])
    @pytest.mark.parametrize(
        "document",
        [
            "no XML",
            "<network/>",
            XML.replace("<name>web1</name>", ""),
            XML.replace("web1", "a/b"),
            XML.replace("web1", ".."),
            XML.replace("<vcpu>", "<bogus/><vcpu>"),
            f"<!DOCTYPE a [<!ENTITY b 'c'>]>{XML}",
        ],
    )
    def test_a_document_that_must_change(self, machine: Machine, document: str, words: str) -> None:
        refused = machine.define(document, *words.split())
        assert refused.code == 2, refused
        assert sorted(machine.domains()) == ["test"]
        if "bogus" in document:
            assert "extra content: bogus" in refused.document["error"]["kernel_said"]

    def test_a_claim(self, machine: Machine) -> None:
        made = machine._run(
            "claim create --json --yes --owner vm/web1 --device gpu0",
            *("--simulate", str(machine.host), "--ledger", str(machine.ledger)),
        ).document["id"]
        refused = machine.define(XML.replace("web1", "web2"), "--claim", made)
        assert (refused.code, refused.document["error"]["kind"]) == (4, "ClaimConflict")
        assert machine.define(XML, "--claim", made[:6]).code == 0
        assert machine.domains()["web1"]["claim"] == made
        assert machine.define(XML, "--claim", made).document["result"] == "nothing to do"
        plan = machine("undefine web1 --dry-run").document
        assert plan["notes"] == [f"claim {made} stays, with its devices: vfioctl claim release {made}"]

    def test_a_running_domain(self, machine: Machine) -> None:
        shown = machine("show test").document
        note = "test runs; the new definition counts when it starts the next time"
        document = shown["defined"].replace("<vcpu placement='static'>2<", "<vcpu>3<")
        assert note in machine.define(document, "--replace", "--dry-run").document["notes"]
        assert machine.define(document, "--replace").code == 0
        after = machine("show test").document
        assert after["live"] == shown["live"]
        assert "<vcpu placement='static'>3<" in after["defined"]


class TestUndefine:
    def test_ours(self, machine: Machine) -> None:
        machine.define(XML)
        assert machine("undefine web1 --yes").document["result"] == "done"
        assert sorted(machine.domains()) == ["test"]
        assert machine("undefine web1 --yes").code == 2
        assert machine("show web1").document["error"]["kind"] == "UnknownDomain"

    def test_a_domain_of_somebody_else(self, machine: Machine) -> None:
        machine.session().kernel.tell_libvirt(URI, "define", FOREIGN)
        assert machine("undefine db --yes").document["error"]["kind"] == "Foreign"
        assert machine(f"undefine {OTHER} --yes --foreign").code == 0
        assert sorted(machine.domains()) == ["test"]

    def test_one_that_runs(self, machine: Machine) -> None:
        refused = machine("undefine test --yes --foreign")
        assert (refused.code, refused.document["error"]["kind"]) == (4, "DeviceInUse")
        assert sorted(machine.domains()) == ["test"]


class TestPlans:
    def test_a_saved_plan(self, machine: Machine, run: Run) -> None:
        plan = machine.define(XML, "--dry-run")
        (machine.folder / "plan").write_text(plan.out)
        words = ["--simulate", str(machine.host), "--ledger", str(machine.ledger), "--json", "--yes"]
        assert run(f"apply {machine.folder / 'plan'}", *words).code == 0
        found = machine("show web1").document["defined"]
        (change,) = plan.document["changes"]
        assert is_definition_of(found, change["after"])
        assert read_domain(found).uuid == plan.document["intent"]["uuid"]

    @pytest.mark.parametrize(
        "edit",
        [
            {"name": "qemu:///system web1"},
            {"name": f"{URI} web2"},
            {"subject": "domain/web2"},
            {"after": FOREIGN},
            {"after": "no XML"},
            {"kind": "driver"},
        ],
    )
    def test_a_forged_plan(self, machine: Machine, edit: dict[str, str]) -> None:
        session = machine.session()
        plan = DomainApi(session).definitions.plan_define(XML, connect=URI)
        (change,) = plan.changes
        forged = plan.model_copy(update={"changes": (change.model_copy(update=edit),)})
        with pytest.raises(BadDocument):
            session.apply(forged.model_copy(update={"steps": plan.steps}))
        assert sorted(machine.domains()) == ["test"]

    def test_a_stale_plan(self, machine: Machine) -> None:
        session = machine.session()
        plan = DomainApi(session).definitions.plan_define(XML, connect=URI)
        session.kernel.tell_libvirt(URI, "define", XML.replace("<vcpu>2<", "<vcpu>8<"))
        with pytest.raises(StalePlan):
            session.apply(plan)
        assert machine.domains()["web1"]["vcpus"] == 8

    def test_the_journal_has_all(self, machine: Machine, run: Run) -> None:
        machine.define(XML)
        entry = run(f"history show 1 --json --ledger {machine.ledger} --simulate {machine.host}").document
        assert entry["plan"]["intent"]["verb"] == "domain define"
        assert entry["plan"]["changes"][0]["name"] == f"{URI} web1"


class TestFailures:
    @pytest.fixture
    def defined(self, machine: Machine) -> str:
        machine.define(XML)
        return str(machine("show web1").document["defined"])

    @pytest.mark.parametrize("command", ["define", "undefine"])
    def test_refused(self, machine: Machine, defined: str, command: str) -> None:
        session = machine.session(Fault(1, "errno", 5))
        with pytest.raises(KernelRefused):
            session.apply(self.plan(session, command))
        assert machine("show web1").document["defined"] == defined
        assert machine.define(XML).document["result"] == "nothing to do"

    @pytest.mark.usefixtures("defined")
    @pytest.mark.parametrize("command", ["define", "undefine"])
    @pytest.mark.parametrize("forward", [True, False])
    def test_died_after_the_order(self, machine: Machine, command: str, forward: bool) -> None:
        session = machine.dying()
        with pytest.raises(SimulatedDeath):
            session.apply(self.plan(session, command))
        (outcome,) = machine.session().engine.recover(forward=forward)
        assert outcome.result == "already complete, closed"
        names = machine.domains()
        assert ("web1" in names) == (command == "define")
        assert command != "define" or names["web1"]["vcpus"] == 8

    @pytest.mark.parametrize("forward", [True, False])
    def test_died_before_the_order(self, machine: Machine, defined: str, forward: bool) -> None:
        session = machine.dying()
        with pytest.raises(SimulatedDeath):
            session.apply(self.plan(session, "define"))
        session.kernel.tell_libvirt(URI, "define", defined)  # as if the order had not been given
        (outcome,) = machine.session().engine.recover(forward=forward)
        assert outcome.result == ("done" if forward else "put back")
        assert machine.domains()["web1"]["vcpus"] == (8 if forward else 2)

    def test_somebody_else_was_faster(self, machine: Machine, defined: str) -> None:
        """What somebody defined after the crash stays, whichever way the change is recovered."""
        session = machine.dying()
        with pytest.raises(SimulatedDeath):
            session.apply(self.plan(session, "define"))
        theirs = defined.replace("<vcpu placement='static'>2<", "<vcpu placement='static'>1<").replace(
            "vcpu='1'", "vcpu='0'"
        )
        session.kernel.tell_libvirt(URI, "define", read_without_pins(theirs))
        (outcome,) = machine.session().engine.recover(forward=False)
        assert machine.domains()["web1"]["vcpus"] == 1
        assert outcome.notes[0].startswith("domain web1 was not put back, and is 1 vCPU, 4 GiB, 2 devices, document ")

    def test_libvirt_lost_it(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        """Verified means read again: the order returned, and the definition is not there."""
        session = sources.simulated(Session, str(machine.host), machine.ledger)
        session._settle = 0.0
        plan = DomainApi(session).definitions.plan_define(XML, connect=URI)
        monkeypatch.setattr("vfioctl.kernel.simulated.libvirt._keep", lambda *_: None)
        with pytest.raises(VerifyError, match=r"domain web1 should be 2 vCPUs, .*, and is not defined"):
            session.apply(plan)
        assert sorted(machine.domains()) == ["test"]

    def test_libvirt_stops_answering(self, machine: Machine, defined: str, monkeypatch: pytest.MonkeyPatch) -> None:
        session = machine.session()
        plan = self.plan(session, "define")

        def gone(*_: object) -> None:
            raise HostError("libvirt did not answer")

        with monkeypatch.context() as patch:
            patch.setattr("vfioctl.kernel.simulated.libvirt.tell", gone)
            patch.setattr(DomainDefinition, "restore", gone)
            with pytest.raises(Stuck):
                session.apply(plan)
        (outcome,) = machine.session().engine.recover(forward=False)
        assert outcome.result == "put back"
        assert machine("show web1").document["defined"] == defined

    @pytest.mark.parametrize("kind", ["hang", "hang-then-return"])
    def test_the_order_hangs(self, machine: Machine, defined: str, kind: str) -> None:
        """What libvirt did of it is unknown until somebody recovers; the journal stays open."""
        session = machine.session(Fault(1, kind))
        with pytest.raises(Stuck):
            session.apply(self.plan(session, "define"))
        refused = machine.define(XML.replace("<vcpu>2<", "<vcpu>6<"))
        assert (refused.code, refused.document["error"]["kind"]) == (4, "Unfinished")
        (outcome,) = machine.session().engine.recover(forward=False)
        assert outcome.result == "put back"
        assert machine("show web1").document["defined"] == defined
        assert machine.define(XML).document["result"] == "nothing to do"

    @staticmethod
    def plan(session: Session, command: str) -> Any:
        api = DomainApi(session).definitions
        if command == "define":
            return api.plan_define(XML.replace("<vcpu>2<", "<vcpu>8<"), connect=URI)
        return api.plan_undefine("web1", connect=URI)


def read_without_pins(xml: str) -> str:
    begin, end = xml.index("<cputune>"), xml.index("</cputune>") + len("</cputune>")
    return xml[:begin] + xml[end:]


class TestConnection:
    def test_a_simulated_host_has_none_by_itself(self, machine: Machine) -> None:
        refused = machine("list", connect="")
        assert (refused.code, refused.document["error"]["kind"]) == (3, "HostError")
        assert "qemu:///system" in refused.document["error"]["message"]

    def test_from_the_environment_and_the_configuration(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = machine.folder / "config.toml"
        file.write_text(f'[domain]\nconnect = "{URI}"\n')
        with monkeypatch.context() as patch:
            patch.setenv("VFIOCTL_CONFIG", str(file))
            assert machine("list", connect="").document["uri"] == URI
        with monkeypatch.context() as patch:
            patch.setenv("VFIOCTL_CONNECT", URI)
            assert machine("list", connect="").document["uri"] == URI
        file.write_text('[domain]\nconnect = "not a URI"\n')
        monkeypatch.setenv("VFIOCTL_CONFIG", str(file))
        assert machine("list", connect="").code == 2
        assert machine("list", connect="qemu:// /system").code == 2

    def test_two_libvirts_do_not_meet(self, machine: Machine, tmp_path: Path) -> None:
        """The URI is part of a change: recovery asks the libvirt that was told."""
        node = tmp_path / "node.xml"
        node.write_text("<node/>")
        assert machine("list", connect=f"test://{node}").document["domains"] == []

    def test_the_library_is_missing(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "libvirt", None)
        refused = machine("list")
        assert (refused.code, refused.document["error"]["kind"]) == (3, "MissingLibrary")
        assert "vfioctl[libvirt]" in refused.document["error"]["hint"]

    def test_names_are_completed(self, machine: Machine) -> None:
        machine.define(XML)
        words = f"vfioctl domain show -c {URI} --simulate {machine.host} w"
        environment = {**os.environ, "_VFIOCTL_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": words}
        program = [sys.executable, "-m", "vfioctl.app"]
        done = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert '"web1":"defined"' in done.stdout, done.stdout + done.stderr
        assert "test" not in done.stdout


class TestHostile:
    """Names and documents may come from anybody."""

    def test_a_name(self, machine: Machine) -> None:
        tree = parse_host(machine.host.read_text(), "host")
        name = "a\x1b[2J\u202eb"
        tree.put("/etc/libvirt/qemu/evil.xml", FOREIGN.replace(">db<", f">{name}<"))
        tree.put("/etc/libvirt/qemu/worse.xml", "<domain")
        machine.host.write_text(form(tree))
        for line in ("list", "show worse", "show evil"):
            shown = machine(line, as_json=False)
            assert shown.code == 0
            assert not {"\x1b", "\u202e"} & set(shown.out + shown.err)
        assert machine.domains()["worse"]["unknown"] != ""

    @pytest.mark.parametrize("text", ["-1", "9" * 30, "x", "", "0x10", "1 2"])
    def test_numbers(self, text: str) -> None:
        document = XML.replace("<vcpu>2<", f"<vcpu>{text}<").replace("'GiB'>4<", f"'{text or 'x'}'>{text}<")
        assert read_domain(document.replace("nodeset='1'", f"nodeset='{text}'")).vcpus is None


class TestDocuments:
    def test_marked(self) -> None:
        text = marked(XML, uuid=UUID, claim="1a2b3c4d")
        found = read_domain(text)
        assert (found.mark.is_own, found.mark.claim, found.uuid, found.mark.template) == (True, "1a2b3c4d", UUID, "")
        assert list(found.host_devices) == DEVICES
        assert len(found.mark.digest) == 16
        assert marked(text, uuid=OTHER) == text
        assert marked(text, uuid=OTHER, claim="ffffffff") != text
        assert "urn:other" in text
        (metadata,) = parse(text).root.findall("metadata")
        assert len(metadata) == 2

    def test_compared(self) -> None:
        wanted = marked(XML, uuid=UUID)
        assert is_definition_of(wanted, wanted)
        assert is_definition_of("", "")
        assert not is_definition_of("", wanted)
        assert not is_definition_of(wanted, "")
        assert not is_definition_of(marked(XML.replace("restart", "preserve"), uuid=UUID), wanted)
        more = wanted.replace("<devices>", "<devices><controller type='usb' index='0'/>")
        assert is_definition_of(more, wanted)
        assert is_still(more, wanted)
        assert is_still(wanted.replace("machine='q35'", "machine='pc-q35-7.2'"), wanted)
        disk = "<disk type='file' device='disk'><source file='/x'/><target dev='vda' bus='virtio'/></disk>"
        assert not is_still(wanted.replace("<devices>", f"<devices>{disk}"), wanted)
        assert not is_still(wanted.replace("restart", "preserve"), wanted)

    def test_what_libvirt_fills_in_is_no_difference(self) -> None:
        cells = "<cpu><numa><cell id='0' cpus='0-1' memory='2' unit='GiB'/></numa></cpu>"
        wanted = marked(XML.replace("<memory unit='GiB'>4</memory><vcpu>2</vcpu>", cells), uuid=UUID)
        filled = wanted.replace("<cpu>", "<memory unit='KiB'>2097152</memory><vcpu placement='static'>2</vcpu><cpu>")
        assert is_definition_of(filled, wanted)

    def test_described(self) -> None:
        change = Change(kind="domain", name=f"{URI} web1", subject="domain/web1", before=FOREIGN, after="<x/>")
        assert DomainDefinition().describe(change) == (
            "domain web1",
            "1 vCPU, 1 MiB, 0 devices, not of vfioctl",
            "something else",
        )


@pytest.mark.parametrize("command", ["define", "undefine", "list", "show"])
def test_examples_in_the_help_work(command: str, tmp_path: Path) -> None:
    app = App()
    importlib.import_module(MODULES[command]).add_to(app)
    found = next(each for each in app.registered_commands if (each.name or each.callback.__name__) == command)  # type: ignore[union-attr]
    lines = (found.epilog or "").splitlines()[1:]
    assert lines
    program_in(tmp_path)
    (tmp_path / "ml1.xml").write_text(XML.replace("web1", "ml1"))
    first = ["vfioctl domain define ml1.xml >/dev/null"] if command == "undefine" else []
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "VFIOCTL_CONNECT": URI,
    }
    for line in lines:
        script = "\n".join(("set -eu -o pipefail", *first, line))
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"


def test_pages(machine: Machine, terminal: Run, golden: Golden) -> None:
    told = ""
    options = ["--simulate", str(machine.host), "--ledger", str(machine.ledger), "--connect", URI]
    (machine.folder / "web1.xml").write_text(XML.replace("<name>web1</name>", f"<name>web1</name><uuid>{UUID}</uuid>"))
    (machine.folder / "db.xml").write_text(FOREIGN)
    session = machine.session()
    session.kernel.tell_libvirt(URI, "define", FOREIGN)
    for line in (
        "define web1.xml --dry-run",
        "define web1.xml --yes --quiet",
        "define web1.xml --yes",
        "define db.xml",
        "list",
        "show web1",
        "undefine web1 --dry-run",
        "undefine db",
        "undefine web1 --yes --quiet",
        "show web1",
    ):
        words = [str(machine.folder / word) if word.endswith(".xml") else word for word in line.split()]
        answer = terminal("domain", *words, *options)
        told += f"$ vfioctl domain {line}\n{answer.err}{answer.out}[exit code {answer.code}]\n\n"
    told = told.replace(str(machine.host), "HOST").replace(str(machine.ledger), "LEDGER")
    golden("domains/session.txt", timeless(told))
    document = machine("list").document | {"libvirt": 9000000}
    golden("domains/list.json", json.dumps(document, indent=1) + "\n")
