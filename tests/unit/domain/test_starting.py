"""`vfioctl domain start` and `stop`, and libvirt's hook: claims, devices and domains, on a simulated host."""

from __future__ import annotations

import io
import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.machines import copy, original
from tests.schema import schema_problems
from tests.unit.conftest import PROGRAM, Answer, Golden, Run, answered, timeless
from vfioctl.claims.api import ClaimsApi
from vfioctl.claims.model.claim import LABEL
from vfioctl.core.events import EventKind
from vfioctl.domain.api import DomainApi
from vfioctl.domain.document.needs import needs_of
from vfioctl.domain.model.hook import SCRIPT, is_script, script
from vfioctl.domain.model.libvirt import checked_uri, is_elsewhere, known_as
from vfioctl.domain.run.claims import RunClaims
from vfioctl.domain.run.hook import Hook
from vfioctl.domain.run.lifecycle import Lifecycle
from vfioctl.errors import (
    BadDocument,
    BadSpec,
    Busy,
    Cancelled,
    ClaimConflict,
    DeviceInUse,
    NoCapacity,
    StalePlan,
    VerifyError,
    VfioctlError,
)
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.recorded.host import read_tree
from vfioctl.kernel.recorded.tree import form
from vfioctl.kernel.simulated.faults import Fault, SimulatedDeath
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.placement.model.claims import Hugepages
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.session import Session

pytest.importorskip("libvirt")
URI, SYSTEM = "test:///default", "qemu:///system"
GPU = "0000:1b:00.0"
XML = """<domain type='kvm'><name>web1</name>
  <metadata>{mark}</metadata>
  <memory unit='GiB'>2</memory>
  <memoryBacking><hugepages><page size='1' unit='GiB'/></hugepages></memoryBacking><vcpu>3</vcpu>
  <cputune><vcpupin vcpu='0' cpuset='2'/><vcpupin vcpu='1' cpuset='3'/><vcpupin vcpu='2' cpuset='4-5'/></cputune>
  <numatune><memory mode='strict' nodeset='0'/></numatune>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <devices><hostdev mode='subsystem' type='pci' managed='{managed}'>
    <source><address domain='0' bus='0x1b' slot='0' function='0'/></source></hostdev></devices></domain>"""
MARK = "<vfioctl:allocation xmlns:vfioctl='urn:vfioctl:1'/>"


def xml(name: str = "web1", *, managed: str = "no", mark: str = MARK) -> str:
    return XML.format(managed=managed, mark=mark).replace("web1", name)


