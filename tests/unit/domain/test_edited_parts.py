"""What an edit changes of a domain that there is, and what it leaves: each on a document of its own."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

import pytest

from vfioctl.domain.build.build import Built, DomainBuilder
from vfioctl.domain.build.compose import composed
from vfioctl.domain.build.layout.pci import expanders
from vfioctl.domain.check.rules.check import check
from vfioctl.domain.document.xml import Document, parse, text_of
from vfioctl.domain.model.layout import CurrentExpander, CurrentPort, Device, GuestTopology, Layout, Shape, Slot
from vfioctl.domain.model.libvirt import NOBODY
from vfioctl.domain.model.spec import DomainSpec, PageSize, Smt
from vfioctl.errors import BadSpec
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress

RICH = """\
<domain type='kvm'><name>rich</name><uuid>11111111-2222-3333-4444-555555555556</uuid>
  <metadata>
    <vfioctl:allocation xmlns:vfioctl='urn:vfioctl:1' id='0123456789ab' template='realtime' fleet='ml' spec='ab'/>
  </metadata>
  <maxMemory slots='16' unit='GiB'>4</maxMemory><memory unit='GiB'>8</memory>
  <memoryBacking><allocation mode='ondemand'/></memoryBacking>
  <vcpu placement='static' cpuset='0-3' current='2'>4</vcpu>
  <vcpus><vcpu id='0' enabled='yes' hotpluggable='no'/></vcpus>
  <iothreads>3</iothreads>
  <iothreadids><iothread id='4'/><iothread id='5'/><iothread id='6'/></iothreadids>
  <cputune>
    <shares>2048</shares><period>100000</period><quota>-1</quota><iothread_period>100000</iothread_period>
    <vcpupin vcpu='0' cpuset='2'/><emulatorpin cpuset='1'/><iothreadpin iothread='4' cpuset='1'/>
    <vcpusched vcpus='0' scheduler='fifo' priority='1'/><vcpusched vcpus='1' scheduler='fifo' priority='1'/>
    <vcpusched vcpus='2' scheduler='fifo' priority='1'/><vcpusched vcpus='3' scheduler='fifo' priority='1'/>
    <iothreadsched iothreads='4' scheduler='fifo' priority='1'/><emulatorsched scheduler='rr' priority='1'/>
  </cputune>
  <os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os>
  <cpu mode='host-passthrough'>
    <numa><cell id='0' cpus='0-3' memory='8' unit='GiB' memAccess='shared' discard='yes'/></numa>
  </cpu>
  <devices>
    <disk type='file' device='disk'><driver name='qemu' iothread='5'/><target dev='vda' bus='virtio'/></disk>
    <disk type='file' device='disk'><driver name='qemu'/><target dev='vdb' bus='virtio'/></disk>
    <controller type='pci' index='0' model='pcie-root'><pcihole64 unit='KiB'>1073741824</pcihole64></controller>
    <controller type='pci' index='1' model='pcie-root-port'/>
    <hostdev mode='subsystem' type='pci' managed='yes'>
      <source><address domain='0x0000' bus='0x43' slot='0x00' function='0x0'/></source>
      <boot order='2'/><alias name='ua-mygpu'/><rom bar='on' file='/rom'/><teaming type='x'/><unknown/>
      <address type='pci' domain='0x0000' bus='0x01' slot='0x00' function='0x0'/>
    </hostdev>
  </devices>
