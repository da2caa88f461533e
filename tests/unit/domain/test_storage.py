"""Disk images and cloud-init seeds of a fleet's domains, on a simulated host with libvirt's test driver."""

from __future__ import annotations

import importlib.util
import json
import logging
import random
import re
import sqlite3
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.hosts.machines import REGISTRY, copy, original
from tests.schema import schema_problems
from tests.unit.conftest import Answer, Run
from vfioctl import sources
from vfioctl.core.change import Change
from vfioctl.core.resource import Found
from vfioctl.domain.api import DomainApi
from vfioctl.domain.build.compose import composed
from vfioctl.domain.define.storage import refuse_user_data
from vfioctl.domain.document.xml import parse, text_of
from vfioctl.domain.model.definition import Image, volume_name
from vfioctl.domain.model.spec import DomainSpec
from vfioctl.errors import BadSpec, MissingLibrary, StalePlan, VfioctlError
from vfioctl.kernel.disk_images import digest_of, files_in, image_of
from vfioctl.kernel.libvirt.answers import named
from vfioctl.kernel.libvirt.storage import INCOMPLETE, WRITTEN
from vfioctl.kernel.recorded.host import read_tree
from vfioctl.kernel.recorded.tree import form
from vfioctl.kernel.simulated.faults import Fault, SimulatedDeath
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.kernel.simulated.libvirt import VOLUMES
from vfioctl.session import Session

pytest.importorskip("libvirt")
pytest.importorskip("yaml")
pytest.importorskip("pycdlib")
URI, POOL = "test:///default", "default-pool"
BASE = "/images/debian.qcow2"
SECRET = "correct horse battery staple"  # noqa: S105 - of nobody
DEBIAN = {"base": BASE, "size": "40GiB"}
ONE: dict[str, Any] = {"name": "a", "images": [DEBIAN, {"size": "1GiB"}], "cloud_init": {"user_data": "user-data"}}
IMAGES = {"a.qcow2": f"{40 << 30} on qcow2 {BASE}", "a-2.qcow2": str(1 << 30)}


class Machine:
    """A simulated host in a file, a fleet's file, and a file for cloud-init beside it."""

    def __init__(self, run: Run, folder: Path) -> None:
        self._run, self.host, self.ledger, self.file = run, folder / "h.host", folder / "l.db", folder / "fleet.yaml"
        self.host.write_text(form(copy(original("hgx8"))))
        self.user_data = folder / "user-data"
        self.user_data.write_text(f"#cloud-config\npassword: {SECRET}\n")

    @property
    def options(self) -> list[str]:
        return ["--simulate", str(self.host), "--ledger", str(self.ledger), "--connect", URI]

    def apply(self, *domains: dict[str, Any], words: tuple[str, ...] = ("--yes",)) -> Answer:
        defaults = {"gpus": 1, "cpus": 4, "memory": "2GiB", "pool": POOL}
        self.file.write_text(json.dumps({"fleet": "ml", "defaults": defaults, "domains": domains}))
        return self._run("domain", "apply", str(self.file), *words, *self.options, "--json")

    def session(self, *faults: Fault) -> Session:
        return Session(Simulated(read_tree(self.host), "simulated", file=self.host, faults=faults), self.ledger)

    def volumes(self) -> dict[str, str]:
        prefix = f"{VOLUMES}/{POOL}/"
        files = read_tree(self.host).files.items()
        return {name.removeprefix(prefix): text for name, text in files if name.startswith(prefix)}

    def put(self, name: str, text: str) -> None:
        tree = read_tree(self.host)
        tree.put(f"{VOLUMES}/{POOL}/{name}", text)
        self.host.write_text(form(tree))

    def domains(self) -> dict[str, dict[str, Any]]:
        answer = self._run("domain", "list", *self.options, "--json")
        return {each["name"]: each for each in answer.document["domains"] if each["name"] != "test"}

    def disks(self, name: str) -> list[tuple[str, str, str]]:
        """The kind, target and file of each disk."""
        found = []
        for disk in parse(DomainApi(self.session()).xml_of(name, connect=URI)).root.iterfind("devices/disk"):
            target, source = disk.find("target"), disk.find("source")
            assert target is not None
            assert source is not None
            found.append((disk.get("device", ""), target.get("dev", ""), source.get("file", "")))
        return found


