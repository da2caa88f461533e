"""What tells the NUMA node of a function: held against recordings of the lab, whose kernel others wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from vfioctl import sources
from vfioctl.host import Host
from vfioctl.inventory.model.numa_affinity import home_of
from vfioctl.kernel.protocol import PCI_DEVICES
from vfioctl.kernel.recorded.host import read_tree
from vfioctl.session import Session
from vfioctl.units import format_cpu_list

RECORDED = Path(__file__).resolve().parents[2] / "hosts" / "recorded"
LAB = [pytest.param(file, id=file.stem) for file in sorted(RECORDED.glob("lab-*.host"))]


@pytest.mark.parametrize("file", LAB)
def test_of_a_function_without_a_node_every_cpu_is_local(file: Path) -> None:
    """So its local_cpulist tells no node, and is not asked."""
    host, tree = Host(sources.recorded(Session, str(file))), read_tree(file)
    inventory = host.inventory()
    functions = inventory.functions
    online = format_cpu_list(sorted(cpu for node in inventory.numa_nodes for cpu in node.cpus))
    local = {f.address: tree.text(tree.resolve(f"{PCI_DEVICES}/{f.address}/local_cpulist")) for f in functions}
    unknown = {local[f.address].strip() for f in functions if f.numa_node is None}
    known = {local[f.address].strip() for f in functions if f.numa_node is not None}
    assert unknown == {online}
    assert online not in known


@pytest.mark.parametrize("file", LAB)
def test_a_function_behind_the_expander_has_a_node_and_one_at_the_root_has_none(file: Path) -> None:
    inventory = Host(sources.recorded(Session, str(file))).inventory()
    homes = {f.address: home_of(f, inventory) for f in inventory.gpus}
    assert {home.node for home in homes.values()} == {None, 1}
    assert {home.reported_by for home in homes.values() if home.node == 1} == {"the firmware"}


def test_a_vf_without_a_node_has_that_of_its_pf() -> None:
    inventory = Host(sources.recorded(Session, "mi300x-vf")).inventory()
    vf = replace(next(function for function in inventory.functions if function.physfn), numa_node=None)
    home = home_of(vf, inventory)
    assert home == (inventory.by_address[vf.physfn].numa_node, f"its PF {vf.physfn}")  # type: ignore[index]
    assert home.node is not None
