"""The golden domains as QEMU would get them: libvirt's own translation, compared with the layout that was planned.

No daemon is asked and nothing is started: libvirt's driver runs in a process of its own.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

import pytest

from tests.unit.conftest import GOLDEN
from tests.unit.domain.native import Argument, arguments, native, why_not
from tests.unit.domain.test_build_golden import HOSTS, TEMPLATES, wish
from vfioctl.claims.model.passthrough_devices import devices_of
from vfioctl.domain.build.build import Built
from vfioctl.domain.cli.spec_options import given_options
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.xml import parse
from vfioctl.domain.model.layout import Expander, Layout
from vfioctl.domain.model.verification import State
from vfioctl.domain.run.verify.devices import device_facts
from vfioctl.domain.run.verify.subject import Subject
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.units import parse_cpu_list

pytest.importorskip("libvirt")
if why := why_not():
    pytest.skip(why, allow_module_level=True)

BUILT = {
    f"{host}/{template}": text
    for host in HOSTS
    for template in TEMPLATES
    if "<domain" in (text := (GOLDEN / host / f"domain-{template}.xml").read_text())
}
SEV_SNP = "Invalid value for attribute 'type' in element 'launchSecurity': 'sev-snp'"  # libvirt 10.5 has it
NO_AARCH64 = "No emulator found for arch 'aarch64'"  # qemu-system-arm is not installed with qemu-system-x86
REFUSED = {name: SEV_SNP for name in BUILT if name.endswith("/confidential")}
REFUSED |= {name: NO_AARCH64 for name in BUILT if name.startswith("gh200/")}
"""What libvirt 9.0 with QEMU for x86 cannot translate, and why."""
PLAIN = "/confidential without launchSecurity"
MAJOR = 9
VFIO = ("vfio-pci", "vfio-pci-nohotplug")  # the second one with ramfb
LOCAL, REMOTE = 10, 20
_LISTS = {"device": "devices", "disk": "disks", "network": "networks", "cdrom": "cdroms"}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, str]]:
    """Every golden domain, in one connection; and the confidential ones without what libvirt does not know."""
    documents = dict(BUILT)
    for name, text in BUILT.items():
        if REFUSED.get(name) == SEV_SNP:
            start, end = text.index("<launchSecurity"), text.index("</launchSecurity>") + len("</launchSecurity>")
            documents[name.replace("/confidential", PLAIN)] = text[:start] + text[end:]
    found = native(documents, tmp_path_factory.mktemp("native"))
    if found.version // 1_000_000 != MAJOR:
        pytest.skip(f"libvirt is {found.version}; REFUSED is what 9.0 refuses")
    return found.answers


def planned(name: str) -> Built:
    host, template = name.split("/")
    given: dict[str, str | list[str]] = {"name": "vm1", "template": template}
    words = wish(host, template).split()
    for option, value in zip(words[::2], words[1::2], strict=True):
        key = option.removeprefix("--")
        if key in _LISTS:
            given[_LISTS[key]] = [*given.get(_LISTS[key], []), value]
        else:
            given[key] = value
    api = Host.recorded(host).domain
    return api.build(api.spec(given_options(given)))


def test_what_is_refused(answers: Mapping[str, Mapping[str, str]]) -> None:
    refused = {name: answer["refused"] for name, answer in answers.items() if "refused" in answer}
    assert sorted(refused) == sorted(REFUSED)
    assert not {name: said for name, said in refused.items() if REFUSED[name] not in said}
    assert len(answers) - len(refused) >= 55


@pytest.mark.parametrize("name", sorted(set(BUILT) - {each for each in REFUSED if each.startswith("gh200/")}))
def test_qemu_gets_what_was_planned(answers: Mapping[str, Mapping[str, str]], name: str) -> None:
    built = planned(name)
    assert built.xml == BUILT[name]
    asked_as = name.replace("/confidential", PLAIN) if name in REFUSED else name
    found = arguments(answers[asked_as]["command"])
    assert processor(found) == wanted_processor(built.layout)
    assert cells(found) == list(wanted_cells(built.layout))
    assert distances(found) == wanted_distances(built.layout)
    assert backends(found) == list(wanted_backends(built))
    assert devices(found) == sorted(wanted_devices(built.layout.expanders))
    assert without_rom(found) == wanted_without_rom(built.layout)
    assert hole(found) == built.layout.hole
    if built.layout.wide_addresses:  # templates may have it anyway
        assert only(found, "cpu").says["host-phys-bits"] == "on"


@pytest.mark.parametrize("name", sorted(set(BUILT) - set(REFUSED)))
def test_verify_finds_the_devices_where_the_document_has_them(
    answers: Mapping[str, Mapping[str, str]], name: str
) -> None:
    subject = Subject(Domain(parse(BUILT[name])), "vm1", "virsh")
    facts = list(device_facts(subject, shlex.split(answers[name]["command"]), {}, frozenset))
    assert {each.state for each in facts} <= {State.OK}
    assert len([each for each in facts if each.what.startswith("bus of ")]) == len(devices_of(subject.domain.root))


# -- what was found ----------------------------------------------------------------------------------------


def only(found: list[Argument], option: str) -> Argument:
    (each,) = (each for each in found if each.option == option)
    return each


def processor(found: list[Argument]) -> tuple[int, ...]:
    says = only(found, "smp").says
    return tuple(int(says[name]) for name in ("driver", "sockets", "dies", "cores", "threads"))


def cells(found: list[Argument]) -> list[tuple[int, tuple[int, ...], str]]:
    nodes = [each.says for each in found if each.option == "numa" and each.says["driver"] == "node"]
    return [(int(node["nodeid"]), parse_cpu_list(node["cpus"]), node["memdev"]) for node in nodes]


def distances(found: list[Argument]) -> dict[tuple[int, int], int]:
    said = [each.says for each in found if each.option == "numa" and each.says["driver"] == "dist"]
    return {(int(each["src"]), int(each["dst"])): int(each["val"]) for each in said}


def backends(found: list[Argument]) -> list[tuple[object, ...]]:
    """Each cell's memory: its name, its bytes, the host's nodes, the policy, the pages, whether all are taken first."""
    said = [each.says for each in found if each.option == "object"]
    said = [each for each in said if each["qom-type"].startswith("memory-backend")]
    return [
        (
            each["id"],
            each["size"],
            each.get("host-nodes"),
            each.get("policy"),
            next((size for size in ("1G", "2M") if f"/{size}/" in each.get("mem-path", "")), None),
            each.get("prealloc", False),
        )
        for each in said
    ]


def devices(found: list[Argument]) -> list[tuple[object, ...]]:
    """Each device of the host: which, its name, the bus number and node of its expander, its slot, its function."""
    said = {each.says["id"]: each.says for each in found if each.option == "device" and "id" in each.says}
    seen = []
    for each in said.values():
        if each["driver"] in VFIO:
            port = said.get(each["bus"], {})
            expander = said.get(port.get("bus", ""), {})
            slot, _, function = each["addr"].partition(".")
            assert (port["driver"], int(slot, 16)) == ("pcie-root-port", 0)
            place = (expander.get("bus_nr", 0), expander.get("numa_node", -1), int(function or "0", 16))
            device = each.get("host") or each["sysfsdev"].removeprefix("/sys/bus/mdev/devices/")
            seen.append((device, each["id"], *place, bool(each.get("multifunction", False))))
    ports = [each["bus"] for each in said.values() if each["driver"] in VFIO and not each["addr"].count(".")]
    assert len(ports) == len(set(ports)), "one card in each slot"
    return sorted(seen)


def without_rom(found: list[Argument]) -> set[str]:
    return {each.says["id"] for each in found if each.option == "device" and each.says.get("rombar") == 0}


def hole(found: list[Argument]) -> int:
    said = [each.says for each in found if each.option == "global" and "q35-pcihost.pci-hole64-size" in each.says]
    return sum(int(each["q35-pcihost.pci-hole64-size"].removesuffix("K")) << 10 for each in said)


# -- what was planned ----------------------------------------------------------------------------------------


def wanted_processor(layout: Layout) -> tuple[int, ...]:
    return (layout.vcpus, *layout.shape)


def wanted_cells(layout: Layout) -> Iterator[tuple[int, tuple[int, ...], str]]:
    for number, cell in enumerate(layout.cells):
        yield number, tuple(cell.vcpus), f"ram-node{number}"


def wanted_distances(layout: Layout) -> dict[tuple[int, int], int]:
    found = {(a, b): value for a, cell in enumerate(layout.cells) for b, value in enumerate(cell.distances)}
    is_default = all(value == (LOCAL if a == b else REMOTE) for (a, b), value in found.items())
    return {} if is_default else found  # libvirt leaves out what QEMU takes anyway


def wanted_backends(built: Built) -> Iterator[tuple[object, ...]]:
    layout = built.layout
    pages = {None: None, 1 << 30: "1G", 2 << 20: "2M"}[layout.page_size]
    at_once = built.document.root.find("memoryBacking/allocation[@mode='immediate']") is not None
    for number, cell in enumerate(layout.cells):
        nodes = None if cell.node is None else [cell.node]
        policy = None if cell.node is None else "bind" if layout.strict else "preferred"
        yield f"ram-node{number}", cell.memory, nodes, policy, pages, at_once or pages is not None


def wanted_devices(expanders: tuple[Expander, ...]) -> Iterator[tuple[object, ...]]:
    for expander in expanders:
        for port in expander.ports:
            for placed in port.devices:
                subject = placed.device.subject
                device = str(subject) if isinstance(subject, PciAddress) else str(subject).lower()
                node = expander.cell if expander.bus_number is not None else None
                place = (expander.bus_number or 0, -1 if node is None else node, placed.function)
                yield device, f"ua-{placed.device.label}", *place, placed.multifunction


def wanted_without_rom(layout: Layout) -> set[str]:
    chosen = [choice.chosen for choice in layout.choices if choice.what == "ROMs that are off"]
    return {f"ua-{label}" for labels in chosen for label in labels.split(", ")}
