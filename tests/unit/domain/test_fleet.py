"""`vfioctl domain apply`: several domains from one file, on a simulated host with libvirt's test driver."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.machines import copy, original
from tests.schema import schema_problems
from tests.unit.conftest import Answer, Golden, Run, timeless
from vfioctl.domain.api import DomainApi
from vfioctl.domain.document.mark import marked
from vfioctl.domain.document.reader import read_domain
from vfioctl.domain.document.templates import read_template
from vfioctl.domain.document.xml import text_of
from vfioctl.errors import BadSpec, Cancelled, HostError, VerifyError, VfioctlError
from vfioctl.kernel.protocol import DiskImage
from vfioctl.kernel.recorded.host import Recorded, read_tree
from vfioctl.kernel.recorded.tree import form
from vfioctl.kernel.simulated.faults import Fault
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.session import Session

pytest.importorskip("libvirt")
pytest.importorskip("yaml")
URI = "test:///default"
FOREIGN = "<domain type='kvm'><name>db</name><memory>1024</memory><os><type>hvm</type></os></domain>"
ONE = {"name": "a", "gpus": 2, "running": True}
TWO, THREE = {"name": "b"}, {"name": "c"}


class Machine:
    """A simulated host in a file, and a fleet's file."""

    def __init__(self, run: Run, folder: Path) -> None:
        self._run, self.host, self.ledger, self.file = run, folder / "h.host", folder / "l.db", folder / "fleet.yaml"
        self.host.write_text(form(copy(original("hgx8"))))

    @property
    def options(self) -> list[str]:
        return ["--simulate", str(self.host), "--ledger", str(self.ledger)]

    def write(self, *domains: dict[str, Any], **more: object) -> None:
        defaults = {"gpus": 1, "cpus": 4, "memory": "2GiB"}
        own = [_with_disk(domain) for domain in domains]
        self.file.write_text(json.dumps({"fleet": "ml", "defaults": defaults, "domains": own, **more}))

    def __call__(self, *words: str, as_json: bool = True) -> Answer:
        more = [*self.options, "--connect", URI, *(["--json"] * as_json)]
        return self._run("domain", "apply", str(self.file), *words, *more)

    def apply(self, *domains: dict[str, Any], words: tuple[str, ...] = ("--yes",)) -> Answer:
        self.write(*domains)
        return self(*words)

    def session(self, *faults: Fault) -> Session:
        return Session(Simulated(read_tree(self.host), "simulated", file=self.host, faults=faults), self.ledger)

    def domains(self) -> dict[str, dict[str, Any]]:
        answer = self._run("domain", "list", *self.options, "--connect", URI, "--json")
        return {each["name"]: each for each in answer.document["domains"] if each["name"] != "test"}

    def xml(self, name: str) -> str:
        return DomainApi(self.session()).xml_of(name, connect=URI)


def _with_disk(domain: dict[str, Any]) -> dict[str, Any]:
    """A domain with a disk of its own, unless it says what it has: the template's is for one domain."""
    has_own = not {"disks", "images", "template"}.isdisjoint(domain) or "name" not in domain
    return domain if has_own else {**domain, "disks": [f"/images/{domain['name']}.qcow2"]}


@pytest.fixture
def machine(run: Run, tmp_path: Path) -> Machine:
    return Machine(run, tmp_path)


def changes(answer: Answer) -> dict[str, tuple[str, str, bool]]:
    return {each["domain"]: (each["change"], each["power"], each["done"]) for each in answer.document["domains"]}


def test_domains_are_made_what_the_file_says_and_a_second_run_does_nothing(machine: Machine) -> None:
    done = machine.apply(ONE, TWO)
    assert done.code == 0, done.err
    assert schema_problems(done.document, "domain-apply") == []
    assert changes(done) == {"a": ("define", "start", True), "b": ("define", "none", True)}
    domains = machine.domains()
    assert {name: (each["state"], len(each["devices"])) for name, each in domains.items()} == {
        "a": ("running", 2),
        "b": ("defined", 1),
    }
    assert not set(domains["a"]["devices"]) & set(domains["b"]["devices"])
    pins = [pin["cpus"] for each in domains.values() for pin in each["pins"]]
    assert len(pins) == len(set(pins)) == 8, "no CPU twice"
    assert read_domain(machine.xml("b")).mark.fleet == "ml"

    before = machine.host.read_text()
    again = machine.apply(ONE, TWO)
    assert (again.code, again.document["result"], machine.host.read_text()) == (0, "nothing to do", before)
    assert changes(again) == {"a": ("none", "none", False), "b": ("none", "none", False)}