@pytest.fixture
def machine(run: Run, tmp_path: Path) -> Machine:
    return Machine(run, tmp_path)


def test_volumes_are_created_once_before_the_domain(machine: Machine) -> None:
    told = machine.apply(ONE, words=("--dry-run",))
    assert schema_problems(told.document, "domain-apply") == []
    (item,) = told.document["domains"]
    seed = item["volumes"][-1] if item["volumes"][-1].endswith(".iso") else item["volumes"][0]
    assert sorted(item["volumes"]) == sorted(["a.qcow2", "a-2.qcow2", seed])
    assert (machine.volumes(), machine.domains()) == ({}, {})

    done = machine.apply(ONE)
    assert done.code == 0, done.err
    actions = [step["action"] for step in done.document["domains"][0]["plan"]["steps"]]
    assert sorted(actions[:-1]) == ["create disk image", "create disk image", "write seed"]
    assert actions[-1] == "define domain"
    volumes = machine.volumes()
    assert {name: text for name, text in volumes.items() if name != seed} == IMAGES
    assert seed == f"a-seed-{volumes[seed][:12]}.iso"
    folder = f"/{POOL}"
    assert machine.disks("a") == [
        ("disk", "vda", f"{folder}/a.qcow2"),
        ("disk", "vdb", f"{folder}/a-2.qcow2"),
        ("cdrom", "sda", f"{folder}/{seed}"),
    ]
    before = machine.host.read_text()
    assert machine.apply(ONE).document["result"] == "nothing to do"
    assert machine.host.read_text() == before


def test_what_is_missing_is_created_again_and_the_domain_stays(machine: Machine) -> None:
    machine.apply(ONE)
    volumes = machine.volumes()
    for name in ("a.qcow2", "a-2.qcow2"):
        machine.session().kernel.tell_libvirt(URI, "delete_volume", POOL, name)
    done = machine.apply(ONE)
    (item,) = done.document["domains"]
    assert (done.document["result"], item["change"], sorted(item["volumes"])) == ("done", "none", sorted(IMAGES))
    assert machine.volumes() == volumes


def test_an_image_that_is_there_is_used_and_never_changed(machine: Machine) -> None:
    machine.put("a.qcow2", f"{IMAGES['a.qcow2']}{WRITTEN}")
    done = machine.apply(ONE)
    assert done.code == 0, done.err
    assert (
        "disk image default-pool/a.qcow2 exists already and is used as it is"
        in done.document["domains"][0]["plan"]["notes"][-1]
    )
    assert machine.volumes()["a.qcow2"].endswith(WRITTEN)
    machine.put("b.qcow2", f"{20 << 30} on qcow2 {BASE}")
    refused = machine.apply({**ONE, "name": "b"}, {**ONE, "name": "c"})
    assert (refused.code, refused.document["error"]["kind"]) == (4, "Foreign")
    assert (
        "b.qcow2 exists, with 20 GiB, on /images/debian.qcow2; wanted: 40 GiB" in refused.document["error"]["message"]
    )
    assert list(machine.domains()) == ["a"]


def test_an_image_without_a_size_is_as_large_as_its_base(machine: Machine) -> None:
    domain = {"name": "a", "images": [{"base": BASE}]}
    assert machine.apply(domain).code == 0
    assert machine.volumes() == {"a.qcow2": f"{10 << 30} on qcow2 {BASE}"}
    assert machine.apply(domain).document["result"] == "nothing to do"


