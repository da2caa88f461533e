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

from vfioctl.domain.check.check import check
from vfioctl.domain.model.finding import Finding, Severity
from vfioctl.domain.xml import parse
from vfioctl.errors import BadDocument

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


def errors(path: Path) -> list[str]:
    try:
        found: tuple[Finding, ...] = check(parse(path.read_bytes()))
    except BadDocument as error:
        return [error.message]
    return [f"{each.rule}: {each.reason}" for each in found if each.severity is Severity.ERROR]


def main(arguments: Sequence[str]) -> int:
    folder = Path(arguments[0]) / "tests" / "qemuxmlconfdata"
    right, total = {True: 0, False: 0}, {True: 0, False: 0}
    misses = []
    for name, is_good in outcomes(folder, everything="--all" in arguments):
        wrong = errors(folder / f"{name}.xml")
        total[is_good] += 1
        if is_good is not bool(wrong):
            right[is_good] += 1
        else:
            why = "; ".join(wrong[:2]) if is_good else (next(folder.glob(f"{name}.x86_64*.err")).read_text().strip())
            known = f" [known: {UNLIKE[name]}]" if name in UNLIKE else ""
            misses.append(f"{'refused' if is_good else 'accepted'} {name}: {why[:160]}{known}")
    print(f"good accepted {right[True]}/{total[True]}, bad rejected {right[False]}/{total[False]}")
    print(*misses, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
