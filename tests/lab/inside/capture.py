"""Records the machine, and compares the listing with an independent reader of sysfs; for topologies without tests.

`tests/lab/boot.py --topology NAME` runs it and leaves NAME.host in the results.
"""

import json
import os
from pathlib import Path

from tests import captures
from tests.lab.inside.command import vfioctl


def test_the_listing_of_this_machine_and_of_its_recording(results: Path, tmp_path: Path) -> None:
    file, ledger = results / f"{os.environ['VFIOCTL_LAB_TOPOLOGY']}.host", tmp_path / "ledger.db"
    said = vfioctl(ledger, "snapshot", "-o", str(file))
    assert said.returncode == 0, said.stderr
    live = json.loads(vfioctl(ledger, "inventory", "--json", "--all").stdout)
    recorded = json.loads(vfioctl(ledger, "inventory", "--json", "--all", "--host", str(file)).stdout)
    assert recorded["functions"] == live["functions"]
    assert recorded["groups"] == live["groups"]
    assert recorded["iommu"] == live["iommu"]
    files = captures.functions(Path("/"))
    assert {each["address"] for each in live["functions"]} == files.keys()
    for each in live["functions"]:
        facts = files[each["address"]]
        assert (each["driver"], each["iommu_group"], each["numa_node"]) == (
            facts.driver,
            facts.iommu_group,
            facts.numa_node,
        )
        assert {bar["index"]: bar["size"] for bar in each["bars"]} == facts.bars
    assert {group["id"]: {*group["members"]} for group in live["groups"]} == captures.groups(Path("/"))
    assert live["iommu"]["translating"] is bool(captures.groups(Path("/")))
