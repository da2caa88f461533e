"""Another user's processes on a real kernel, which hide a device that they hold, or stand in the way of root."""

import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests import fuse
from tests.lab.inside import pci
from tests.lab.inside.command import vfioctl
from tests.lab.inside.topology import Topology
from vfioctl.inventory.probe.processes import Processes, Running
from vfioctl.kernel.live.host import Live

NOBODY = 65534
DESCRIPTORS = 5_000
SOON = 15.0
"""Seconds for a scan of this slow machine. What was quadratic took minutes on a fast one."""


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of the other user."""
    there = Path(f"/run/nobody-{os.getpid()}")
    there.mkdir(mode=0o755)
    os.chown(there, NOBODY, NOBODY)
    yield there
    subprocess.run(["rm", "-rf", str(there)], check=False)


@pytest.fixture
def node(lab: Topology) -> Path:
    """The display's device node, which everybody may open."""
    (card,) = Path(f"/sys/bus/pci/devices/{lab.far_display}/drm").glob("card*")
    path = Path("/dev/dri", card.name)
    subprocess.run(["udevadm", "settle", "--timeout=30"], check=True)  # it sets the mode of a new node
    path.chmod(0o666)
    return path


@contextmanager
def nobodys(*work: Callable[[], object]) -> Iterator[int]:
    """The pid of a process of another user that has done `work`, keeps what it gave, and waits."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (2 * DESCRIPTORS, 2 * DESCRIPTORS))
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            kept = [each() for each in work]
            os.write(writing, b"." if kept else b"-")
            while True:
                signal.pause()
        finally:
            os._exit(1)
    os.close(writing)
    try:
        assert os.read(reading, 1)
        yield pid
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def deep_file(place: Path) -> int:
    """An open file whose path is longer than the kernel can tell."""
    os.chdir(place)
    for _ in range(25):
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
    return os.open("file", os.O_CREAT | os.O_RDWR)


@contextmanager
def on_fuse(place: Path, flags: int) -> Iterator[Path]:
    """A file on a file system that the other user serves."""
    subprocess.run(["modprobe", "fuse"], check=False)
    with ExitStack() as stack:
        try:
            stack.enter_context(fuse.mounted(place, NOBODY, flags))
        except OSError as error:
            pytest.skip(f"no FUSE in this lab: {error}")
        yield place / "file"


def opened(path: Path) -> Callable[[], int]:
    return lambda: os.open(path, os.O_RDONLY)


def scanned() -> Running:
    live = Live()
    return Processes(live).running


# -- nobody hides ----------------------------------------------------------------------------------------


def test_a_path_that_is_too_long_does_not_hide_the_device(ledger: Path, lab: Topology, place: Path, node: Path) -> None:
    with nobodys(lambda: deep_file(place), opened(node)) as pid:
        answer = vfioctl(ledger, "bind", lab.far_display, "--yes")
    assert answer.returncode == 4, answer.stderr
    assert f"process {pid}" in answer.stderr
    assert str(node) in answer.stderr
    assert pci.driver_of(lab.far_display) == "bochs-drm"


@pytest.mark.parametrize("flags", [fuse.NODEV, 0])
def test_nor_does_a_file_on_the_users_own_fuse(
    ledger: Path, lab: Topology, place: Path, node: Path, flags: int
) -> None:
    with on_fuse(place, flags) as file, nobodys(opened(file), opened(node)) as pid:
        answer = vfioctl(ledger, "bind", lab.far_display, "--yes")
    assert answer.returncode == 4, answer.stderr
    assert f"process {pid}" in answer.stderr
    assert str(node) in answer.stderr
    assert pci.driver_of(lab.far_display) == "bochs-drm"


def test_nor_do_very_many_descriptors(ledger: Path, lab: Topology, node: Path) -> None:
    def many() -> object:
        first = os.open("/dev/null", os.O_RDONLY)
        return [os.dup2(first, number) for number in range(100, DESCRIPTORS)]

    with nobodys(many, lambda: os.dup2(os.open(node, os.O_RDONLY), DESCRIPTORS + 1)) as pid:
        began = time.monotonic()
        assert not scanned().unread
        print(f"{DESCRIPTORS} descriptors in {time.monotonic() - began:.1f} s")
        answer = vfioctl(ledger, "bind", lab.far_display, "--yes")
    assert answer.returncode == 4, answer.stderr
    assert f"process {pid}" in answer.stderr


def test_a_process_that_cannot_be_read_whole_refuses_bind_unbind_and_reset(
    ledger: Path, lab: Topology, place: Path
) -> None:
    """Its file may be a device: root mounted this file system, and did not forbid devices."""
    with on_fuse(place, 0) as file, nobodys(opened(file)) as pid:
        refused = vfioctl(ledger, "bind", lab.far_display, "--yes")
        assert refused.returncode == 4
        assert "may be held by" in refused.stderr
        assert f"process {pid}, nobody" in refused.stderr
        assert "EACCES" in refused.stderr
        assert vfioctl(ledger, "bind", lab.far_display, "--yes", "--force-holders").returncode == 0
        for verb in ("reset", "unbind"):
            refused = vfioctl(ledger, verb, lab.far_display, "--yes")
            if verb == "reset" and refused.returncode == 3:
                continue  # the display has no reset method
            assert (refused.returncode, f"process {pid}" in refused.stderr) == (4, True), refused.stderr
        assert vfioctl(ledger, "unbind", lab.far_display, "--yes", "--force-holders").returncode == 0
    assert pci.driver_of(lab.far_display) == "bochs-drm"


def test_an_ordinary_host_has_no_such_process() -> None:
    """Kernel threads, zombies, processes that come and go, of other users, in namespaces of their own."""
    zombie = os.fork()
    if zombie == 0:
        os._exit(0)
    churn = subprocess.Popen(["sh", "-c", "while :; do /bin/true; done"])
    apart = subprocess.Popen(["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "sleep", "600"])
    try:
        with nobodys(lambda: None):
            for _ in range(3):
                found = scanned()
                assert (found.unread, list(found.suspects)) == (0, [])
                assert found.read > 20
    finally:
        for process in (churn, apart):
            process.kill()
            process.wait()
        os.waitpid(zombie, 0)


# -- nobody is believed ----------------------------------------------------------------------------------


@contextmanager
def called_qemu(place: Path, user: int, *arguments: str, odd: Path | None = None) -> Iterator[int]:
    """A shell that is called qemu-x, with those arguments."""
    program = place / "qemu-x"
    program.unlink(missing_ok=True)
    program.symlink_to("/bin/sh")
    script = f"exec 9<{odd}; echo ready; read line" if odd else "echo ready; read line"
    words = [str(program), "-c", script, *arguments]
    with subprocess.Popen(words, user=user, group=user, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            process.kill()


def holders(ledger: Path, address: str) -> list[dict[str, object]]:
    answer = vfioctl(ledger, "holders", address, "--json")
    assert answer.returncode == 0, answer.stderr
    assert "Traceback" not in answer.stderr
    found = json.loads(answer.stdout)["holders"]
    return [each for each in found if each["address"] == address and each["pid"] is not None]


def test_a_forged_guest_is_not_shown_and_blocks_nothing(ledger: Path, lab: Topology, place: Path) -> None:
    forged = ("-name", "x;reboot", "-device", f"vfio-pci,host={lab.far_display}")
    with called_qemu(place, NOBODY, *forged):
        assert holders(ledger, lab.far_display) == []
        answer = vfioctl(ledger, "bind", lab.far_display, "--yes")
        assert answer.returncode == 0, answer.stderr
    assert vfioctl(ledger, "unbind", lab.far_display, "--yes").returncode == 0


@pytest.mark.parametrize("user", [NOBODY, 0])
def test_a_command_line_counts_only_for_believed_users(
    ledger: Path, lab: Topology, place: Path, tmp_path: Path, user: int
) -> None:
    """Where the open files are not all known; root's own process has a file that root may not see."""
    arguments = ("-name", "x", "-device", f"vfio-pci,host={lab.far_display}")
    with ExitStack() as stack:
        if user:
            odd = stack.enter_context(on_fuse(place, 0))
            stack.enter_context(called_qemu(tmp_path_for(place), user, *arguments, odd=odd))
            (found,) = holders(ledger, lab.far_display)
            assert (found["kind"], found["guest"]) == ("unread process", None)
        else:
            stack.enter_context(called_qemu(place, user, *arguments))
            assert holders(ledger, lab.far_display) == []  # its files are all known


