"""Which GPUs a cgroup may open, on a real kernel: a process in a real cgroup opens allowed and refused nodes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.inside import opener
from tests.lab.inside.command import vfioctl
from tests.lab.inside.topology import Topology
from vfioctl.kernel.live import device_programs

CGROUPS = Path("/sys/fs/cgroup")
DONE, REFUSED = "done", "EPERM"


class Opener:
    """A process in a cgroup that opens what it is told."""

    def __init__(self, cgroup: Path) -> None:
        command = [sys.executable, "-S", "-E", opener.__file__]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        (cgroup / "cgroup.procs").write_text(str(self.process.pid))

    def told(self, *words: object) -> str:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def made(cgroup: Path) -> Iterator[Path]:
    cgroup.mkdir()
    try:
        yield cgroup
    finally:
        for _ in range(50):
            try:
                cgroup.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:  # its processes have not all gone
                time.sleep(0.1)
        assert not cgroup.exists()


@pytest.fixture
def cgroup() -> Iterator[Path]:
    with made(CGROUPS / f"allowed-{os.getpid()}") as path:
        yield path


@pytest.fixture
def inside(cgroup: Path) -> Iterator[Opener]:
    process = Opener(cgroup)
    yield process
    process.end()


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def path_of(cgroup: Path) -> str:
    return f"/{cgroup.relative_to(CGROUPS)}"


def card(address: str) -> str:
    """The DRM node of a display."""
    (found,) = Path("/sys/bus/pci/devices", address, "drm").glob("card*")
    return f"/dev/dri/{found.name}"


def share(ledger: Path, *words: str) -> str:
    answer = vfioctl(ledger, "share", *words)
    assert answer.returncode == 0, answer
    return answer.stdout


def allow(ledger: Path, cgroup: Path, address: str) -> None:
    share(ledger, "allow", path_of(cgroup), "--device", address, "--yes")


def test_nodes_of_other_gpus_are_refused_until_disallow(
    ledger: Path, lab: Topology, cgroup: Path, inside: Opener, tmp_path: Path
) -> None:
    other = card(lab.far_display)
    assert inside.told("open", other) == DONE
    allow(ledger, cgroup, lab.display)
    assert inside.told("open", card(lab.display)) == DONE
    assert inside.told("open", other) == REFUSED
    for node in ("/dev/null", "/dev/zero", "/dev/kmsg"):
        assert inside.told("open", node) == DONE, node
    number = os.stat(other).st_rdev
    assert inside.told("mknod", tmp_path / "own", os.major(number), os.minor(number)) == REFUSED
    os.close(os.open(other, os.O_RDWR))  # this process is in another cgroup
    share(ledger, "disallow", path_of(cgroup), "--yes")
    assert inside.told("open", other) == DONE
    assert json.loads(share(ledger, "allowed", "--json"))["cgroups"] == []


def test_what_is_open_is_not_revoked_and_its_holder_is_shown(
    ledger: Path, lab: Topology, cgroup: Path, inside: Opener
) -> None:
    other = card(lab.far_display)
    assert inside.told("open", other) == DONE
    allow(ledger, cgroup, lab.display)
    assert inside.told("use") == DONE
    (allowed,) = json.loads(share(ledger, "allowed", path_of(cgroup), "--json"))["cgroups"]
    assert allowed["mechanisms"] == ["bpf"]
    assert [(holder["pid"], holder["path"]) for holder in allowed["holders"]] == [(inside.process.pid, other)]
    assert allowed["gpus"] == [lab.display]
    assert f"process {inside.process.pid} " in share(ledger, "allowed", path_of(cgroup))


def test_a_vfio_group_is_a_node_of_its_gpu(ledger: Path, lab: Topology, cgroup: Path, inside: Opener) -> None:
    assert vfioctl(ledger, "bind", lab.far_display, "--yes").returncode == 0
    try:
        group = Path("/sys/bus/pci/devices", lab.far_display, "iommu_group").readlink().name
        allow(ledger, cgroup, lab.display)
        assert inside.told("open", f"/dev/vfio/{group}") == REFUSED
        allow(ledger, cgroup, lab.far_display)
        assert inside.told("open", f"/dev/vfio/{group}") == DONE
        assert inside.told("open", card(lab.display)) == REFUSED
        assert len(device_programs.programs(path_of(cgroup))) == 1
    finally:
        inside.end()
        assert vfioctl(ledger, "unbind", lab.far_display, "--yes").returncode == 0


def test_programs_of_others_stay(
    ledger: Path, lab: Topology, cgroup: Path, inside: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(device_programs, "NAME", "another")
        device_programs.refuse(path_of(cgroup), ["c 1:5"])
    (before,) = device_programs.programs(path_of(cgroup))
    allow(ledger, cgroup, lab.display)
    assert inside.told("open", "/dev/zero") == REFUSED
    share(ledger, "disallow", path_of(cgroup), "--yes")
    assert device_programs.programs(path_of(cgroup)) == [before]
    assert inside.told("open", "/dev/zero") == REFUSED
    assert inside.told("open", card(lab.far_display)) == DONE


def test_lists_of_cgroups_above_apply_too(ledger: Path, lab: Topology, cgroup: Path) -> None:
    with made(cgroup / "below") as below:
        allow(ledger, cgroup, lab.display)
        answer = vfioctl(ledger, "share", "allow", path_of(below), "--device", lab.far_display, "--dry-run")
        assert f"{path_of(cgroup)} refuses" in " ".join(answer.stdout.split())
        process = Opener(below)
        try:
            assert process.told("open", card(lab.far_display)) == REFUSED
            assert process.told("open", card(lab.display)) == DONE
        finally:
            process.end()


def test_a_cgroup_that_is_gone_needs_no_removal(ledger: Path, lab: Topology, cgroup: Path) -> None:
    with made(cgroup / "short") as short:
        allow(ledger, short, lab.display)
    share(ledger, "disallow", path_of(short), "--yes")
    assert json.loads(share(ledger, "allowed", "--json"))["cgroups"] == []


def test_the_program_is_read_back_as_it_was_loaded(cgroup: Path) -> None:
    numbers = tuple(f"c 4000:{minor}" for minor in range(1000))
    device_programs.refuse(path_of(cgroup), numbers)
    (program,) = device_programs.programs(path_of(cgroup))
    assert (program.name, program.uid, program.refused) == ("vfioctl_allow", 0, numbers)
    assert device_programs.restricted() == [path_of(cgroup)]
    device_programs.refuse(path_of(cgroup), ())
    assert device_programs.programs(path_of(cgroup)) == []
