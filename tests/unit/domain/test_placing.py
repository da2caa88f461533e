"""Which CPUs and nodes a domain gets: of its claim, of nodes that the user names, of nodes that nothing tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hosts.machines import copy, machine, original
from tests.unit.conftest import Run
from vfioctl.claims.model.claim import Claim
from vfioctl.core.limits import read_document
from vfioctl.domain.build.build import Built, DomainBuilder
from vfioctl.domain.build.layout.cpus import pin
from vfioctl.domain.model.libvirt import Others
from vfioctl.domain.model.spec import DomainSpec, Smt
from vfioctl.errors import ClaimConflict, HostError, NoCapacity
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.placement.model.capacity import Core, Topology
from vfioctl.placement.model.claims import Owner
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.units import format_cpu_list

GIB = 1 << 30
GPU0, GPU4 = PciAddress("0000:1b:00.0"), PciAddress("0000:9d:00.0")
BUILD = "domain build vm1 --cpus 4 --memory 8GiB --host hgx8"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return machine(copy(original("hgx8")), tmp_path / "ledger.db")


def claimed(host: Host, *devices: PciAddress, **wish: Any) -> Claim:
    return host.claims.create(ClaimRequest(owner=Owner("vm/db"), devices=devices, bind=False, **wish)).claim


def built(host: Host, **wish: Any) -> Built:
    return host.domain.build(read_document(DomainSpec, {"name": "db", "memory": "8GiB", **wish}))


class TestClaims:
    def test_isolated_vcpus_are_as_many_as_the_claim_s_cores(self, host: Host) -> None:
        claim = claimed(host, GPU0, cpus=8)
        layout = built(host, claim=claim.id, smt="isolate").layout
        assert (layout.vcpus, layout.shape) == (4, (1, 1, 4, 1))
        assert set(layout.pins.values()) < set(claim.cpus)

    def test_more_cpus_than_the_claim_has(self, host: Host) -> None:
        claim = claimed(host, GPU0, cpus=8)
        with pytest.raises(NoCapacity, match=f"claim {claim.id} has 8 CPUs, and 16 are needed"):
            built(host, claim=claim.id, cpus=8, smt="isolate")
        assert built(host, claim=claim.id, cpus=16, policy="preferred").layout.pins == {}

    @pytest.mark.parametrize("smt", ["together", "isolate"])
    def test_fewer_cpus_are_near_all_devices(self, host: Host, smt: str) -> None:
        claim = claimed(host, GPU0, GPU4, cpus=16)
        found = built(host, claim=claim.id, cpus=8, smt=smt)
        assert [(cell.node, len(cell.vcpus)) for cell in found.layout.cells] == [(0, 4), (1, 4)]
        assert set(found.layout.pins.values()) <= set(claim.cpus)
        cpus = found.layout.choices[0].why
        assert ("16 CPUs" in cpus, "not meant" in str(found.layout.choices)) == (False, False)

    def test_a_claim_without_cpus(self, host: Host) -> None:
        assert built(host, claim=claimed(host, GPU4).id, cpus=4).layout.cells[0].node == 1

    def test_cpus_that_another_domain_pins_are_weaker_and_not_excluded(self, host: Host) -> None:
        claim = claimed(host, GPU0, cpus=4)
        others = Others(dict.fromkeys((*claim.cpus, 20), "domain web"), {})
        spec = read_document(DomainSpec, {"name": "db", "memory": "8GiB", "claim": claim.id})
        found = DomainBuilder(host.session).build(spec, others)
        assert set(found.layout.pins.values()) == set(claim.cpus)
        assert "CPUs 20: pinned by domain web" in {line for each in found.layout.choices for line in each.excluded}
        ((what, weaker),) = [(each.what, each.weaker) for each in found.weaker if "other owners" in each.what]
        assert what == f"other owners of CPUs {format_cpu_list(claim.cpus)}"
        assert "also pinned by domain web" in weaker

    @pytest.mark.parametrize("owner", ["vm/web", "user/alice"])
    def test_of_another_owner_is_refused(self, host: Host, owner: str) -> None:
        claim = host.claims.create(ClaimRequest(owner=Owner(owner), devices=(GPU4,), bind=False)).claim
        with pytest.raises(ClaimConflict, match=f"claim {claim.id} is of {owner}, and not of vm/db") as refused:
            built(host, claim=claim.id, cpus=4)
        assert refused.value.next_command == f"vfioctl claim transfer {claim.id} --to vm/db"
        assert ("call the domain web" in refused.value.hint) == owner.startswith("vm/")


class TestGpusBesideDevices:
    """A number of GPUs, near the devices that are named."""

    def test_are_near_the_network_card(self, host: Host) -> None:
        found = built(host, gpus=2, devices=("0000:c0:00.0",), cpus=4)
        assert found.document.root.find("devices/hostdev/source") is not None
        assert [device.device for device in found.summary().devices if device.device != "0000:c0:00.0"] == [
            *("0000:9d:00.0", "0000:c3:00.0"),
        ]
        (chosen,) = (choice for choice in found.layout.choices if choice.what == "devices")
        assert "nearest to 0000:c0:00.0: 0000:c3:00.0, behind one PCIe switch" in chosen.why

    def test_and_nvswitches_come_along(self, host: Host) -> None:
        switches = tuple(f"0000:{bus}:00.0" for bus in ("07", "08", "09", "0a"))
        found = built(host, gpus=8, devices=switches, cpus=16)
        assert len(found.summary().devices) == 12
        assert not [choice for choice in found.weaker if "NVSwitches" in choice.weaker]

    def test_that_another_domain_has_are_not_chosen(self, host: Host) -> None:
        spec = read_document(DomainSpec, {"name": "db", "memory": "8GiB", "gpus": 1, "devices": ("0000:c0:00.0",)})
        found = DomainBuilder(host.session).build(spec, Others({}, {"0000:c3:00.0": "domain web"}))
        assert {device.device for device in found.summary().devices} == {"0000:9d:00.0", "0000:c0:00.0"}


class TestVgpusOfAType:
    """`--vgpu`: existing ones that are free, or the command that creates them."""

    ONE, OTHER = "6d3f2c1a-0b4e-4f6d-8a7c-5e9b1f2a3c4d", "8d3f2c1a-0b4e-4f6d-8a7c-5e9b1f2a3c4d"
    BUILD = "domain build d --cpus 2 --memory 2GiB --json --simulate"

    def devices(self, run: Run, words: str) -> list[str]:
        return [device["device"] for device in run(f"{self.BUILD} {words}").document["devices"]]

    def test_that_exist(self, run: Run) -> None:
        assert self.devices(run, "a2 --vgpu A2-4C") == [self.ONE]
        assert self.devices(run, "a2 --vgpu A2-4C=2") == [self.ONE, self.OTHER]
        assert self.devices(run, "l40s --vgpu L40S-12Q") == ["0000:41:00.4"]

    def test_of_a_claim_or_named_are_not_taken(self, run: Run) -> None:
        assert self.devices(run, f"a2 --vgpu A2-4C --device {self.ONE}") == [self.ONE, self.OTHER]
        assert run(f"claim create --owner vm/x --device {self.ONE} --yes --simulate a2").code == 0
        assert self.devices(run, "a2 --vgpu A2-4C") == [self.OTHER]

    def test_that_another_domain_has(self, tmp_path: Path) -> None:
        found = DomainBuilder(machine(copy(original("a2")), tmp_path / "ledger.db").session).build(
            read_document(DomainSpec, {"name": "d", "vgpu": "A2-4C", "cpus": 2, "memory": "1GiB"}),
            Others({}, {self.ONE: "domain web"}),
        )
        assert [device.device for device in found.summary().devices] == [self.OTHER]

    def test_too_few_name_the_command_that_creates_them(self, run: Run) -> None:
        done = run(f"{self.BUILD} a2 --vgpu A2-4C=4")
        assert (done.code, done.document["error"]["next_command"]) == (
            4,
            "vfioctl vgpu create A2-4C --count 2 --simulate a2",
        )
        assert run(f"{self.BUILD} a2 --vgpu A2-99C").code == 2


class TestNodesThatAreNamed:
    @pytest.mark.parametrize(
        ("words", "why"),
        [
            (f"--device gpu4 --node {GPU4}=7", f"--node {GPU4}=7: there is no NUMA node 7"),
            (f"--device gpu0 --node {GPU4}=1", f"--node {GPU4}=1: the domain does not get this device"),
            ("--device gpu0 --node 9d:1f.0=1", "--node 0000:9d:1f.0=1: there is no such device here"),
        ],
    )
    def test_that_are_refused(self, run: Run, words: str, why: str) -> None:
        done = run(f"{BUILD} {words}")
        assert (done.code, done.out, why in done.err) == (2, "", True)

    @pytest.mark.parametrize("words", [f"--device {GPU0} --node {GPU0}=1", "--device gpu0 --node 0000:15:01.0=0"])
    def test_of_the_device_or_a_bridge_above_it(self, run: Run, words: str) -> None:
        assert run(f"{BUILD} {words}").code == 0

    def test_of_devices_that_may_be_chosen(self, run: Run) -> None:
        assert run(f"{BUILD} --gpus 1 --node {GPU4}=0").code == 0


def silent(*, pages: int) -> Tree:
    """The server, whose firmware tells no node of GPU4; node 0 has so many 1 GiB pages free, node 1 480."""
    tree = copy(original("hgx8"))
    for path in [path for path in tree.files if "/pci0000:97/" in path and path.endswith("/numa_node")]:
        tree.put(path, "-1")
    tree.put("/sys/devices/system/node/node0/hugepages/hugepages-1048576kB/free_hugepages", str(pages))
    return tree


class TestNodesThatNothingTells:
    @pytest.mark.parametrize(("pages", "node"), [(0, 1), (500, 0)])
    def test_are_where_the_most_pages_are(self, tmp_path: Path, pages: int, node: int) -> None:
        host = machine(silent(pages=pages), tmp_path / "ledger.db")
        found = built(host, devices=[GPU4], cpus=4, policy="preferred")
        assert ([cell.node for cell in found.layout.cells], found.layout.page_size) == ([node], GIB)
        weaker = [choice.weaker for choice in found.weaker]
        rooms = f"node 0 has {pages} free pages of 1 GiB, node 1 has 480 free pages of 1 GiB"
        assert f"NUMA node {node} was taken: it has the most free memory: {rooms}" in weaker

    def test_are_elsewhere_if_there_are_too_few_cpus(self, tmp_path: Path) -> None:
        host = machine(silent(pages=0), tmp_path / "ledger.db")
        claimed(host, GPU0, exact_cpus=(*range(49, 96), *range(145, 192)))
        found = built(host, devices=[GPU4], cpus=4, policy="preferred")
        assert [cell.node for cell in found.layout.cells] == [0]
        assert any("those with more free memory have too few CPUs" in choice.weaker for choice in found.weaker)

    def test_without_pinned_cpus(self, tmp_path: Path) -> None:
        host = machine(silent(pages=0), tmp_path / "ledger.db")
        found = built(host, devices=[GPU4], cpus=400, policy="preferred")
        assert (found.layout.pins, [cell.node for cell in found.layout.cells]) == ({}, [1])

    def test_are_refused_by_default(self, tmp_path: Path) -> None:
        host = machine(silent(pages=0), tmp_path / "ledger.db")
        with pytest.raises(HostError, match="is not known"):
            built(host, devices=[GPU4], cpus=4)


def test_devices_far_from_all_cpus_are_told(host: Host) -> None:
    weaker = [(choice.what, choice.weaker) for choice in built(host, devices=[GPU0, GPU4], cpus=2).weaker]
    assert weaker == [("guest cell 1", "its devices are far from all CPUs and memory of the domain")]


@pytest.mark.parametrize(
    ("first", "second", "distances", "why"),
    [
        ("10 21", "21 10", [(10, 21), (21, 10)], ""),
        ("10 255", "11 10", [(10, 255), (11, 10)], ""),
        ("10 10", "10 10", [(), ()], "10 from node 0 to node 1, 10 from node 1 to node 0"),
        ("10 256", "21 10", [(), ()], "256 from node 0 to node 1"),
        ("10 21", "21 20", [(), ()], "20 from node 1 to node 1"),
        ("10 0", "21 10", [(), ()], "0 from node 0 to node 1"),
    ],
)
def test_distances_that_libvirt_refuses_are_left_out(
    tmp_path: Path, first: str, second: str, distances: list[tuple[int, ...]], why: str
) -> None:
    tree = copy(original("hgx8"))
    for node, row in enumerate((first, second)):
        tree.put(f"/sys/devices/system/node/node{node}/distance", row)
    found = built(machine(tree, tmp_path / "ledger.db"), devices=[GPU0, GPU4], cpus=4)
    assert [cell.distances for cell in found.layout.cells] == distances
    told = [choice.why for choice in found.weaker if choice.what == "distances of the guest's cells"]
    assert (len(told), why in "".join(told)) == (bool(why), True)


WIDE, NARROW = [(0, 1), (2, 3), (4, 5)], [(6,), (7,)]
UNLIKE = "the guest takes threads of a core for cores: not all cores give it as many"


class TestShape:
    """`nodes`: the CPUs of the cores that are chosen, by node."""

    @pytest.mark.parametrize(
        ("nodes", "vcpus", "smt", "shape", "weaker", "why"),
        [
            ([WIDE], 6, "together", (1, 1, 3, 2), "", "whole cores of NUMA node 0 at 1 L3 cache, threads of a core"),
            ([WIDE, [(10, 11)]], 8, "together", (1, 1, 4, 2), "the nodes give different numbers of cores", "whole"),
            ([WIDE + NARROW], 8, "together", (1, 1, 8, 1), UNLIKE, "whole cores of NUMA node 0 at 1 L3 cache"),
            ([WIDE + NARROW], 5, "together", (1, 1, 5, 1), UNLIKE, "cores, one of them in part, of NUMA node 0"),
            ([WIDE + NARROW], 5, "isolate", (1, 1, 5, 1), "", "whole cores of NUMA node 0 at 1 L3 cache"),
            ([[(0, 1)]], 1, "together", (1, 1, 1, 1), "", "cores, one of them in part, of NUMA node 0"),
            ([[(0, 1), (2,)], [(4, 5), (6,)]], 6, "together", (2, 1, 3, 1), UNLIKE, "whole cores of NUMA node 0"),
        ],
    )
    def test_reasons_are_true(
        self,
        nodes: list[list[tuple[int, ...]]],
        vcpus: int,
        smt: str,
        shape: tuple[int, ...],
        weaker: str,
        why: str,
    ) -> None:
        cores = tuple(Core(cpus, node) for node, found in enumerate(nodes) for cpus in found)
        topology = Topology((*cores, Core((98, 99), len(nodes))))
        found = pin([cpu for core in cores for cpu in core.cpus], vcpus, Smt(smt), topology)
        assert tuple(found.shape) == shape
        assert found.choices[0].weaker[: len(weaker) or None] == weaker
        assert found.choices[1].why.startswith(why)
        assert ("side by side" in found.choices[1].why) == (found.shape.threads > 1)

    @pytest.mark.parametrize(
        ("has_dies", "caches", "dies", "why", "weaker"),
        [
            (True, 2, 2, "a socket for each node, a die for each L3 cache", ""),
            (True, 1, 1, "a socket for each node, a die for each L3 cache", ""),
            (
                False,
                2,
                1,
                "a socket for each node",
                "an L3 cache: QEMU's machines for Arm have no dies",
            ),
            (False, 1, 1, "a socket for each node", ""),
        ],
    )
    def test_an_l3_cache_is_a_die_where_there_are_dies(
        self, *, has_dies: bool, caches: int, dies: int, why: str, weaker: str
    ) -> None:
        topology = Topology(tuple(Core((cpu,), 0, cpu * caches // 4) for cpu in range(4)))
        found = pin(range(4), 4, Smt.TOGETHER, topology, has_dies=has_dies)
        assert found.shape == (1, dies, 4 // dies, 1)
        assert found.choices[0].why == why
        assert found.choices[0].weaker.endswith(weaker)
        assert bool(found.choices[0].weaker) == bool(weaker)
