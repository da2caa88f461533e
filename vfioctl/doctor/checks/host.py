"""Checks of the host around the devices: memory, CPUs, services, rules, the ledger. May not do input or output."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from shlex import quote

from vfioctl.binding.model.conditions import GPU_SERVICES
from vfioctl.console.words import counted
from vfioctl.doctor.model.facts import Facts, Pages
from vfioctl.doctor.model.result import Finding, failed, not_applicable, note, passed, unknown
from vfioctl.errors import BadSpec, some_of
from vfioctl.inventory.model.numa_affinity import home_of
from vfioctl.units import format_cpu_list, format_size, parse_cpu_list

_PAGE, _HUGE_ORDER = 4096, 9
"""On x86: bytes of a page, and the order of the pieces of memory that a hugepage of 2 MiB needs."""
_LARGE = 1 << 30
"""Bytes: hugepages of this size and more are allocated at boot."""
_LITTLE = 1 << 30
"""Bytes: where less is free, its pieces say nothing."""
_PIECES = re.compile(r"^Node ([0-9]{1,4}), zone +\S+((?: +[0-9]{1,15}){10,20}) *$", re.MULTILINE)
_NO_NODE = "no GPU for guests with a NUMA node"
_UNIT = "nvidia-fabricmanager"
_FABRIC_MANAGER = f"{_UNIT}.service"
_NVIDIA, _SWITCH = "10de", "0680"


def hugepages(facts: Facts) -> Iterator[Finding]:
    """Whether the NUMA nodes with GPUs have hugepages, where others have them."""
    configured = [pages for pages in facts.hugepages if pages.total]
    homes = _nodes(facts)
    if not configured or not homes:
        yield not_applicable("no hugepages" if not configured else _NO_NODE)
        return
    evidence = some_of(f"node {p.node}: {p.free} of {p.total} of {format_size(p.size)} are free" for p in configured)
    if without := sorted(homes - {pages.node for pages in configured}):
        words = "node" if len(without) == 1 else "nodes"
        meaning = (
            f"A guest on hugepages near the GPUs of NUMA {words} {some_of(without)} has its memory on another node."
        )
        yield _more_pages(evidence, meaning, configured, without)
    elif used := sorted(homes - {pages.node for pages in configured if pages.free}):
        meaning = f"All hugepages of NUMA node {some_of(used)}, which has GPUs, are in use."
        yield note(evidence, meaning, "stop a guest, or allocate more of them")
    else:
        yield passed(evidence)


def _more_pages(evidence: str, meaning: str, configured: Sequence[Pages], without: Sequence[int]) -> Finding:
    """Return the note that nodes have no hugepages. Those of 1 GiB are allocated at boot: later there are rarely so
    large pieces. Source: Documentation/admin-guide/kernel-parameters.txt, hugepages."""
    size = max(configured, key=lambda pages: pages.total * pages.size).size
    if size < _LARGE:
        path = f"/sys/devices/system/node/node{without[0]}/hugepages/hugepages-{size // 1024}kB/nr_hugepages"
        return note(evidence, meaning, "if guests use hugepages, add some:", command=f"echo NUMBER > {path}")
    now = {pages.node: str(pages.total) for pages in configured if pages.size == size}
    numbers = ",".join(f"{node}:{now.get(node, 'NUMBER')}" for node in sorted({*now, *without}))
    option = f"hugepagesz={size // _LARGE}G hugepages={numbers}"
    return note(evidence, meaning, f"if guests use hugepages: {option} on the kernel command line, and reboot")


def fragmentation(facts: Facts) -> Iterator[Finding]:
    """Whether the free memory of NUMA nodes with GPUs is in pieces that hugepages can be made of. Source:
    Documentation/filesystems/proc.rst, buddyinfo."""
    file, homes = facts.buddyinfo, _nodes(facts)
    if file.refused:
        yield file.not_told()
        return
    if file.text is None or not homes or not facts.processor.is_x86:
        yield not_applicable(f"no {file.path}" if file.text is None else f"{_NO_NODE}, or not x86")
        return
    free = {node: sizes for node, sizes in _free(file.text).items() if node in homes}
    if not free:
        yield unknown(file.shown, "It could not be told: it has no NUMA node with a GPU.")
        return
    shown = [f"node {n}: {format_size(large)} of {format_size(every)}" for n, (every, large) in free.items()]
    evidence = f"{file.path}: free in pieces of 2 MiB and more: {some_of(shown)}"
    if broken := [node for node, (every, large) in free.items() if every >= _LITTLE and large * 2 < every]:
        meaning = f"Free memory of NUMA node {some_of(broken)} is in small pieces: few hugepages can be added now."
        remedy = "allocate them at boot (hugepages= on the kernel command line), those of 1 GiB always; or first:"
        yield note(evidence, meaning, remedy, command="echo 1 > /proc/sys/vm/compact_memory")
    else:
        yield passed(evidence)


def _free(text: str) -> dict[int, tuple[int, int]]:
    """Return the free bytes of each node, and those in pieces that are large enough for a hugepage of 2 MiB."""
    free: dict[int, tuple[int, int]] = {}
    for node, counts in _PIECES.findall(text):
        sizes = [int(count) * (_PAGE << order) for order, count in enumerate(counts.split())]
        every, large = free.get(int(node), (0, 0))
        free[int(node)] = every + sum(sizes), large + sum(sizes[_HUGE_ORDER:])
    return free


def _nodes(facts: Facts) -> set[int]:
    """Return the NUMA nodes of the GPUs that guests may get."""
    homes = (home_of(gpu, facts.inventory).node for gpu in facts.cards if not facts.stays(gpu))
    return {node for node in homes if node is not None}


def isolated_cpus(facts: Facts) -> Iterator[Finding]:
    """Whether the CPUs that are isolated for guests are near the GPUs."""
    file = facts.isolated
    try:
        cpus = set(parse_cpu_list(file.text.strip())) if file.text and file.text.strip() else set()
    except BadSpec:
        cpus = set()
    homes = _nodes(facts)
    if file.refused:
        yield file.not_told()
    elif not cpus or not homes:
        yield not_applicable("no CPU is isolated" if not cpus else _NO_NODE)
    elif far := [n.id for n in facts.inventory.numa_nodes if n.id in homes and not cpus.intersection(n.cpus)]:
        meaning = f"No CPU of NUMA node {some_of(far)}, which has GPUs, is isolated: guests there share with the host."
        yield note(file.shown, meaning, "add CPUs of these nodes to isolcpus= on the kernel command line")
    else:
        yield passed(f"{file.path}: {format_cpu_list(cpus)}")


def unsigned_modules(facts: Facts) -> Iterator[Finding]:
    """Whether the kernel loads modules that are not signed."""
    file = facts.lockdown
    # 4 bytes of attributes come before the value (Documentation/filesystems/efivarfs.rst)
    boot = "; Secure Boot is on" if (facts.secure_boot.text or "")[4:5] == "\x01" else ""
    if file.refused:
        yield file.not_told()
    elif file.text is None:
        yield not_applicable(f"no {file.path}")
    elif "[none]" in file.text:
        yield passed(f"{file.shown}{boot}")
    else:
        meaning = "Modules without a trusted signature do not load, such as NVIDIA's vGPU driver or vendor-reset."
        remedy = "sign such a module, and enrol the key: mokutil --import KEY; vfio-pci needs nothing"
        yield note(f"{file.shown}{boot}", meaning, remedy)


def gpu_services(facts: Facts) -> Iterator[Finding]:
    """Whether services that monitor GPUs are running: they hold NVIDIA's GPUs open."""
    on_nvidia = [gpu for gpu in facts.cards if gpu.driver == "nvidia"]
    active = [name for name in GPU_SERVICES if facts.units.get(name) == "active"]
    if not on_nvidia or not facts.units:
        yield not_applicable("no GPU is on the nvidia driver" if not on_nvidia else "systemd has no such service")
    elif active:
        evidence = f"systemctl: {some_of(active)} active"
        remedy = "vfioctl bind --stop-services stops them, and unbind starts them again"
        yield note(evidence, "They hold GPUs open, so that vfioctl bind is refused.", remedy)
    else:
        yield passed("systemctl: no service that monitors GPUs is active")


