"""What is read when only some functions are asked for: less of the host, and the same answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.machines import NAMES, copy, machine, original
from vfioctl.console.output import draw
from vfioctl.errors import UnknownDevice, VfioctlError
from vfioctl.host import Host
from vfioctl.inventory.api import InventoryApi
from vfioctl.inventory.model.functions import Inventory
from vfioctl.inventory.model.holders import Holders
from vfioctl.inventory.model.scope import scope_of
from vfioctl.inventory.model.values import PciAddress
from vfioctl.inventory.probe import scan
from vfioctl.inventory.render.holders import holders_page
from vfioctl.inventory.render.phrases import guest_state
from vfioctl.kernel.protocol import IOMMU_GROUPS, PCI_DEVICES
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated.host import Simulated

FEW_VFS = 3


def inventory_of(host: Host) -> InventoryApi:
    return InventoryApi(host.session)


def asked_in(inventory: Inventory) -> list[PciAddress]:
    vfs = [function.address for function in inventory.functions if function.is_vf]
    return [f.address for f in inventory.functions if not f.is_vf] + vfs[:FEW_VFS] + vfs[-FEW_VFS:]


def outcome(make: Callable[[], object]) -> str:
    try:
        return repr(make())
    except VfioctlError as error:
        return repr((type(error), error.message, error.hint, error.next_command, error.facts))


def test_buses_cards_groups_and_vfs_are_followed_to_their_end() -> None:
    groups = {
        "0000:41:00.0": "5",  # asked for
        "0000:41:01.0": "9",  # on its bus
        "0000:42:00.0": "5",  # in its group
        "0000:42:00.1": "6",  # on the card of that
        "0000:43:00.0": "7",  # consumes that
        "0000:44:00.1": "8",  # the VF of the first
        "0000:45:00.0": "8",  # in the VF's group
        "0000:46:00.0": "10",  # apart
        "0000:4:00.0": "10",  # no address
    }
    tree = Tree()
    for address, group in groups.items():
        tree.put_directory(f"{PCI_DEVICES}/{address}")
        tree.put_link(f"{PCI_DEVICES}/{address}/iommu_group", f"../../../../kernel/iommu_groups/{group}")
        tree.put_directory(f"{IOMMU_GROUPS}/{group}/devices/{address}")
    tree.put_link(f"{PCI_DEVICES}/0000:42:00.1/consumer:pci:0000:43:00.0", "../../virtual/devlink/x")
    tree.put_link(f"{PCI_DEVICES}/0000:41:00.0/virtfn0", "../0000:44:00.1")
    tree.put_link(f"{PCI_DEVICES}/0000:44:00.1/physfn", "../0000:41:00.0")
    near = [*groups][:7]
    kernel = Simulated(tree, "simulated")
    assert scan.neighbours(kernel, ["0000:41:00.0"]) == near
    assert scan.neighbours(kernel, ["0000:44:00.1"]) == [near[0], *near[2:]]
    assert scan.neighbours(kernel, ["0000:43:00.0"]) == ["0000:43:00.0"]
    assert scan.neighbours(kernel, ["0000:47:00.0"]) is None
    assert scan.neighbours(kernel, []) == []


@pytest.mark.parametrize("name", NAMES)
def test_all_that_goes_with_a_function_is_read_as_on_the_whole_host(name: str, tmp_path: Path) -> None:
    api = inventory_of(machine(original(name), tmp_path / "x.db"))
    whole = api.inventory()
    for address in asked_in(whole):
        part = api.inventory(near=[address])
        scope = scope_of(whole, [address])
        assert scope_of(part, [address]) == scope
        beside = {address, *scope.everything, *whole.by_address[address].virtfns}
        for other in beside:
            function = whole.by_address[other]
            assert part.by_address[other] == function
            assert part.group_of(function) == whole.group_of(function)
            assert part.card_of(other) == whole.card_of(other)
            assert part.unread_beside(function) == whole.unread_beside(function)
            assert part.is_ready(function) == whole.is_ready(function)
        assert (part.iommu, part.drivers, part.numa_nodes) == (whole.iommu, whole.drivers, whole.numa_nodes)


@pytest.mark.parametrize("name", NAMES)
def test_plans_and_holders_are_those_of_the_whole_host(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = machine(original(name), tmp_path / "x.db")
    addresses = asked_in(inventory_of(host).inventory())

    uses: tuple[Callable[[str], object], ...] = (
        lambda a: host.binding.plan_bind([a]).changes,
        lambda a: host.binding.plan_bind([a], with_group=True, force_holders=True).changes,
        lambda a: host.binding.plan_unbind([a]).changes,
        lambda a: host.binding.plan_reset(a).steps,
        lambda a: host.holders([a]),
    )

    def outcomes() -> list[str]:
        return [outcome(partial(use, address)) for use in uses for address in addresses]

    of_part = outcomes()
    monkeypatch.setattr("vfioctl.inventory.api.neighbours", lambda *_: None)
    assert of_part == outcomes()


def test_one_function_of_a_server_is_read_without_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    answer = scan.Scan.results

    def counted(self: scan.Scan) -> list[dict[str, Any]]:
        read.append(len(self.addresses))
        return answer(self)

    monkeypatch.setattr(scan.Scan, "results", counted)
    host = machine(copy(original("hgx8")), tmp_path / "x.db")
    host.holders(["1b:00.0"])
    host.apply(host.binding.plan_bind(["1b:00.0"], wait=0))
    host.apply(host.binding.plan_unbind(["0000:1B:00.0"]))
    assert set(read) == {1}
    host.holders(["gpu0"])
    assert read[-1] == len(inventory_of(host).inventory().functions)


def test_a_function_that_does_not_exist_is_looked_for_on_the_whole_host(tmp_path: Path) -> None:
    host = machine(original("hgx8"), tmp_path / "x.db")
    with pytest.raises(UnknownDevice, match=r"there is no device 0000:1b:00\.7 here") as caught:
        host.binding.plan_bind(["1b:00.7"])
    assert "0000:1b:00.0" in caught.value.hint


def test_a_group_that_does_not_list_its_function_is_looked_for_on_the_whole_host(tmp_path: Path) -> None:
    """As in captures without /sys/kernel/iommu_groups: only the functions' links tell who is in it."""
    tree = copy(original("shared-group"))
    for path in [path for path in (*tree.links, *tree.directories) if path.startswith("/sys/kernel/iommu_groups/")]:
        tree.remove(path)
    api = inventory_of(machine(tree, tmp_path / "x.db"))
    whole = api.inventory()
    assert all(api.inventory(near=[gpu.address]) == whole for gpu in whole.gpus)


def test_a_neighbour_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    tree = copy(original("shared-group"))
    api = inventory_of(machine(tree, tmp_path / "x.db"))
    whole = api.inventory()
    group = next(group for group in whole.groups if len(group.members) > 1)
    asked, silent = group.members[:2]
    for name in ("modalias", "class", "vendor"):
        tree.remove(f"{tree.resolve(f'{PCI_DEVICES}/{silent}')}/{name}")
    part = api.inventory(near=[asked])
    assert silent in part.unread
    assert part.unread_beside(part.by_address[asked]) == (silent,)
    assert part.group_of(part.by_address[asked]).unread == (silent,)  # type: ignore[union-attr]
    assert set(api.holders([asked]).unread_functions) == {silent}
    alone = replace(part, groups=tuple(replace(group, viable=None, blockers=()) for group in part.groups))
    assert guest_state(replace(part.by_address[asked], driver="vfio-pci"), alone).plain == "unknown"


def test_processes_that_may_be_hidden_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    draw(
        holders_page(Holders(devices=(PciAddress("0000:41:00.0"),), hidden="/proc is mounted with hidepid=2"), width=80)
    )
    assert "Processes may be hidden: /proc is mounted with hidepid=2." in capsys.readouterr().out