def test_a_dry_run_changes_nothing_and_says_what_will_be_done(machine: Machine) -> None:
    before = machine.host.read_text()
    told = machine.apply(ONE, TWO, words=("--dry-run",))
    assert schema_problems(told.document, "domain-apply") == []
    assert (told.document["result"], machine.host.read_text()) == ("dry run", before)
    assert changes(told) == {"a": ("define", "start", False), "b": ("define", "none", False)}
    planned = {each["domain"]: each["devices"] for each in told.document["domains"]}
    machine.apply(ONE, TWO)
    assert {name: each["devices"] for name, each in machine.domains().items()} == planned


def test_only_what_has_changed_in_the_file_is_changed(machine: Machine) -> None:
    machine.apply(ONE, TWO)
    before = {name: machine.xml(name) for name in ("a", "b")}
    done = machine.apply({**ONE, "running": False}, {**TWO, "cpus": 6}, THREE)
    assert changes(done) == {"a": ("none", "stop", True), "b": ("change", "none", True), "c": ("define", "none", True)}
    assert machine.domains()["a"]["state"] == "defined"
    assert (machine.xml("a"), len(machine.domains()["b"]["pins"])) == (before["a"], 6)
    assert machine.xml("b") != before["b"]


def test_prune_removes_domains_of_this_fleet_only(machine: Machine) -> None:
    machine.session().kernel.tell_libvirt(URI, "define", FOREIGN)
    machine.apply(ONE, TWO, THREE)
    machine.write({"name": "other"}, fleet="another")
    assert machine("--yes").code == 0
    assert changes(machine.apply(ONE, TWO)) == {"a": ("none", "none", False), "b": ("none", "none", False)}
    done = machine.apply(ONE, TWO, words=("--prune", "--yes"))
    assert changes(done)["c"] == ("undefine", "none", True)
    assert sorted(machine.domains()) == ["a", "b", "db", "other"]
    refused = machine.apply(TWO, words=("--prune", "--yes"))
    assert (refused.code, refused.document["error"]["kind"]) == (4, "DeviceInUse")
    assert "a: it is not in the fleet any more, and runs" in refused.document["error"]["message"]
    assert sorted(machine.domains()) == ["a", "b", "db", "other"]


def test_prune_spares_a_copy_of_a_domain_of_the_fleet(machine: Machine) -> None:
    machine.apply(TWO)
    copied = re.sub("<uuid>.*?</uuid>", "", machine.xml("b")).replace("<name>b<", "<name>b-copy<")
    machine.session().kernel.tell_libvirt(URI, "define", copied)
    assert machine.domains()["b-copy"]["ours"] is False
    assert machine.apply(TWO, words=("--prune", "--yes")).document["result"] == "nothing to do"
    refused = machine.apply(TWO, {"name": "b-copy"})
    assert (refused.code, refused.document["error"]["kind"]) == (4, "Foreign")
    own = read_domain(marked(copied, uuid="", before=copied)).mark
    assert (own.is_own, own.fleet, own.spec) == (True, "", "")


def test_prune_spares_a_domain_whose_mark_does_not_name_it(machine: Machine) -> None:
    machine.apply(TWO, THREE)
    machine.session().kernel.tell_libvirt(URI, "define", re.sub(""" domain=.c.""", "", machine.xml("c")))
    assert machine.apply(TWO, words=("--prune", "--yes")).document["result"] == "nothing to do"
    assert sorted(machine.domains()) == ["b", "c"]


def test_a_domain_that_is_edited_stays_in_its_fleet(machine: Machine) -> None:
    machine.apply(TWO)
    edit = ("domain", "edit", "b", "--gpus", "1", "--yes", "--connect", URI, *machine.options)
    assert machine._run(*edit).code == 0
    assert read_domain(machine.xml("b")).mark.fleet == "ml"
    assert machine.apply(TWO).document["result"] == "nothing to do"
    assert len(machine.domains()["b"]["devices"]) == 2


