"""Domains that start with claims on the real libvirt: by vfioctl, and by virsh with the hook; and failures."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.inside import pci
from tests.lab.inside.command import Running, vfioctl
from tests.lab.inside.in_use import within_seconds
from tests.lab.inside.libvirt_host import URI, Daemon, daemon, virsh
from tests.lab.inside.topology import Topology

SECONDS = 30.0
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
    virsh("destroy other")
    assert claims(ledger) == {}
    assert pci.driver_of(lab.nvme) == before, "libvirt has given it back"

    held = vfioctl(ledger, "claim", "create", "--owner", "vm/db", "--device", lab.nvme, "--no-bind", "--json")
    assert held.returncode == 0, held.stderr
    assert "vm/db" in refused("start other")
    assert vfioctl(ledger, "claim", "release", json.loads(held.stdout)["id"], "--yes").returncode == 0
    virsh("undefine other")


def test_libvirtd_that_dies_while_a_domain_starts_leaves_nothing_half_done(
    libvirtd: Daemon, ledger: Path, lab: Topology, tmp_path: Path
) -> None:
    define(ledger, tmp_path, "web1", lab.far_display)
    before = pci.driver_of(lab.far_display)
    starting = Running(ledger, "domain", "start", "web1", "--yes")
    within_seconds(SECONDS, lambda: any(each["state"] == "held" for each in claims(ledger).values()))
    libvirtd.end(signal.SIGKILL)
    answer = starting.answer()
    libvirtd.start()
    if answer.returncode:
        assert "libvirt" in answer.stderr
        assert "Traceback" not in answer.stderr
    stopped = vfioctl(ledger, "domain", "stop", "web1", "--force", "--yes")
    assert stopped.returncode == 0, stopped.stderr
    assert claims(ledger) == {}
    assert pci.driver_of(lab.far_display) == before
    assert virsh("list --name") == ""
    assert vfioctl(ledger, "domain", "undefine", "web1", "--yes").returncode == 0


def test_a_fleet_is_made_once_and_removed_when_it_is_told_so(
    libvirtd: Daemon, ledger: Path, lab: Topology, tmp_path: Path
) -> None:
    file, before = tmp_path / "fleet.toml", pci.driver_of(lab.nvme)
    domain = (
        f'name = "f1"\ntemplate = "minimal"\ndevices = ["{lab.nvme}"]\ncpus = 1\nmemory = "64MiB"\nrunning = true\n'
    )
    file.write_text(f'fleet = "lab"\n[[domains]]\n{domain}hugepages = "none"\n')

    def apply(*words: str) -> dict[str, Any]:
        done = vfioctl(ledger, "domain", "apply", str(file), "--prune", "--yes", "--json", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    assert apply()["result"] == "done"
    assert (virsh("list --name"), pci.driver_of(lab.nvme)) == ("f1", "vfio-pci")
    assert apply()["result"] == "nothing to do"
    file.write_text('fleet = "lab"\ndomains = []\n')
    assert vfioctl(ledger, "domain", "apply", str(file), "--prune", "--yes").returncode == 4
    assert vfioctl(ledger, "domain", "stop", "f1", "--force", "--yes").returncode == 0
    assert [each["change"] for each in apply()["domains"]] == ["undefine"]
    assert (virsh("list --all --name"), claims(ledger), pci.driver_of(lab.nvme)) == ("", {}, before)