def tmp_path_for(place: Path) -> Path:
    """A directory beside the mounted one, which others may enter."""
    there = place.with_name(f"{place.name}-programs")
    there.mkdir(mode=0o755, exist_ok=True)
    return there


@pytest.mark.parametrize(
    "hostile",
    ["/sys/" + "a/" * 60_000, '{"guest":' + "[" * 20_000 + "]" * 20_000 + "}"],
)
def test_a_hostile_command_line_costs_no_time_and_no_traceback(
    ledger: Path, lab: Topology, place: Path, hostile: str
) -> None:
    with called_qemu(place, 0, "-name", hostile):
        began = time.monotonic()
        assert not scanned().unread
        assert time.monotonic() - began < SOON
        holders(ledger, lab.far_display)


def test_a_guest_is_not_believed_where_a_user_could_make_its_control_group(
    ledger: Path, lab: Topology, node: Path
) -> None:
    top = Path("/sys/fs/cgroup", f"theirs-{os.getpid()}.service")
    try:
        top.mkdir()
    except OSError as error:
        pytest.skip(f"no control groups in this lab: {error}")
    forged = top / "machine-qemu\\x2d1\\x2dx.scope"
    forged.mkdir()
    try:
        with nobodys(opened(node)) as pid:
            (forged / "cgroup.procs").write_text(str(pid))
            (found,) = holders(ledger, lab.far_display)
            assert (found["guest"], found["unit"]) == ("x", forged.name)  # root made it
            os.chown(top, NOBODY, NOBODY)
            (found,) = holders(ledger, lab.far_display)
            assert (found["guest"], found["unit"]) == (None, top.name)
    finally:
        for _ in range(50):
            try:
                forged.rmdir()
                break
            except OSError:
                time.sleep(0.1)
        top.rmdir()