def nvswitch_fabric(facts: Facts) -> Iterator[Finding]:
    """Whether NVIDIA's fabric manager runs where the host has NVSwitches."""
    switches = [
        function
        for function in facts.inventory.functions
        if function.vendor_id == _NVIDIA and function.class_code.startswith(_SWITCH) and not function.on_vfio
    ]
    state = facts.units.get(_FABRIC_MANAGER)
    if not switches:
        yield not_applicable("no NVSwitch stays with the host")
    elif state == "active":
        yield passed(f"systemctl: {_FABRIC_MANAGER} is active")
    elif not facts.units:
        evidence = f"{len(switches)} x NVSwitch; the state of {_FABRIC_MANAGER} was not read"
        yield unknown(evidence, "It could not be told whether the GPUs can start.", command=f"systemctl status {_UNIT}")
    else:
        evidence = f"{len(switches)} x NVSwitch; {_FABRIC_MANAGER} is {state or 'not installed'}"
        meaning = "GPUs behind NVSwitches do not start without the fabric manager, on the host and in guests."
        yield failed(evidence, meaning, command=f"systemctl enable --now {_UNIT}")


def udev_rules(facts: Facts) -> Iterator[Finding]:
    """Whether vfioctl's udev rules are installed and current."""
    installed = next((file for file in facts.udev_rules if file.text is not None or file.refused), None)
    ours = facts.packaged_rules
    copy = f"install -m 644 {quote(ours.path)} /etc/udev/rules.d/ && udevadm control --reload"
    if not facts.has_udev or ours.text is None:
        yield not_applicable("this host's udev was not read")
    elif installed is None:
        yield passed("no 60-vfioctl.rules: root opens nodes of VFIO, and whom claims with --access name")
    elif installed.refused:
        yield installed.not_told()
    elif (installed.text or "").strip() == ours.text.strip():
        yield passed(installed.path)
    else:
        yield note(
            f"{installed.path} differs from the one of this release", "It may be of an earlier release.", command=copy
        )


