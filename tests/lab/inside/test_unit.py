"""The unit that restores vGPUs at boot, with what its directives leave it: capabilities and what it may write.

The lab's init is not systemd. The test reads the unit and takes away the same with setpriv(1) and mounts; it does not
check the system calls and address families that the unit allows.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import vfioctl as package
from tests.lab.inside import mdev, pci
from tests.lab.inside.topology import Topology

REPO = Path(package.__file__).parents[1]
COMMAND = Path(sys.executable).with_name("vfioctl")
UNIT = REPO / "systemd/vfioctl-restore.service"
STATE, RUNTIME, DEFINITIONS = Path("/var/lib/vfioctl"), Path("/run/vfioctl"), Path("/etc/vfioctl")
CONFINED = """
set -e
mount --make-rprivate /
for place in {writable}; do mount --bind "$place" "$place"; done
while read -r _ _ _ _ place _; do
    case "$place" in
        /dev|/dev/*|/proc|/proc/*|/sys|/sys/*{kept}) ;;
        *) mount -o remount,bind,ro "$place" 2> /dev/null || true ;;  # not those that others cover
    esac
done < /proc/self/mountinfo
for place in /etc /usr/lib /tmp /var/lib /run; do
    if touch "$place/confined" 2> /dev/null; then echo "$place is not read-only" >&2; exit 99; fi
done
exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all,{capabilities} "$@"
"""


@pytest.fixture
def own_places() -> Iterator[None]:
    """The places of the live host's ledger and definitions, which the lab's image does not have."""
    places = (STATE, RUNTIME, DEFINITIONS)
    assert not [place for place in places if place.exists()]
    yield
    for place in places:
        shutil.rmtree(place, ignore_errors=True)


def directives() -> dict[str, str]:
    lines = (line.partition("=") for line in UNIT.read_text().splitlines() if "=" in line and line[0] not in "#[")
    return {name: value for name, _, value in lines}


def confined(*command: str) -> "subprocess.CompletedProcess[str]":
    """Run a command as the unit would, after the directories that systemd makes for it."""
    unit = directives()
    assert (unit["ProtectSystem"], unit["StateDirectory"], unit["RuntimeDirectory"]) == ("strict", "vfioctl", "vfioctl")
    STATE.mkdir(mode=int(unit["StateDirectoryMode"], 8), exist_ok=True)
    RUNTIME.mkdir(mode=int(unit["RuntimeDirectoryMode"], 8), exist_ok=True)
    capabilities = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in unit["CapabilityBoundingSet"].split())
    script = CONFINED.format(writable=f"{STATE} {RUNTIME}", kept=f"|{STATE}|{RUNTIME}", capabilities=capabilities)
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "unit", *command],
        env={"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "PYTHONPATH": str(REPO)},
        umask=int(unit["UMask"], 8),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.usefixtures("own_places")
def test_the_unit_can_do_its_work(lab: Topology) -> None:
    """VFs that were made persistent are back after what a reboot takes away, what is in /run included."""
    environment = {"PYTHONPATH": str(REPO)}
    line = [str(COMMAND), "sriov", "set", lab.nvme, "2", "--persistent", "--yes"]
    subprocess.run(line, env=environment, check=True, capture_output=True, timeout=120)
    assert len(mdev.vfs(lab.nvme)) == 2
    pci.write(pci.DEVICES / lab.nvme / "sriov_numvfs", "0")
    shutil.rmtree(RUNTIME, ignore_errors=True)
    words = directives()["ExecStart"].split()[1:]
    done = confined(str(COMMAND), *words, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert len(mdev.vfs(lab.nvme)) == 2