</domain>"""
VGPUS = ("6d3f2c1a-0b4e-4f6d-8a7c-5e9b1f2a3c4d", "8d3f2c1a-0b4e-4f6d-8a7c-5e9b1f2a3c4d")


def build(document: Document, host: str = "hgx8", **given: Any) -> Built:
    spec = DomainSpec(name=document.root.findtext("name", ""), **{"smt": Smt.TOGETHER, **given})
    return DomainBuilder(Host.simulated(host).domain._session).build(spec, NOBODY, document)


def edited(text: str, host: str = "hgx8", **given: Any) -> Element:
    """What becomes of a document."""
    return build(parse(text), host, **given).document.root


def attributes(root: Element, path: str) -> list[dict[str, str]]:
    return [dict(each.items()) for each in root.iterfind(path)]


@pytest.fixture(scope="module")
def rich() -> Element:
    return edited(RICH)


class TestCpus:
    def test_one_scheduler_for_all_that_have_it(self, rich: Element) -> None:
        expected = [{"vcpus": "0-3", "scheduler": "fifo", "priority": "1"}]
        assert attributes(rich, "cputune/vcpusched") == expected
        several = RICH.replace("<vcpusched vcpus='0' scheduler='fifo' priority='1'/>", "")
        assert attributes(edited(several), "cputune/vcpusched")[0]["vcpus"] == "1-3"
        two = RICH.replace("vcpus='0' scheduler='fifo' priority='1'", "vcpus='0' scheduler='rr' priority='2'")
        assert [each["vcpus"] for each in attributes(edited(two), "cputune/vcpusched")] == ["0", "1-3"]

    def test_other_settings_of_cpu_time_stay(self, rich: Element) -> None:
        tune = rich.find("cputune")
        assert tune is not None
        assert [each.tag for each in tune] == [
            *("shares", "period", "quota", "iothread_period"),
            *(["vcpupin"] * 4),
            "emulatorpin",
            *(["iothreadpin"] * 3),
            *("vcpusched", "iothreadsched", "emulatorsched"),
        ]

    def test_io_threads_keep_their_ids_and_disks_their_threads(self, rich: Element) -> None:
        assert rich.findtext("iothreads") == "3"
        assert [each["iothread"] for each in attributes(rich, "cputune/iothreadpin")] == ["4", "5", "6"]
        assert [each["iothread"] for each in attributes(rich, "devices/disk/driver")] == ["5", "4"]

    def test_a_disk_of_another_process_gets_no_io_thread(self) -> None:
        text = RICH.replace(
            "<disk type='file' device='disk'><driver name='qemu'/>", "<disk type='vhostuser' device='disk'><driver/>"
        )
        assert attributes(edited(text), "devices/disk/driver")[1] == {}

    @pytest.mark.parametrize("clusters", ["1", "2"])
    def test_the_shape_has_no_clusters(self, clusters: str) -> None:
        numa = "<cpu mode='host-passthrough'>"
        text = RICH.replace(numa, f"{numa}<topology sockets='1' dies='1' clusters='{clusters}' cores='2' threads='1'/>")
        expected = [{"sockets": "1", "dies": "1", "clusters": "1", "cores": "2", "threads": "2"}]
        assert attributes(edited(text), "cpu/topology") == expected
        assert "clusters" not in attributes(edited(RICH), "cpu/topology")[0]

    def test_every_vcpu_is_there_from_the_start(self, rich: Element) -> None:
        assert attributes(rich, "vcpu") == [{"placement": "static"}]
        assert rich.find("vcpus") is None

    @pytest.mark.parametrize("cache", [{"level": "3", "mode": "emulate"}, {"mode": "disable"}, {"mode": "passthrough"}])
    def test_a_cache_that_somebody_has_chosen_stays(self, rich: Element, cache: dict[str, str]) -> None:
        assert attributes(rich, "cpu/cache") == [{"mode": "passthrough"}]
        written = "".join(f" {key}='{value}'" for key, value in cache.items())
        text = RICH.replace("<cpu mode='host-passthrough'>", f"<cpu mode='host-passthrough'><cache{written}/>")
        assert attributes(edited(text), "cpu/cache") == [cache]
        apart = attributes(edited(text, cpus=2, smt=Smt.ISOLATE), "cpu/cache")
        assert apart == ([] if cache == {"mode": "passthrough"} else [cache])


class TestMemory:
    def test_what_a_cell_has_besides(self, rich: Element) -> None:
        (cell,) = attributes(rich, "cpu/numa/cell")
        assert (cell["memAccess"], cell["discard"]) == ("shared", "yes")
        both = edited(RICH, devices=("gpu5",))
        assert [each.get("memAccess") for each in attributes(both, "cpu/numa/cell")] == ["shared", "shared"]

    def test_what_cells_take_to_reach_those_that_are_gone(self) -> None:
        links = "".join(
            f"<latency initiator='{a}' target='{b}' type='access' value='5'/>" for a, b in ((0, 0), (0, 1), (1, 0))
        )
        text = RICH.replace("</numa>", f"<interconnects>{links}</interconnects></numa>")
        kept = attributes(edited(text), "cpu/numa/interconnects/latency")
        assert [(each["initiator"], each["target"]) for each in kept] == [("0", "0")]
        only_gone = text.replace("target='0'", "target='1'")
        assert edited(only_gone).find("cpu/numa/interconnects") is None

    def test_the_most_memory_is_raised(self, rich: Element) -> None:
        assert (rich.findtext("maxMemory"), attributes(rich, "maxMemory")) == (
            str(8 << 20),
            [{"slots": "16", "unit": "KiB"}],
        )

    @pytest.mark.parametrize("given", [{}, {"memory": 24 << 30}])
    def test_memory_devices_are_not_that_of_the_cells(self, given: dict[str, Any]) -> None:
        """libvirt makes <memory> the sum of the cells and of all memory devices."""
        models = ("dimm", "nvdimm", "virtio-mem", "virtio-pmem")
        devices = "".join(
            f"<memory model='{each}'><target><size unit='GiB'>4</size><node>0</node></target></memory>"
            for each in models
        )
        text = RICH.replace("</devices>", f"{devices}</devices>").replace(
            "<memory unit='GiB'>8", "<memory unit='GiB'>24"
        )
        document = build(parse(text), **given).document
        for _ in range(2):
            root = document.root
            assert [each["memory"] for each in attributes(root, "cpu/numa/cell")] == [str(8 << 20)]
            assert (root.findtext("memory"), root.findtext("maxMemory")) == (str(24 << 20), str(24 << 20))
            document = build(document).document
        with pytest.raises(BadSpec, match="16384 MiB of memory leave none for its NUMA nodes"):
            build(document, memory=16 << 30)

    @pytest.mark.parametrize(("memory", "kept"), [(8, True), (16, True), (4, False)])
    def test_less_memory_than_it_may_have_at_the_start(self, memory: int, *, kept: bool) -> None:
        text = RICH.replace("</memory>", "</memory><currentMemory unit='GiB'>4</currentMemory>", 1)
        built = build(parse(text), memory=memory << 30)
        assert built.document.root.findtext("currentMemory") == ("4" if kept else str(4 << 20))
        told = [each.weaker for each in built.weaker if each.what == "memory that the guest starts with"]
        assert told == (["4 GiB; the host cannot use the rest, because VFIO pins it all"] if kept else [])

    def test_all_memory_at_the_start(self) -> None:
        text = RICH.replace("</memory>", "</memory><currentMemory unit='GiB'>8</currentMemory>", 1)
        assert edited(text, memory=16 << 30).findtext("currentMemory") == str(16 << 20)

    def test_allocation_stays_unless_libvirt_refuses_it_with_hugepages(self, rich: Element) -> None:
        assert attributes(rich, "memoryBacking/allocation") == [{"mode": "immediate", "threads": "4"}]
        without = edited(RICH, hugepages=PageSize.NONE)
        assert attributes(without, "memoryBacking/allocation") == [{"mode": "ondemand"}]

    def test_a_larger_hole_stays(self, rich: Element) -> None:
        assert rich.findtext("devices/controller/pcihole64") == "1073741824"

    def test_metadata(self, rich: Element) -> None:
        (mark,) = attributes(rich, "metadata/{urn:vfioctl:1}allocation")
        assert mark == {"id": "0123456789ab", "template": "realtime", "fleet": "ml", "spec": "ab"}


class TestMachine:
    def test_an_arm_domain_stays_one(self) -> None:
        text = """<domain type='kvm'><name>arm1</name><memory unit='GiB'>8</memory><vcpu>4</vcpu>
          <os firmware='efi'><type arch='aarch64' machine='virt-7.2'>hvm</type>
          <firmware><feature enabled='yes' name='secure-boot'/></firmware></os>
          <features><pmu state='off'/></features><cpu mode='host-passthrough'/>
          <clock offset='utc'><timer name='armvtimer' tickpolicy='discard'/></clock>
          <devices><serial type='pty'/><console type='pty'/><tpm model='tpm-tis'/></devices></domain>"""
        root = edited(text, "gh200", devices=("gpu0",), hugepages="none")
        assert attributes(root, "os/type") == [{"arch": "aarch64", "machine": "virt-7.2"}]
        kept = ("devices/serial", "devices/console", "devices/tpm", "clock/timer", "features/pmu")
        assert [path for path in kept if root.find(path) is None] == []
        assert attributes(root, "os/firmware/feature") == [{"enabled": "yes", "name": "secure-boot"}]

    def test_a_template(self) -> None:
        layout = Layout(cells=(), pins={}, shape=Shape(1, 1, 1, 1))
        spec = DomainSpec(name="vm1", gpus=1)
        text = "<domain><name>t</name><uuid>1</uuid><os><type{}>hvm</type></os></domain>"
        made = composed(parse(text.format("")), spec, layout).root
        assert (made.find("uuid"), attributes(made, "os/type")) == (None, [{"machine": "q35"}])
        own = composed(parse(text.format(" machine='virt-8.0'")), spec, layout._replace(arch="aarch64")).root
        assert attributes(own, "os/type") == [{"machine": "virt-8.0"}]
        with pytest.raises(BadSpec, match="needs machine q35"):
            composed(parse(text.format(" machine='pc-i440fx-7.2'")), spec, layout)


class TestDevices:
    def test_a_device_that_is_there_keeps_its_settings(self, rich: Element) -> None:
        hostdev = rich.find("devices/hostdev")
        assert hostdev is not None
        assert [each.tag for each in hostdev] == ["source", "boot", "alias", "rom", "teaming", "unknown", "address"]
        assert (hostdev.get("managed"), attributes(hostdev, "rom")) == ("yes", [{"bar": "on", "file": "/rom"}])
        assert attributes(hostdev, "alias") == [{"name": "ua-mygpu"}]

    def test_one_that_is_withheld_from_the_guest_stays_so(self) -> None:
        address = "<address type='pci' domain='0x0000' bus='0x01' slot='0x00' function='0x0'/>"
        assert address in RICH
        built = build(parse(RICH.replace(address, "<address type='unassigned'/>")), devices=("gpu0",))
        root = built.document.root
        assert attributes(root, "devices/hostdev/address[@type='unassigned']") == [{"type": "unassigned"}]
        assert len(attributes(root, "devices/hostdev/address[@type='pci']")) == 1
        assert [(each.chosen, each.weaker[:27]) for each in built.weaker if "withheld" in each.what] == [
            ("0000:43:00.0", "the guest does not see them")
        ]

    @pytest.mark.parametrize(("there", "further"), [VGPUS, VGPUS[::-1]])
    def test_one_mediated_device_shows_the_display(self, there: str, further: str) -> None:
        spec = DomainSpec(name="vg", devices=(there,), template="vgpu-desktop", cpus=4, memory=8 << 30)
        root = edited(Host.simulated("a2").domain.build(spec).xml, "a2", devices=(further,))
        assert {each["uuid"] for each in attributes(root, "devices/hostdev/source/address")} == set(VGPUS)
        (shown,) = root.findall("devices/hostdev[@display='on']")
        assert shown.find(f"source/address[@uuid='{there}']") is not None

    def test_an_expander_bus_names_no_cell_that_the_guest_no_longer_has(self) -> None:
        """A GPU was taken out of the XML by hand; what is built anew has fewer cells than the bus names."""
        bus = """<controller type='pci' index='7' model='pcie-expander-bus'>
          <target busNr='200'><node>3</node></target></controller>"""
        built = build(parse(RICH.replace("<hostdev", bus + "<hostdev", 1))).document
        (left,) = built.root.findall("devices/controller[@index='7']/target")
        assert (left.get("busNr"), left.find("node")) == ("200", None)
        assert [each.severity for each in check(built) if each.rule == "expander-bus"] == []

    def test_one_that_moves_is_told(self) -> None:
        """Of a guest with a cell for each of two nodes: on one cell, the GPU stays where it is."""
        both = ("0000:43:00.0", "0000:c3:00.0")
        built = build(parse(RICH), devices=both)
        assert [each.chosen for each in built.weaker if "other addresses" in each.what] == ["gpu0"]
        assert text_of(build(built.document, devices=both).document) == text_of(built.document)
        assert not [each for each in build(parse(RICH)).weaker if "other addresses" in each.what]


class TestExpanders:
    """Devices of root complex a; GPU 1 is below the expander bus with index 1 and number 254, behind port 2."""

    THERE = GuestTopology(
        {"0000:01:00.0": Slot(2, 0, 0, 1)}, {1: CurrentExpander(254, {2: CurrentPort(0, 1, only_host_devices=True)})}
    )

    @staticmethod
    def gpu(bus: int, complex_: str = "a", node: int = 0, function: int = 0) -> Device:
        address = PciAddress(f"0000:{bus:02x}:00.{function}")
        return Device(address, f"gpu{bus}", complex_, address.slot, node)

    def test_it_stays_where_it_is(self) -> None:
        (found,) = expanders([self.gpu(1)], {0: 0}, self.THERE)
        assert (found.controller, found.bus_number, found.ports[0].controller) == (1, 254, 2)
        assert found.ports[0].devices[0].stays

    def test_a_further_card_needs_lower_numbers(self) -> None:
        (found,) = expanders([self.gpu(1), self.gpu(2)], {0: 0}, self.THERE)
        assert (found.controller, found.bus_number, found.was) == (1, 253, 254)
        assert [(each.controller, each.slot) for each in found.ports] == [(2, 0), (None, 1)]

    def test_another_complex_gets_what_is_free(self) -> None:
        found = expanders([self.gpu(1), self.gpu(2, "b", 1)], {0: 0, 1: 1}, self.THERE)
        assert [(each.controller, each.bus_number, each.cell) for each in found] == [(1, 254, 0), (None, 252, 1)]

    def test_a_function_joins_its_card(self) -> None:
        (found,) = expanders([self.gpu(1), self.gpu(1, function=1)], {0: 0}, self.THERE)
        assert (found.bus_number, len(found.ports)) == (254, 1)
        assert [(each.function, each.multifunction) for each in found.ports[0].devices] == [(0, True), (1, False)]

    def test_the_bus_of_somebody_else_keeps_its_number(self) -> None:
        there = GuestTopology({}, {1: CurrentExpander(254, {2: CurrentPort(0, 1, only_host_devices=False)})})
        assert [each.bus_number for each in expanders([self.gpu(1)], {0: 0}, there)] == [252]

    def test_two_complexes_on_one_bus(self) -> None:
        there = GuestTopology(
            {f"0000:0{n}:00.0": Slot(1 + n, 0, 0, 1) for n in (1, 2)},
            {1: CurrentExpander(253, {n: CurrentPort(n - 2, 1, only_host_devices=True) for n in (2, 3)})},
        )
        found = expanders([self.gpu(1), self.gpu(2, "b")], {0: 0}, there)
        assert [(each.controller, each.bus_number) for each in found] == [(1, 253), (None, 251)]
        assert [each.ports[0].devices[0].stays for each in found] == [True, False]
