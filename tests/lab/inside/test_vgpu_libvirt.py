"""vGPUs and libvirt 9: a guest uses one that vfioctl created; which parents and vGPUs libvirt lists; definitions."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lab.inside import mdev, pci
from tests.lab.inside.command import vfioctl
from tests.lab.inside.conftest import Load
from tests.lab.inside.in_use import within_seconds
from tests.lab.inside.libvirt_host import daemon, definition, running, virsh
from tests.lab.inside.topology import Topology
from vfioctl.domain.document.templates import OWN

LISTED_SECONDS = 20.0
AGENT_SECONDS = 60.0
AGENT = "<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>"
A2_4C = "nvidia-754"


@pytest.fixture(scope="module", autouse=True)
def libvirt() -> Iterator[None]:
    """One daemon for all of these tests: it takes seconds to start, and ten more to ask QEMU what it can do."""
    with daemon():
        yield


def test_the_guest_of_a_built_domain_lists_its_devices_and_holds_them_until_the_domain_ends(
    lab: Topology, load: Load, tmp_path: Path
) -> None:
    load("mbochs", count=100)
    ledger, file = tmp_path / "ledger.db", tmp_path / "lab.xml"
    functions = (*lab.card, lab.far_display)
    drivers = [pci.driver_of(each) for each in functions]
    answer = vfioctl(ledger, "vgpu", "create", "mbochs-small", "--json")
    assert answer.returncode == 0, answer.stderr
    (name,) = (vgpu["id"] for vgpu in json.loads(answer.stdout)["report"]["vgpus"])
    group = (mdev.BUS / "devices" / name / "iommu_group").readlink().name
    file.write_text(_built(ledger, lab, name))
    assert vfioctl(ledger, "domain", "define", str(file), "--yes").returncode == 0
    begun = vfioctl(ledger, "domain", "start", "lab", "--yes")
    assert begun.returncode == 0, begun.stderr
    assert [pci.driver_of(each) for each in functions] == ["vfio-pci"] * 3
    with running("lab") as domain:
        there = domain.booted()
        seen = sorted((one.kind, one.node) for one in there if one.kind in ("038000", "040300"))
        assert seen == [("038000", "-1"), ("038000", "0"), ("038000", "1"), ("040300", "0")]
        slots = {one.address.rpartition(".")[0] for one in there if one.node == "0" and one.kind != "060400"}
        assert len(slots) == 1, "the functions of the card are in one slot"
        assert _affinity(domain.pid) == {"CPU 0/KVM": "1", "CPU 1/KVM": "3"}
        assert _bound(domain.pid) == {"bind:0", "bind:1"}
        _verified(ledger, domain.pid, (lab.display, lab.far_display, name))
        # libvirt gave it a /dev of its own, and the path in it is the same
        assert Path(f"/proc/{domain.pid}/ns/mnt").readlink() != Path("/proc/self/ns/mnt").readlink()
        held = {os.readlink(path) for path in Path(f"/proc/{domain.pid}/fd").iterdir()}
        assert {f"/dev/vfio/{group}", "anon_inode:[vfio-device]"} <= held
        refused = vfioctl(ledger, "vgpu", "remove", name)
        assert refused.returncode == 4
        assert f"process {domain.pid}" in refused.stderr
        assert f"guest {domain.name}" in refused.stderr
        assert mdev.instances() == {name}
        stopped = vfioctl(ledger, "domain", "stop", "lab", "--force", "--yes", "--json")
        assert stopped.returncode == 0, stopped.stderr
        assert len(json.loads(stopped.stdout)["claims"]) == 1
    assert [pci.driver_of(each) for each in functions] == drivers
    assert json.loads(vfioctl(ledger, "claim", "list", "--json").stdout)["claims"] == []
    assert vfioctl(ledger, "domain", "undefine", "lab", "--yes").returncode == 0
    assert mdev.instances() == {name}
    removed = vfioctl(ledger, "vgpu", "remove", name, "--wait", "30s")
    assert removed.returncode == 0, removed.stderr
    assert mdev.instances() == set()
    assert mdev.available("mbochs")["mbochs-small"] == 25


def test_libvirt_lists_all_instances_but_not_all_parents(lab: Topology, load: Load) -> None:
    load("mbochs")
    load("mtty")
    load("standin_mdev")
    pci.bind_to(lab.far_display, "nvidia")
    kinds = {"mbochs": "mbochs-small", "mtty": "mtty-1", lab.far_display: A2_4C}
    instances = {_named(f"mdev_{mdev.create(parent, kind)}_{parent}") for parent, kind in kinds.items()}
    # not mbochs: of parents that are no PCI functions it knows few
    wanted = instances | {"mtty_mtty", _named(f"pci_{lab.far_display}")}
    # it hears of them from udev
    within_seconds(LISTED_SECONDS, lambda: len(_listed()) >= len(wanted))
    assert _listed() == wanted


def _built(ledger: Path, lab: Topology, vgpu: str) -> str:
    """The XML of a domain with the card on node 0, the display on node 1, and the vGPU, from a template of our own."""
    OWN.mkdir(parents=True, exist_ok=True)
    (OWN / "lab.xml").write_text(definition("lab").replace("</serial>", f"</serial>{AGENT}"))
    devices = [f"--device={name}" for name in (lab.display, lab.far_display, vgpu)]
    words = ("domain", "build", "lab", "--template=lab", *devices, f"--node={lab.display}=0", "--cpus=2")
    answer = vfioctl(ledger, *words, "--memory=256MiB", "--hugepages=none")
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def _verified(ledger: Path, pid: int, devices: tuple[str, ...]) -> None:
    """`domain verify` finds what these tests find by themselves, and a vCPU that is moved, and only that one."""
    within_seconds(AGENT_SECONDS, lambda: "state='connected'" in virsh("dumpxml lab"))
    found = _verify(ledger)
    assert (found["name"], found["pid"], found["state"]) == ("lab", pid, "ok"), found
    told = {fact["what"]: fact["found"] for fact in found["facts"] if fact["state"] == "ok"}
    assert {what: cpus for what, cpus in told.items() if what.startswith("vCPU")} == {"vCPU 0": "1", "vCPU 1": "3"}
    assert told["memory of cell 0"] == "128 MiB on node 0"
    assert told["memory of cell 1"] == "128 MiB on node 1"
    assert {f"{device} on QEMU's command line" for device in devices} <= set(told)
    assert {"emulator", "devices of the definition", "pins of the definition"} <= set(told)
    guest = {fact["what"].partition(",")[0]: fact["found"] for fact in found["facts"] if fact["area"] == "guest"}
    near, far = (f"NUMA node of {device} in the guest" for device in devices[:2])
    assert (guest[near], guest[far]) == ("0", "1"), "as the agent of the guest says"
    assert all(fact["state"] == "ok" for fact in found["facts"]), found["facts"]
    with _moved(pid, "CPU 1/KVM", {0}):
        (fact,) = (fact for fact in _verify(ledger, code=6)["facts"] if fact["state"] == "differs")
        assert (fact["what"], fact["wanted"], fact["found"]) == ("vCPU 1", "3", "0")
        assert fact["remedy"] == "virsh vcpupin lab 1 3 --live"
    assert _verify(ledger)["state"] == "ok"


def _verify(ledger: Path, code: int = 0) -> dict[str, Any]:
    answer = vfioctl(ledger, "domain", "verify", "lab", "--json")
    assert answer.returncode == code, answer.stdout + answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


@contextmanager
def _moved(pid: int, name: str, cpus: set[int]) -> Iterator[None]:
    """Another place for one thread until the block ends, against its control group too."""
    (task,) = (each for each in Path(f"/proc/{pid}/task").iterdir() if (each / "comm").read_text().strip() == name)
    before, group = os.sched_getaffinity(int(task.name)), (task / "cgroup").read_text().strip().rpartition("::")[2]
    allowed = Path(f"/sys/fs/cgroup{group}", "cpuset.cpus")
    permitted = allowed.read_text() if allowed.exists() else ""
    try:
        if permitted.strip():
            allowed.write_text("0-3")
        os.sched_setaffinity(int(task.name), cpus)
        yield
    finally:
        if permitted.strip():
            allowed.write_text(permitted)
        os.sched_setaffinity(int(task.name), before)


def _affinity(pid: int) -> dict[str, str]:
    """The CPUs on which each vCPU's thread may run."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        name = (task / "comm").read_text().strip()
        if name.startswith("CPU "):
            lines = (task / "status").read_text().splitlines()
            found[name] = next(line.split()[1] for line in lines if line.startswith("Cpus_allowed_list"))
    return found


