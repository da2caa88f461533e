"""Each check on facts on which it fails, passes, does not apply and cannot tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from vfioctl.core.marks import Mark, MarkKind
from vfioctl.doctor.checks.table import CHECKS, examine
from vfioctl.doctor.model.facts import (
    CdiFile,
    Facts,
    FileText,
    Framebuffer,
    KataLine,
    LockLimit,
    ModuleState,
    Pages,
)
from vfioctl.doctor.model.result import Result, Status
from vfioctl.domain.model.libvirt import Libvirt
from vfioctl.domain.model.planned import PlannedGuest
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


def with_bmc(**facts: Any) -> Facts:
    """A GPU on node 0, and the boot display of a BMC on node 1."""
    return facts_of(function(GPU), function(TWIN, vendor_id="1a03", driver="ast", numa_node=1, boot_vga=True), **facts)


def noded(nodes: dict[str, int | None], group: str = "", claims: tuple[str, ...] = ()) -> Facts:
    """VFIO's nodes with these modes and this group. `claims`: with devices that somebody may open by iommufd."""
    return facts_of(nodes=nodes, node_groups=dict.fromkeys(nodes, group) if group else {}, iommufd_claims=claims)


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


def below(switch: str, *others: str) -> Facts:
    """A GPU and a disk in one group, which have these bridges above them."""
    bridges = {PciAddress(name): name for name in (switch, *others)}
    gpu = function(GPU, upstream=PciAddress(switch))
    disk = function(DISK, class_code="010802", iommu_group=0x41, upstream=PciAddress(others[-1] if others else switch))
    ports = (function(address, class_code="060400", iommu_group=None) for address in bridges)
    return facts_of(gpu, disk, *ports)


def virtual(*, has_kvm: bool | None = True, caps: tuple[FileText, ...] = ()) -> Facts:
    return facts_of(processor=Processor(arch="x86_64", is_guest=True, has_kvm=has_kvm), caps=caps)


def resizable(text: str | None, *, refused: str = "") -> Facts:
    return facts_of(resizable={GPU: {1: file(text, refused=refused)}})


def wide(bits: int) -> Facts:
    processor = Processor(arch="x86_64", address_bits=bits)
    return facts_of(function(GPU, prefetchable_64=128 * GIB), processor=processor)


def planned(memory: int, piece: int = 0, security: str = "") -> Facts:
    """A host with this guest, on which VFIO maps at most 65,536 pieces of memory."""
    guest = PlannedGuest(memory, domain="one", piece=piece, pieces_for="small pieces", security=security)
    return facts_of(dma_entries=file("65535"), guests=(guest,))


def locking(limit: int | None, memory: int | None = None, unread: FileText | None = None) -> Facts:
    known = LockLimit("c1", "ada", limit, "/etc/security/limits.conf: ada - memlock 1", memory, unread)
    return facts_of(lock_limits=(known,))


def asked(version: int | None, qemu: int | None, *functions: Function, **facts: Any) -> Facts:
    return facts_of(*functions, libvirt=Libvirt(uri="test:///default", version=version, hypervisor=qemu), **facts)


def pieces(*counts: int) -> Facts:
    """Free memory of node 0, in pieces of 4 KiB and of each double."""
    zones = f"Node 0, zone DMA {' '.join(['0'] * 11)}\nNode 0, zone Normal {' '.join(map(str, counts))} \n"
    return facts_of(buddyinfo=file(zones))


def kata(**lines: bool | None) -> Facts:
    """The lines of the check by name, and whether they are well."""
    return facts_of(kata=tuple(KataLine(name, "as it is", "set it", is_well) for name, is_well in lines.items()))


def early(gpu: Function, text: str = "", **facts: Any) -> Facts:
    """A host that should give a GPU to VFIO at boot. `text`: of a file about its initramfs."""
    files = (FileText("/etc/initramfs-tools/modules", text),) if text else ()
    return facts_of(gpu, **({"persistent": (at_boot(),), "initramfs": files} | facts))


