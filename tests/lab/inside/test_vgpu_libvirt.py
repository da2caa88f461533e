"""vGPUs and libvirt 9: a guest uses one that vfioctl created; which parents and vGPUs libvirt lists."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.inside import mdev, pci
from tests.lab.inside.command import vfioctl
from tests.lab.inside.conftest import Load
from tests.lab.inside.in_use import within_seconds
from tests.lab.inside.libvirt_host import daemon, running_domain, virsh
from tests.lab.inside.topology import Topology

LISTED_SECONDS = 20.0
A2_4C = "nvidia-754"


@pytest.fixture(scope="module", autouse=True)
def libvirt() -> Iterator[None]:
    """One daemon for all of these tests: it takes seconds to start, and ten more to ask QEMU what it can do."""
    with daemon():
        yield


def test_the_guest_of_a_domain_lists_its_instance_and_holds_it_until_the_domain_ends(
    load: Load, tmp_path: Path
) -> None:
    load("mbochs", count=100)
    ledger = tmp_path / "ledger.db"
    answer = vfioctl(ledger, "vgpu", "create", "mbochs-small", "--json")
    assert answer.returncode == 0, answer.stderr
    (name,) = (vgpu["id"] for vgpu in json.loads(answer.stdout)["report"]["vgpus"])
    group = (mdev.BUS / "devices" / name / "iommu_group").readlink().name
    with running_domain(name) as domain:
        assert [(one.ids, one.kind) for one in domain.seen].count(("1234:1111", "038000")) == 1
        # libvirt gave it a /dev of its own, and the path in it is the same
        assert Path(f"/proc/{domain.pid}/ns/mnt").readlink() != Path("/proc/self/ns/mnt").readlink()
        held = {os.readlink(path) for path in Path(f"/proc/{domain.pid}/fd").iterdir()}
        assert {f"/dev/vfio/{group}", "anon_inode:[vfio-device]"} <= held
        refused = vfioctl(ledger, "vgpu", "remove", name)
        assert refused.returncode == 4
        assert f"process {domain.pid}" in refused.stderr
        assert f"guest {domain.name}" in refused.stderr
        assert mdev.instances() == {name}
    assert mdev.instances() == {name}
    removed = vfioctl(ledger, "vgpu", "remove", name, "--wait", "30s")
    assert removed.returncode == 0, removed.stderr
    assert mdev.instances() == set()
    assert mdev.available("mbochs")["mbochs-small"] == 25


def test_libvirt_lists_all_instances_but_not_all_parents(lab: Topology, load: Load) -> None:
    load("mbochs")
    load("mtty")
    load("standin_mdev")
    pci.bind_to(lab.far_display, "nvidia")
    kinds = {"mbochs": "mbochs-small", "mtty": "mtty-1", lab.far_display: A2_4C}
    instances = {_named(f"mdev_{mdev.create(parent, kind)}_{parent}") for parent, kind in kinds.items()}
    # not mbochs: of parents that are no PCI functions it knows few
    wanted = instances | {"mtty_mtty", _named(f"pci_{lab.far_display}")}
    # it hears of them from udev
    within_seconds(LISTED_SECONDS, lambda: len(_listed()) >= len(wanted))
    assert _listed() == wanted


def _named(text: str) -> str:
    return text.translate(str.maketrans(":.-", "___"))


def _listed() -> set[str]:
    return set(virsh("nodedev-list --cap mdev_types", "nodedev-list --cap mdev").split())