def test_what_a_removed_domain_had_is_free_for_the_others(machine: Machine) -> None:
    assert machine.apply({"name": "a", "devices": ["gpu1"]}).code == 0
    moved = {"name": "b", "devices": ["gpu1"]}
    done = machine.apply(moved, words=("--prune", "--yes"))
    assert done.code == 0, done.err
    assert list(machine.domains()) == ["b"]
    six = {"name": "b", "gpus": 6}
    assert machine.apply(six).code == 0
    swapped = machine.apply({"name": "b", "devices": ["gpu5"]}, {"name": "c", "gpus": 6})
    assert swapped.code == 0, swapped.err
    devices = {name: each["devices"] for name, each in machine.domains().items()}
    assert (len(devices["b"]), len(devices["c"])) == (1, 6)
    assert not set(devices["b"]) & set(devices["c"])


def test_another_template_is_another_domain(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(read_template, "__defaults__", (tmp_path,))
    machine.apply(TWO)
    text = text_of(read_template("compute-linux")).replace("<on_crash>destroy", "<on_crash>preserve")
    (tmp_path / "compute-linux.xml").write_text(text)
    assert changes(machine.apply(TWO)) == {"b": ("change", "none", True)}
    assert "<on_crash>preserve" in machine.xml("b")


def test_a_start_that_would_be_refused_is_refused_before_anything_is_changed(machine: Machine) -> None:
    machine.apply(TWO)
    (device,) = machine.domains()["b"]["devices"]
    words = ("claim", "create", "--owner", "vm/x", "--device", device, "--yes", *machine.options)
    assert machine._run(*words).code == 0
    refused = machine.apply(THREE, {**TWO, "running": True})
    assert (refused.code, refused.document["error"]["kind"]) == (4, "ClaimConflict")
    assert list(machine.domains()) == ["b"]


@pytest.mark.parametrize("words", ["--yes", "--dry-run"])
def test_a_gpu_that_a_process_holds_is_refused_before_anything_is_changed(machine: Machine, words: str) -> None:
    machine.host.write_text(form(copy(original("busy"))))
    free, held = ({"name": name, "devices": [gpu], "running": True} for name, gpu in (("a", "gpu3"), ("b", "gpu0")))
    refused = machine.apply(free, held, words=(words,))
    assert (refused.code, refused.document["error"]["kind"]) == (4, "DeviceInUse")
    assert refused.document["error"]["message"].startswith("b: ")
    assert machine.domains() == {}


def test_what_a_domain_gives_back_when_it_starts_is_free_for_those_after_it(machine: Machine) -> None:
    first, second = {"name": "a", "running": True}, {"name": "b", "running": True}
    assert machine.apply({**first, "devices": ["gpu0"]}).code == 0
    machine.session().kernel.tell_libvirt(URI, "destroy", "a")  # its claim stays: no hook tells that it has ended
    swapped = machine.apply({**first, "devices": ["gpu1"]}, {**second, "devices": ["gpu0"]})
    assert swapped.code == 0, swapped.err
    assert [each["state"] for each in machine.domains().values()] == ["running", "running"]


def test_what_a_domain_gives_back_later_is_not_free(machine: Machine) -> None:
    first, second = {"name": "a", "running": True}, {"name": "b", "running": True}
    assert machine.apply({**first, "devices": ["gpu0"]}).code == 0
    machine.session().kernel.tell_libvirt(URI, "destroy", "a")
    refused = machine.apply({**second, "devices": ["gpu0"]}, {**first, "devices": ["gpu1"]})
    assert (refused.code, refused.document["error"]["kind"]) == (4, "ClaimConflict")
    assert list(machine.domains()) == ["a"]


def test_a_domain_of_somebody_else_is_refused_and_nothing_is_changed(machine: Machine) -> None:
    machine.session().kernel.tell_libvirt(URI, "define", FOREIGN)
    refused = machine.apply(TWO, {"name": "db"})
    assert (refused.code, refused.document["error"]["kind"]) == (4, "Foreign")
    assert list(machine.domains()) == ["db"]


@pytest.mark.parametrize("whose", ["another fleet", "no fleet"])
def test_a_domain_of_another_fleet_or_of_none_is_refused(machine: Machine, tmp_path: Path, whose: str) -> None:
    words = [*machine.options, "--connect", URI]
    if whose == "another fleet":
        machine.write({"name": "web"}, fleet="another")
        assert machine("--yes").code == 0
    else:
        (tmp_path / "web.xml").write_text(FOREIGN.replace("db", "web"))
        assert machine._run("domain", "define", str(tmp_path / "web.xml"), "--yes", *words).code == 0
    before = machine.xml("web")
    refused = machine.apply(TWO, {"name": "web"})
    assert (refused.code, refused.document["error"]["kind"]) == (4, "Foreign")
    said = "by fleet another" if whose == "another fleet" else "by no fleet"
    assert f"domain web is defined already, {said}" in refused.document["error"]["message"]
    assert refused.document["error"]["next_command"].startswith("vfioctl domain undefine web --connect")
    assert (machine.xml("web"), list(machine.domains())) == (before, ["web"])


def test_a_running_domain_is_compared_with_its_definition(machine: Machine) -> None:
    machine.apply(ONE)
    other = {**ONE, "gpus": 1}
    assert changes(machine.apply(other)) == {"a": ("change", "none", True)}
    assert machine.apply(other).document["result"] == "nothing to do"
    assert changes(machine.apply(ONE)) == {"a": ("change", "none", True)}
    assert len(read_domain(shown(machine, "a")["defined"]).host_devices) == 2


def test_what_a_running_domain_has_itself_is_not_missing(machine: Machine) -> None:
    big = {**ONE, "memory": "400GiB", "hugepages": "1GiB"}
    assert machine.apply(big).code == 0
    tree = read_tree(machine.host)  # QEMU has its pages, and no more are free
    pools = [name for name in tree.files if name.endswith("hugepages-1048576kB/free_hugepages")]
    for name in pools:
        tree.put(name, "1")
    machine.host.write_text(form(tree))
    assert len(pools) == 2
    done = machine.apply({**big, "disks": ["/a.qcow2"]})
    assert done.code == 0, done.err
    assert "<hugepages>" in shown(machine, "a")["defined"]


def test_what_is_weaker_than_asked_is_said(machine: Machine) -> None:
    done = machine.apply({"name": "a", "policy": "preferred", "hugepages": "1GiB", "memory": "1900GiB"})
    assert done.code == 0, done.err
    (item,) = done.document["domains"]
    assert any(note.startswith("a: memory") for note in item["plan"]["notes"]), item["plan"]["notes"]


def test_a_running_domain_without_a_definition_is_defined_again(machine: Machine) -> None:
    machine.apply(ONE)
    machine.session().kernel.tell_libvirt(URI, "undefine", "a")
    assert machine.domains()["a"]["state"] == "transient"
    assert changes(machine.apply(ONE)) == {"a": ("define", "none", True)}
    assert machine.apply(ONE).document["result"] == "nothing to do"
    assert changes(machine.apply({**ONE, "running": False})) == {"a": ("none", "stop", True)}
    assert machine.domains()["a"]["state"] == "defined"


@pytest.mark.parametrize("words", ["--yes", "--dry-run"])
def test_no_password_of_a_display_is_printed(machine: Machine, words: str) -> None:
    machine.apply(TWO)
    kernel = machine.session().kernel
    graphics = "<graphics type='vnc' passwd='se cret'/></devices>"
    kernel.tell_libvirt(URI, "define", machine.xml("b").replace("</devices>", graphics))
    done = machine.apply({**TWO, "cpus": 6}, words=(words,))
    assert changes(done)["b"][0] == "change"
    assert "se cret" not in done.out
    assert "passwd='***'" in done.document["domains"][0]["plan"]["changes"][0]["before"]
    assert schema_problems(done.document, "domain-apply") == []


def shown(machine: Machine, name: str) -> dict[str, Any]:
    return dict(machine._run("domain", "show", name, *machine.options, "--connect", URI, "--json").document)


def test_if_one_cannot_be_had_nothing_is_changed(machine: Machine) -> None:
    refused = machine.apply(TWO, {"name": "big", "gpus": 8})
    assert refused.code == 4
    assert refused.document["error"]["message"].startswith("big: ")
    assert machine.domains() == {}


def test_a_cancelled_one_says_what_was_done(machine: Machine) -> None:
    machine.write(TWO, ONE, THREE)
    api, told = DomainApi(machine.session()), list[str]()
    fleet = api.fleets.plan(api.fleet(machine.file), connect=URI)
    with pytest.raises(Cancelled) as caught:
        api.fleets.apply(fleet, tell=told.append, cancel=lambda: len(told) > 1)
    assert caught.value.restored == "done before: b; not done: c"
    assert set(machine.domains()) == {"b"}


def test_the_first_failure_ends_it_and_says_what_was_done(machine: Machine) -> None:
    machine.write(TWO, ONE, THREE)
    session = machine.session(Fault(4, "errno", 5))  # define b; define a; bind a
    api = DomainApi(session)
    fleet = api.fleets.plan(api.fleet(machine.file), connect=URI)
    with pytest.raises(VfioctlError) as caught:
        api.fleets.apply(fleet)
    assert caught.value.message.startswith("a: it is defined, and not started: ")
    assert caught.value.facts["only_defined"] == "a"
    assert "done before: b; not done: c" in caught.value.restored
    assert {name: each["state"] for name, each in machine.domains().items()} == {"a": "defined", "b": "defined"}
    assert machine("--yes").code == 0
    assert machine.domains()["a"]["state"] == "running"


def test_domains_that_name_their_devices_are_served_first(machine: Machine) -> None:
    done = machine.apply({"name": "b", "running": True}, {"name": "a", "devices": ["gpu0"], "running": True})
    assert done.code == 0, done.err
    assert [each["domain"] for each in done.document["domains"]] == ["b", "a"], "the order of the file"
    devices = {name: each["devices"] for name, each in machine.domains().items()}
    assert (devices["a"], devices["b"]) == (["0000:1b:00.0"], ["0000:43:00.0"])


@pytest.mark.parametrize("running", [True, False])
def test_two_domains_that_name_one_device_are_refused(machine: Machine, running: bool) -> None:
    same = {"devices": ["gpu0"], "running": running}
    refused = machine.apply({"name": "a", **same}, {"name": "b", **same})
    assert (refused.code, refused.document["error"]["kind"]) == (4, "ClaimConflict")
    assert refused.document["error"]["message"] == "b: 0000:1b:00.0 is a device of domain a of this fleet"
    assert machine.domains() == {}


def test_a_new_domain_gets_no_device_of_one_that_stays(machine: Machine) -> None:
    machine.apply(TWO)
    refused = machine.apply({"name": "a", "devices": ["gpu0"]}, TWO)
    assert (refused.code, refused.document["error"]["kind"]) == (4, "ClaimConflict")
    assert refused.document["error"]["message"] == "a: 0000:1b:00.0 is a device of domain b of this fleet"
    assert list(machine.domains()) == ["b"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fleet: ml\ndomains: [{name: a, gpus: 1}, {name: a, gpus: 1}]", "two domains are called a"),
        ("fleet: ml\ndomains: [{name: a, gpu: 1}]", "domains.0.gpu is not known"),
        ("fleet: 'a b'\ndomains: []", "fleet must match ^[A-Za-z0-9_]"),
        ("domains: []", "fleet is missing"),
        ("fleet: ml", "domains is missing"),
        ("fleet: ml\nfleet: web\ndomains: []", "line 2: fleet is there twice"),
        ("fleet: ml\ndomains: [{name: a, gpus: 1, name: b}]", "name is there twice"),
        ("fleet: ml\ndefaults: {nme: 3}\ndomains: []", "nme is no setting that domains have in common"),
        ("fleet: ml\ndomains: [{name: a}]", "domain a needs a claim, or any of gpus, devices and vgpu"),
        (
            "fleet: ml\ndomains: [{name: a, gpus: 1, claim: x}]",
            "domain a needs a claim, or any of gpus, devices and vgpu",
        ),
        ("fleet: ml\ndomains: 5", "domains must be a list"),
        ("fleet: ml\ndomains: [5]", "domains.0 "),
        ("fleet: ml\ndefaults: 5\ndomains: []", "defaults must be a table"),
        ("fleet: ml\ndomains: [{name: a, running: 'perhaps'}]", "domains.0.running "),
        ("- a", "no table of settings"),
        ("a: [", "not understood"),
    ],
)
def test_what_is_wrong_in_the_file_is_said(machine: Machine, text: str, said: str) -> None:
    machine.file.write_text(text)
    with pytest.raises(BadSpec) as caught:
        DomainApi(machine.session()).fleet(machine.file)
    assert said in caught.value.message


