# ruff: noqa: E501 - a host and a document are a line
"""The rules on domains that need a host: each finds what is wrong there, and nothing where nothing is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.conftest import Run
from tests.unit.domain.documents import GOOD, changed
from vfioctl.core.marks import Mark, MarkKind
from vfioctl.domain.check.rules.check import HOST_RULES, check
from vfioctl.domain.check.rules.rule import HostFacts
from vfioctl.domain.document.xml import METADATA, parse
from vfioctl.domain.model.finding import Finding, Severity
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.machine import Group, Iommu, NumaNode, Processor
from vfioctl.inventory.model.values import PciAddress
from vfioctl.placement.model.capacity import Capacity, Core, HugepagePool, Topology
from vfioctl.placement.model.claims import Owner, Taken
from vfioctl.placement.model.share import GpuShare
from vfioctl.units import CpuSet

ERROR, WARNING = Severity.ERROR, Severity.WARNING
GIB = 1 << 30
MDEV = "4e8c5df7-c4fa-4719-904f-5579cd5ac35f"
GPU, AUDIO, BRIDGE, OTHER = map(PciAddress, ("1b:00.0", "1b:00.1", "1a:00.0", "1c:00.0"))
OURS = ("<iothreads>", f"<metadata><a:allocation xmlns:a='{METADATA}' id='1a2b'/></metadata><iothreads>")
GPU_SOURCE = "<source><address domain='0x0000' bus='0x1b' slot='0x00' function='0x0'/></source>"
AUDIO_SOURCE = GPU_SOURCE.replace("function='0x0'", "function='0x1'")
NUMATUNE = GOOD[GOOD.index("  <numatune>") : GOOD.index("  <os>")]
CELLS = GOOD[GOOD.index("    <numa>") : GOOD.index("  </cpu>")]
DEFAULT_PAGES = (("<page size='1' unit='GiB' nodeset='0-1'/>", ""),)
ARM = Processor(arch="aarch64")
ELSEWHERE = (NUMATUNE, "<numatune><memory mode='strict' nodeset='1'/></numatune>")


def function(address: PciAddress, **given: Any) -> Function:
    known: dict[str, Any] = dict.fromkeys(
        ("vendor_id", "device_id", "subsystem_vendor_id", "subsystem_device_id"), "10de"
    )
    known |= {"class_code": "030000", "driver": "vfio-pci", "iommu_group": 21, "numa_node": 0}
    return Function(address=address, **(known | {"prefetchable_64": 128 * GIB} | given))


FUNCTIONS = {
    BRIDGE: function(BRIDGE, class_code="060400", driver="pcieport", prefetchable_64=0),
    GPU: function(GPU),
    AUDIO: function(AUDIO, class_code="040300", prefetchable_64=0),
    OTHER: function(OTHER, class_code="020000", driver="e1000e", iommu_group=22, prefetchable_64=0),
}


def inventory(**changed_functions: Function) -> Inventory:
    """The host's devices, some of them others: by the names gpu, audio and other."""
    names = {"gpu": GPU, "audio": AUDIO, "other": OTHER}
    functions = FUNCTIONS | {names[name]: each for name, each in changed_functions.items()}
    members = {group: tuple(a for a, f in functions.items() if f.iommu_group == group) for group in (21, 22)}
    return Inventory(
        functions=tuple(functions.values()),
        groups=tuple(Group(id=group, members=found, viable=True) for group, found in members.items()),
        numa_nodes=tuple(
            NumaNode(id=node, cpus=CpuSet(range(node * 32, node * 32 + 32)), memory_bytes=64 * GIB) for node in (0, 1)
        ),
        iommu=Iommu(kind="intel-vt-d", translating=True),
    )