def _bound(pid: int) -> set[str]:
    """The NUMA policies of the guest's memory: its mappings of 128 MiB each."""
    lines = [line.split() for line in Path(f"/proc/{pid}/numa_maps").read_text().splitlines()]
    return {words[1] for words in lines if "anon=32768" in words}


def _named(text: str) -> str:
    return text.translate(str.maketrans(":.-", "___"))


def _listed() -> set[str]:
    return set(virsh("nodedev-list --cap mdev_types", "nodedev-list --cap mdev").split())


DOMAIN = """<domain type='qemu'>
  <name>{name}</name>
  <memory unit='MiB'>256</memory>
  <vcpu>2</vcpu>
  <cputune><vcpupin vcpu='0' cpuset='2'/><vcpupin vcpu='1' cpuset='2-3,^2'/></cputune>
  <numatune><memory mode='preferred' nodeset='1'/></numatune>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <cpu mode='maximum'/>
  <devices>
    <hostdev mode='subsystem' type='pci' managed='no'>
      <source><address domain='0x{domain}' bus='0x{bus}' slot='0x{slot}' function='0x{function}'/></source>
    </hostdev>
  </devices>
</domain>
"""


def test_a_domain_is_defined_listed_and_undefined(lab: Topology, tmp_path: Path) -> None:
    ledger, file = tmp_path / "ledger.db", tmp_path / "domain.xml"
    domain, bus, slot, function = lab.far_display.replace(".", ":").split(":")
    document = DOMAIN.format(name="web1", domain=domain, bus=bus, slot=slot, function=function)

    def define(text: str, *words: str, code: int = 0) -> dict[str, Any]:
        file.write_text(text)
        return answer("define", str(file), "--yes", *words, code=code)

    def answer(*words: str, code: int = 0) -> dict[str, Any]:
        done = vfioctl(ledger, "domain", *words, "--json")
        assert done.returncode == code, done.stdout + done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    assert define(document)["result"] == "done"
    assert "urn:vfioctl:1" in virsh("dumpxml --inactive web1")
    assert define(document)["result"] == "nothing to do"  # although libvirt has filled in controllers and addresses
    listed = answer("list")
    (found,) = listed["domains"]
    assert (found["name"], found["state"], found["ours"], found["vcpus"]) == ("web1", "defined", True, 2)
    assert (found["devices"], found["nodes"], found["memory_bytes"]) == ([lab.far_display], "1", 256 << 20)
    assert [pin["cpus"] for pin in found["pins"]] == ["2", "3"]
    assert (listed["libvirt"] // 1_000_000, listed["hypervisor"] // 1_000_000) == (9, 7)

    before = virsh("dumpxml --inactive web1")
    # the schema accepts it, and the driver does not: a cell that the guest does not have
    wrong = document.replace(
        "mode='preferred' nodeset='1'/>", "mode='strict' nodeset='1'/><memnode cellid='7' mode='strict' nodeset='1'/>"
    )
    refused = define(wrong, code=2)["error"]
    assert refused["restored"] == "domain/web1 put back as before"
    assert virsh("dumpxml --inactive web1") == before
    file.write_text(document.replace("web1", "db"))
    virsh(f"define --validate {file}")
    assert answer("undefine", "db", "--yes", code=4)["error"]["kind"] == "Foreign"
    assert answer("undefine", "web1", "--yes")["result"] == "done"
    assert virsh("list --all --name") == "db"
    virsh("undefine db")