def unfinished(facts: Facts) -> Iterator[Finding]:
    """Whether changes were interrupted."""
    interrupted = facts.unfinished.count(False)
    if facts.ledger_problem:
        yield unknown(facts.ledger_problem, "Interrupted changes are not known.", "run it as root")
    elif interrupted:
        evidence = f"the ledger has {counted(interrupted, 'interrupted change')}"
        yield failed(evidence, "Devices may be between two drivers.", command="vfioctl recover")
    elif facts.unfinished:
        yield passed(f"{counted(len(facts.unfinished), 'change')} under way")
    else:
        yield passed("no interrupted change in the ledger")


def claims(facts: Facts) -> Iterator[Finding]:
    """Whether the claims and the machine agree."""
    if facts.ledger_problem:
        yield unknown(facts.ledger_problem, "Claims are not known.", "run it as root")
    elif not facts.claims:
        yield not_applicable("there are no claims")
    elif facts.differences:
        evidence = (
            f"{counted(facts.differences, 'difference')} between {counted(facts.claims, 'claim')} and the machine"
        )
        yield failed(evidence, "What was promised is not what there is.", command="vfioctl reconcile")
    elif facts.compare_problem:
        yield unknown(facts.compare_problem, "Not all of the claims could be compared.", "run it as root")
    else:
        yield passed(f"{counted(facts.claims, 'claim')} and the machine agree")