def test_other_user_data_is_another_seed_and_the_devices_stay(machine: Machine) -> None:
    one = {**ONE, "running": True}
    machine.apply(one, {"name": "b"})
    before = machine.domains()
    (old,) = (name for name in machine.volumes() if name.endswith(".iso"))
    machine.user_data.write_text("#cloud-config\n{}\n")
    done = machine.apply(one, {"name": "b"})
    assert done.code == 0, done.err
    (new,) = done.document["domains"][0]["volumes"]
    assert {old, new} <= machine.volumes().keys()
    assert machine.disks("a")[-1][-1].endswith(old), "it runs with the one that it was started with"
    after = machine.domains()
    assert [after[name]["devices"] for name in "ab"] == [before[name]["devices"] for name in "ab"]


def test_a_domain_that_stays_keeps_its_definition_and_its_passwords(machine: Machine) -> None:
    machine.apply(ONE)
    graphics = f"<graphics type='vnc' passwd='{SECRET[:8]}'/></devices>"
    kernel = machine.session().kernel
    text = kernel.ask_libvirt(URI, "definition", "a").replace("</devices>", graphics)
    kernel.tell_libvirt(URI, "define", text)
    before = kernel.ask_libvirt(URI, "definition", "a")
    assert f"passwd='{SECRET[:8]}'" in before
    kernel.tell_libvirt(URI, "delete_volume", POOL, "a.qcow2")
    done = machine.apply({**ONE, "running": True})
    (item,) = done.document["domains"]
    assert (item["change"], item["power"], item["volumes"]) == ("none", "start", ["a.qcow2"])
    assert ([each["kind"] for each in item["plan"]["changes"]], item["plan"]["notes"]) == (["disk image"], [])
    assert machine.session().kernel.ask_libvirt(URI, "definition", "a") == before
    assert SECRET[:8] not in done.out


SHARED: dict[str, Any] = {"images": [{"name": "x.qcow2", "size": "1GiB"}]}
DB = "<domain type='kvm'><name>db</name><memory>1024</memory><os><type>hvm</type></os><devices>{}</devices></domain>"
DISK = "<disk type='{}'>{}<source {}/><target dev='vda'/></disk>"


@pytest.mark.parametrize("other", [SHARED, {"disks": [f"/{POOL}/x.qcow2"]}])
def test_one_image_for_two_domains_of_the_fleet_is_refused(machine: Machine, other: dict[str, Any]) -> None:
    refused = machine.apply({"name": "a", **SHARED}, {"name": "b", **other})
    assert (refused.code, refused.document["error"]["kind"]) == (2, "BadSpec")
    assert "a: disk image default-pool/x.qcow2 is also a disk of domain b" in refused.document["error"]["message"]
    assert (machine.volumes(), machine.domains()) == ({}, {})


@pytest.mark.parametrize(
    "twice",
    [
        {"images": [*SHARED["images"], *SHARED["images"]]},
        {"images": [{"size": "1GiB"}, {"name": "b.qcow2", "size": "1GiB"}]},
        {**SHARED, "disks": [f"/{POOL}/../{POOL}/x.qcow2"]},
        {"disks": ["/dev/sda", "/dev/sda"]},
    ],
)
def test_one_image_for_two_disks_of_a_domain_is_refused(machine: Machine, twice: dict[str, Any]) -> None:
    refused = machine.apply(ONE, {"name": "b", **twice})
    assert (refused.code, refused.document["error"]["kind"]) == (2, "BadSpec")
    assert re.search(r"b: disk .+ is there twice", refused.document["error"]["message"])
    assert (machine.volumes(), machine.domains()) == ({}, {})


@pytest.mark.parametrize("path", ["/dev/sda", "//dev/../dev/sda"])
def test_one_disk_for_two_domains_of_the_fleet_is_refused(machine: Machine, path: str) -> None:
    refused = machine.apply({"name": "a", "disks": ["/dev/sda"]}, {"name": "b", "disks": ["/b.raw", path]})
    assert (refused.code, refused.document["error"]["kind"]) == (2, "BadSpec")
    assert "a: disk /dev/sda is also a disk of domain b" in refused.document["error"]["message"]
    assert machine.domains() == {}


