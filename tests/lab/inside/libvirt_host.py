"""libvirt in the lab: Debian's daemon started by hand, and domains with host functions and mediated devices.

A domain here is the second-level guest of `l2`. The daemon keeps its files on file systems of its own, which go with
it, and needs of Debian's packages only `libvirt-daemon` and `libvirt-clients`: no service, no settings, no message bus.
"""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from tests.lab.inside import l2, pci
from tests.lab.inside.in_use import within_seconds

URI = "qemu:///system"
RUN, LOGS = Path("/run/libvirt"), Path("/var/log/libvirt")
# not the cache: what QEMU can do it asks for half a minute, and need not ask again
PLACES = (Path("/etc/libvirt"), Path("/var/lib/libvirt"), LOGS, RUN)
START_SECONDS = 60.0
END_SECONDS = 20.0
# as root, since devices in /dev are root's here; and no second daemon only to keep the guest's log
SETTINGS = 'user = "root"\ngroup = "root"\ndynamic_ownership = 0\nsecurity_driver = "none"\nstdio_handler = "file"\n'
# the daemon looks them up even where it is told to use others
ACCOUNTS = {
    Path("/etc/passwd"): "libvirt-qemu:x:64055:64055::/nonexistent:/usr/sbin/nologin\n",
    Path("/etc/group"): "libvirt-qemu:x:64055:\n",
}
CONTROL_GROUPS = Path("/sys/fs/cgroup")

DOMAIN = """
<domain type='{kind}'>
  <name>{name}</name>
  <memory unit='MiB'>{megabytes}</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>{kernel}</kernel>
    <initrd>{initramfs}</initrd>
    <cmdline>{arguments}</cmdline>
  </os>
  <features><acpi/></features>
  <cpu mode='maximum'/>
  <devices>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
    <serial type='file'><source path='{console}'/></serial>{devices}
  </devices>
</domain>
"""
MDEV = """
    <hostdev mode='subsystem' type='mdev' model='vfio-pci'>
      <source><address uuid='{uuid}'/></source>
    </hostdev>"""
FUNCTION = """
    <hostdev mode='subsystem' type='pci' managed='no'>
      <source><address domain='0x{domain}' bus='0x{bus}' slot='0x{slot}' function='0x{function}'/></source>
    </hostdev>"""


class Domain(NamedTuple):
    """A running domain: its name, and the id of its QEMU process."""

    name: str
    pid: int

    def booted(self) -> list[l2.Seen]:
        """Waits until its guest, that of `l2`, has booted, and returns what that saw."""
        return l2.booted(_console(self.name), Path(f"/proc/{self.pid}").exists)


class Daemon:
    """libvirtd, which can be killed and started again."""

    def __init__(self, log: IO[bytes]) -> None:
        self._log = log
        self.start()

    def start(self) -> None:
        """Starts it, and returns when it answers."""
        self._process = subprocess.Popen(["libvirtd"], stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)
        within_seconds(START_SECONDS, lambda: _answers(self._process))

    def end(self, number: int = signal.SIGTERM) -> None:
        """Ends it with a signal. Guests go on running."""
        self._process.send_signal(number)
        self._process.wait(END_SECONDS)


@contextmanager
def daemon(prepare: Callable[[], None] = lambda: None) -> Iterator[Daemon]:
    """libvirtd until the block ends, and nothing of it left on the machine then but its logs, in the results.

    `prepare` is called before it starts, when its own directories are there.
    """
    # asked for first: what the daemon can offer it finds out once
    l2.accelerator()
    _make_accounts()
    with _own_places(), _control_groups_put_back(), (LOGS / "libvirtd.log").open("wb") as log:
        Path("/etc/libvirt/qemu.conf").write_text(SETTINGS)
        prepare()
        process = Daemon(log)
        try:
            yield process
        finally:
            process.end()


def virsh(*commands: str) -> str:
    """Runs commands in one process, and returns what they print; raises AssertionError with the words of a failure."""
    command = ["virsh", "--quiet", "--connect", URI, "; ".join(commands)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=l2.SECONDS, check=False
    )
    # the status is that of the last one only
    assert done.returncode == 0, f"{commands}: {done.stderr}"
    assert "error:" not in done.stderr, f"{commands}: {done.stderr}"
    return done.stdout.strip()


@contextmanager
def running_domain(*devices: str, name: str = "lab") -> Iterator[Domain]:
    """A domain with these mediated devices, by UUID, and functions on vfio-pci, by address, until the block ends.

    It needs `daemon`. When the block has ended, its devices are released and its definition is removed.
    """
    file = RUN / f"{name}.xml"
    file.write_text(definition(name, devices))
    try:
        virsh(f"define --validate {file}", f"start {name}")
        with running(name) as domain:
            yield domain
    finally:
        virsh(f"undefine {name}")


@contextmanager
def running(name: str) -> Iterator[Domain]:
    """A domain that was started, until it ends."""
    pid_file = RUN / "qemu" / f"{name}.pid"
    try:
        yield Domain(name, int(pid_file.read_text()))
    finally:
        if pid_file.exists():
            virsh(f"destroy {name}")


def _console(name: str) -> Path:
    # not in the results: QEMU's appending came out of that shared folder with bytes missing
    return LOGS / f"{name}.log"


def definition(name: str, devices: tuple[str, ...] = ()) -> str:
    """The XML of a domain with these devices, which boots the guest of `l2`."""
    return DOMAIN.format(
        kind="kvm" if l2.accelerator() == "kvm" else "qemu",
        name=name,
        megabytes=l2.MEGABYTES,
        kernel=os.environ["VFIOCTL_LAB_KERNEL"],
        initramfs=l2.INITRAMFS,
        arguments=l2.KERNEL_ARGUMENTS,
        console=_console(name),
        devices="".join(map(_hostdev, devices)),
    )


def _hostdev(device: str) -> str:
    if ":" not in device:
        return MDEV.format(uuid=device)
    domain, bus, slot, function = device.replace(".", ":").split(":")
    return FUNCTION.format(domain=domain, bus=bus, slot=slot, function=function)


def _answers(process: "subprocess.Popen[bytes]") -> bool:
    assert process.poll() is None, (LOGS / "libvirtd.log").read_text()
    with suppress(OSError), socket.socket(socket.AF_UNIX) as end:
        end.connect(str(RUN / "libvirt-sock"))
        return True
    return False


def _make_accounts() -> None:
    for file, line in ACCOUNTS.items():
        known = file.read_text()
        if f"\n{line.partition(':')[0]}:" not in known:
            file.write_text(known + line)


@contextmanager
def _own_places() -> Iterator[None]:
    with ExitStack() as mounted:
        for place in PLACES:
            place.mkdir(parents=True, exist_ok=True)
            subprocess.run(["mount", "-t", "tmpfs", "libvirt", str(place)], check=True, timeout=60)
            mounted.callback(subprocess.run, ["umount", str(place)], check=True, timeout=60)
        mounted.callback(_keep_logs)
        yield


def _keep_logs() -> None:
    shutil.copytree(LOGS, Path(os.environ["VFIOCTL_LAB_RESULTS"], "libvirt"), dirs_exist_ok=True)


@contextmanager
def _control_groups_put_back() -> Iterator[None]:
    """The daemon makes a group for its guests, and has the controllers handed down to it."""
    control, own = CONTROL_GROUPS / "cgroup.subtree_control", CONTROL_GROUPS / "machine"
    before = set(control.read_text().split())
    yield
    if own.exists():
        own.rmdir()
    for controller in set(control.read_text().split()) - before:
        pci.write(control, f"-{controller}")
