"""What holds for every domain on every small server: nothing twice, nothing that others have, nothing lost."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from tests.hosts.machines import unhurried
from tests.hosts.servers import Node, asking, gpus_of, server
from vfioctl.core.limits import read_document
from vfioctl.domain.build.compose import composed
from vfioctl.domain.build.layout.cpus import needed
from vfioctl.domain.build.layout.devices import devices_of
from vfioctl.domain.build.layout.layout import Host, lay_out
from vfioctl.domain.build.layout.memory import free_pages
from vfioctl.domain.build.layout.pci import BUSES
from vfioctl.domain.build.limits import refuse_elsewhere, without_hugepages
from vfioctl.domain.check.checker import judged
from vfioctl.domain.document.guest_topology import read_topology
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.templates import read_template, templates
from vfioctl.domain.document.tree import child, insert
from vfioctl.domain.document.xml import Document, parse, text_of
from vfioctl.domain.model.finding import Severity
from vfioctl.domain.model.layout import Layout
from vfioctl.domain.model.spec import DomainSpec
from vfioctl.errors import BadSpec, NoCapacity
from vfioctl.inventory.model.machine import Processor
from vfioctl.inventory.model.values import PciAddress
from vfioctl.placement.model.capacity import Capacity
from vfioctl.placement.model.claims import Owner, Taken
from vfioctl.placement.model.settings import ClaimSettings
from vfioctl.placement.place import place
from vfioctl.units import CpuSet, parse_cpu_list

MIB, GIB = 1 << 20, 1 << 30
CLAIM = ("c1", Owner("vm/other"))
specs = st.fixed_dictionaries(
    {
        "cpus": st.sampled_from((1, 2, 2, 4, 4, 6, 8)),
        "memory": st.integers(16, 1500).map(lambda number: f"{number}MiB"),
        "hugepages": st.sampled_from(("auto", "1GiB", "2MiB", "none")),
        "smt": st.sampled_from(("together", "isolate")),
        "policy": st.sampled_from(("strict", "preferred")),
        "template": st.sampled_from(sorted(set(templates()) - {"confidential"})),
    }
)
processors = st.builds(
    Processor,
    arch=st.sampled_from(("x86_64", "x86_64", "aarch64")),
    is_amd=st.booleans(),
    address_bits=st.none() | st.integers(36, 52),
)


nodes = st.builds(
    Node,
    bridges=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=2).map(tuple), min_size=1, max_size=2).map(tuple),
    caches=st.lists(st.integers(2, 5), min_size=1, max_size=3).map(tuple),
    threads=st.integers(1, 2),
    hugepages=st.fixed_dictionaries(
        {2 * MIB: st.tuples(st.just(4000), st.integers(0, 1500)), GIB: st.tuples(st.just(8), st.integers(0, 3))}
    ),
)


@st.composite
def capacities(draw: st.DrawFn) -> Capacity:
    """Servers that have room for some domains."""
    shape = draw(st.lists(nodes, min_size=1, max_size=3))
    cpus = [cpu for core in server(shape).topology.cores for cpu in core.cpus]
    some = st.lists(st.sampled_from(cpus), max_size=2, unique=True)
    return server(
        shape,
        taken=Taken(cpus=dict.fromkeys(draw(some), CLAIM), hugepages={(0, 2 * MIB): 3000}),
        settings=ClaimSettings(
            reserved_cpus=CpuSet(sorted(draw(some))),
            housekeeping_cpus=draw(st.none() | some.map(lambda found: CpuSet(sorted(found)))),
        ),
        pinned=dict.fromkeys(draw(some), "a guest"),
    )


@st.composite
def builds(draw: st.DrawFn) -> tuple[Capacity, Layout, Document]:
    """A server, and a domain for which it has room."""
    capacity = draw(capacities())
    gpus = draw(st.integers(1, len(gpus_of(capacity))))
    spec = read_document(DomainSpec, {"name": "a", "gpus": gpus, **draw(specs)})
    try:
        cpus = needed(spec.cpus, spec.smt, capacity.topology)
        placement = place(asking(gpus=spec.gpus, cpus=cpus), capacity)
        devices = devices_of(placement.devices, capacity.inventory, {}, {})
        layout = lay_out(spec, devices, placement.cpus, Host(capacity, draw(processors), {}), nccl=draw(st.booleans()))
    except (NoCapacity, BadSpec):
        reject()
    return capacity, layout, composed(read_template(spec.template), spec, layout)


def numbers(root: Element, path: str, attribute: str) -> list[int]:
    return [int(each.get(attribute, "-1")) for each in root.findall(path)]


@unhurried
@given(builds())
def test_no_cpu_is_used_twice_or_is_somebody_elses(found: tuple[Capacity, Layout, Document]) -> None:
    capacity, layout, document = found
    pins = numbers(document.root, "cputune/vcpupin", "cpuset")
    assert len(set(pins)) == len(pins) == layout.vcpus
    others = {*capacity.taken.cpus, *capacity.pinned, *capacity.settings.reserved_cpus, *capacity.housekeeping}
    assert others.isdisjoint(pins)
    for each in document.root.iterfind("cputune/emulatorpin"):
        assert set(parse_cpu_list(each.get("cpuset", ""))).isdisjoint(pins)


@unhurried
@given(builds())
def test_the_guest_s_processor_is_what_it_is_pinned_to(found: tuple[Capacity, Layout, Document]) -> None:
    capacity, layout, document = found
    shape = layout.shape
    assert shape.sockets * shape.dies * shape.cores * shape.threads == layout.vcpus
    assert numbers(document.root, "cputune/vcpupin", "vcpu") == [*range(layout.vcpus)]
    core_of = capacity.topology.core_of
    for first in range(0, layout.vcpus, shape.threads):
        together = {core_of[layout.pins[first + thread]].cpus for thread in range(shape.threads)}
        assert len(together) == 1, "threads of a guest's core are threads of one core"
    for number, cell in enumerate(layout.cells):
        assert {core_of[layout.pins[vcpu]].node for vcpu in cell.vcpus} <= {cell.node}, number
    per_die = shape.cores * shape.threads
    for first in range(0, layout.vcpus, per_die) if shape.dies > 1 else ():
        assert len({core_of[layout.pins[vcpu]].cache for vcpu in range(first, first + per_die)}) == 1


@unhurried
@given(builds())
def test_memory_is_whole_and_there(found: tuple[Capacity, Layout, Document]) -> None:
    capacity, layout, document = found
    total = int(document.root.findtext("memory", "0"))
    assert sum(numbers(document.root, "cpu/numa/cell", "memory")) == total
    if layout.page_size:
        for cell in layout.cells:
            assert cell.memory % layout.page_size == 0
            if cell.memory:
                assert cell.node is not None
                assert cell.memory // layout.page_size <= free_pages(capacity, cell.node, layout.page_size)
    memnodes = document.root.findall("numatune/memnode")
    assert {int(each.get("cellid", "-1")) for each in memnodes} == {
        number for number, cell in enumerate(layout.cells) if cell.memory
    }


@unhurried
@given(builds())
def test_the_buses_have_room(found: tuple[Capacity, Layout, Document]) -> None:
    _, layout, document = found
    tops = [(each.bus_number, len(each.ports)) for each in layout.expanders if each.bus_number is not None]
    ends = [*(number for number, _ in tops), BUSES][1:]
    for (number, ports), end in zip(tops, ends, strict=True):
        assert number + ports < end
    indexes = numbers(document.root, "devices/controller[@type='pci']", "index")
    assert sorted(indexes) == [*range(len(indexes))]
    places = Counter(
        (each.get("bus"), each.get("slot"), each.get("function"))
        for each in document.root.iterfind("devices/*/address[@type='pci']")
    )
    assert set(places.values()) <= {1}


@unhurried
@given(builds())
def test_each_device_is_in_the_cell_of_its_node(found: tuple[Capacity, Layout, Document]) -> None:
    capacity, layout, document = found
    hostdevs = document.root.findall("devices/hostdev")
    assert len(hostdevs) == sum(len(port.devices) for each in layout.expanders for port in each.ports)
    for each in layout.expanders:
        for port in each.ports:
            for placed in port.devices:
                home = capacity.inventory.by_address[PciAddress(placed.device.subject)]
                assert each.cell is not None or len(layout.cells) == 1
                assert layout.cells[each.cell or 0].node == home.numa_node


@unhurried
@given(builds())
def test_the_same_again_is_the_same(found: tuple[Capacity, Layout, Document]) -> None:
    _, _, document = found
    assert text_of(parse(text_of(document))) == text_of(document)


@unhurried
@given(builds())
def test_the_checker_takes_it(found: tuple[Capacity, Layout, Document]) -> None:
    findings = judged(None, text_of(found[2]), None).findings
    assert not [(each.rule, each.path, each.reason) for each in findings if each.severity is Severity.ERROR]


@pytest.mark.skipif(
    not (shutil.which("virt-xml-validate") and shutil.which("xmllint")),
    reason="needs the Debian packages libvirt-clients and libxml2-utils",
)
@unhurried
@given(builds())
def test_the_schema_takes_it(found: tuple[Capacity, Layout, Document]) -> None:
    command = ["xmllint", "--noout", "--relaxng", "/usr/share/libvirt/schemas/domain.rng", "-"]
    done = subprocess.run(command, input=text_of(found[2]), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# -- other templates, and domains that are edited --------------------------------------------------------

_CELL = "<numa><cell id='0' cpus='0' memory='64' unit='MiB' memAccess='shared'{}</numa>"
MUTATIONS = (
    (".", "<memtune><hard_limit unit='MiB'>64</hard_limit><soft_limit unit='MiB'>8</soft_limit></memtune>"),
    (".", "<maxMemory slots='4' unit='MiB'>512</maxMemory>"),
    (".", "<currentMemory unit='MiB'>8</currentMemory>"),
    (".", "<iothreads>3</iothreads>"),
    (".", "<iothreadids><iothread id='2'/></iothreadids>"),
    (".", "<vcpus><vcpu id='0' enabled='yes' hotpluggable='no'/></vcpus>"),
    (".", "<numatune><memory mode='interleave' nodeset='0'/></numatune>"),
    (".", "<numatune><memory mode='strict' placement='auto'/></numatune>"),
    (".", "<launchSecurity type='sev'><policy>0x0001</policy></launchSecurity>"),
    (".", "<iommufd enabled='yes'/>"),
    ("features", "<ioapic driver='qemu'/>"),
    ("features", "<smm state='on'><tseg unit='MiB'>16</tseg></smm>"),
    ("features", "<hyperv mode='custom'><relaxed state='on'/><vendor_id state='on' value='a'/></hyperv>"),
    ("features", "<kvm><hidden state='on'/><pv-ipi state='off'/><poll-control state='on'/></kvm>"),
    ("features", "<pvspinlock state='on'/>"),
    ("memoryBacking", "<locked/>"),
    ("memoryBacking", "<source type='memfd'/>"),
    ("memoryBacking", "<source type='anonymous'/>"),
    ("memoryBacking", "<access mode='private'/>"),
    ("memoryBacking", "<allocation mode='ondemand'/>"),
    ("memoryBacking", "<hugepages/>"),
    ("memoryBacking", "<hugepages><page size='2' unit='MiB' nodeset='0'/></hugepages>"),
    ("vcpu", "placement='auto'"),
    ("vcpu", "cpuset='0-1'"),
    ("vcpu", "current='1'"),
    ("cputune", "<vcpupin vcpu='0' cpuset='0'/>"),
    ("cputune", "<vcpusched vcpus='0' scheduler='fifo' priority='1'/>"),
    ("cputune", "<vcpusched vcpus='1-3' scheduler='rr' priority='2'/>"),
    ("cputune", "<iothreadsched iothreads='3' scheduler='batch'/>"),
    ("cputune", "<iothreadpin iothread='2' cpuset='0'/>"),
    ("cputune", "<emulatorsched scheduler='fifo' priority='1'/>"),
    ("cputune", "<cachetune vcpus='0-1'><cache id='0' level='3' type='both' size='1' unit='MiB'/></cachetune>"),
    ("cputune", "<memorytune vcpus='3'><node id='0' bandwidth='20'/></memorytune>"),
    ("cputune", "<quota>-1</quota>"),
    ("cpu", "<cache mode='passthrough'/>"),
    ("cpu", "<cache level='3' mode='emulate'/>"),
    ("cpu", "<maxphysaddr mode='emulate' bits='40'/>"),
    ("cpu", "<maxphysaddr mode='passthrough' limit='39'/>"),
    ("cpu", "<feature policy='disable' name='topoext'/>"),
    ("cpu", "mode='host-model'"),
    ("cpu", "mode='custom'"),
    ("cpu", _CELL.format("/>")),
    ("cpu", _CELL.format("><cache level='1' associativity='direct' policy='none'/></cell>")),
    (
        "cpu",
        _CELL.format("/><interconnects><latency initiator='0' target='0' type='access' value='5'/></interconnects>"),
    ),
    ("devices", "<iommu model='intel'><driver intremap='off' caching_mode='on'/></iommu>"),
    ("devices", "<iommu model='virtio'/>"),
    ("devices", "<memory model='dimm'><target><size unit='MiB'>64</size><node>0</node></target></memory>"),
    ("devices", "<controller type='pci' index='1' model='pcie-root-port'/>"),
    ("devices", "<controller type='pci' index='7' model='pcie-root-port'><target chassis='2'/></controller>"),
    ("devices", "<controller type='pci' index='3' model='pcie-expander-bus'><target busNr='200'/></controller>"),
    ("devices", "<controller type='pci' model='pcie-root-port'/>"),
    ("devices", "<controller type='usb' model='none'/>"),
    ("devices", "<interface type='network'><source network='a'/><alias name='ua-gpu0'/></interface>"),
    ("devices", "<disk type='file' device='disk'><driver name='qemu' io='native'/><target dev='vda'/></disk>"),
    ("devices", "<disk type='file' device='disk'><driver cache='none' iothread='2'/><target dev='vdb'/></disk>"),
    ("devices", "<disk type='file' device='cdrom'><target dev='sda' bus='sata'/><boot order='1'/></disk>"),
    ("devices", "<rng model='virtio'><backend model='random'/><address type='pci' bus='0' slot='4'/></rng>"),
    ("devices", "<hostdev mode='subsystem' type='usb'><source><vendor id='0x1'/></source></hostdev>"),
    ("devices", "<filesystem type='mount'><driver type='virtiofs'/><source dir='/a'/><target dir='a'/></filesystem>"),
    ("os", "<boot dev='hd'/>"),
    ("os", "<loader type='pflash' readonly='yes'>/a</loader>"),
)
"""Parts and attributes that a document may have besides: each with the path of the element that gets it."""


def errors_of(document: Document) -> list[tuple[str, str, str]]:
    findings = judged(None, text_of(document), None).findings
    return [(each.rule, each.path, each.reason) for each in findings if each.severity is Severity.ERROR]


def mutated(document: Document, mutation: tuple[str, str] | int) -> Document:
    """Return a document with a part more, or with one less; the document itself if that is wrong already."""
    made = parse(text_of(document))
    if isinstance(mutation, int):
        parents = [(parent, part) for parent in made.root.iter() for part in parent]
        parent, part = parents[mutation % len(parents)]
        parent.remove(part)
    else:
        path, text = mutation
        parent = made.root if path == "." else child(made.root, path)
        if text.startswith("<"):
            insert(parent, parse(text).root)
        else:
            name, _, value = text.partition("=")
            parent.set(name, value.strip("'"))
    return document if errors_of(made) else made


mutations = st.lists(st.sampled_from(MUTATIONS) | st.integers(0, 200), max_size=5)


@st.composite
def rebuilds(draw: st.DrawFn) -> tuple[Document, Document]:
    """A domain that is built from a mutated template, and what becomes of it when it is mutated and edited."""
    capacity, processor = draw(capacities()), draw(processors)
    template = read_template(draw(st.sampled_from(sorted(templates()))))
    made: list[Document] = []
    for edits in (False, True):
        for mutation in draw(mutations):
            template = mutated(template, mutation)
        own = Domain(template).host_devices
        named = [*own, *draw(st.lists(st.sampled_from(gpus_of(capacity)), min_size=not own, max_size=2))]
        spec = read_document(DomainSpec, {"name": "a", "devices": tuple(dict.fromkeys(named)), **draw(specs)})
        try:
            security = template.root.find("launchSecurity")
            if security is not None:
                refuse_elsewhere(security.get("type", ""), processor)
                spec, _ = without_hugepages(spec)
            cpus = needed(spec.cpus, spec.smt, capacity.topology)
            placement = place(asking(devices=spec.devices, cpus=cpus), capacity)
            devices = devices_of(placement.devices, capacity.inventory, {}, {})
            host = Host(capacity, processor, {})
            layout = lay_out(spec, devices, placement.cpus, host, (), read_topology(template))
            template = composed(template, spec, layout, edits=edits)
        except (NoCapacity, BadSpec):
            reject()
        made.append(template)
    return made[0], made[1]


@unhurried
@given(rebuilds())
def test_the_checker_takes_what_is_made_of_a_mutated_document(made: tuple[Document, Document]) -> None:
    assert [errors_of(document) for document in made] == [[], []]