def test_a_disk_that_a_domain_of_the_fleet_runs_with_is_refused_for_another(machine: Machine) -> None:
    a = {"name": "a", "disks": ["/dev/sda"], "running": True}
    assert machine.apply(a).code == 0
    moved = ({**a, "disks": ["/dev/sdb"]}, {"name": "b", "disks": ["/dev/sda"]})
    assert "b: disk /dev/sda is also a disk of domain a" in machine.apply(*moved).document["error"]["message"]
    assert machine.apply({**a, "running": False}).code == 0
    assert machine.apply(*moved).code == 0


@pytest.mark.parametrize(
    ("disk", "code"),
    [
        (DISK.format("file", "", f"file='/{POOL}/../{POOL}/x.qcow2'"), 4),
        (DISK.format("volume", "", f"pool='{POOL}' volume='x.qcow2'"), 4),
        (DISK.format("file", "", f"file='/{POOL}/y.qcow2'"), 0),
        (DISK.format("file", "<readonly/>", f"file='/{POOL}/x.qcow2'"), 0),
        (DISK.format("file", "<shareable/>", f"file='/{POOL}/x.qcow2'"), 0),
    ],
)
def test_the_image_of_a_domain_of_somebody_else_is_refused(machine: Machine, disk: str, code: int) -> None:
    machine.session().kernel.tell_libvirt(URI, "define", DB.format(disk))
    done = machine.apply({"name": "a", **SHARED})
    assert done.code == code, done.err
    if code:
        assert done.document["error"]["kind"] == "Foreign"
        assert "x.qcow2 is also a disk of domain db" in done.document["error"]["message"]
        assert (machine.volumes(), list(machine.domains())) == ({}, ["db"])


@pytest.mark.parametrize(
    ("disk", "base", "code"),
    [
        (DISK.format("file", "", "file='/images/../images/debian.qcow2'"), BASE, 4),
        (DISK.format("file", "", f"file='{BASE}'"), f"/{BASE}", 4),
        (DISK.format("volume", "", f"pool='{POOL}' volume='db.qcow2'"), f"/{POOL}/db.qcow2", 4),
        (DISK.format("file", "<readonly/>", f"file='{BASE}'"), BASE, 0),
        (DISK.format("volume", "", "pool='other' volume='debian.qcow2'"), BASE, 0),
    ],
)
def test_a_base_that_a_domain_writes_to_is_refused(machine: Machine, disk: str, base: str, code: int) -> None:
    machine.session().kernel.tell_libvirt(URI, "define", DB.format(disk))
    done = machine.apply({"name": "a", "images": [{"base": base}]})
    assert done.code == code, done.err
    if code:
        assert done.document["error"]["kind"] == "Foreign"
        assert "a: disk image default-pool/a.qcow2 is based on a disk of domain db" in done.document["error"]["message"]
        assert (machine.volumes(), list(machine.domains())) == ({}, ["db"])


def test_a_disk_of_a_fleet_is_no_base_in_it(machine: Machine) -> None:
    refused = machine.apply({"name": "a", "disks": [BASE], "images": [DEBIAN]})
    assert (refused.code, refused.document["error"]["kind"]) == (2, "BadSpec")
    assert "is based on a disk of domain a" in refused.document["error"]["message"]