BROKEN_1 = f"Node 0, zone Normal {' '.join(['0'] * 10)} 1024\nNode 1, zone Normal {1 << 20} {' '.join(['0'] * 10)}"
VGPU = "0a1b2c3d-0000-4000-8000-000000000001"
LOST_VGPU = Persistent(
    name=VGPU, goal="nvidia-63", owner=Owner.VFIOCTL, state=State.FAILED, file=f"/etc/mdevctl.d/x/{VGPU}", why="lost"
)
LARGE = function(GPU, prefetchable_64=64 * GIB)
BY_IDS = file("vfio-pci.ids=10de:2684")
NATIVE = ("nouveau", "nvidia", "vfio-pci")


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
    Case("nested", PASS, virtual, "a virtual machine with KVM"),
    Case("nested", PASS, lambda: virtual(caps=(file("d2008c222f0686"),)), "d2008c222f0686"),
    Case("nested", FAIL, lambda: virtual(has_kvm=False), "nested=1"),
    Case("nested", NOTE, lambda: virtual(caps=(file("d2008c222f0606"),)), "caching_mode='on'"),
    Case("nested", UNKNOWN, lambda: virtual(caps=(file("what"),)), "no number"),
    Case("nested", UNKNOWN, lambda: virtual(caps=(REFUSED,)), "run it as root"),
    Case("nested", NA, lambda: facts_of(processor=Processor(arch="x86_64", is_guest=False)), "no virtual machine"),
    Case("nested", NA, facts_of, "not known"),
    Case("iommu-group", PASS, facts_of, "1 device"),
    Case("iommu-group", FAIL, lambda: facts_of(function(GPU, iommu_group=None)), GPU),
    Case("iommu-group", NA, off),
    Case("group-sharing", PASS, lambda: facts_of(*SHARED)),
    Case("group-sharing", PASS, lambda: facts_of(*SHARED, BRIDGE)),
    Case("group-sharing", FAIL, lambda: facts_of(*SHARED, STRANGER), f"group 65: {GPU} with {DISK}"),
    Case("group-sharing", FAIL, lambda: facts_of(*SHARED, STRANGER), f"would be {GPU}, {AUDIO} alone"),
    Case("group-sharing", FAIL, lambda: below("0000:00:01.0"), "not below 0000:00:01.0, where they meet"),
    Case("group-sharing", FAIL, lambda: below("0000:00:01.0", "0000:00:02.0"), "ACS for the root ports"),
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
    Case("vfio-node-mode", FAIL, lambda: noded({"/dev/vfio/vfio": 0o660}), "0660 and the group root"),
    Case("vfio-node-mode", FAIL, lambda: noded({"/dev/vfio/vfio": 0o600}, "kvm"), "0600 and the group kvm"),
    Case("vfio-node-mode", PASS, lambda: noded({"/dev/vfio/vfio": 0o660}, "kvm"), "0660 and the group kvm"),
    Case("vfio-node-mode", PASS, lambda: noded({"/dev/vfio/vfio": 0o666, "/dev/iommu": 0o600})),
    Case("vfio-node-mode", NOTE, lambda: noded({"/dev/vfio/vfio": 0o666, "/dev/iommu": 0o600}, claims=("c1",)), "c1"),
    Case("vfio-node-mode", FAIL, lambda: noded({"/dev/iommu": 0o660}, claims=("c1",)), "0660 and the group root"),
    Case("vfio-node-mode", PASS, lambda: noded({"/dev/iommu": 0o660}, "kvm", claims=("c1",)), "the group kvm"),
    Case("vfio-node-mode", NA, lambda: noded({"/dev/iommu": None}, claims=("c1",)), "/dev/iommu is not recorded"),
    Case("vfio-node-mode", NA, lambda: noded({"/dev/iommu": 0o600}), "no /dev/vfio/vfio"),
    Case("vfio-node-mode", NA, lambda: facts_of(nodes={"/dev/vfio/vfio": None}), "not recorded"),
    Case("vfio-node-mode", NA, lambda: facts_of(nodes={}), "no /dev/vfio/vfio"),
    Case("vfio-ids", PASS, lambda: facts_of(command_line=file("vfio-pci.ids=10de:2684")), "single"),
    Case("vfio-ids", FAIL, lambda: twins(command_line=file("vfio-pci.ids=10de:2684,8086:1")), f"{GPU}, {TWIN}"),
    Case("vfio-ids", NOTE, lambda: facts_of(on_vfio(), on_vfio(TWIN), command_line=BY_IDS), f"{GPU}, {TWIN}"),
    Case("vfio-ids", NOTE, lambda: facts_of(on_vfio(), function(TWIN, driver=None), command_line=BY_IDS)),
    Case("vfio-ids", NOTE, lambda: facts_of(on_vfio(), on_vfio(TWIN, boot_vga=True), command_line=BY_IDS)),
    Case("vfio-ids", FAIL, lambda: facts_of(on_vfio(), function(TWIN), command_line=BY_IDS), f"uses {TWIN} (nvidia)"),
    Case(
        "vfio-ids",
        FAIL,
        lambda: facts_of(on_vfio(), function(TWIN, driver=None, boot_vga=True), command_line=BY_IDS),
        "the boot display",
    ),
    Case("vfio-ids", FAIL, lambda: twins(command_line=file("vfio-pci.ids=10de:ffffffff")), f"{GPU}, {TWIN}"),
    Case("vfio-ids", PASS, lambda: twins(command_line=file("vfio-pci.ids=10de:2684:ffffffff:ffffffff:040300:ffff00"))),
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
    Case("large-bars", NOTE, lambda: wide(46), "vfioctl domain build sizes it"),
    Case("large-bars", NOTE, lambda: wide(39), "has 64 GiB for BARs"),
    Case("large-bars", NA, lambda: facts_of(STRANGER)),
    Case("resizable-bars", PASS, lambda: resizable("0000000000007f00"), "as large as they can be"),
    Case("resizable-bars", NOTE, lambda: resizable("000000000000ff00"), "BAR 1: 16 GiB of 32 GiB"),
    Case("resizable-bars", NOTE, lambda: resizable("000000000000ff00"), f"echo 15 > /sys/bus/pci/devices/{GPU}/res"),
    Case("resizable-bars", UNKNOWN, lambda: resizable("0"), "no set of sizes"),
    Case("resizable-bars", UNKNOWN, lambda: resizable("many")),
    Case("resizable-bars", UNKNOWN, lambda: resizable(None, refused="EIO"), "EIO"),
    Case("resizable-bars", NA, facts_of, "whose size can be changed"),
    Case("resizable-bars", NA, lambda: facts_of(STRANGER), "no GPU"),
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
    Case("dma-entries", PASS, lambda: facts_of(dma_entries=file("65535")), "no guest is planned"),
    Case("dma-entries", UNKNOWN, lambda: facts_of(dma_entries=file("many"))),
    Case("dma-entries", UNKNOWN, lambda: facts_of(dma_entries=REFUSED)),
    Case("dma-entries", PASS, lambda: planned(4096 * GIB)),
    Case("dma-entries", PASS, lambda: planned(128 * GIB, 2 << 20)),
    Case("dma-entries", NOTE, lambda: planned(256 * GIB, 2 << 20), "domain one may need 131072, for small pieces"),
    Case("dma-entries", NOTE, lambda: planned(256 * GIB, 2 << 20), "echo 262144 > /a/file"),
    Case("dma-entries", FAIL, lambda: planned(64 * GIB, 4096, security="sev-snp"), "dma_entry_limit=33554432"),
    Case("dma-entries", PASS, lambda: planned(64 * GIB, security="sev-snp")),
    Case("dma-entries", NA, facts_of),
    Case("memlock", PASS, lambda: locking(None), "ada: any amount"),
    Case("memlock", PASS, lambda: locking(32 * GIB, 16 * GIB), "ada: 32 GiB"),
    Case("memlock", FAIL, lambda: locking(8 << 20, 16 * GIB), "`ada - memlock 17825792`"),
    Case("memlock", FAIL, lambda: locking(8 << 20), "`ada - memlock unlimited`"),
    Case("memlock", NOTE, lambda: locking(32 * GIB), "a guest of more than 32 GiB"),
    Case("memlock", UNKNOWN, lambda: locking(8 << 20, unread=REFUSED), "run it as root"),
    Case("memlock", UNKNOWN, lambda: facts_of(labels_hidden=True), "only root and the group vfioctl may read"),
    Case("memlock", NA, facts_of),
    Case("libvirt", PASS, lambda: asked(9_000_000, 7_002_022), "libvirt 9.0, QEMU 7.2"),
    Case("libvirt", PASS, lambda: asked(None, None, LARGE), "libvirt ?, QEMU ?"),
    Case("libvirt", PASS, lambda: asked(8_007_000, None, LARGE), "libvirt 8.7"),
    Case("libvirt", FAIL, lambda: asked(8_006_000, None, LARGE), "libvirt 8.7 or later"),
    Case("libvirt", FAIL, lambda: asked(12_000_000, None, nodes={"/dev/iommu": 0o660}), "libvirt 12.1 or later"),
    Case("libvirt", PASS, lambda: asked(12_001_000, None, nodes={"/dev/iommu": 0o660})),
    Case(
        "libvirt",
        FAIL,
        lambda: asked(11_000_000, 9_001_000, guests=(PlannedGuest(GIB, domain="one", security="sev-snp"),)),
        "domain one",
    ),
    Case(
        "libvirt",
        PASS,
        lambda: asked(11_000_000, 9_002_000, guests=(PlannedGuest(GIB, domain="one", security="sev-snp"),)),
    ),
    Case("libvirt", UNKNOWN, lambda: facts_of(libvirt=Libvirt(uri="qemu:///system", unknown="no answer")), "no answer"),
    Case("libvirt", NA, facts_of),
    Case("hugepages", PASS, lambda: facts_of(hugepages=(PAGES,)), "256 of 512"),
    Case("hugepages", NOTE, lambda: facts_of(hugepages=(PAGES._replace(node=1),)), "node0/hugepages"),
    Case("hugepages", NOTE, lambda: facts_of(hugepages=(Pages(1, GIB, 8, 8),)), "hugepagesz=1G hugepages=0:NUMBER,1:8"),
    Case("hugepages", PASS, lambda: with_bmc(hugepages=(PAGES,)), "256 of 512"),
    Case("hugepages", NOTE, lambda: facts_of(hugepages=(PAGES._replace(free=0),)), "in use"),
    Case("hugepages", NA, lambda: facts_of(hugepages=(PAGES._replace(total=0, free=0),))),
    Case("hugepages", NA, lambda: facts_of(STRANGER, hugepages=(PAGES,)), "no GPU"),
    Case("fragmentation", PASS, lambda: pieces(*[0] * 10, 1024), "node 0: 4 GiB of 4 GiB"),
    Case("fragmentation", PASS, lambda: pieces(100, *[0] * 10), "node 0: 0"),
    Case("fragmentation", NOTE, lambda: pieces(1 << 20, *[0] * 9, 512), "node 0: 2 GiB of 6 GiB"),
    Case("fragmentation", PASS, lambda: with_bmc(buddyinfo=file(BROKEN_1))),
    Case("fragmentation", UNKNOWN, lambda: facts_of(buddyinfo=REFUSED), "run it as root"),
    Case("fragmentation", UNKNOWN, lambda: facts_of(buddyinfo=file("Node 0, zone Normal many"))),
    Case("fragmentation", NA, facts_of),
    Case("fragmentation", NA, lambda: facts_of(STRANGER, buddyinfo=file("x")), "no GPU"),
    Case("isolated-cpus", PASS, lambda: facts_of(isolated=file("2-7"))),
    Case("isolated-cpus", NOTE, lambda: facts_of(isolated=file("8-15")), "NUMA node 0"),
    Case("isolated-cpus", PASS, lambda: with_bmc(isolated=file("2-7"))),
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
    Case("udev-rules", PASS, lambda: ruled(RULES._replace(text=None)), "claims with --access"),
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
    Case("cdi", PASS, lambda: facts_of(cdi=(CdiFile("/var/run/cdi/vfioctl.json"),)), "valid"),
    Case("cdi", FAIL, lambda: facts_of(cdi=(CdiFile("/x", problems=("no kind",)),)), "no kind"),
    Case("cdi", FAIL, lambda: facts_of(cdi=(CdiFile("/x", missing=("/dev/vfio/12",)),)), "/dev/vfio/12"),
    Case("cdi", FAIL, lambda: facts_of(cdi=(CdiFile("/x", twins=("/etc/cdi/y.json",)),)), "/etc/cdi/y.json"),
    Case("cdi", UNKNOWN, lambda: facts_of(cdi=(CdiFile("/x", problems=("x",), unread=REFUSED),)), "run it as root"),
    Case("cdi", UNKNOWN, lambda: facts_of(cdi_problem="EACCES"), "EACCES"),
    Case("cdi", NA, facts_of),
    Case("kata", PASS, lambda: kata(ports=True, mode=True), "2 lines well"),
    Case("kata", PASS, lambda: kata(ports=True, mode=None), "not checked: mode"),
    Case("kata", FAIL, lambda: kata(ports=True, mode=False), "mode: as it is"),
    Case("kata", UNKNOWN, lambda: facts_of(kata_problem="EACCES"), "EACCES"),
    Case("kata", NA, facts_of),
    Case("persistent", PASS, lambda: facts_of(persistent=(at_boot(),)), "all of it is there"),
    Case("persistent", FAIL, lambda: facts_of(persistent=(at_boot(State.ABSENT),)), "vfioctl persist restore"),
    Case("persistent", FAIL, lambda: facts_of(persistent=(at_boot(State.FAILED),)), "takes nothing in its place"),
    Case("persistent", FAIL, lambda: facts_of(persistent=(at_boot(State.FAILED),)), f"vfioctl persist remove {GPU}"),
    Case("persistent", FAIL, lambda: facts_of(persistent=(at_boot(State.FAILED),)), f"bind {GPU} --persistent"),
    Case("persistent", FAIL, lambda: facts_of(persistent=(LOST_VGPU,)), "remedy='if it is gone for good:'"),
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
    Case(
        "boot-files",
        NOTE,
        lambda: facts_of(persistent=(at_boot(),), outdated_initramfs="/boot/i is older than /etc/x: dracut --force"),
        "dracut --force",
    ),
    Case("boot-files", NOTE, lambda: facts_of(outdated_initramfs="/boot/i is older: dracut --force"), "dracut"),
    Case("boot-files", NA, facts_of),
    Case("first-driver", PASS, lambda: early(on_vfio(available_drivers=NATIVE)), "1 device"),
    Case("first-driver", PASS, lambda: early(on_vfio(available_drivers=NATIVE), "# nvidia\nomit_drivers+=nvidia")),
    Case("first-driver", PASS, lambda: early(on_vfio(), persistent=(), command_line=BY_IDS)),
    Case("first-driver", NOTE, lambda: early(on_vfio(available_drivers=NATIVE), "nvidia"), "puts nvidia into"),
    Case("first-driver", PASS, lambda: early(on_vfio(available_drivers=NATIVE), "nvidia", in_initramfs=True)),
    Case(
        "first-driver",
        NOTE,
        lambda: early(
            on_vfio(available_drivers=NATIVE),
            "nvidia",
            in_initramfs=True,
            outdated_initramfs="/boot/i is older than /etc/x: dracut -f",
        ),
        "puts nvidia into",
    ),
    Case("first-driver", FAIL, lambda: early(function(GPU), "nvidia", in_initramfs=True), f"{GPU} is on nvidia"),
    Case("first-driver", NOTE, lambda: early(on_vfio(), built_in={GPU: ("xhci_pci",)}), "xhci_pci is built into"),
    Case("first-driver", NOTE, lambda: early(on_vfio(available_drivers=NATIVE), "HOOKS=(base kms)"), "the hook kms"),
    Case("first-driver", FAIL, lambda: early(function(GPU), "nvidia"), f"{GPU} is on nvidia"),
    Case("first-driver", FAIL, lambda: early(function(GPU), persistent=(), command_line=BY_IDS), "nvidia has it"),
    Case("first-driver", UNKNOWN, lambda: early(function(GPU)), "which driver had it first"),
    Case("first-driver", UNKNOWN, lambda: early(on_vfio(), initramfs=(REFUSED,)), "run it as root"),
    Case("first-driver", NA, lambda: early(function(GPU), switched_off="/etc/vfioctl/disabled")),
    Case("first-driver", NA, facts_of),
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


TEXTS = (
    "command_line",
    "unsafe_interrupts",
    "noiommu",
    "dma_entries",
    "isolated",
    "lockdown",
    "buddyinfo",
    "secure_boot",
)


def test_hostile_texts_cost_no_check() -> None:
    for text in ("", "\0", "9" * 5000, "-1", "\x1b]0;x\x07", "ids=" + "," * 5000, "options vfio-pci ids=::::", "[none"):
        bad = FileText("/x", text)
        facts = facts_of(
            **dict.fromkeys(TEXTS, bad),
            **dict.fromkeys(("modprobe", "ecaps", "caps", "udev_rules", "initramfs"), (bad,)),
            irq_chips=(text,),
            resizable={GPU: {1: bad}},
            persistent=(at_boot(),),
            processor=Processor(arch="x86_64", is_guest=True, has_kvm=True),
        )
        assert {result.check for result in examine(facts)} == {check.name for check in CHECKS}
