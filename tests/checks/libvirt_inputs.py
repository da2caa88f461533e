"""How the checker of domains judges libvirt's own test inputs: `python -m tests.checks.libvirt_inputs DIR [--all]`.

DIR is a source tree of libvirt 10.6 or later, whose tests/qemuxmlconfdata has each input with the outcome on x86_64:
NAME.x86_64-*.args if libvirt accepts it, NAME.x86_64-*.err if not. Only inputs about what the checker covers count,
unless `--all` is given; those that libvirt accepts in one case and refuses in another do not. Prints; writes nothing.
Nothing of libvirt is in this repository: its tests are under the LGPL.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from vfioctl.domain.check.rules.check import check
from vfioctl.domain.check.rules.rule import HostFacts
from vfioctl.domain.document.xml import parse
from vfioctl.domain.model.finding import Severity
from vfioctl.errors import BadDocument
from vfioctl.inventory.model.functions import Inventory
from vfioctl.inventory.model.machine import Iommu, NumaNode, Processor
from vfioctl.placement.model.capacity import Capacity
from vfioctl.units import CpuSet

NAMES = re.compile(
    r"hostdev|mdev|expander-bus|pcihole64|numatune|numad|cpu-numa|cputune|cpuset|hugepages|phys-bits|launch-security"
    r"|iommu|^memory-|^pci-|^pcie|-root$"
)
CONTENT = re.compile(
    r"<hostdev[^>]*type=.(pci|mdev)|<numatune|<cputune|expander-bus|<cell |pcihole64|maxphysaddr|<rom |<hugepages"
    r"|launchSecurity"
)
OUTCOME = re.compile(r"(.+)\.x86_64-[^.]+(?:\.[\w-]+)?\.(args|err)")
UNLIKE = {
    "cputune": "real-time schedulers with priority 0: the kernel refuses that when the domain starts",
    "pcie-expander-bus": "35 bus numbers from 254 on: QEMU starts, and the guest does not see the network cards",
}
"""Inputs that libvirt accepts, and that do not work: the checker refuses them for good reason."""

NODES = "host-node"
_INVENTORY = Inventory(
    functions=(),
    groups=(),
    numa_nodes=tuple(NumaNode(id=node, cpus=CpuSet(), memory_bytes=None) for node in range(4)),
    iommu=Iommu(translating=True),
)
TESTED = HostFacts(Capacity(_INVENTORY), Processor(arch="x86_64"))
"""The host that libvirt's tests stand in for has the NUMA nodes 0 to 3."""


def outcomes(folder: Path, *, everything: bool) -> Iterator[tuple[str, bool]]:
    """The name of each input, and whether libvirt accepts it."""
    found: dict[str, set[str]] = {}
    for path in folder.iterdir():
        if match := OUTCOME.fullmatch(path.name):
            found.setdefault(match[1], set()).add(match[2])
    for name, kinds in sorted(found.items()):
        if len(kinds) == 1 and (folder / f"{name}.xml").exists():
            text = (folder / f"{name}.xml").read_text(encoding="utf-8", errors="replace")
            if everything or NAMES.search(name) or CONTENT.search(text):
                yield name, kinds == {"args"}


def errors(path: Path, host: HostFacts | None) -> list[str]:
    """What the checker calls errors; of a host only what it says of NUMA nodes, because its devices are made up."""
    try:
        found = check(parse(path.read_bytes()), host=host)
    except BadDocument as error:
        return [error.message]
    wrong = (each for each in found if each.severity is Severity.ERROR)
    return [f"{each.rule}: {each.reason}" for each in wrong if not each.rule.startswith("host-") or each.rule == NODES]


def main(arguments: Sequence[str]) -> int:
    folder = Path(arguments[0]) / "tests" / "qemuxmlconfdata"
    for title, host in (
        ("the document alone (--no-host)", None),
        ("with the NUMA nodes of libvirt's test host", TESTED),
    ):
        right, total, misses = {True: 0, False: 0}, {True: 0, False: 0}, []
        for name, is_good in outcomes(folder, everything="--all" in arguments):
            wrong = errors(folder / f"{name}.xml", host)
            total[is_good] += 1
            if is_good is not bool(wrong):
                right[is_good] += 1
            else:
                misses.append(_miss(folder, name, wrong, is_good=is_good))
        print(f"{title}: good accepted {right[True]}/{total[True]}, bad rejected {right[False]}/{total[False]}")
        print(*misses, sep="\n")
    return 0


def _miss(folder: Path, name: str, wrong: Sequence[str], *, is_good: bool) -> str:
    why = "; ".join(wrong[:2]) if is_good else next(folder.glob(f"{name}.x86_64*.err")).read_text().strip()
    known = f" [known: {UNLIKE[name]}]" if name in UNLIKE else ""
    return f"  {'refused' if is_good else 'accepted'} {name}: {why[:160]}{known}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
