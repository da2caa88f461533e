"""What the rule and the services cost a boot: an emulated machine with one persistent card, against the same without.

    python -m bench.boot [--runs N] [--json FILE]

Measures the time from the start of the kernel to sysinit.target, which every service waits for, and how long
vfioctl-restore.service runs beside the rest of the boot. The processor is emulated, so all of it is many times slower
than on a host: read the ratio. Exits with 1 when a limit is not kept.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.figures import Figure, keep, show, status
from tests.lab.boots.test_persistent import CARD, FIRST, RESTORED, TWIN
from tests.lab.outside.systemd_machine import Boot, SystemdMachine

LONGEST = 0.5
WITHOUT = """
for unit in early restore; do busybox ln -sf /dev/null /new/etc/systemd/system/vfioctl-$unit.service; done
busybox rm /new/etc/udev/rules.d/62-vfioctl-boot.rules
"""
TIMES = """
show() { systemctl show --property "$2" --value "$1"; }
echo "sysinit $(show sysinit.target ActiveEnterTimestampMonotonic)"
echo "begun $(show vfioctl-restore ExecMainStartTimestampMonotonic)"
echo "ended $(show vfioctl-restore ExecMainExitTimestampMonotonic)"
"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.boot")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    samples: dict[str, list[float]] = {"with": [], "without": [], "restore": []}
    with TemporaryDirectory(prefix="vfioctl-bench-") as folder:
        machine = SystemdMachine(Path(folder, "machine"))
        first = machine.boot((*CARD, *TWIN), FIRST, keep=True)
        if first.status:
            sys.exit(f"nothing could be bound:\n{first.errors}")
        for _ in range(options.runs):
            boot = machine.boot((*CARD, *TWIN), RESTORED + TIMES)
            samples["with"].append(_seconds(boot, "sysinit"))
            samples["restore"].append(_seconds(boot, "ended") - _seconds(boot, "begun"))
            samples["without"].append(_seconds(machine.boot((*CARD, *TWIN), TIMES, before=WITHOUT), "sysinit"))
    added = statistics.median(samples["with"]) - statistics.median(samples["without"])
    restore, whole = statistics.median(samples["restore"]), statistics.median(samples["with"])
    figures = [
        Figure(f"added to sysinit.target / {LONGEST:g} s", max(added, 0.0), LONGEST, "s", 1.0),
        Figure("restore, beside the boot / sysinit.target", restore, whole, "s", 1.0),
    ]
    show(figures)
    keep(options.json, figures, samples, runs=options.runs)
    return status(figures)


def _seconds(boot: Boot, name: str) -> float:
    found = re.search(rf"^{name} (\d+)$", boot.output, re.MULTILINE)
    if not found:
        sys.exit(f"no time of {name}:\n{boot.output}\n{boot.errors}")
    return int(found[1]) / 1e6


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
