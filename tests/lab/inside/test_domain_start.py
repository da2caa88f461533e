"""Domains that start with claims on the real libvirt: by vfioctl, and by virsh with the hook; and failures."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lab.inside import pci
from tests.lab.inside.command import vfioctl
from tests.lab.inside.in_use import mounted
from tests.lab.inside.libvirt_host import URI, Daemon, daemon, virsh
from tests.lab.inside.topology import Topology

COMMAND = Path("/usr/local/bin/vfioctl-of-the-lab")
DOMAIN = """<domain type='qemu'>
  <name>{name}</name>
  <memory unit='MiB'>64</memory>
  <vcpu>1</vcpu>
  <cputune><vcpupin vcpu='0' cpuset='{cpu}'/></cputune>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <devices>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
    <hostdev mode='subsystem' type='pci' managed='{managed}'>
      <source><address domain='0x{domain}' bus='0x{bus}' slot='0x{slot}' function='0x{function}'/></source>
    </hostdev>
  </devices>
</domain>
"""


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ledger") / "ledger.db"


@pytest.fixture(scope="module")
def libvirtd(ledger: Path) -> Iterator[Daemon]:
    """libvirtd, with the hook that vfioctl installed."""
    COMMAND.write_text(f'#!/bin/sh\nPYTHONPATH={":".join(sys.path)} exec {sys.executable} -m vfioctl.app "$@"\n')
    COMMAND.chmod(0o755)

    def install() -> None:
        installed = vfioctl(ledger, "hook", "install", "--command", str(COMMAND), "--yes")
        assert installed.returncode == 0, installed.stderr

    pci.load_vfio()  # libvirt starts no domain with a managed device before
    with daemon(install) as process:
        virsh("version")  # it first asks QEMU what it can do, which takes long under emulation
        yield process


def document(name: str, device: str, *, managed: str = "no", cpu: int = 2) -> str:
    domain, bus, slot, function = device.replace(".", ":").split(":")
    return DOMAIN.format(name=name, domain=domain, bus=bus, slot=slot, function=function, managed=managed, cpu=cpu)


def define(ledger: Path, folder: Path, name: str, device: str, *, cpu: int = 2) -> None:
    file = folder / f"{name}.xml"
    file.write_text(document(name, device, cpu=cpu))
    done = vfioctl(ledger, "domain", "define", str(file), "--yes")
    assert done.returncode == 0, done.stderr


def claims(ledger: Path) -> dict[str, dict[str, Any]]:
    """The live claims, by their owners."""
    found = json.loads(vfioctl(ledger, "claim", "list", "--json").stdout)["claims"]
    return {each["owner"]: each for each in found}


def refused(command: str) -> str:
    """What virsh says as it fails."""
    done = subprocess.run(
        ["virsh", "-c", URI, *command.split()], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode != 0
    return done.stderr


def test_what_virsh_starts_has_its_device_until_it_ends_and_nobody_else_gets_it(
    libvirtd: Daemon, ledger: Path, lab: Topology, tmp_path: Path
) -> None:
    define(ledger, tmp_path, "web1", lab.far_display)
    define(ledger, tmp_path, "db", lab.far_display, cpu=3)
    before = pci.driver_of(lab.far_display)
    virsh("start web1")
    assert pci.driver_of(lab.far_display) == "vfio-pci"
    (claim,) = claims(ledger).values()
    assert (claim["owner"], claim["state"], claim["cpus"]) == ("vm/web1", "held", "2")
    assert [each["address"] for each in claim["devices"]] == [lab.far_display]

    said = refused("start db")
    assert "belongs to claim" in said
    assert "vm/web1" in said
    answer = vfioctl(ledger, "domain", "start", "db", "--yes")
    assert answer.returncode == 4
    assert "vm/web1" in answer.stderr
    assert virsh("list --name") == "web1"
    assert list(claims(ledger)) == ["vm/web1"]

    virsh("destroy web1")
    assert claims(ledger) == {}
    assert pci.driver_of(lab.far_display) == before
    virsh("undefine web1", "undefine db")


@contextmanager
def of_a_newer_release(ledger: Path) -> Iterator[None]:
    """Every vfioctl refuses the ledger meanwhile."""

    def set_version(version: int) -> int:
        with closing(sqlite3.connect(ledger)) as db:
            before: tuple[int] = db.execute("PRAGMA user_version").fetchone()
            db.execute(f"PRAGMA user_version = {version}")
        return before[0]

    version = set_version(9999)
    assert vfioctl(ledger, "claim", "list").returncode == 3
    yield
    set_version(version)


def test_what_domains_of_others_have_is_claimed_for_them_while_they_run(
    libvirtd: Daemon, ledger: Path, lab: Topology, tmp_path: Path
) -> None:
    # not the display: of a function that it had with managed='no' libvirt 9.0 believes that it stays on VFIO
    file, before = tmp_path / "other.xml", pci.driver_of(lab.nvme)
    file.write_text(document("other", lab.nvme, managed="yes"))
    virsh(f"define {file}", "start other")
    assert pci.driver_of(lab.nvme) == "vfio-pci"
    assert list(claims(ledger)) == ["vm/other"]
    assert vfioctl(ledger, "claim", "create", "--owner", "vm/db", "--device", lab.nvme).returncode == 4
    with of_a_newer_release(ledger):
        libvirtd.end()
        libvirtd.start()
        assert virsh("list --name") == "other", "libvirtd ends a domain whose reconnect hook fails"
    virsh("destroy other")
    assert claims(ledger) == {}
    assert pci.driver_of(lab.nvme) == before, "libvirt has given it back"
    virsh("undefine other")


SMALL = {
    "template": "minimal",
    "cpus": 1,
    "memory": "64MiB",
    "hugepages": "none",
    "cloud_init": {"user_data": "user-data"},
}


def write_fleet(file: Path, *domains: dict[str, Any]) -> None:
    file.write_text(json.dumps({"fleet": "lab", "domains": domains}))  # JSON is YAML


@pytest.fixture
def pool(libvirtd: Daemon, lab: Topology, tmp_path: Path) -> Iterator[Path]:
    """A storage pool called `default`, with a base image, on a file system that takes O_DIRECT as QEMU needs it."""
    folder = tmp_path / "pool"
    folder.mkdir()
    with mounted(lab.busy_disk, folder):
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", str(folder / "base.qcow2"), "64M"], check=True)
        (folder / "lost+found").rmdir()
        virsh(f"pool-define-as default dir --target {folder}", "pool-start default")
        yield folder
        virsh("pool-destroy default", "pool-undefine default")


def backing_of(image: Path) -> tuple[int, str, str]:
    """The size of an image, its backing file and that one's format, as qemu-img reads them."""
    asked = ["qemu-img", "info", "--force-share", "--output", "json", str(image)]
    found = json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    return found["virtual-size"], found.get("backing-filename", ""), found.get("backing-filename-format", "")