def test_nobody_reads_what_is_in_user_data(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    done = machine.apply(ONE, words=("--yes", "--log-level", "debug"))
    assert done.code == 0
    with sqlite3.connect(machine.ledger) as db:
        ledger = "\n".join(db.iterdump())
    assert "a-seed-" in ledger
    for text in (done.out, done.err, caplog.text, ledger, machine.host.read_text()):
        assert SECRET not in text


class TestFailures:
    WRITES = 4
    """Two images, a seed, the definition."""

    def test_are_of_every_write(self, machine: Machine) -> None:
        machine.apply(ONE, words=("--dry-run",))
        session = machine.session()
        self.applied(machine, session)
        assert isinstance(session.kernel, Simulated)
        assert len(session.kernel.writes) == self.WRITES

    @pytest.mark.parametrize("at", range(1, WRITES + 1))
    def test_leave_nothing(self, machine: Machine, at: int) -> None:
        machine.apply(ONE, words=("--dry-run",))
        with pytest.raises(VfioctlError):
            self.applied(machine, machine.session(Fault(at, "errno", 5)))
        assert (machine.volumes(), machine.domains()) == ({}, {})

    @pytest.mark.parametrize("at", range(1, WRITES + 1))
    def test_after_a_crash_recover_leaves_all_or_nothing(self, machine: Machine, at: int) -> None:
        machine.apply(ONE, words=("--dry-run",))
        with pytest.raises(SimulatedDeath):
            self.applied(machine, machine.session(Fault(at, "die")))
        assert machine._run("recover", "--yes", *machine.options[:4]).code == 0
        assert (len(machine.volumes()), list(machine.domains())) in ((0, []), (3, ["a"]))
        assert machine.apply(ONE).code == 0
        assert (len(machine.volumes()), list(machine.domains())) == (3, ["a"])

    @pytest.mark.parametrize("how", ["its content", "its absence"])
    def test_files_that_change_after_planning_are_refused(self, machine: Machine, how: str) -> None:
        machine.apply(ONE, words=("--dry-run",))
        session = machine.session()
        api = DomainApi(session)
        fleet = api.fleets.plan(api.fleet(machine.file), connect=URI)
        if how == "its content":
            machine.user_data.write_text("#cloud-config\n# other\n")
        else:
            machine.user_data.unlink()
        with pytest.raises(StalePlan, match="files are not as planned"):
            api.fleets.apply(fleet)
        assert (machine.volumes(), machine.domains()) == ({}, {})

    def test_a_seed_of_which_a_part_is_missing_is_written_again(self, machine: Machine) -> None:
        machine.apply(ONE)
        (seed,) = (name for name in machine.volumes() if name.endswith(".iso"))
        whole = machine.volumes()[seed]
        machine.put(seed, INCOMPLETE)
        assert machine.apply(ONE).document["domains"][0]["volumes"] == [seed]
        assert machine.volumes()[seed] == whole

    def applied(self, machine: Machine, session: Session) -> None:
        api = DomainApi(session)
        api.fleets.apply(api.fleets.plan(api.fleet(machine.file), connect=URI))


class TestTheWayBack:
    """What rollback deletes, and what it leaves."""

    IMAGE = Change(
        kind="disk image", name=f"{URI} {POOL} a.qcow2", subject="volume/a.qcow2", before="", after=IMAGES["a.qcow2"]
    )

    def restored(self, change: Change, now: str, *, begun: bool = True) -> Change | None:
        found = Found({change.key: now}, frozenset({change.key} if begun else ()), {change.key: change})
        return REGISTRY.resource(change).restore(change, found)

    def test_deletes_an_image_only_if_no_guest_has_written_there(self) -> None:
        back = self.restored(self.IMAGE, self.IMAGE.after)
        assert back
        assert [step.action for step in REGISTRY.resource(back).steps(back)] == ["delete volume"]
        for now in (f"{self.IMAGE.after}{WRITTEN}", f"{1 << 30}", f"{40 << 30} on raw {BASE}", ""):
            assert self.restored(self.IMAGE, now) is None
        there = self.IMAGE.model_copy(update={"before": self.IMAGE.after})
        assert self.restored(there, self.IMAGE.after) is None

    def test_deletes_a_part_of_a_seed_only_if_writing_it_was_begun(self, machine: Machine) -> None:
        told = machine.apply(ONE, words=("--dry-run",))
        (seed,) = (each for each in told.document["domains"][0]["plan"]["changes"] if each["kind"] == "seed")
        change = Change.model_validate(seed)
        assert self.restored(change, INCOMPLETE)
        assert self.restored(change, INCOMPLETE, begun=False) is None
        assert self.restored(change, "") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# just a comment\n", "is nothing that cloud-init reads"),
        ("#cloud-confg\npassword: x\n", "is nothing that cloud-init reads"),
        ("", "is nothing that cloud-init reads"),
        ("#cloud-config\npassword: [\n", "user-data is not understood: line 3"),
        (f"#cloud-config\n{SECRET}: {{{SECRET}\n", "user-data is not understood: line"),
        ("#cloud-config\n- a\n", "user-data is no table of settings"),
        ("#cloud-config\na: " + "[" * 5000, "user-data is not understood: line 2: nested too deeply"),
    ],
)
def test_user_data_that_cloud_init_ignores_is_refused(machine: Machine, text: str, said: str) -> None:
    machine.user_data.write_text(text)
    refused = machine.apply(ONE)
    assert refused.code == 2, refused.out
    assert said in refused.document["error"]["message"]
    assert SECRET not in refused.out
    assert (machine.volumes(), machine.domains()) == ({}, {})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("*Tr0ub4dor", "found undefined alias"),
        ("!Tr0ub4dor!x y", "found undefined tag handle"),
        ("&Tr0ub4dor x\nb: &Tr0ub4dor y", "second occurrence"),
        ("&Tr0ub4dor{", "expected alphabetic or numeric character, but found '{'"),
        ("!Tr0ub4dor{", "expected ' ', but found '{'"),
        ("!<Tr0ub4dor", "expected '>'"),
        ('"Tr0ub4dor', "found unexpected end of stream"),
        ('"\\Tr0ub4dor"', "found unknown escape character 'T'"),
        ("[Tr0ub4dor", "expected ',' or ']', but got '<stream end>'"),
        ("b: Tr0ub4dor", "mapping values are not allowed here"),
        ("b\n--- Tr0ub4dor", "but found another document"),
        ("b\n...\n%Tr0ub4dor", "expected '<document start>', but found '<stream end>'"),
    ],
)
def test_what_is_wrong_with_user_data_is_said_without_its_words(value: str, said: str) -> None:
    with pytest.raises(BadSpec) as refused:
        refuse_user_data("user-data", f"#cloud-config\na: {value}\n".encode())
    assert re.fullmatch(rf"user-data is not understood: line [0-9]: {re.escape(said)}.*", refused.value.message)
    assert "Tr0ub4dor" not in refused.value.message


