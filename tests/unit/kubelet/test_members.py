"""Which devices a resource has: on every host that there is a file of, and of each kind of vGPUs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.hosts.machines import HOSTS, copy, machine
from tests.unit.kubelet.values import resource
from vfioctl.inventory.model.functions import Inventory
from vfioctl.kernel.recorded.host import read_tree
from vfioctl.kubelet.choosing.members import Member, members, problem_of, uuid_of
from vfioctl.kubelet.model.device import Birth, device_id
from vfioctl.kubelet.model.settings import DeviceKind, ResourceSettings
from vfioctl.units import Uuid
from vfioctl.vgpu.model.vgpu import Dialect, Vgpus

FILES = [*sorted(HOSTS.glob("*.host")), *sorted(HOSTS.glob("recorded/*.host"))]
A2, L40S, T4 = "a2", "l40s", "t4"


@cache
def host_of(file: Path) -> tuple[Inventory, Vgpus]:
    with TemporaryDirectory() as folder:
        host = machine(copy(read_tree(file)), Path(folder) / "ledger.db")
        inventory = host.inventory()
        return inventory, host.vgpu.vgpus(inventory=inventory)


def found(name: str | Path, settings: ResourceSettings, *match: str) -> tuple[Member, ...]:
    """The members of a resource; `match`: addresses of functions, all of them if empty."""
    inventory, vgpus = host_of(name if isinstance(name, Path) else HOSTS / f"{name}.host")
    matching = [f.address for f in inventory.functions if not match or f.address in match]
    return members(settings, matching, inventory, vgpus)


def kinds_of(file: Path) -> Iterator[ResourceSettings]:
    for consumer in ("devices", "kata"):
        for kind in (DeviceKind.PASSTHROUGH, DeviceKind.VF, DeviceKind.MDEV):
            yield resource(devices=kind, consumer=consumer)
        for card in host_of(file)[1].cards:
            yield from (resource(devices="vgpu", type=kind.id, consumer=consumer) for kind in card.types)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_on_every_host_each_device_is_there_once_and_has_an_id(file: Path) -> None:
    for settings in kinds_of(file):
        listed = found(file, settings)
        ids = [device_id(member.subject, settings) for member in listed]
        assert len(ids) == len(set(ids)), settings
        assert all(0 < len(name) <= 63 for name in ids)
        assert all(member.birth is None or settings.devices is DeviceKind.VGPU for member in listed)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_on_every_host_no_more_vgpus_can_be_had_than_fit(file: Path) -> None:
    for card in host_of(file)[1].cards:
        for kind in card.types:
            free = [m for m in found(file, resource(devices="vgpu", type=kind.id)) if not m.problem]
            here = [m for m in free if m.parent in {parent.name for parent in card.parents}]
            assert kind.available.at_most is None or len(here) <= kind.available.at_most, kind.id


class TestWholeGpus:
    def test_are_all_gpus(self) -> None:
        listed = found("hgx8", resource())
        assert [(str(m.subject), m.parent, m.numa_node) for m in listed[:2]] == [
            ("0000:1b:00.0", "0000:1b:00.0", 0),
            ("0000:43:00.0", "0000:43:00.0", 0),
        ]
        assert len(listed) == 8

    def test_are_no_boot_display_unless_it_is_named(self) -> None:
        assert [str(m.subject) for m in found("laptop", resource())] == ["0000:01:00.0"]
        named = resource(match=("0000:00:02.0",))
        assert [str(m.subject) for m in found("laptop", named, "0000:00:02.0")] == ["0000:00:02.0"]

    def test_are_no_vfs_and_no_other_functions(self) -> None:
        assert [str(m.subject) for m in found("mi300x-vf", resource())] == ["0000:05:00.0"]

    def test_of_an_unknown_numa_node_have_none(self) -> None:
        assert {m.numa_node for m in found("workstation", resource())} == {None}

    def test_are_those_that_match(self) -> None:
        assert [str(m.subject) for m in found("hgx8", resource(match=("x",)), "0000:52:00.0")] == ["0000:52:00.0"]


class TestVfs:
    def test_are_all_of_a_pf_that_matches(self) -> None:
        listed = found("mi300x-vf", resource(devices="vf", match=("x",)), "0000:05:00.0")
        assert len(listed) == 8
        assert found("mi300x-vf", resource(devices="vf", match=("x",)), "0000:05:02.3") == (listed[3],)

    def test_are_none_on_a_host_without(self) -> None:
        assert not found("hgx8", resource(devices="vf"))


class TestMdevs:
    def test_are_those_that_exist(self) -> None:
        listed = found(A2, resource(devices="mdev"))
        assert [(str(m.subject)[:8], m.parent) for m in listed] == [
            ("6d3f2c1a", "0000:08:00.4"),
            ("8d3f2c1a", "0000:08:00.5"),
        ]
        assert all(isinstance(m.subject, Uuid) and m.birth is None for m in listed)

    @pytest.mark.parametrize(("kind", "count"), [("nvidia-754", 2), ("nvidia-742", 0)])
    def test_may_be_of_one_type(self, kind: str, count: int) -> None:
        assert len(found(A2, resource(devices="mdev", type=kind))) == count

    @pytest.mark.parametrize(("match", "count"), [("0000:08:00.0", 2), ("0000:08:00.4", 1), ("0000:08:00.7", 0)])
    def test_match_by_their_card_or_parent(self, match: str, count: int) -> None:
        assert len(found(A2, resource(devices="mdev", match=(match,)), match)) == count


class TestVgpusThatAreCreated:
    def test_on_one_parent_are_as_many_as_the_type_allows(self) -> None:
        listed = found(T4, resource(devices="vgpu", type="nvidia-222"))
        assert len(listed) == 16
        assert all(m.birth == Birth("nvidia-222", "0000:3b:00.0") and not m.problem for m in listed)

    def test_have_the_same_uuids_in_every_process_and_release(self) -> None:
        assert uuid_of("0000:3b:00.0", "nvidia-222", 0) == "eb1c03e4-38c7-516a-a8e7-5152303e2dc3"
        assert found(T4, resource(devices="vgpu", type="nvidia-222"))[0].subject == uuid_of(
            "0000:3b:00.0", "nvidia-222", 0
        )

    def test_of_each_parent_and_type_have_their_own(self) -> None:
        uuids = {uuid_of(parent, kind, n) for parent in "ab" for kind in "cd" for n in range(8)}
        assert len(uuids) == 32

    def test_on_vfs_are_one_for_each_whatever_fits(self) -> None:
        """What a pod has must not vanish from the list because the card is full."""
        listed = found(A2, resource(devices="vgpu", type="nvidia-742"))
        assert len({m.parent for m in listed}) == len(listed) == 16
        assert all(m.problem == "no room for another nvidia-742" for m in listed)

    def test_may_be_called_by_their_name(self) -> None:
        assert found(A2, resource(devices="vgpu", type="A2-4C")) == found(
            A2, resource(devices="vgpu", type="nvidia-754")
        )

    def test_match_by_their_card_or_parent(self) -> None:
        for match, count in (("0000:08:00.0", 16), ("0000:08:00.7", 1), ("0000:09:00.0", 0)):
            assert len(found(A2, resource(devices="vgpu", type="nvidia-754", match=(match,)), match)) == count

    def test_of_nvidias_vendor_vfio_are_vfs(self) -> None:
        listed = found(L40S, resource(devices="vgpu", type="1153"))
        assert (str(listed[0].subject), listed[0].problem) == ("0000:41:00.4", "somebody else has created it")
        assert (str(listed[1].subject), listed[1].problem) == ("0000:41:00.5", "it is a vGPU of type 1163")
        assert {m.birth for m in listed[2:]} == {Birth("1153", m.parent) for m in listed[2:]}
        assert len(listed) == 32

    @pytest.mark.parametrize("name", ["mi300x-vf", "xe", "laptop"])
    def test_are_no_vfs_that_are_all_created_at_once(self, name: str) -> None:
        settings = resource(devices="vgpu", type="vf")
        vgpus = host_of(HOSTS / f"{name}.host")[1]
        assert {card.dialect for card in vgpus.cards} <= {Dialect.SRIOV, Dialect.XE}
        listed = found(name, settings)
        assert not listed
        assert 'use devices = "vf"' in problem_of(settings, listed, vgpus)

    def test_of_an_unknown_type_are_an_error_of_the_configuration(self) -> None:
        settings = resource(devices="vgpu", type="A9-1Q")
        words = problem_of(settings, found(A2, settings), host_of(HOSTS / "a2.host")[1])
        assert words == "no card has a vGPU type 'A9-1Q': vfioctl vgpu types lists them"

    def test_of_a_known_type_are_none(self) -> None:
        settings = resource(devices="vgpu", type="nvidia-742")
        assert not problem_of(settings, found(A2, settings), host_of(HOSTS / "a2.host")[1])
        assert not problem_of(resource(), (), Vgpus())