def mounted_files(seed: Path, folder: Path) -> dict[str, str]:
    """The files of a seed as the kernel reads them, and its label as blkid finds it, which cloud-init asks."""
    subprocess.run(["modprobe", "--all", "loop", "isofs"], check=True)
    label = subprocess.run(["blkid", "-p", "-o", "value", "-s", "LABEL", str(seed)], capture_output=True, check=True)
    assert label.stdout.strip() == b"cidata"
    folder.mkdir()
    subprocess.run(["mount", "-o", "loop,ro", str(seed), str(folder)], check=True)
    try:
        return {each.name: each.read_text() for each in folder.iterdir()}
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_fleet_is_made_once_and_removed_when_it_is_told_so(
    libvirtd: Daemon, ledger: Path, lab: Topology, tmp_path: Path, pool: Path
) -> None:
    """With a disk from a base image, a blank one, and a seed for cloud-init."""
    file = tmp_path / "fleet.yaml"
    (tmp_path / "user-data").write_text("#cloud-config\nhostname: f1\n")
    images = [{"base": f"{pool}/base.qcow2"}, {"size": "1GiB"}]
    write_fleet(file, {**SMALL, "name": "f1", "devices": [lab.nvme], "images": images})

    def apply(*words: str) -> dict[str, Any]:
        done = vfioctl(ledger, "domain", "apply", str(file), "--prune", "--yes", "--json", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    assert apply()["result"] == "done"
    assert virsh("list --all --name") == "f1"
    assert backing_of(pool / "f1.qcow2") == (64 << 20, f"{pool}/base.qcow2", "qcow2")
    assert backing_of(pool / "f1-2.qcow2") == (1 << 30, "", "")
    (seed,) = pool.glob("f1-seed-*.iso")
    assert {oct(each.stat().st_mode & 0o777) for each in (seed, pool / "f1.qcow2")} == {"0o600"}
    files = mounted_files(seed, tmp_path / "mounted")
    assert json.loads(files.pop("meta-data")) == {"instance-id": "f1", "local-hostname": "f1"}
    assert files == {"user-data": "#cloud-config\nhostname: f1\n"}
    assert apply()["result"] == "nothing to do"
    write_fleet(file)
    assert [each["change"] for each in apply()["domains"]] == ["undefine"]
    assert virsh("list --all --name") == ""
    assert {each.name for each in pool.iterdir()} == {"base.qcow2", "f1.qcow2", "f1-2.qcow2", seed.name}, "disks stay"
