"""Measures a bind inside the process, against the whole `driverctl --nosave set-override` of the same device.

Runs in the lab, where starting Python would hide the work, as a part of `make bench`. Judges nothing.
"""

import json
import statistics
import time
from pathlib import Path

from tests.lab.inside import pci
from tests.lab.inside.peers import driverctl_set, driverctl_unset
from tests.lab.inside.topology import Topology
from vfioctl.core.change import Result
from vfioctl.host import Host

RUNS = 7


def test_bind_against_driverctl(lab: Topology, tmp_path: Path, results: Path) -> None:
    pci.load_vfio()
    host = Host.live(tmp_path / "ledger.db")
    ours: dict[str, list[float]] = {"bind": [], "unbind": []}
    theirs: dict[str, list[float]] = {"bind": [], "unbind": []}
    for _ in range(RUNS):
        theirs["bind"].append(driverctl_set(lab.far_display))
        theirs["unbind"].append(driverctl_unset(lab.far_display))
        ours["bind"].append(_seconds(host, lab.far_display, bind=True))
        ours["unbind"].append(_seconds(host, lab.far_display, bind=False))
    figures = {
        verb: {
            "vfioctl": statistics.median(ours[verb]),
            "driverctl": statistics.median(theirs[verb]),
            "ratio": statistics.median(a / b for a, b in zip(ours[verb], theirs[verb], strict=True)),
        }
        for verb in ours
    }
    (results / "bind-cost.json").write_text(json.dumps({"runs": RUNS, "seconds": figures}, indent=2) + "\n")
    for verb, figure in figures.items():
        print(f"\n{verb}: " + ", ".join(f"{name} {value:.3f}" for name, value in figure.items()))


def _seconds(host: Host, address: str, *, bind: bool) -> float:
    """From the plan to the last word in the journal."""
    began = time.perf_counter()
    plan = host.binding.plan_bind([address]) if bind else host.binding.plan_unbind([address])
    assert host.apply(plan).result == Result.DONE
    return time.perf_counter() - began