CAPACITY = Capacity(
    inventory=inventory(),
    topology=Topology(tuple(Core((cpu, cpu + 1), cpu // 32) for cpu in range(0, 64, 2))),
    hugepages=tuple(HugepagePool(node, GIB, 8, 6) for node in (0, 1)),
)
HOST = HostFacts(CAPACITY, Processor(arch="x86_64", address_bits=46), mdevs=frozenset({MDEV}))
AMD = replace(HOST, processor=Processor(arch="x86_64", is_amd=True))
HOST_MODEL = (("mode='host-passthrough'", "mode='host-model'"), ("<cache mode='passthrough'/>", ""))
NARROW = replace(HOST, processor=Processor(arch="x86_64", address_bits=39))
CLAIM = ("1a2b", Owner("vm/db"))
PERSON = ("3c4d", Owner("user/alice"))


def with_capacity(**given: Any) -> HostFacts:
    return replace(HOST, capacity=replace(CAPACITY, **given))


def with_functions(**given: Function) -> HostFacts:
    return with_capacity(inventory=inventory(**given))


def pools(total: int, free: int) -> tuple[HugepagePool, ...]:
    return tuple(HugepagePool(node, GIB, total, free) for node in (0, 1))


def topoext(policy: str) -> tuple[str, str]:
    return "<numa>", f"<feature policy='{policy}' name='topoext'/><numa>"


WEDGED = Mark(address=GPU, kind=MarkKind.WEDGED, since="2026-01-01T00:00:00Z", why="unbind never returned")
DISK = ("<memballoon", "<disk><source file='/b.img'/><target dev='vdb' bus='virtio'/></disk><memballoon")
WRONG: tuple[tuple[str, Severity, str, HostFacts, tuple[tuple[str, str], ...]], ...] = (
    ("host-architecture", ERROR, "no x86_64", replace(HOST, processor=Processor(arch="aarch64")), ()),
    ("host-address-bits", ERROR, "has 46", HOST, (("passthrough' limit='46'", "emulate' bits='48'"),)),
    ("host-address-bits", ERROR, "needs 40 address bits, and this CPU has 39", NARROW, ()),
    ("host-address-bits", ERROR, "needs 40 address bits", NARROW, (("<maxphysaddr mode='passthrough' limit='46'/>", ""),)),
    ("host-cpu", ERROR, "CPU 500", HOST, (("cpuset='35'", "cpuset='500'"),)),
    ("host-cpu", ERROR, "CPU 64-99", HOST, (("<emulatorpin cpuset='0-1'", "<emulatorpin cpuset='0-1,64-99'"),)),
    ("host-cpu-claimed", WARNING, "CPU 2 belongs to claim 1a2b of vm/db", with_capacity(taken=Taken(cpus={2: CLAIM})), ()),
    ("host-cpu-shared", WARNING, "CPU 2-3 is pinned by domain db too", replace(HOST, pinned=dict.fromkeys((0, 2, 3), "domain db")), ()),
    ("host-cpu-count", WARNING, "host with 64 CPUs", HOST, ((">4</vcpu>", ">65</vcpu>"),)),
    ("host-cpu-node", WARNING, "vCPU 1 may run on node 1", HOST, (("cpuset='3'", "cpuset='36'"),)),
    ("host-cpu-threads", WARNING, "vCPU 2-3 are threads of one core in the guest, and run on different cores", HOST, (("cpuset='34'", "cpuset='33'"),)),
    ("host-cpu-threads", WARNING, "2 of the guest's 2 cores are split", HOST, (("cpuset='34'", "cpuset='3'"), ("vcpu='1' cpuset='3'", "vcpu='1' cpuset='34'"))),
    ("host-cpu-threads", WARNING, "vCPU 0-3", HOST, (("cores='1' threads='2'", "cores='1' threads='4'"), ("sockets='2'", "sockets='1'"))),
    ("host-cpu-topoext", WARNING, "does not see which threads", AMD, ()),
    ("host-cpu-topoext", WARNING, "without topoext", AMD, (topoext("disable"),)),
    ("host-cpu-topoext", WARNING, "without topoext", AMD, (topoext("disable"), *HOST_MODEL)),
    ("host-disk-image", ERROR, "/b.img is also a disk of domain db", replace(HOST, images={"/b.img": "is also a disk of domain db"}), (DISK,)),
    ("host-node", ERROR, "no NUMA node 2-7", HOST, (("cellid='0' mode='strict' nodeset='0'", "cellid='0' nodeset='0-7'"),)),
    ("host-node", ERROR, "no NUMA node 999", HOST, (("nodeset='0-1'/>\n    <memnode", "nodeset='999'/><memnode"),)),
    ("host-memory", ERROR, "node 0 has 64 GiB", HOST, (("memory='4'", "memory='65'"),)),
    ("host-memory", ERROR, "node 0-1 has 128 GiB", HOST, ((">8</memory>", ">129</memory>"),)),
    ("host-memory", ERROR, "65 GiB, and node 1 has 64 GiB", HOST, (ELSEWHERE, ("memory='4'", "memory='61'"))),
    ("host-memory", ERROR, "65 GiB, and node 1 has 64 GiB", HOST, (ELSEWHERE, (CELLS, ""), (">8</memory>", ">65</memory>"))),
    ("host-memory", ERROR, "66 GiB, and node 0 has 64 GiB", HOST, (("memory='4'", "memory='62'"), ("cellid='1' mode='strict' nodeset='1'", "cellid='1' mode='strict' nodeset='0'"))),
    ("host-memory", ERROR, "65 GiB, and node 0 has 64 GiB", HOST, (("nodeset='0-1'/>\n    <memnode cellid='0' mode='strict' nodeset='0'/>", "nodeset='0'/>"), ("memory='4'", "memory='65'"))),
    ("host-hugepages", ERROR, "2048 pages of 2 MiB are needed, and node 1 has 0", HOST, DEFAULT_PAGES),
    ("host-hugepages", ERROR, "8 pages of 1 GiB are needed, and node 1 has 3", replace(with_capacity(hugepages=pools(3, 3)), default_page=GIB), (*DEFAULT_PAGES, ELSEWHERE)),
    ("host-hugepages", ERROR, "8 pages of 1 GiB are needed, and node 0-1 has 6", replace(with_capacity(hugepages=pools(3, 3)), processor=ARM), (*DEFAULT_PAGES, (CELLS, ""), (NUMATUNE, ""))),
    ("host-hugepages", ERROR, "node 0 has 0", with_capacity(hugepages=()), ()),
    ("host-hugepages", ERROR, "node 1 has 3", with_capacity(hugepages=pools(3, 3)), ()),
    ("host-hugepages", ERROR, "2 are free", with_capacity(hugepages=pools(8, 2)), ()),
    ("host-hugepages", WARNING, "claims have 6 of 8", with_capacity(taken=Taken(hugepages={(0, GIB): 6})), ()),
    ("host-hugepages", ERROR, "8 pages", with_capacity(hugepages=pools(3, 3)), (ELSEWHERE,)),
    ("host-iommu", ERROR, "the IOMMU is off: no DMAR", with_capacity(inventory=replace(inventory(), iommu=Iommu(translating=False, reason="no DMAR"))), ()),
    ("host-device", ERROR, "no device 0000:7f:00.0", HOST, ((GPU_SOURCE, GPU_SOURCE.replace("0x1b", "0x7f")),)),
    ("host-device", ERROR, "is a bridge", HOST, ((GPU_SOURCE, GPU_SOURCE.replace("0x1b", "0x1a")),)),
    ("host-device", ERROR, "wedged: unbind never", with_functions(gpu=function(GPU, mark=WEDGED)), ()),
    ("host-driver", ERROR, "has driver nvidia", with_functions(gpu=function(GPU, driver="nvidia")), ()),
    ("host-driver", ERROR, "has no driver", with_functions(gpu=function(GPU, driver=None)), ()),
    ("host-driver", ERROR, "is no vGPU", with_functions(gpu=function(GPU, driver="nvidia", physfn=OTHER)), (OURS,)),
    ("host-driver", WARNING, "has driver nvidia", with_functions(gpu=function(GPU, driver="nvidia")), (OURS,)),
    ("host-group", ERROR, "also has 0000:1c:00.0 (driver e1000e)", with_functions(other=function(OTHER, driver="e1000e")), ()),
    ("host-group", ERROR, "in no IOMMU group", with_functions(gpu=function(GPU, iommu_group=None)), ()),
    ("host-group", WARNING, "also has 0000:1c:00.0", with_functions(other=function(OTHER, driver="e1000e")), (OURS,)),
    ("host-card", WARNING, "0000:1b:00.1 of the same card", with_functions(audio=function(AUDIO, driver="snd_hda_intel", iommu_group=22)), ((AUDIO_SOURCE, AUDIO_SOURCE.replace("0x1b", "0x1c")),)),
    ("host-device-claimed", ERROR, "0000:1b:00.0 belongs to claim 1a2b of vm/db", with_capacity(taken=Taken(whole={GPU: CLAIM})), ()),
    ("host-device-claimed", ERROR, "0000:1b:00.0 stays with the host for vm/db (1a2b)", with_capacity(taken=Taken(shared={GPU: (CLAIM,)}, shares={GPU: (GpuShare(GPU, 40),)})), ()),
    ("host-device-claimed", ERROR, "belongs to claim 1a2b of vm/db", with_capacity(taken=Taken(whole={GPU: CLAIM})), (OURS,)),
    ("host-device-claimed", WARNING, "of user/alice", with_capacity(taken=Taken(whole={GPU: PERSON})), ()),
    ("host-device-claimed", ERROR, "of user/alice", with_capacity(taken=Taken(whole={GPU: PERSON})), (OURS,)),
    ("host-device-claimed", ERROR, f"{MDEV} belongs to", with_capacity(taken=Taken(whole={MDEV: CLAIM})), ()),
    ("host-device-busy", ERROR, "in use: guest db", replace(HOST, holders={GPU: "guest db (pid 7)"}), ()),
    ("host-mdev", ERROR, "no mediated device", replace(HOST, mdevs=frozenset()), ()),
    ("host-device-node", WARNING, "is on node 1, in cell 0, whose memory is on node 0", with_functions(gpu=function(GPU, numa_node=1)), ()),
    ("host-device-node", WARNING, "is on node 0", HOST, (ELSEWHERE,)),
    ("host-pci-hole", WARNING, "need 128 GiB", HOST, ((">512<", ">64<"),)),
)  # fmt: skip
OWN = Taken(whole={GPU: CLAIM}, cpus={2: CLAIM})
RIGHT: tuple[tuple[str, HostFacts, tuple[tuple[str, str], ...]], ...] = (
    ("as it is", HOST, ()),
    ("a hole that ends where addresses do", NARROW, ((">512<", ">502<"),)),
    ("a guest of another width than the host", NARROW, (("<maxphysaddr mode='passthrough' limit='46'/>", ""), ("mode='host-passthrough'", "mode='custom'"), ("<cache mode='passthrough'/>", ""))),
    ("a CPU that its emulator shares with others", replace(HOST, pinned={0: "domain db"}), ()),
    ("its own claim", with_capacity(taken=OWN), (("<name>ml1", "<name>db"),)),
    ("a vGPU on a VF of NVIDIA's driver", with_functions(gpu=function(GPU, driver="nvidia", physfn=OTHER, vgpu_type="1153")), ()),
    ("libvirt binds the device", with_functions(gpu=function(GPU, driver="nvidia")), (("managed='no'", "managed='yes'"),)),
    ("vCPUs that may run on both threads of a core", HOST, (("vcpu='0' cpuset='2'", "vcpu='0' cpuset='2-3'"), ("vcpu='1' cpuset='3'", "vcpu='1' cpuset='2-3'"))),
    ("vCPUs that may run on several cores", HOST, (("cpuset='34'", "cpuset='33-35'"),)),
    ("a guest without threads", HOST, (("cpuset='34'", "cpuset='36'"), ("cores='1' threads='2'", "cores='2' threads='1'"))),
    ("threads on an AMD processor", AMD, (topoext("require"),)),
    ("threads of a model that has topoext", AMD, HOST_MODEL),
    ("no threads on an AMD processor", AMD, (("cores='1' threads='2'", "cores='2' threads='1'"),)),
    ("it runs, and has the pages", replace(with_capacity(hugepages=pools(8, 0)), runs=True), ()),
    ("a host that tells nothing of CPUs", with_capacity(topology=Topology()), ()),
    ("nodes that libvirt chooses itself", HOST, ((NUMATUNE, "<numatune><memory placement='auto' nodeset='7'/></numatune>"),)),
    ("a member that does no DMA", with_functions(other=function(OTHER, driver="pci-stub")), ()),
    ("a device whose group could not be read", with_functions(gpu=function(GPU, iommu_group=None, unknown={"iommu_group": "EIO"})), ()),
    ("pages of a size that the host does not tell", replace(with_capacity(hugepages=()), processor=ARM), (*DEFAULT_PAGES, ("arch='x86_64' machine='q35'", "arch='aarch64' machine='virt'"), ("<maxphysaddr mode='passthrough' limit='46'/>", ""), ("<cache mode='passthrough'/>", ""), ("<vendor_id state='on' value='GenuineIntel'/>", ""), ("<pcihole64 unit='GiB'>512</pcihole64>", ""))),
    ("memory that is not strictly there", HOST, ((NUMATUNE, "<numatune><memory mode='preferred' nodeset='0'/></numatune>"), ("memory='4'", "memory='65'"), (">8</memory>", ">69</memory>"), ("<hugepages><page size='1' unit='GiB' nodeset='0-1'/></hugepages>", ""))),
    ("a device that could not be read", with_capacity(inventory=replace(inventory(), unread={PciAddress("7f:00.1"): "EIO"})), ((AUDIO_SOURCE, AUDIO_SOURCE.replace("0x1b", "0x7f")),)),
)  # fmt: skip


def findings(host: HostFacts, *replaced: tuple[str, str]) -> tuple[Finding, ...]:
    return check(parse(changed(*replaced)), host=host)


def told(found: tuple[Finding, ...]) -> list[str]:
    return [f"{each.rule} {each.severity}: {each.reason}" for each in found]


@pytest.mark.parametrize(
    ("rule", "severity", "reason", "host", "replaced"), WRONG, ids=[f"{r} {w}" for r, _, w, *_ in WRONG]
)
def test_what_is_wrong_is_found(
    rule: str, severity: Severity, reason: str, host: HostFacts, replaced: tuple[tuple[str, str], ...]
) -> None:
    found = findings(host, *replaced)
    assert [f for f in found if f.rule == rule and f.severity is severity and reason in f.reason], told(found)


@pytest.mark.parametrize(("host", "replaced"), [each[1:] for each in RIGHT], ids=[name for name, *_ in RIGHT])
def test_what_is_right_is_left_alone(host: HostFacts, replaced: tuple[tuple[str, str], ...]) -> None:
    assert told(findings(host, *replaced)) == []


@pytest.mark.parametrize(("node", "reasons"), [(1, []), (0, [f"{GPU} is on node 0, in cell 1, which has no memory"])])
def test_a_cell_without_memory_stands_for_a_node_where_the_guest_has_none(node: int, reasons: list[str]) -> None:
    """`node`: of the guest's memory; the GPU is on node 0, and in the cell that has none."""
    homes = f"<numatune><memnode cellid='0' mode='strict' nodeset='{node}'/></numatune>"
    cells = ("<cell id='0' cpus='0-1' memory='4'", "<cell id='0' cpus='0-3' memory='8'")
    empty = ("<cell id='1' cpus='2-3' memory='4'", "<cell id='1' memory='0'")
    found = findings(HOST, (NUMATUNE, homes), cells, empty, ("<node>0</node>", "<node>1</node>"))
    assert [each.reason for each in found if each.rule == "host-device-node" and str(GPU) in each.reason] == reasons


@pytest.mark.parametrize(
    ("size", "cells", "remedy"),
    [
        ("'1' unit='GiB'", "0-1", "reserve them at boot: hugepagesz=1G hugepages=4 on the kernel's command line"),
        ("'16' unit='GiB'", "0-1", "reserve them at boot: hugepagesz=16G hugepages=1 on the kernel's command line"),
        (
            "'512' unit='MiB'",
            "0",
            "write 8 to /sys/devices/system/node/node0/hugepages/hugepages-524288kB/nr_hugepages",
        ),
        ("'2' unit='MiB'", "0", "write 2048 to /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"),
    ],
)
def test_what_reserves_hugepages(size: str, cells: str, remedy: str) -> None:
    found = findings(
        with_capacity(hugepages=()),
        ("arch='x86_64' machine='q35'", "arch='aarch64' machine='virt'"),
        ("<page size='1' unit='GiB' nodeset='0-1'/>", f"<page size={size} nodeset='{cells}'/>"),
    )
    assert next(each.remedy for each in found if each.rule == "host-hugepages").endswith(remedy)


def test_every_rule_has_a_host_that_it_refuses() -> None:
    assert {rule for rule, *_ in WRONG} == set(HOST_RULES)


class TestTheCommand:
    """On bundled hosts, through vfioctl's own probes."""

    def check(self, run: Run, file: Path, *replaced: tuple[str, str], host: str = "hgx8") -> Any:
        file.write_text(changed(*replaced))
        return run(f"domain check {file} --json --simulate {host}").document

    def rules(self, document: Any) -> set[str]:
        return {each["rule"] for each in document["findings"] if each["rule"].startswith("host-")}

    def test_reads_devices_and_drivers(self, run: Run, fast_folder: Path) -> None:
        found = self.check(run, fast_folder / "a.xml")
        assert found["host"] is True
        assert {"host-driver", "host-mdev"} <= self.rules(found)

    def test_sees_that_a_device_is_ready(self, run: Run, fast_folder: Path) -> None:
        run("bind 1b:00.0 --yes --with-group --simulate hgx8")
        found = self.check(run, fast_folder / "a.xml")
        assert "host-driver" not in self.rules(found)

    def test_sees_claims_of_others(self, run: Run, fast_folder: Path) -> None:
        assert run("claim create --owner vm/db --device 1b:00.0 --yes --simulate hgx8").code == 0
        found = self.check(run, fast_folder / "a.xml")
        assert "host-device-claimed" in self.rules(found)
        found = self.check(run, fast_folder / "a.xml", ("<name>ml1", "<name>db"))
        assert "host-device-claimed" not in self.rules(found)

    def test_sees_who_uses_a_device(self, run: Run, fast_folder: Path) -> None:
        used = GPU_SOURCE.replace("0x1b", "0x01")
        found = self.check(run, fast_folder / "a.xml", (GPU_SOURCE, used), host="busy")
        assert "host-device-busy" in self.rules(found)

    def test_says_what_it_cannot_judge(self, run: Run, fast_folder: Path) -> None:
        host = fast_folder / "empty.host"
        host.write_text("#vfioctl-host 1 synthetic\n#end\n")
        found = self.check(run, fast_folder / "a.xml", host=str(host))
        assert any(each.startswith("CPUs: ") for each in found["unknown"])

    def test_reads_the_size_of_a_hugepage(self, run: Run, fast_folder: Path) -> None:
        host = fast_folder / "meminfo.host"
        text = Path("tests/hosts/hgx8.host").read_text()
        host.write_text(text.replace("#end", "/proc/meminfo = MemTotal:  4 kB\\nHugepagesize:    1048576 kB\n#end"))
        pages = ("<page size='1' unit='GiB' nodeset='0-1'/>", "")
        whole = [("memory='4'", "memory='600'"), (">8</memory>", ">604</memory>"), pages]
        found = self.check(run, fast_folder / "a.xml", *whole, host=str(host))
        reasons = [each["reason"] for each in found["findings"] if each["rule"] == "host-hugepages"]
        assert reasons == ["600 pages of 1 GiB are needed, and node 0 has 512"]

    def test_a_damaged_ledger_costs_the_claims_only(self, run: Run, fast_folder: Path) -> None:
        ledger = fast_folder / "x.db"
        ledger.write_bytes(b"no ledger" * 1000)
        (fast_folder / "a.xml").write_text(GOOD)
        found = run(f"domain check {fast_folder / 'a.xml'} --json --simulate hgx8 --ledger {ledger}").document
        assert any(each.startswith("claims: ") for each in found["unknown"])
        assert "host-driver" in self.rules(found)
