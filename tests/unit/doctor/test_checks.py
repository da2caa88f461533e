"""Each check on facts on which it fails, passes, does not apply and cannot tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from vfioctl.core.marks import Mark, MarkKind
from vfioctl.doctor.checks.table import CHECKS, examine
from vfioctl.doctor.model.facts import Facts, FileText, Framebuffer, ModuleState, Pages
from vfioctl.doctor.model.result import Result, Status
from vfioctl.inventory.model.functions import Bar, Function, Inventory
from vfioctl.inventory.model.machine import Group, Iommu, NumaNode, Processor
from vfioctl.inventory.model.values import PciAddress
from vfioctl.persist.model.persistent import Owner, Persistent, State
from vfioctl.units import CpuSet

GPU, AUDIO, TWIN, DISK, SWITCH = (
    PciAddress(f"0000:{slot}") for slot in ("41:00.0", "41:00.1", "42:00.0", "43:00.0", "44:00.0")
)
GIB = 1 << 30
BARS = (
    Bar(index=0, size=16 << 20, kind="mem32", prefetchable=False),
    Bar(index=1, size=16 * GIB, kind="mem64", prefetchable=True),
)


def function(address: PciAddress, **facts: Any) -> Function:
    known: dict[str, Any] = {
        "vendor_id": "10de",
        "device_id": "2684",
        "subsystem_vendor_id": "1043",
        "subsystem_device_id": "88e2",
        "class_code": "030000",
        "iommu_group": int(address[5:7], 16),
        "numa_node": 0,
        "bars": BARS,
        "reset_methods": ("flr", "bus"),
        "driver": "nvidia",
    }
    return Function(address=address, **(known | facts))


def facts_of(*functions: Function, **facts: Any) -> Facts:
    """A host with these functions, on which nothing is wrong."""
    functions = functions or (function(GPU),)
    groups: dict[int, list[PciAddress]] = {}
    for member in functions:
        if member.iommu_group is not None:
            groups.setdefault(member.iommu_group, []).append(member.address)
    inventory = Inventory(
        functions=functions,
        groups=tuple(Group(id=n, type="identity", members=tuple(m), viable=True) for n, m in groups.items()),
        numa_nodes=tuple(
            NumaNode(id=n, cpus=CpuSet(range(8 * n, 8 * n + 8)), memory_bytes=64 * GIB, distances={}) for n in (0, 1)
        ),
        iommu=Iommu(kind="intel-vt-d", translating=True),
    )
    healthy: dict[str, Any] = {
        "inventory": inventory,
        "devices": tuple(f for f in functions if f.is_gpu),
        "release": "6.8.0",
        "irq_chips": ("IR-IO-APIC", "IR-PCI-MSI"),
        "vfio_pci": ModuleState.LOADED,
        "nodes": {"/dev/vfio/vfio": 0o666},
        "memory_bytes": 128 * GIB,
    }
    return Facts(**(healthy | facts))


def off(**facts: Any) -> Facts:
    """A host whose IOMMU does not translate."""
    facts_on = facts_of(**facts)
    return replace(facts_on, inventory=replace(facts_on.inventory, iommu=Iommu(translating=False), groups=()))


def with_inventory(facts: Facts, **changes: Any) -> Facts:
    return replace(facts, inventory=replace(facts.inventory, **changes))


def file(text: str | None, *, refused: str = "") -> FileText:
    return FileText("/a/file", text, refused)


def on_vfio(address: PciAddress = GPU, **facts: Any) -> Function:
    return function(address, driver="vfio-pci", **facts)


REGIONS = "0x00000000fee00000 0x00000000feefffff msi"
RMRR = "0x00000000bf7f7000 0x00000000bf7fffff direct"
REFUSED = file(None, refused="EACCES")
SHARED = (function(GPU), function(AUDIO, class_code="040300", iommu_group=0x41))
STRANGER = function(DISK, class_code="010802", vendor_id="144d", iommu_group=0x41)
BRIDGE = function(DISK, class_code="060400", iommu_group=0x41)
NVSWITCH = function(SWITCH, class_code="068000", driver="nvidia-nvswitch")
MARK = Mark(address=GPU, kind=MarkKind.WEDGED, since="", why="a write to unbind did not return")
RULES = FileText("/etc/udev/rules.d/60-vfioctl.rules", "rules")
PACKAGED = FileText("/opt/60-vfioctl.rules", "rules\n")
UNITS = {"nvidia-fabricmanager.service": "active", "nvidia-persistenced.service": "inactive"}
FAIL, PASS, NOTE, UNKNOWN, NA = (
    Status.FAIL,
    Status.PASS,
    Status.NOTE,
    Status.UNKNOWN,
    Status.NOT_APPLICABLE,
)
PAGES = Pages(0, 2 << 20, 512, 256)


def translated(**facts: Any) -> Facts:
    known = facts_of(**facts)
    return with_inventory(known, groups=(replace(known.inventory.groups[0], type="DMA-FQ"),))


def twins(**facts: Any) -> Facts:
    return facts_of(function(GPU), function(TWIN), **facts)


def framed(gpu: Function) -> Facts:
    return facts_of(gpu, framebuffers=(Framebuffer("efi-framebuffer", "efi-framebuffer.0"),))


def neighbour() -> Function:
    return function(PciAddress("0000:41:01.0"), class_code="020000", iommu_group=9)


def locked() -> Facts:
    return facts_of(lockdown=file("none [integrity] confidentiality"), secure_boot=file("\x06\0\0\0\x01"))


def ruled(installed: FileText) -> Facts:
    return facts_of(udev_rules=(installed,), packaged_rules=PACKAGED, has_udev=True)


def at_boot(state: State = State.READY) -> Persistent:
    """One device that a boot binds."""
    now, file = "0000:43:00.0" if state is State.MOVED else "", "/etc/vfioctl/devices.d/0000:41:00.0.toml"
    return Persistent(name=GPU, goal="vfio-pci", owner=Owner.VFIOCTL, state=state, file=file, now=now)


class Case(NamedTuple):
    """Facts of a host, what the check comes to, and a word of what it tells."""

    check: str
    status: Status
    facts: Callable[[], Facts]
    word: str = ""


def with_package(name: str) -> Facts:
    return facts_of(persistent=(at_boot(),), has_package=True, not_installed=(name,))


CASES = (
    Case("iommu", PASS, facts_of, "intel-vt-d, 1 group"),
    Case("iommu", FAIL, lambda: off(command_line=file("ro intel_iommu=off")), "remove intel_iommu=off"),
    Case("iommu", FAIL, lambda: off(acpi_tables=("DMAR",)), "add intel_iommu=on"),
    Case("iommu", FAIL, lambda: off(acpi_tables=("IVRS",)), "AMD-Vi"),
    Case("iommu", FAIL, off, "firmware's set-up"),
    Case("iommu-mode", PASS, facts_of, "identity"),
    Case("iommu-mode", PASS, lambda: translated(command_line=file("iommu=pt")), "iommu=pt"),
    Case("iommu-mode", NOTE, translated, "DMA-FQ"),
    Case("iommu-mode", NA, off),
    Case("interrupt-remapping", PASS, facts_of, "IR-IO-APIC"),
    Case("interrupt-remapping", FAIL, lambda: facts_of(irq_chips=("IO-APIC", "PCI-MSI")), "IO-APIC"),
    Case("interrupt-remapping", FAIL, lambda: facts_of(irq_chips=(), command_line=file("intremap=off")), "intremap"),
    Case("interrupt-remapping", FAIL, lambda: facts_of(irq_chips=(), ecaps=(file("f020d2"), file("0"))), "bit 3"),
    Case("interrupt-remapping", UNKNOWN, lambda: facts_of(irq_chips=(), ecaps=(file("f020da"), file("zz")))),
    Case("interrupt-remapping", NA, lambda: facts_of(processor=Processor(arch="aarch64"))),
    Case("unsafe-interrupts", PASS, lambda: facts_of(unsafe_interrupts=file("N"))),
    Case("unsafe-interrupts", FAIL, lambda: facts_of(unsafe_interrupts=file("Y")), "allow_unsafe_interrupts"),
    Case("unsafe-interrupts", UNKNOWN, lambda: facts_of(unsafe_interrupts=REFUSED), "run it as root"),
    Case("unsafe-interrupts", NA, facts_of),
    Case("noiommu", PASS, lambda: facts_of(noiommu=file("N"))),
    Case("noiommu", FAIL, lambda: facts_of(noiommu=file("Y")), "enable_unsafe_noiommu_mode"),
    Case("noiommu", NA, facts_of),
    Case("iommu-group", PASS, facts_of, "1 device"),
    Case("iommu-group", FAIL, lambda: facts_of(function(GPU, iommu_group=None)), GPU),
    Case("iommu-group", NA, off),
    Case("group-sharing", PASS, lambda: facts_of(*SHARED)),
    Case("group-sharing", PASS, lambda: facts_of(*SHARED, BRIDGE)),
    Case("group-sharing", FAIL, lambda: facts_of(*SHARED, STRANGER), f"group 65: {GPU} with {DISK}"),
    Case("group-sharing", NA, lambda: facts_of(function(GPU, iommu_group=None))),
    Case("reserved-memory", PASS, lambda: facts_of(reserved={0x41: file(REGIONS)}), "1 IOMMU group"),
    Case("reserved-memory", PASS, lambda: facts_of(reserved={0x41: file(f"{REGIONS}\n{RMRR}-relaxable")})),
    Case("reserved-memory", FAIL, lambda: facts_of(reserved={0x41: file(f"{REGIONS}\n{RMRR}")}), "RMRR"),
    Case("reserved-memory", UNKNOWN, lambda: facts_of(reserved={0x41: REFUSED})),
    Case("reserved-memory", NA, facts_of),
    Case("vfio-pci", PASS, facts_of, "loaded"),
    Case("vfio-pci", PASS, lambda: facts_of(vfio_pci=ModuleState.BUILT_IN), "built in"),
    Case("vfio-pci", PASS, lambda: facts_of(vfio_pci=ModuleState.AVAILABLE), "available"),
    Case("vfio-pci", FAIL, lambda: facts_of(vfio_pci=ModuleState.MISSING), "linux-modules-extra-6.8.0"),
    Case("vfio-pci", UNKNOWN, lambda: facts_of(vfio_pci=ModuleState.UNKNOWN), "reboot"),
    Case("vfio-node", PASS, facts_of, "/dev/vfio/vfio"),
    Case("vfio-node", FAIL, lambda: facts_of(on_vfio(), nodes={}), "modprobe vfio"),
    Case("vfio-node", NA, lambda: facts_of(nodes={}, vfio_pci=ModuleState.AVAILABLE)),
    Case("vfio-node", NA, lambda: facts_of(nodes={}, has_dev=False), "captured"),
    Case("vfio-node-mode", PASS, facts_of, "0666"),
    Case("vfio-node-mode", FAIL, lambda: facts_of(nodes={"/dev/vfio/vfio": 0o600}), "0600"),
    Case("vfio-node-mode", NA, lambda: facts_of(nodes={"/dev/vfio/vfio": None}), "not recorded"),
    Case("vfio-node-mode", NA, lambda: facts_of(nodes={}), "no /dev/vfio/vfio"),
    Case("vfio-ids", PASS, lambda: facts_of(command_line=file("vfio-pci.ids=10de:2684")), "single"),
    Case("vfio-ids", FAIL, lambda: twins(command_line=file("vfio-pci.ids=10de:2684,8086:1")), f"{GPU}, {TWIN}"),
    Case("vfio-ids", FAIL, lambda: twins(modprobe=(file("# x\noptions vfio-pci ids=10de:2684"),)), "/a/file"),
    Case("vfio-ids", PASS, lambda: twins(command_line=file("vfio_pci.ids=10de:2684:1:2"))),
    Case("vfio-ids", UNKNOWN, lambda: facts_of(modprobe=(REFUSED,))),
    Case("vfio-ids", NA, lambda: facts_of(modprobe=(file("options vfio-pci disable_vga=1 ids=x:y"),))),
    Case("variant-driver", PASS, lambda: facts_of(on_vfio(available_drivers=("nvidia", "vfio-pci")))),
    Case("variant-driver", FAIL, lambda: facts_of(on_vfio(available_drivers=("nvgrace_gpu_vfio_pci",))), "nvgrace"),
    Case("variant-driver", NOTE, lambda: facts_of(on_vfio(available_drivers=("xe_vfio_pci",), physfn=TWIN))),
    Case("variant-driver", NA, facts_of),
    Case("readable", PASS, facts_of),
    Case("readable", UNKNOWN, lambda: with_inventory(facts_of(), unread={TWIN: "EIO"}), "EIO"),
    Case("marks", PASS, facts_of),
    Case("marks", FAIL, lambda: facts_of(function(GPU, mark=MARK)), "vfioctl recover"),
    Case("marks", FAIL, lambda: facts_of(function(GPU, mark=replace(MARK, kind=MarkKind.DEAD))), "power"),
    Case("bars", PASS, facts_of),
    Case("bars", FAIL, lambda: facts_of(function(GPU, bars=BARS[:1])), "Above 4G Decoding"),
    Case("bars", FAIL, lambda: facts_of(unassigned={GPU: (1, 3)}), "BAR 1 and 3"),
    Case("bars", PASS, lambda: facts_of(function(GPU, bars=(), unknown={"resource": "EIO"}))),
    Case("bars", NA, lambda: facts_of(STRANGER)),
    Case("large-bars", PASS, facts_of),
    Case("large-bars", NOTE, lambda: facts_of(function(GPU, prefetchable_64=128 * GIB)), "128 GiB"),
    Case("large-bars", NA, lambda: facts_of(STRANGER)),
    Case("framebuffer", PASS, lambda: facts_of(function(GPU, boot_vga=True))),
    Case("framebuffer", FAIL, lambda: framed(on_vfio(boot_vga=True)), "efi-framebuffer.0 > "),
    Case("framebuffer", NOTE, lambda: framed(function(GPU, boot_vga=True)), "vfioctl bind releases it"),
    Case("framebuffer", NA, lambda: framed(function(GPU))),
    Case("reset", PASS, facts_of, "flr bus"),
    Case("reset", FAIL, lambda: facts_of(function(GPU, reset_methods=())), "vendor-reset"),
    Case("reset", FAIL, lambda: facts_of(function(GPU, reset_methods=(), boot_vga=True), asked=True)),
    Case("reset", NA, lambda: facts_of(function(GPU, reset_methods=(), boot_vga=True)), "boot display"),
    Case("reset", NOTE, lambda: facts_of(function(GPU, reset_methods=("bus",)), neighbour()), "0000:41:01.0"),
    Case("reset", PASS, lambda: facts_of(function(GPU, reset_methods=("bus",)), STRANGER)),
    Case("reset", UNKNOWN, lambda: facts_of(function(GPU, reset_methods=(), unknown={"reset_method": "EIO"}))),
    Case("reset", NA, lambda: facts_of(function(GPU, reset_unnamed=True))),
    Case("sleep", PASS, lambda: facts_of(on_vfio(power_state="D3hot"))),
    Case("sleep", PASS, lambda: facts_of(on_vfio(power_state="D3cold", d3cold_allowed=False))),
    Case("sleep", NOTE, lambda: facts_of(on_vfio(power_state="D3cold", d3cold_allowed=True)), "d3cold_allowed"),
    Case("sleep", NA, facts_of),
    Case("dma-entries", PASS, lambda: facts_of(dma_entries=file("65535"))),
    Case(
        "dma-entries",
        NOTE,
        lambda: facts_of(dma_entries=file("65535"), memory_bytes=256 * GIB),
        "dma_entry_limit=262144",
    ),
    Case("dma-entries", UNKNOWN, lambda: facts_of(dma_entries=file("many"))),
    Case("dma-entries", UNKNOWN, lambda: facts_of(dma_entries=REFUSED)),
    Case("dma-entries", NA, facts_of),
    Case("hugepages", PASS, lambda: facts_of(hugepages=(PAGES,)), "256 of 512"),
    Case("hugepages", FAIL, lambda: facts_of(hugepages=(PAGES._replace(node=1),)), "node0/hugepages"),
    Case("hugepages", NOTE, lambda: facts_of(hugepages=(PAGES._replace(free=0),)), "in use"),
    Case("hugepages", NA, lambda: facts_of(hugepages=(PAGES._replace(total=0, free=0),))),
    Case("hugepages", NA, lambda: facts_of(STRANGER, hugepages=(PAGES,)), "no GPU"),
    Case("isolated-cpus", PASS, lambda: facts_of(isolated=file("2-7"))),
    Case("isolated-cpus", NOTE, lambda: facts_of(isolated=file("8-15")), "NUMA node 0"),
    Case("isolated-cpus", UNKNOWN, lambda: facts_of(isolated=REFUSED)),
    Case("isolated-cpus", NA, lambda: facts_of(isolated=file("(null)"))),
    Case("unsigned-modules", PASS, lambda: facts_of(lockdown=file("[none] integrity confidentiality"))),
    Case("unsigned-modules", NOTE, locked, "Secure Boot is on"),
    Case("unsigned-modules", UNKNOWN, lambda: facts_of(lockdown=REFUSED), "run it as root"),
    Case("unsigned-modules", NA, facts_of),
    Case("gpu-services", PASS, lambda: facts_of(units=UNITS)),
    Case("gpu-services", NOTE, lambda: facts_of(units=dict.fromkeys(UNITS, "active")), "nvidia-persistenced"),
    Case("gpu-services", NA, facts_of),
    Case("gpu-services", NA, lambda: facts_of(on_vfio(), units=UNITS), "nvidia driver"),
    Case("fabric-manager", PASS, lambda: facts_of(NVSWITCH, units=UNITS)),
    Case("fabric-manager", FAIL, lambda: facts_of(NVSWITCH, units=dict.fromkeys(UNITS, "failed")), "is failed"),
    Case("fabric-manager", FAIL, lambda: facts_of(NVSWITCH, units={"dcgm.service": "active"}), "not installed"),
    Case("fabric-manager", UNKNOWN, lambda: facts_of(NVSWITCH)),
    Case("fabric-manager", NA, lambda: facts_of(replace(NVSWITCH, driver="vfio-pci"))),
    Case("udev-rules", PASS, lambda: ruled(RULES)),
    Case("udev-rules", NOTE, lambda: ruled(RULES._replace(text="older")), "differs"),
    Case("udev-rules", NOTE, lambda: ruled(RULES._replace(text=None)), "install -m 644 /opt/60-vfioctl.rules"),
    Case("udev-rules", UNKNOWN, lambda: ruled(RULES._replace(text=None, refused="EACCES"))),
    Case("udev-rules", NA, facts_of),
    Case("unfinished", PASS, facts_of),
    Case("unfinished", PASS, lambda: facts_of(unfinished=(True,)), "under way"),
    Case("unfinished", FAIL, lambda: facts_of(unfinished=(True, False)), "vfioctl recover"),
    Case("unfinished", UNKNOWN, lambda: facts_of(ledger_problem="it is damaged"), "it is damaged"),
    Case("claims", PASS, lambda: facts_of(claims=2), "2 claims"),
    Case("claims", FAIL, lambda: facts_of(claims=1, differences=2), "vfioctl reconcile"),
    Case("claims", UNKNOWN, lambda: facts_of(claims=1, compare_problem="no libvirt"), "no libvirt"),
    Case("claims", UNKNOWN, lambda: facts_of(ledger_problem="it is damaged")),
    Case("claims", NA, facts_of),
    Case("persistent", PASS, lambda: facts_of(persistent=(at_boot(),)), "all of it is there"),
    Case("persistent", FAIL, lambda: facts_of(persistent=(at_boot(State.ABSENT),)), "vfioctl persist restore"),
    Case("persistent", FAIL, lambda: facts_of(persistent=(at_boot(State.FAILED),)), "takes nothing in its place"),
    Case("persistent", FAIL, lambda: facts_of(persistent=(at_boot(State.MOVED),)), "vfioctl bind 0000:43:00.0"),
    Case(
        "persistent", NOTE, lambda: facts_of(persistent=(at_boot(),), switched_off="/etc/vfioctl/disabled"), "remove it"
    ),
    Case("persistent", UNKNOWN, lambda: facts_of(persist_problem="EACCES"), "EACCES"),
    Case("persistent", NA, facts_of),
    Case("boot-files", PASS, lambda: facts_of(persistent=(at_boot(),)), "in place"),
    Case("boot-files", FAIL, lambda: facts_of(persistent=(at_boot(),), not_installed=("/etc/x",)), "vfioctl install"),
    Case("boot-files", PASS, lambda: facts_of(persistent=(at_boot(),), has_package=True), "of this system"),
    Case("boot-files", FAIL, lambda: with_package("/etc/x"), "vfioctl install"),
    Case("boot-files", FAIL, lambda: with_package("/usr/lib/x"), "one release only"),
    Case("boot-files", NA, facts_of),
)


def results_of(facts: Facts, check: str) -> list[Result]:
    return [result for result in examine(facts) if result.check == check]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.check}-{case.status}-{case.word}".rstrip("-"))
def test_a_check(case: Case) -> None:
    results = results_of(case.facts(), case.check)
    assert [result.status for result in results] == [case.status]
    assert case.word in str(results[0])


def test_every_check_is_shown_with_and_without_a_finding() -> None:
    shown: dict[str, set[Status]] = {}
    for case in CASES:
        shown.setdefault(case.check, set()).add(case.status)
    assert list(shown) == [check.name for check in CHECKS]
    assert all(PASS in statuses and statuses & {FAIL, NOTE, UNKNOWN} for statuses in shown.values())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.check}-{case.status}")
def test_every_finding_has_its_parts(case: Case) -> None:
    for result in examine(case.facts()):
        assert result.evidence
        assert bool(result.meaning) is (result.status in (FAIL, NOTE, UNKNOWN))
        assert result.meaning.endswith(".") is bool(result.meaning)
        assert result.remedy or result.command or result.status not in (FAIL, NOTE)
        assert len(result.command) <= 90 or result.check == "udev-rules"


def test_nothing_is_wrong_with_a_healthy_host() -> None:
    wrong = [result for result in examine(facts_of()) if result.status in (FAIL, UNKNOWN, NOTE)]
    assert not wrong


def test_hostile_texts_cost_no_check() -> None:
    for text in ("", "\0", "9" * 5000, "-1", "\x1b]0;x\x07", "ids=" + "," * 5000, "options vfio-pci ids=::::", "[none"):
        bad = FileText("/x", text)
        texts: Mapping[str, Any] = {
            **dict.fromkeys(
                ("command_line", "unsafe_interrupts", "noiommu", "dma_entries", "isolated", "lockdown"), bad
            )
        }
        many = {"modprobe": (bad,), "ecaps": (bad,), "secure_boot": bad, "udev_rules": (bad,), "irq_chips": (text,)}
        names = {result.check for result in examine(facts_of(**texts, **many))}
        assert names == {check.name for check in CHECKS}