@pytest.mark.parametrize(
    "content",
    [
        b"#cloud-config\n",
        b"#cloud-config\na: &x {b: 1}\nc: *x\n",
        b"#Cloud-Config # comment\r\na: 1\r\n",
        b"#cloud-config-archive\n- a",
        b"#cloud-config-jsonp\n[]",
        b"#!/bin/sh",
        b"#include\nhttps://example.com/x",
        b"#include-once",
        b"#cloud-boothook",
        b"#part-handler",
        b"## template: jinja\n#cloud-config\n{% if",
        b"Content-Type: multipart/mixed",
        b"MIME-Version: 1.0",
        b"From nobody",
        b"\x1f\x8b\x08\xff",
    ],
)
def test_all_that_cloud_init_reads_is_taken(content: bytes) -> None:
    refuse_user_data("user-data", content)


@pytest.mark.parametrize(("text", "code"), [("version: 2\n", 0), ("a: [", 2), ("- a", 2), ("", 2)])
def test_a_network_configuration_is_a_table(machine: Machine, text: str, code: int) -> None:
    (machine.file.parent / "net").write_text(text)
    done = machine.apply({**ONE, "cloud_init": {"user_data": "user-data", "network_config": "net"}})
    assert done.code == code, done.out


@pytest.mark.parametrize(
    ("domain", "said"),
    [
        ({"images": [{}]}, "a disk image needs a base or a size"),
        ({"images": [{"size": "1000B"}]}, "must be at least 1 MiB"),
        ({"images": [{"size": 40 << 30}]}, "a size with a unit is needed"),
        ({"images": [{"size": "1GiB", "name": "../a.qcow2"}]}, "domains.0.images.0.name"),
        ({"images": [{"size": "1GiB", "name": "a.img"}]}, "domains.0.images.0.name"),
        ({"images": [{"base": "debian.qcow2"}]}, "domains.0.images.0.base"),
        ({"images": [{"base": BASE, "base_format": "vmdk"}]}, "domains.0.images.0.base_format"),
        ({"images": [DEBIAN], "pool": "../x"}, "domains.0.pool"),
        ({"images": [DEBIAN], "pool": "nope"}, "a: asking for the storage pool nope: "),
        ({"images": [{"size": "1GiB"}], "pool": "nope"}, "a: asking for the storage pool nope: "),
        ({"cloud_init": {}}, "domains.0.cloud_init.user_data is missing"),
        ({"cloud_init": {"user_data": "nope"}}, "nope cannot be read: No such file"),
        ({"cloud_init": {"user_data": "."}}, "cannot be read: Is a directory"),
        ({"cloud_init": {"user_data": "fleet.yaml"}}, "fleet.yaml is nothing that cloud-init reads"),
        ({"cloud_init": {"user_data": "user-data", "network_config": "nope"}}, "nope cannot be read"),
        ({"cloud_init": {"user_data": "user-data", "hostname": "a b"}}, "domains.0.cloud_init.hostname"),
        ({"cloud_init": 5}, "domains.0.cloud_init"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_changed(machine: Machine, domain: dict[str, Any], said: str) -> None:
    refused = machine.apply({"name": "a", **domain})
    assert refused.code == 2, refused.out
    assert said in refused.document["error"]["message"]
    assert (machine.volumes(), machine.domains()) == ({}, {})


def test_a_pool_without_files_is_refused(machine: Machine, tmp_path: Path) -> None:
    node = tmp_path / "node.xml"
    pool = (
        "<pool type='logical'><name>lvm</name><source><name>lvm</name></source><target><path>/dev/lvm</path></target>"
    )
    node.write_text(f"<node>{pool}</pool></node>")
    machine.apply({"name": "a", "images": [DEBIAN], "pool": "lvm"}, words=("--dry-run",))
    api = DomainApi(machine.session())
    with pytest.raises(BadSpec, match="storage pool lvm is of the kind logical: it has no files"):
        api.fleets.plan(api.fleet(machine.file), connect=f"test://{node}")


def test_a_base_that_is_not_there_is_refused(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.apply(ONE, words=("--dry-run",))
    session = machine.session()
    ask = session.kernel.ask_libvirt

    def without(uri: str, question: str, *words: str) -> Any:
        return ("dir", "/x", BASE not in words) if question == "pool" else ask(uri, question, *words)

    monkeypatch.setattr(session.kernel, "ask_libvirt", without)
    api = DomainApi(session)
    with pytest.raises(BadSpec, match=f"there is no image {BASE}"):
        api.fleets.plan(api.fleet(machine.file), connect=URI)


def test_without_pycdlib_seeds_are_refused_and_images_are_not(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pycdlib" else find(name))
    refused = machine.apply(ONE)
    assert (refused.code, refused.document["error"]["kind"]) == (3, "MissingLibrary")
    assert "vfioctl[cloud-init]" in refused.document["error"]["hint"]
    assert machine.apply({"name": "a", "images": [DEBIAN]}).code == 0
    with pytest.raises(MissingLibrary):
        image_of({})


@pytest.mark.parametrize(("host", "disk"), [("hgx8", ("cdrom", "sda", "sata")), ("gh200", ("disk", "vdb", "virtio"))])
def test_a_seed_is_a_read_only_disk_that_the_machine_has(host: str, disk: tuple[str, ...]) -> None:
    api = DomainApi(sources.recorded(Session, host))
    built = api.build(api.spec({"name": "a", "gpus": 1, "cpus": 4, "memory": "4GiB", "seed": "/images/a.iso"}))
    (found,) = (each for each in parse(built.xml).root.iterfind("devices/disk") if each.find("readonly") is not None)
    target, source = found.find("target"), found.find("source")
    assert target is not None
    assert source is not None
    assert (found.get("device"), target.get("dev"), target.get("bus")) == disk
    assert source.get("file") == "/images/a.iso"
    again = parse(text_of(composed(built.document, built.spec, built.layout))).root
    assert len(again.findall("devices/disk[readonly]")) == 1, "also when a domain is edited"


def test_names_are_bounded() -> None:
    assert len(volume_name("qemu:///system", "p" * 64, "v" * 174)) == 254
    with pytest.raises(BadSpec):
        volume_name("qemu:///system", "p" * 64, "v" * 176)


class TestSeeds:
    FILES: ClassVar = {
        "meta-data": b'{"instance-id": "a"}\n',
        "user-data": b"#cloud-config\n" * 200,
        "network-config": b"\xff\n",
    }

    def test_have_the_label_and_the_files(self) -> None:
        image = image_of(self.FILES)
        assert image[32768 + 40 : 32768 + 46] == b"cidata", "of the primary volume descriptor (ECMA-119 8.4.7)"
        assert files_in(image) == self.FILES

    def test_digests_are_of_names_and_contents(self) -> None:
        parts = [self.FILES, {**self.FILES, "user-data": b"#"}, {"user-data": b"#"}, {"meta-data": b"#"}, {}]
        assert len({digest_of(each) for each in parts}) == len(parts)
        assert digest_of(dict(reversed(self.FILES.items()))) == digest_of(self.FILES)

    def test_that_are_damaged_never_count_as_whole(self) -> None:
        image, rnd = image_of(self.FILES), random.Random(7)
        end = image.rindex(self.FILES["network-config"]) + len(self.FILES["network-config"])
        for cut in (0, 1, 32768, 34816, 40000, *(rnd.randrange(end) for _ in range(40))):
            for part in (image[:cut], image[:cut] + bytes(len(image) - cut)):
                assert files_in(part) != self.FILES
        for _ in range(100):
            damaged = bytearray(image)
            damaged[rnd.randrange(32768, 65536)] = rnd.randrange(256)
            files_in(bytes(damaged))


def test_the_test_driver_takes_the_documents_of_volumes() -> None:
    assert named("pool")(URI, POOL, BASE)[0] == ("dir", f"/{POOL}", True)
    assert named("volume")(URI, POOL, "a.qcow2") == ("", 0, "")
    assert named("seed")(URI, POOL, "a.iso") == ("", 0, "")
    for text in (IMAGES["a.qcow2"], IMAGES["a-2.qcow2"]):
        assert named("create_image")(URI, POOL, "a.qcow2", text) == (None, 0, "")
    assert named("delete_volume")(URI, POOL, "a.qcow2")[1] == 50


def test_specs_keep_what_is_of_the_fleet_to_themselves(machine: Machine) -> None:
    machine.apply(ONE, words=("--dry-run",))
    (domain,) = DomainApi(machine.session()).fleet(machine.file).domains
    assert type(domain.spec) is DomainSpec
    assert domain.cloud_init
    assert domain.cloud_init.user_data == str(machine.user_data), "beside the fleet's file"
    assert domain.images == (
        Image.model_validate({"base": BASE, "size": "40GiB"}),
        Image.model_validate({"size": "1GiB"}),
    )