def test_a_domain_that_names_its_devices_has_no_other_ones_by_default(machine: Machine) -> None:
    machine.write({"name": "a", "devices": ["gpu7"]})
    (domain,) = DomainApi(machine.session()).fleet(machine.file).domains
    assert (domain.gpus, domain.devices, domain.cpus) == (0, ("gpu7",), 4)


TEMPLATE = {"template": "compute-linux"}
"""With the disk of the template."""


class TestImagesOfOthers:
    """Two domains that write to one image destroy it."""

    def test_a_template_s_disk_is_for_one_domain_of_a_fleet(self, machine: Machine) -> None:
        refused = machine.apply(ONE | TEMPLATE, TWO | TEMPLATE)
        error = refused.document["error"]
        assert (refused.code, error["facts"]["image"]) == (2, "/var/lib/libvirt/images/compute-linux.qcow2")
        assert "is also a disk of domain" in error["message"]
        assert machine.domains() == {}

    def test_another_domain_s_image_is_refused_by_build_and_define_and_found_by_check(
        self, machine: Machine, run: Run, tmp_path: Path
    ) -> None:
        assert machine.apply(TWO | TEMPLATE).code == 0
        options, file = [*machine.options, "--connect", URI], tmp_path / "b2.xml"
        built = run("domain", "build", "b2", "--gpus", "1", *options)
        assert built.code == 2
        assert "is also a disk of domain b: what both write destroys it" in built.err
        file.write_text(
            machine.xml("b").replace("<name>b<", "<name>b2<").replace("<uuid>", "<!--").replace("</uuid>", "-->")
        )
        defined = run("domain", "define", str(file), *options)
        assert defined.code == 2, defined.err
        assert "is also a disk of domain b" in defined.err
        checked = run("domain", "check", str(file), *options)
        assert "host-disk-image" in checked.out
        file.write_text(
            file.read_text()
            .replace("<target dev='vda'", "<readonly/><target dev='vda'")
            .replace('<target dev="vda"', '<readonly/><target dev="vda"')
        )
        assert "host-disk-image" not in run("domain", "check", str(file), *options).out

    def test_through_a_symbolic_link(self, machine: Machine) -> None:
        owner = TWO | {"disks": ["/dev/sda"]}
        assert machine.apply(owner).code == 0
        tree = read_tree(machine.host)
        tree.links["/dev/disk/by-id/ata-1"] = "../../sda"
        machine.host.write_text(form(tree))
        refused = machine.apply(owner, THREE | {"disks": ["/dev/disk/by-id/ata-1"]})
        assert refused.code == 2
        assert "b: disk /dev/sda is also a disk of domain c" in refused.document["error"]["message"]

    def test_one_of_which_no_base_is_known_is_reported(
        self, machine: Machine, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By build, define, apply and check, and once each."""
        assert machine.apply(TWO | {"disks": ["/images/b.qcow2"]}).code == 0
        monkeypatch.setattr(Recorded, "disk_image", lambda _, path: DiskImage(path, unknown="Permission denied"))
        said = "the base of disk image /images/b.qcow2 is not known (Permission denied): other domains may write to it"
        options, file = [*machine.options, "--connect", URI], tmp_path / "b2.xml"
        built = run("domain", "build", "b2", "--gpus", "1", "--disk", "/images/c.qcow2", *options)
        assert (built.code, " ".join(built.err.split()).count(said)) == (0, 1), built.err
        file.write_text(built.out)
        defined = run("domain", "define", str(file), *options, "--dry-run")
        assert " ".join(defined.out.split()).count(said) == 1
        checked = run("domain", "check", str(file), *options)
        assert " ".join(checked.out.split()).count(said) == 1
        applied = machine.apply(TWO | {"disks": ["/images/b.qcow2"]}, THREE | {"disks": ["/images/c.qcow2"]})
        (item,) = [item for item in applied.document["domains"] if item["domain"] == THREE["name"]]
        assert sum(said in note for note in item["plan"]["notes"]) == 1

    def test_it_may_be_defined_again_as_it_is(self, machine: Machine, run: Run, tmp_path: Path) -> None:
        """Two that have had one image before vfioctl refused it can still be changed in other ways."""
        assert machine.apply(TWO).code == 0
        file = tmp_path / "b.xml"
        file.write_text(machine.xml("b"))
        assert run("domain", "define", str(file), *machine.options, "--connect", URI).code == 0


class TestWaiting:
    @pytest.mark.parametrize("words", [("--yes",), ("--dry-run",)])
    def test_for_a_guest_without_a_channel_is_refused_before_anything(
        self, machine: Machine, words: tuple[str, ...]
    ) -> None:
        refused = machine.apply(ONE | {"template": "minimal"}, words=(*words, "--wait-guest", "5m"))
        assert refused.code == 2
        assert "a: the domain has no channel of a guest agent" in refused.document["error"]["message"]
        assert machine.domains() == {}

    def test_for_one_that_runs_looks_for_its_live_channel(self, machine: Machine) -> None:
        """The definition counts from the next start."""
        minimal = ONE | {"template": "minimal"}
        assert machine.apply(minimal).code == 0
        refused = machine.apply(ONE, words=("--yes", "--wait-guest", "1s"))
        assert refused.code == 2
        assert "no channel of a guest agent" in refused.document["error"]["message"]
        assert machine.apply(ONE | {"running": False}).code == 0
        assert machine.apply(ONE).code == 0
        api = DomainApi(machine.session())
        machine.write(minimal)
        assert api.fleets.plan(api.fleet(machine.file), connect=URI).without_agent == ()

    def test_ends_when_the_guests_answer(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        machine.write(ONE, TWO)
        session = machine.session()
        api, asked = DomainApi(session), []
        ask = session.kernel.ask_libvirt

        def answering(uri: str, question: str, *words: str) -> Any:
            if question != "guest_files":
                return ask(uri, question, *words)
            asked.append(words[0])
            if len(asked) < 2:
                raise HostError("the agent is not connected")
            return {}

        monkeypatch.setattr(session.kernel, "ask_libvirt", answering)
        fleet = api.fleets.plan(api.fleet(machine.file), connect=URI)
        assert api.fleets.apply(fleet, wait_guest=30.0).result == "done"
        assert asked == ["a", "a"], "the one that is to run, until it answers"
        again = api.fleets.plan(api.fleet(machine.file), connect=URI)
        assert api.fleets.apply(again, wait_guest=30.0).result == "nothing to do"
        assert asked == ["a", "a", "a"], "also if it ran already"

    def test_has_an_end(self, machine: Machine) -> None:
        machine.write(ONE)
        api = DomainApi(machine.session())
        fleet = api.fleets.plan(api.fleet(machine.file), connect=URI)
        with pytest.raises(VerifyError, match=r"guest agent of a has not answered within 0\.1 s"):
            api.fleets.apply(fleet, wait_guest=0.1)
        assert machine.domains()["a"]["state"] == "running"


def test_a_domain_that_the_file_no_longer_names_is_said_to_stay(machine: Machine) -> None:
    assert machine.apply(ONE, TWO).code == 0
    for words in (("--yes",), ("--dry-run",), ("--yes",)):
        said = machine.apply(TWO, words=words).err
        assert "no longer in the file: a, running; it stays, --prune undefines domains that are shut off" in said
    assert "no longer" not in machine.apply(ONE, TWO).err


def test_pages(machine: Machine, terminal: Run, golden: Golden) -> None:
    told = ""

    def page(*words: str) -> None:
        nonlocal told
        answer = terminal("domain", "apply", str(machine.file), *words, "--connect", URI, *machine.options)
        told += f"$ vfioctl domain apply fleet.yaml {' '.join(words)}\n{answer.err}{answer.out}"
        told += f"[exit code {answer.code}]\n\n"

    machine.write(ONE, TWO)
    page("--dry-run")
    page("--yes", "--quiet")
    page("--yes")
    machine.write({**ONE, "cpus": 6}, THREE)
    page("--prune", "--dry-run")
    machine.write({"name": "big", "gpus": 9})
    page("--yes")
    told = re.sub(r"\([0-9a-f]{8}\)", "(CLAIM)", told)
    told = told.replace(str(machine.host), "HOST").replace(str(machine.ledger), "LEDGER")
    golden("domains/fleet.txt", timeless(told).replace(str(machine.file), "fleet.yaml"))