class Machine:
    """A simulated host in a file, with libvirt's test driver."""

    def __init__(self, run: Run, folder: Path, name: str = "hgx8") -> None:
        self.run, self.host = run, folder / f"{name}.host"
        self.ledger, self.file = folder / "ledger.db", folder / "a.xml"
        self.host.write_text(form(copy(original(name))))

    def __call__(self, *words: str, as_json: bool = True, connect: bool = True) -> Answer:
        more = ["--simulate", str(self.host), "--ledger", str(self.ledger), *(["--json"] * as_json)]
        return self.run(*words, *more, *(["--connect", URI] if connect else []))

    def define(self, text: str) -> None:
        self.file.write_text(text)
        done = self("domain", "define", str(self.file), "--yes", "--replace")
        assert done.code == 0, done.err

    def session(self, *faults: Fault) -> Session:
        return Session(Simulated(read_tree(self.host), "simulated", file=self.host, faults=faults), self.ledger)

    def claims(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self("claim", "list", connect=False).document["claims"]
        return found

    def driver(self, address: str = GPU) -> str | None:
        return Host(self.session()).inventory().by_address[PciAddress(address)].driver

    def state(self, name: str = "web1") -> str:
        domains = {each["name"]: each["state"] for each in self("domain", "list").document["domains"]}
        return str(domains[name])


@pytest.fixture
def machine(run: Run, tmp_path: Path) -> Machine:
    machine = Machine(run, tmp_path)
    machine.define(xml())
    return machine


class TestStart:
    def test_claims_what_the_domain_needs_and_stop_gives_it_back(self, machine: Machine) -> None:
        started = machine("domain", "start", "web1", "--yes")
        assert started.code == 0, started.err
        assert schema_problems(started.document, "domain-start") == []
        (claim,) = machine.claims()
        assert started.document["claims"] == [claim["id"]]
        assert (claim["owner"], claim["state"], claim["labels"]) == ("vm/web1", "held", {LABEL: URI})
        assert claim["cpus"] == "2-3", "the CPUs that one vCPU has for itself, and not those that two may share"
        assert claim["hugepages"] == [{"node": 0, "size": 1 << 30, "pages": 2}]
        assert (machine.driver(), machine.state()) == ("vfio-pci", "running")
        again = machine("domain", "start", "web1", "--yes").document
        assert (again["result"], again["claims"]) == ("runs already", [claim["id"]])

        stopped = machine("domain", "stop", "web1", "--yes")
        assert schema_problems(stopped.document, "domain-stop") == []
        assert (stopped.code, stopped.document["result"], stopped.document["claims"]) == (0, "stopped", [claim["id"]])
        assert (machine.claims(), machine.driver(), machine.state()) == ([], "nvidia", "defined")
        assert machine("domain", "stop", "web1", "--yes").document["result"] == "does not run"

    def test_dry_runs_show_it_and_change_nothing(self, machine: Machine) -> None:
        before = machine.host.read_text()
        shown = machine("domain", "start", "web1", "--dry-run")
        assert schema_problems(shown.document, "domain-start-preview") == []
        assert shown.document["placement"]["devices"] == [GPU]
        assert shown.document["plan"]["intent"]["verb"] == "bind"
        assert "Start domain web1" in machine("domain", "start", "web1", "--dry-run", as_json=False).out
        assert machine("domain", "stop", "web1", "--dry-run").document["result"] == "does not run"
        assert (machine.host.read_text(), machine.claims()) == (before, [])

    @pytest.mark.parametrize("kind", [EventKind.BEGIN, EventKind.VERIFY, EventKind.CLOSED])
    def test_a_cancelled_start_gives_back_what_was_claimed(self, machine: Machine, kind: EventKind) -> None:
        """Also when the devices are bound, and the domain is to be started next."""
        seen: list[EventKind] = []
        with pytest.raises(Cancelled) as caught:
            Lifecycle(machine.session()).start(
                "web1", connect=URI, progress=lambda event: seen.append(event.kind), cancel=lambda: kind in seen
            )
        if kind == EventKind.CLOSED:
            assert caught.value.restored == "its devices are what they were before"
        assert (machine.claims(), machine.driver(), machine.state()) == ([], "nvidia", "defined")

    def test_a_claim_that_was_there_serves_the_domain_and_stays(self, machine: Machine) -> None:
        words = ("claim", "create", "--owner", "vm/web1", "--device", GPU, "--yes")
        own = machine(*words, connect=False).document["id"]
        started = machine("domain", "start", "web1", "--yes").document
        assert started["kept"] == [own]
        (other,) = started["claims"]
        devices = {claim["id"]: claim["devices"] for claim in machine.claims()}
        assert devices[other] == [], "its CPUs and hugepages only"
        machine("domain", "stop", "web1", "--yes")
        assert [claim["id"] for claim in machine.claims()] == [own]
        assert machine.driver() == "vfio-pci"

    def test_a_device_of_somebody_else_is_refused_by_name(self, machine: Machine) -> None:
        machine("claim", "create", "--owner", "vm/db", "--device", GPU, "--yes", connect=False)
        refused = machine("domain", "start", "web1", "--yes")
        assert (refused.code, refused.document["error"]["kind"]) == (4, "ClaimConflict")
        assert "of vm/db" in refused.document["error"]["message"]
        assert machine("domain", "start", "web1", "--dry-run").code == 4
        assert ([claim["owner"] for claim in machine.claims()], machine.state()) == (["vm/db"], "defined")

    def test_check_tells_of_cpus_that_another_domain_pins(self, machine: Machine) -> None:
        machine.define(xml("web2"))
        found = machine("domain", "check", "web2").document["findings"]
        reasons = [each["reason"] for each in found if each["rule"] == "host-cpu-shared"]
        assert reasons == ["CPU 2-3 is pinned by domain web1 too"]

    def test_cpus_and_hugepages_of_somebody_else_are_refused(self, machine: Machine) -> None:
        host = Host(machine.session())
        cpu = ClaimRequest(owner="vm/db", exact_cpus=(3,))
        claim = host.claims.create(cpu).claim
        for words in (("--dry-run",), ("--yes",)):
            refused = machine("domain", "start", "web1", *words)
            assert refused.code == 4
            assert f"claim {claim.id} of vm/db" in refused.document["error"]["message"]
        with pytest.raises(ClaimConflict, match="cpu 3"):
            host.claims.create(ClaimRequest(owner="vm/c", exact_cpus=(3,)))
        host.claims.release(claim.id)
        every = ClaimRequest(owner="vm/db", exact_hugepages=(Hugepages(0, 1 << 30, 100_000),))
        with pytest.raises(NoCapacity, match=r"node 0 has [0-9]+ free hugepages of 1 GiB, and 100000 are needed"):
            host.claims.create(every)

    def test_the_claim_of_a_domain_that_runs_is_listed(self, machine: Machine) -> None:
        def listed() -> str:
            (domain,) = (each for each in machine("domain", "list").document["domains"] if each["name"] == "web1")
            assert machine("domain", "show", "web1").document["domain"]["claim"] == domain["claim"]
            return str(domain["claim"])

        assert listed() == ""
        (claim,) = machine("domain", "start", "web1", "--yes").document["claims"]
        assert listed() == claim
        assert machine("domain", "stop", "web1", "--yes").code == 0
        assert listed() == ""

    def test_another_machine_s_libvirt_is_refused(self, machine: Machine) -> None:
        with pytest.raises(BadSpec, match="another machine"):
            DomainApi(machine.session()).lifecycle.start("web1", connect="qemu+ssh://host/system")
        assert not any(map(is_elsewhere, (URI, SYSTEM, "qemu:///session?socket=/run/x")))

    @pytest.mark.parametrize(
        "uri",
        [
            *("qemu+ext:///system?command=/tmp/x", "qemu+ssh://host/system?netcat=/tmp/x", "qemu+ext:///system"),
            "qemu+ssh://host/system?no_verify=1&command=/tmp/x",
        ],
    )
    def test_a_uri_that_names_a_program_is_refused(self, uri: str) -> None:
        """libvirt's client would run it; a saved plan of another user has a URI, and root applies it."""
        with pytest.raises(BadSpec, match="run a program"):
            checked_uri(uri)

    def test_a_domain_without_devices_needs_no_claim(self, machine: Machine) -> None:
        machine.define("<domain type='kvm'><name>my vm</name><memory>1024</memory><os><type>hvm</type></os></domain>")
        assert machine("domain", "start", "my vm", "--yes").document["claims"] == []
        assert machine("domain", "stop", "my vm", "--yes").document["result"] == "stopped"

    def test_of_a_domain_that_no_owner_can_be_is_refused(self, machine: Machine) -> None:
        machine.define(xml("my vm"))
        assert machine("domain", "start", "my vm", "--yes").code == 2

    def test_a_domain_that_was_stopped_elsewhere_gives_back_what_it_had(self, machine: Machine) -> None:
        machine("domain", "start", "web1", "--yes")
        machine.session().kernel.tell_libvirt(URI, "destroy", "web1")
        stopped = machine("domain", "stop", "web1", "--yes").document
        assert (stopped["result"], len(stopped["claims"])) == ("does not run", 1)
        assert (machine.claims(), machine.driver()) == ([], "nvidia")

    def test_what_was_made_for_a_run_is_not_forgotten_with_the_domain(self, machine: Machine) -> None:
        machine("domain", "start", "web1", "--yes")
        kernel = machine.session().kernel
        kernel.tell_libvirt(URI, "destroy", "web1")
        refused = machine("domain", "undefine", "web1", "--yes")
        assert refused.code == 4, refused.err
        assert "still holds what it had" in refused.out
        assert f"vfioctl domain stop web1 --connect {URI}" in refused.out
        kernel.tell_libvirt(URI, "undefine", "web1")
        assert machine("domain", "stop", "web1", "--dry-run").document["result"] == "does not run"
        stopped = machine("domain", "stop", "web1", "--yes")
        assert (stopped.code, len(stopped.document["claims"])) == (0, 1), stopped.err
        assert (machine.claims(), machine.driver()) == ([], "nvidia")
        assert machine("domain", "stop", "web1", "--yes").code == 2

    def test_it_does_not_run_without_its_claims(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        assert machine("bind", GPU, "--yes", connect=False).code == 0, "so that releasing its claim changes no device"
        session, other = machine.session(), DomainApi(machine.session())
        tell = session.kernel.tell_libvirt

        def stopped_meanwhile(uri: str, order: str, name: str) -> object:
            if order == "start":
                assert len(other.lifecycle.stop(name, connect=URI).claims) == 1
            return tell(uri, order, name)

        monkeypatch.setattr(session.kernel, "tell_libvirt", stopped_meanwhile)
        with pytest.raises(ClaimConflict, match="were released while it started"):
            DomainApi(session).lifecycle.start("web1", connect=URI)
        assert (machine.claims(), machine.state()) == ([], "defined")

    def test_the_claim_of_its_namesake_at_another_libvirt_does_not_serve(self, machine: Machine) -> None:
        machine("domain", "start", "web1", "--yes")
        with pytest.raises(ClaimConflict, match="belongs to claim"):
            DomainApi(machine.session()).hook.answer("web1", ("prepare", "begin"), xml().encode())
        DomainApi(machine.session()).hook.answer("web1", ("release", "end"), xml().encode())
        assert len(machine.claims()) == 1

    def test_a_guest_that_does_not_shut_down_keeps_its_devices(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine("domain", "start", "web1", "--yes")
        session = machine.session()
        monkeypatch.setattr(session.kernel, "tell_libvirt", lambda *_: None)
        with pytest.raises(DeviceInUse, match=r"web1 still runs, 0\.1 s after"):
            DomainApi(session).lifecycle.stop("web1", connect=URI, timeout=0.1)
        assert (len(machine.claims()), machine.driver()) == (1, "vfio-pci")


class TestMeanwhile:
    """What other processes, and the guest, do between two steps of one command."""

    def test_another_process_that_starts_it_too_keeps_its_claim(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert machine("bind", GPU, "--yes", connect=False).code == 0, "so that releasing its claim changes no device"
        other, find, verify = DomainApi(machine.session()).lifecycle, Lifecycle._find, RunClaims._verify

        def faster(starting: Lifecycle, name: str, connect: str) -> object:
            found = find(starting, name, connect)
            monkeypatch.setattr(Lifecycle, "_find", find)
            assert len(other.start(name, connect=connect).made) == 1
            monkeypatch.setattr(RunClaims, "_verify", fails)
            return found

        def fails(*_: object) -> None:
            monkeypatch.setattr(RunClaims, "_verify", verify)
            raise VerifyError("it is not ready")

        monkeypatch.setattr(Lifecycle, "_find", faster)
        with pytest.raises(VerifyError):
            DomainApi(machine.session()).lifecycle.start("web1", connect=URI)
        assert (len(machine.claims()), machine.state()) == (1, "running")

    def test_of_two_starts_one_is_told_of_the_other(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        create, other = ClaimsApi.create, DomainApi(machine.session()).lifecycle

        def slower(*words: Any, **more: Any) -> object:
            monkeypatch.setattr(ClaimsApi, "create", create)
            other.start("web1", connect=URI)
            return create(*words, **more)

        monkeypatch.setattr(ClaimsApi, "create", slower)
        with pytest.raises(Busy, match="another vfioctl is starting domain web1"):
            DomainApi(machine.session()).lifecycle.start("web1", connect=URI)
        assert (len(machine.claims()), machine.state()) == (1, "running")

    def test_a_domain_that_was_changed_does_not_start(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        take = RunClaims.take

        def changed(*words: Any, **more: Any) -> object:
            held = take(*words, **more)
            machine.define(xml().replace("0x1b", "0x43"))
            return held

        monkeypatch.setattr(RunClaims, "take", changed)
        with pytest.raises(StalePlan, match="web1 was changed while its devices were bound"):
            DomainApi(machine.session()).lifecycle.start("web1", connect=URI)
        assert (machine.claims(), machine.driver(), machine.state()) == ([], "nvidia", "defined")

    @pytest.mark.parametrize("force", [True, False])
    def test_a_guest_that_ends_by_itself_is_stopped(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch, force: bool
    ) -> None:
        assert machine("domain", "start", "web1", "--yes").code == 0
        session = machine.session()
        tell = session.kernel.tell_libvirt

        def ended(uri: str, order: str, name: str) -> object:
            tell(uri, "destroy", name)
            return tell(uri, order, name)

        monkeypatch.setattr(session.kernel, "tell_libvirt", ended)
        assert len(DomainApi(session).lifecycle.stop("web1", connect=URI, force=force).claims) == 1
        assert (machine.claims(), machine.driver()) == ([], "nvidia")


class TestOver:
    """Claims that were made for a run, after it has ended and nobody told."""

    def test_is_foreseen_and_asked_before_anything_is_changed(self, machine: Machine) -> None:
        assert machine("domain", "start", "web1", "--yes").code == 0
        (before,) = machine.claims()
        assert machine.run("hosts", "reboot", str(machine.host)).code == 0
        own = machine("domain", "start", "web1", "--dry-run").document
        assert schema_problems(own, "domain-start-preview") == []
        assert (own["kept"], own["over"], own["plan"]) == ([before["id"]], [], None)
        assert [plan["intent"]["verb"] for plan in own["before"]] == ["bind"]
        machine.define(xml("web2"))
        foreseen = machine("domain", "start", "web2", "--dry-run").document
        assert (foreseen["over"], foreseen["before"]) == ([before["id"]], [])
        assert foreseen["plan"]["intent"]["verb"] == "bind"
        options = ["--simulate", str(machine.host), "--ledger", str(machine.ledger), "--connect", URI]
        for name in ("web1", "web2"):
            program = [*PROGRAM, "domain", "start", name, *options]
            code, _, shown = answered(program, "n\n")
            assert (code, "not confirmed: nothing was changed" in shown) == (1, True), shown
        (kept,) = machine.claims()
        assert kept["stale"].startswith("made in another boot")
        assert (kept | {"stale": ""}, machine.driver()) == (before, "nvidia")

    def test_of_a_domain_that_has_ended_is_released_by_reconcile(self, machine: Machine) -> None:
        assert machine("domain", "start", "web1", "--yes").code == 0
        assert machine("reconcile", connect=False).document["differences"] == []
        machine.session().kernel.tell_libvirt(URI, "destroy", "web1")
        assert machine("reconcile", connect=False).document["differences"] == [], "it may be about to start"
        with sqlite3.connect(machine.ledger) as ledger:
            ledger.execute("UPDATE claim SET since = '2026-01-01T00:00:00.000+00:00'")
        (found,) = machine("reconcile", connect=False).document["differences"]
        assert (found["kind"], found["fix"]) == ("owner gone", "release")
        assert found["words"] == "it was made for a run of web1, which is over"
        assert machine("reconcile", "--fix", "--yes", connect=False).code == 0
        assert (machine.claims(), machine.driver()) == ([], "nvidia")

    def test_is_not_known_if_its_libvirt_does_not_answer(self, machine: Machine) -> None:
        assert machine("domain", "start", "web1", "--yes").code == 0
        with sqlite3.connect(machine.ledger) as ledger:
            ledger.execute("UPDATE claim SET since = '2026-01-01T00:00:00.000+00:00'")
            ledger.execute("UPDATE claim SET labels = ?", (json.dumps({LABEL: "test:////nowhere.xml"}),))
        compared = machine("reconcile", connect=False).document
        assert compared["differences"] == []
        assert any("test:////nowhere.xml" in each for each in compared["unknown"]), compared
        assert len(machine.claims()) == 1


class TestVendorVgpu:
    """A VF of NVIDIA's driver that has a vGPU type is what a guest gets, and stays as it is."""

    VF, OF_GPU = "0000:41:00.4", "bus='0x1b' slot='0' function='0'"
    FOREIGN, EMPTY = "bus='0x41' slot='0' function='4'", "bus='0x41' slot='0' function='6'"

    @pytest.fixture
    def machine(self, run: Run, tmp_path: Path) -> Machine:
        return Machine(run, tmp_path, "l40s")

    def xml(self, vf: str) -> str:
        hugepages = "<memoryBacking><hugepages><page size='1' unit='GiB'/></hugepages></memoryBacking>"
        return xml().replace(hugepages, "").replace(self.OF_GPU, vf)

    def vgpus(self, machine: Machine) -> list[str]:
        return [each["id"] for each in machine("vgpu", "list", connect=False).document["instances"]]

    def test_start_claims_it_as_it_is(self, machine: Machine) -> None:
        machine.define(self.xml(self.FOREIGN))
        assert machine("domain", "check", "web1").code == 0
        before = self.vgpus(machine)
        foreseen = machine("domain", "start", "web1", "--dry-run").document
        assert (foreseen["placement"]["devices"], foreseen["plan"]) == ([self.VF], None)
        started = machine("domain", "start", "web1", "--yes")
        assert started.code == 0, started.err
        assert ([each["address"] for each in machine.claims()[0]["devices"]], machine.state()) == ([self.VF], "running")
        assert machine("reconcile", connect=False).code == 0
        assert machine("domain", "stop", "web1", "--yes").code == 0
        assert (machine.claims(), machine.driver(self.VF), self.vgpus(machine)) == ([], "nvidia", before)

    def test_of_a_claim_that_created_it_serves_the_domain_and_stays(self, machine: Machine) -> None:
        made = machine("claim", "create", "--owner", "vm/web1", "--vgpu", "L40S-12Q", "--yes", connect=False).document
        machine.define(self.xml(self.EMPTY))
        assert machine("domain", "start", "web1", "--yes").document["kept"] == [made["id"]]
        machine("domain", "stop", "web1", "--yes")
        assert [each["id"] for each in machine.claims()] == [made["id"]]
        assert "0000:41:00.6" in self.vgpus(machine)

    def test_the_hook_does_the_same(self, machine: Machine) -> None:
        hook, text, before = DomainApi(machine.session()).hook, self.xml(self.FOREIGN).encode(), self.vgpus(machine)
        hook.answer("web1", ("prepare", "begin"), text)
        assert (len(machine.claims()), machine.driver(self.VF)) == (1, "nvidia")
        hook.answer("web1", ("release", "end"), text)
        assert (machine.claims(), self.vgpus(machine)) == ([], before)

    def test_a_vf_without_a_type_is_refused(self, machine: Machine) -> None:
        machine.define(self.xml(self.EMPTY))
        checked = machine("domain", "check", "web1")
        assert "0000:41:00.6 is no vGPU" in checked.out
        for words in (("--dry-run",), ("--yes",)):
            refused = machine("domain", "start", "web1", *words)
            assert refused.code == 3
            assert refused.document["error"]["next_command"].startswith(
                "vfioctl vgpu create TYPE --parent 0000:41:00.6"
            )
        assert (machine.claims(), machine.driver("0000:41:00.6")) == ([], "nvidia")


class TestFailures:
    """Each write of a start fails, hangs, or is the last one: then nothing is left, or one command leaves nothing."""

    WRITES = 7
    """Of a start on this host: six of the binding, and the order to libvirt."""

    def test_are_of_every_write(self, machine: Machine) -> None:
        session = machine.session()
        DomainApi(session).lifecycle.start("web1", connect=URI)
        assert isinstance(session.kernel, Simulated)
        assert len(session.kernel.writes) == self.WRITES
        assert session.kernel.writes[-1][0] == "libvirt:start"

    @pytest.mark.parametrize("at", range(1, WRITES + 1))
    def test_leave_neither_a_claim_nor_a_bound_device(self, machine: Machine, at: int) -> None:
        session = machine.session(Fault(at, "errno", 5))
        try:
            DomainApi(session).lifecycle.start("web1", connect=URI)
        except VfioctlError:
            assert (machine.claims(), machine.driver(), machine.state()) == ([], "nvidia", "defined")
        else:  # a step that may fail
            assert machine.state() == "running"

    @pytest.mark.parametrize("at", range(1, WRITES + 1))
    def test_after_a_crash_stop_gives_everything_back(self, machine: Machine, at: int) -> None:
        with pytest.raises(SimulatedDeath):
            DomainApi(machine.session(Fault(at, "die"))).lifecycle.start("web1", connect=URI)
        machine("recover", "--yes", connect=False)
        stopped = machine("domain", "stop", "web1", "--yes")
        assert stopped.code == 0, stopped.err
        assert (machine.claims(), machine.driver(), machine.state()) == ([], "nvidia", "defined")
        assert machine("domain", "start", "web1", "--yes").code == 0

    @pytest.mark.parametrize("at", range(1, WRITES + 1))
    def test_after_a_crash_start_starts_it(self, machine: Machine, at: int) -> None:
        with pytest.raises(SimulatedDeath):
            DomainApi(machine.session(Fault(at, "die"))).lifecycle.start("web1", connect=URI)
        machine("recover", "--yes", connect=False)
        machine("reconcile", "--fix", "--yes", connect=False)
        assert machine("domain", "start", "web1", "--yes").code == 0
        assert (len(machine.claims()), machine.driver(), machine.state()) == (1, "vfio-pci", "running")


class TestHook:
    @pytest.fixture
    def hook(self, machine: Machine) -> Any:
        return DomainApi(machine.session()).hook

    def test_prepares_and_gives_back_a_domain_of_ours(self, machine: Machine, hook: Any) -> None:
        hook.answer("web1", ("prepare", "begin"), xml().encode())
        (claim,) = machine.claims()
        assert (claim["owner"], claim["labels"], machine.driver()) == ("vm/web1", {LABEL: SYSTEM}, "vfio-pci")
        hook.answer("web1", ("prepare", "begin"), xml().encode())
        hook.answer("web1", ("reconnect", "begin"), xml().encode())
        assert len(machine.claims()) == 1
        for operation in (("start", "begin"), ("started", "begin"), ("stopped", "end"), ("migrate", "begin")):
            hook.answer("web1", operation, b"not even XML")
        assert len(machine.claims()) == 1
        hook.answer("web1", ("release", "end"), xml().encode())
        assert (machine.claims(), machine.driver()) == ([], "nvidia")
        hook.answer("web1", ("release", "end"), xml().encode())

    @pytest.mark.parametrize("managed", ["yes", "no"])
    def test_claims_for_domains_of_others_what_they_have_as_it_is(
        self, machine: Machine, hook: Any, managed: str
    ) -> None:
        text = xml(managed=managed, mark="").encode()
        hook.answer("web1", ("prepare", "begin"), text)
        (claim,) = machine.claims()
        assert (claim["owner"], claim["cpus"], machine.driver()) == ("vm/web1", "", "nvidia")
        hook.answer("web1", ("release", "end"), text)
        assert machine.claims() == []

    @pytest.mark.parametrize(("owner", "starts"), [("vm/db", False), ("pod/a/b/c", False), ("user/alice", True)])
    def test_refuses_domains_of_others_what_another_guest_has(
        self, machine: Machine, hook: Any, owner: str, starts: bool
    ) -> None:
        words = ("claim", "create", "--owner", owner, "--device", GPU, "--no-bind", "--yes")
        assert machine(*words, connect=False).code == 0
        text = xml(managed="yes", mark="").encode()
        if starts:
            hook.answer("web1", ("prepare", "begin"), text)
        else:
            with pytest.raises(ClaimConflict, match=f"{GPU} belongs to claim .* of {owner}"):
                hook.answer("web1", ("prepare", "begin"), text)
        assert [claim["owner"] for claim in machine.claims()] == [owner]

    def test_refuses_domains_of_others_what_a_namesake_at_another_libvirt_has(
        self, machine: Machine, hook: Any
    ) -> None:
        machine("domain", "start", "web1", "--yes")
        before = machine.claims()
        with pytest.raises(ClaimConflict, match=f"{GPU} belongs to claim .* of vm/web1 at {URI}"):
            hook.answer("web1", ("prepare", "begin"), xml(managed="yes", mark="").encode())
        assert machine.claims() == before

    def test_after_a_power_cut_the_claim_of_the_last_boot_serves_again(self, machine: Machine, hook: Any) -> None:
        hook.answer("web1", ("prepare", "begin"), xml().encode())
        (before,) = machine.claims()
        assert machine.run("hosts", "reboot", str(machine.host)).code == 0
        assert machine.driver() == "nvidia"
        again = DomainApi(machine.session()).hook
        again.answer("web1", ("prepare", "begin"), xml().encode())
        (claim,) = machine.claims()
        assert (claim["id"], machine.driver()) == (before["id"], "vfio-pci")
        again.answer("web1", ("release", "end"), xml().encode())
        assert (machine.claims(), machine.driver()) == ([], "nvidia")

    @pytest.mark.parametrize("mark", [MARK, ""])
    def test_what_a_domain_had_in_another_boot_is_for_others(self, machine: Machine, hook: Any, mark: str) -> None:
        hook.answer("web1", ("prepare", "begin"), xml(mark=mark).encode())
        assert machine.run("hosts", "reboot", str(machine.host)).code == 0
        machine.define(xml("web2"))
        foreseen = machine("domain", "start", "web2", "--dry-run")
        assert foreseen.code == 0, foreseen.err
        DomainApi(machine.session()).hook.answer("web2", ("prepare", "begin"), xml("web2", mark=mark).encode())
        assert [each["owner"] for each in machine.claims()] == ["vm/web2"]

    def test_what_it_does_not_need_stays_another_s(self, machine: Machine, hook: Any) -> None:
        """Which brings back what that one had, its vGPUs too, when it starts."""
        hook.answer("web1", ("prepare", "begin"), xml().encode())
        assert machine.run("hosts", "reboot", str(machine.host)).code == 0
        apart = (
            xml("web2").replace("0x1b", "0x43").replace("cpuset='2'", "cpuset='6'").replace("cpuset='3'", "cpuset='7'")
        )
        DomainApi(machine.session()).hook.answer("web2", ("prepare", "begin"), apart.encode())
        assert sorted(each["owner"] for each in machine.claims()) == ["vm/web1", "vm/web2"]

    def test_what_a_guest_has_from_another_boot_is_not(self, machine: Machine, hook: Any) -> None:
        hook.answer("web1", ("prepare", "begin"), xml(mark="").encode())
        (before,) = machine.claims()
        assert machine.run("hosts", "reboot", str(machine.host)).code == 0
        again = DomainApi(machine.session()).hook
        again.answer("web1", ("prepare", "begin"), xml(mark="").encode())  # it is started in this boot
        with pytest.raises(ClaimConflict, match="of vm/web1"):
            again.answer("web2", ("prepare", "begin"), xml("web2", mark="").encode())
        (claim,) = machine.claims()
        assert (claim["owner"], claim["id"] != before["id"]) == ("vm/web1", True)

    def test_what_a_domain_has_no_more_is_given_back(self, machine: Machine, hook: Any) -> None:
        hook.answer("web1", ("prepare", "begin"), xml().encode())
        moved = xml().replace("0x1b", "0x43")
        hook.answer("web1", ("prepare", "begin"), moved.encode())  # nobody told that it had ended
        (claim,) = machine.claims()
        assert [each["address"] for each in claim["devices"]] == ["0000:43:00.0"]
        assert (machine.driver(), machine.driver("0000:43:00.0")) == ("nvidia", "vfio-pci")

    def test_two_domains_of_others_may_share_a_card(self, run: Run, tmp_path: Path) -> None:
        """Its functions are in groups of their own."""
        machine = Machine(run, tmp_path, "workstation")
        for name, function in (("usb", "3"), ("sound", "4")):
            place = f"bus='0x0c' slot='0' function='{function}'"
            text = xml(name, managed="yes", mark="").replace("bus='0x1b' slot='0' function='0'", place)
            hook = DomainApi(machine.session()).hook
            for operation in (("prepare", "begin"), ("reconnect", "begin")):
                hook.answer(name, operation, text.encode())
        found = {each["owner"]: [device["address"] for device in each["devices"]] for each in machine.claims()}
        assert found == {"vm/usb": ["0000:0c:00.3"], "vm/sound": ["0000:0c:00.4"]}

    def test_looks_again_if_the_hook_of_another_domain_was_faster(
        self, machine: Machine, hook: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        claimed, looks = Hook._claimed, [1]
        monkeypatch.setattr(Hook, "_claimed", lambda *words: {} if looks and looks.pop() else claimed(*words))
        words = ("claim", "create", "--owner", "user/a", "--device", GPU, "--no-bind", "--yes")
        assert machine(*words, connect=False).code == 0
        hook.answer("web1", ("reconnect", "begin"), xml(mark="").encode())
        assert [each["owner"] for each in machine.claims()] == ["user/a"]

    @pytest.mark.parametrize("name", ["Windows 10", "win11 ", "a/b"])
    def test_names_that_own_nothing_cost_a_word(self, machine: Machine, hook: Any, name: str) -> None:
        text = xml(name, mark="").encode()
        for operation in (("prepare", "begin"), ("reconnect", "begin")):
            assert f"{GPU} cannot be claimed for domain {name!r}" in hook.answer(name, operation, text)
        assert hook.answer(name, ("release", "end"), text) == ""
        assert hook.answer("another", ("prepare", "begin"), text) == ""
        assert machine.claims() == []

    @pytest.mark.parametrize("mark", [MARK, ""])
    @pytest.mark.parametrize(("owner", "is_told"), [("vm/db", True), ("pod/a/b/c", True), ("user/alice", False)])
    def test_tells_that_another_guest_has_claimed_what_a_running_domain_has(
        self, machine: Machine, hook: Any, owner: str, is_told: bool, mark: str
    ) -> None:
        words = ("claim", "create", "--owner", owner, "--device", GPU, "--no-bind", "--yes")
        assert machine(*words, connect=False).code == 0
        device = xml(mark=mark)[xml(mark=mark).index("<hostdev") :].removesuffix("</devices></domain>")
        text = xml(mark=mark).replace(device, device + device.replace("0x1b", "0x43")).encode()
        if is_told:
            with pytest.raises(ClaimConflict, match=f"{GPU} belongs to claim .* of {owner}"):
                hook.answer("web1", ("reconnect", "begin"), text)
        else:
            assert hook.answer("web1", ("reconnect", "begin"), text) == ""
        devices = {each["owner"]: [device["address"] for device in each["devices"]] for each in machine.claims()}
        assert devices == {owner: [GPU], "vm/web1": ["0000:43:00.0"]}, "what is nobody's is claimed all the same"

    @pytest.mark.parametrize("uri", ["qemu+unix:///system", "qemu:///system?socket=/run/libvirt/virtqemud-sock"])
    def test_knows_the_claims_of_its_libvirt_by_any_uri(self, machine: Machine, hook: Any, uri: str) -> None:
        RunClaims(machine.session(), uri).take(needs_of(xml()))
        hook.answer("web1", ("prepare", "begin"), xml().encode())
        (claim,) = machine.claims()
        assert claim["labels"] == {LABEL: SYSTEM}
        assert known_as("qemu:///session") != SYSTEM

    def test_waits_long_for_another_change_of_the_host(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        waits: list[float] = []
        monkeypatch.setattr(Hook, "answer", lambda hook, *_: waits.append(hook._session.engine._lock_wait))
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(xml().encode())))
        assert machine("hook", "qemu", "web1", "release", "end", as_json=False, connect=False).code == 0
        assert waits == [90.0]

    def test_of_another_domain_s_document_is_refused(self, hook: Any) -> None:
        with pytest.raises(BadDocument, match="told of domain 'db'"):
            hook.answer("db", ("prepare", "begin"), xml().encode())

    def test_the_command_reads_standard_input(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        before = ("--simulate", str(machine.host), "--ledger", str(machine.ledger), "hook", "qemu", "--")

        def called(text: bytes, name: str = "web1") -> Answer:
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
            return machine.run(*before, name, "prepare", "begin", "-")

        first = called(xml().encode())
        assert (first.code, first.out, first.err) == (0, "", "")
        assert len(machine.claims()) == 1
        assert called(xml("db").encode()).code == 2
        assert "can hold no claim" in called(xml("--help").encode(), "--help").err
        unclaimed = called(xml("my vm", mark="").replace("0x1b", "0x43").encode(), "my vm")
        assert (unclaimed.code, unclaimed.out) == (0, "")
        assert unclaimed.err.startswith("vfioctl: 0000:43:00.0 cannot be claimed for domain 'my vm'")
        assert called(b"x" * (5 << 20)).code == 2

    def test_has_a_limit_that_counts_reading_the_document(self) -> None:
        program = "import vfioctl.domain.cli.hook as hook; hook._SECONDS = 1; from vfioctl.app import main; main()"
        words = ["--simulate", "hgx8", "hook", "qemu", "web1", "prepare", "begin", "-"]
        with subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE) as open_end:
            done = subprocess.run(
                [sys.executable, "-c", program, *words],
                stdin=open_end.stdout,
                capture_output=True,
                check=False,
                timeout=30,
            )
            open_end.kill()
        assert done.returncode != 0

    def test_is_installed_and_removed(self, machine: Machine) -> None:
        words = ("hook", "install", "--command", "/usr/bin/vfioctl", "--yes")
        done = machine(*words, connect=False)
        assert done.code == 0, done.err
        text = machine.session().kernel.read(SCRIPT)
        assert is_script(text)
        assert f"--ledger {machine.ledger}" in text
        assert machine(*words, connect=False).document["result"] == "nothing to do"
        assert machine("hook", "remove", "--yes", connect=False).document["result"] == "done"
        assert not machine.session().kernel.has(SCRIPT)

    @pytest.mark.parametrize("text", ["#!/bin/sh\n# site-gpu-policy", "no script", "\x7fELF"])
    @pytest.mark.parametrize("words", ["install --command /usr/bin/vfioctl", "remove"])
    @pytest.mark.parametrize("how", ["--yes", "--dry-run"])
    def test_leaves_a_script_of_somebody_else(self, machine: Machine, text: str, words: str, how: str) -> None:
        machine.session().kernel.replace_file(SCRIPT, text)
        refused = machine("hook", *words.split(), how, connect=False)
        assert (refused.code, refused.document["error"]["kind"]) == (4, "Foreign")
        assert refused.document["error"]["message"] == f"vfioctl did not write {SCRIPT}"
        assert machine.session().kernel.read(SCRIPT) == text

    @pytest.mark.parametrize("words", ["install --command /usr/bin/vfioctl", "remove"])
    def test_replaces_a_script_of_another_release(self, machine: Machine, words: str) -> None:
        before = script("/usr/bin/vfioctl").replace("# libvirt gives", "# it gives")
        machine.session().kernel.replace_file(SCRIPT, before)
        done = machine("hook", *words.split(), "--yes", connect=False)
        assert (done.code, done.document["result"]) == (0, "done"), done.err

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root's hook matters")
    def test_is_not_what_another_user_can_change(self, machine: Machine, hook: Any, tmp_path: Path) -> None:
        file = tmp_path / "vfioctl"
        file.write_text("#!/bin/sh\n")
        file.chmod(0o755)
        link = machine.ledger.with_name("link")
        link.symlink_to(file)
        for path in (file, link):
            assert hook.plan_install(str(path)).steps
        file.chmod(0o777)
        for path in (file, link):
            with pytest.raises(BadSpec, match="cannot be libvirt's hook"):
                hook.plan_install(str(path))
        file.chmod(0o755)
        os.chown(file, 65534, 65534)
        with pytest.raises(BadSpec, match="cannot be libvirt's hook"):
            hook.plan_install(str(link))

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root's hook matters")
    def test_is_not_what_another_user_can_put_there_later(self, hook: Any, tmp_path: Path) -> None:
        folder = tmp_path / "open"
        folder.mkdir()
        assert hook.plan_install(f"{folder}/later").steps
        folder.chmod(0o777)
        with pytest.raises(BadSpec, match="cannot be libvirt's hook"):
            hook.plan_install(f"{folder}/later")
        with pytest.raises(BadSpec, match="its directory is not there"):
            hook.plan_install(f"{tmp_path}/none/vfioctl")

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root's hook matters")
    def test_is_a_program(self, hook: Any, tmp_path: Path) -> None:
        file = tmp_path / "vfioctl"
        file.write_text("#!/bin/sh\n")
        with pytest.raises(BadSpec, match="it is no program"):
            hook.plan_install(str(file))

    @pytest.mark.parametrize("path", ["vfioctl", "/a b", "/a;reboot", "/a$(b)", "/../x", "/a\n", ""])
    def test_is_installed_with_plain_paths_only(self, path: str) -> None:
        with pytest.raises(ValueError, match="plain absolute path"):
            script(path) if path else script("/x", "y")


class TestScript:
    @pytest.fixture
    def call(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        told, file = tmp_path / "told", tmp_path / "vfioctl"
        logger, log = tmp_path / "logger", tmp_path / "log"
        logger.write_text(f'#!/bin/sh\necho "$@" >> {log}; cat >> {log}\n')
        logger.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        file.write_text(f'#!/bin/sh\necho "$@" > {told}; cat >> {told}; echo refused >&2; exit 4\n')
        file.chmod(0o755)
        hook = tmp_path / "hook"
        hook.write_text(script(str(file), "/x/ledger.db"))

        def call(*words: str, text: str = xml()) -> tuple[int, str, str]:
            done = subprocess.run(["sh", hook, *words], input=text, capture_output=True, text=True, check=False)
            return done.returncode, done.stderr, told.read_text() if told.exists() else ""

        call.file = file  # type: ignore[attr-defined]
        call.log = lambda: log.read_text().splitlines() if log.exists() else []  # type: ignore[attr-defined]
        return call

    def test_hands_over_what_concerns_vfioctl(self, call: Any) -> None:
        code, said, told = call("web1", "prepare", "begin", "-")
        assert (code, said) == (4, "refused\n")
        assert told == f"--ledger /x/ledger.db hook qemu -- web1 prepare begin -\n{xml()}\n"
        assert call.log() == [], "libvirt shows it"

    def test_never_fails_for_a_domain_that_runs(self, call: Any) -> None:
        """libvirtd would end it."""
        assert call("web1", "reconnect", "begin", "-")[0] == 0
        options, what, why = call.log()
        assert options == "-p daemon.warning -t vfioctl"
        assert what.startswith("domain web1 goes on, but some of what it has may be unclaimed")
        assert why == "refused"
        call.file.write_text("#!/no/interpreter\n")
        assert call("web1", "reconnect", "begin", "-")[0] == 0
        assert call("web1", "prepare", "begin", "-")[0] != 0

    @pytest.mark.parametrize("operation", [("prepare", "begin"), ("reconnect", "begin"), ("release", "end")])
    @pytest.mark.parametrize("said", ["", "a word"])
    def test_logs_what_is_said_without_a_failure(self, call: Any, operation: tuple[str, str], said: str) -> None:
        call.file.write_text(f"#!/bin/sh\ncat > /dev/null; printf '{said}' >&2; echo result\n")
        assert call("web1", *operation, "-")[:2] == (0, "")
        assert call.log() == (["-p daemon.warning -t vfioctl", said] if said else [])

    @pytest.mark.parametrize("words", [("started", "begin"), ("migrate", "begin"), ("prepare", "end"), ("", "")])
    def test_leaves_other_operations_alone(self, call: Any, words: tuple[str, ...]) -> None:
        assert call("web1", *words, "-") == (0, "", "")

    def test_leaves_domains_without_devices_alone(self, call: Any) -> None:
        assert call("web1", "prepare", "begin", "-", text="<domain><name>$(reboot)</name></domain>") == (0, "", "")

    def test_a_name_is_logged_in_one_line_without_control_characters(self, call: Any) -> None:
        assert call("a\n\x1b[2Jvfioctl: all is well\x9b", "reconnect", "begin", "-")[0] == 0
        _, what, why = call.log()
        assert what.startswith("domain a??[2Jvfioctl: all is well?? goes on, ")
        assert why == "refused"

    @pytest.mark.parametrize(("operation", "code"), [("prepare", 1), ("reconnect", 0), ("release", 0)])
    def test_waits_for_the_document_for_a_while(self, call: Any, operation: str, code: int, tmp_path: Path) -> None:
        hook = tmp_path / "hook"
        hook.write_text(hook.read_text().replace("timeout 30 cat", "timeout 0.2 cat"))
        step = "end" if operation == "release" else "begin"
        with subprocess.Popen(["sleep", "30"], stdout=subprocess.PIPE) as open_end:
            done = subprocess.run(
                ["sh", hook, "web1", operation, step, "-"],
                stdin=open_end.stdout,
                capture_output=True,
                text=True,
                check=False,
                timeout=20,
            )
            open_end.kill()
        assert (done.returncode, done.stderr) == (code, "vfioctl: libvirt gave no whole document within 30 s\n")
        assert call.log()[1:] == ["vfioctl: libvirt gave no whole document within 30 s"]

    def test_lets_domains_start_when_vfioctl_is_gone(self, call: Any) -> None:
        call.file.unlink()
        assert call("web1", "prepare", "begin", "-") == (0, "", "")

    def test_is_known_again(self) -> None:
        assert is_script(script("/usr/bin/vfioctl"))
        assert is_script(script("/usr/bin/vfioctl", "/x/y.db"))
        assert not is_script(script("/usr/bin/vfioctl").replace("exit 0", "reboot"))
        assert not is_script("#!/bin/sh\n")


def test_needs_are_read_from_the_document() -> None:
    needs = needs_of(xml(managed="yes"))
    assert (needs.ours, needs.bound, needs.managed, needs.cpus) == (True, (), (GPU,), (2, 3))
    assert needs.hugepages == (Hugepages(0, 1 << 30, 2),)
    shared = xml().replace("vcpu='1' cpuset='3'", "vcpu='1' cpuset='2'").replace("nodeset='0'", "nodeset='0-1'")
    assert (needs_of(shared).cpus, needs_of(shared).hugepages) == ((), ())
    assert not needs_of("<domain><name>a b</name></domain>").is_anything


def test_pages(machine: Machine, terminal: Run, golden: Golden) -> None:
    told = ""
    options = ["--simulate", str(machine.host), "--ledger", str(machine.ledger)]
    text = xml("db", managed="yes").replace("cpuset='2'", "cpuset='6'").replace("cpuset='3'", "cpuset='7'")
    machine.define(text.replace("0x1b", "0x43"))
    for line in (
        "domain start web1 --dry-run",
        "domain start web1 --yes --quiet",
        "domain start web1",
        "domain start db --dry-run",
        "domain stop web1 --dry-run",
        "domain undefine web1",
        "domain stop web1 --force --yes --quiet",
        "domain stop web1",
        "domain start other",
        "hook install --command /usr/bin/vfioctl --dry-run",
    ):
        answer = terminal(*line.split(), *options, *(["--connect", URI] if line.startswith("domain") else []))
        told += f"$ vfioctl {line}\n{answer.err}{answer.out}[exit code {answer.code}]\n\n"
    told = re.sub(r"\b[Cc]laim [0-9a-f]{8}\b", "claim CLAIM", told)
    told = re.sub(r"\bPlan [0-9a-f]{12}\b", "Plan ID", told)  # of the hook's it depends on the ledger's path
    told = told.replace(str(machine.host), "HOST").replace(str(machine.ledger), "LEDGER")
    golden("domains/start.txt", timeless(told))
