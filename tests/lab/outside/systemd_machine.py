"""A machine that boots with systemd, several times from the same disk: for what happens at boot.

Its root is a view of this machine's root file system, whose changes are kept on a disk of its own: one boot finds what
the last one wrote. Each boot runs one script after the basic services, and ends. Writes only below its folder.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.lab.outside import disks, modules, topology, tsc, vmlinux
from tests.lab.outside.overlay import overlay
from tests.lab.outside.requirements import Found, LabError, look

REPO = Path(__file__).parents[3]
CACHE = REPO / ".lab"
ENVIRONMENT, SOURCES = "/opt/lab/environment", "/opt/lab/sources/repo"
MODULES_BUILT = "/opt/lab/sources"
"""Where the lab's kernel modules are in the machine."""
RESULTS = "/mnt/lab"
STATE_BYTES = 1 << 30
POWER_OFF_SECONDS = 10
MODULES = ("virtio_pci", "virtio_blk", "9pnet_virtio", "9p", "ext4", "overlay", "squashfs")
NOT_AT_BOOT = ("systemd-tmpfiles-setup.service", "systemd-binfmt.service", "systemd-update-utmp.service")
"""Units that look through all of this machine's files, or are of no use here."""
_MOUNT = """
busybox mkdir -p /lower /kept /new
busybox mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144,cache=loose root /lower
busybox mount -t ext4 /dev/vda /kept
busybox mkdir -p /kept/upper /kept/work
busybox mount -t overlay -o lowerdir=/lower,upperdir=/kept/upper,workdir=/kept/work root /new
busybox mkdir -p /new{results} /new/opt/lab/disk /new{environment} /new/opt/lab/sources
busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=mmap results /new{results}
busybox mount -t squashfs -o ro /dev/vdb /new/opt/lab/disk
busybox mount -t squashfs -o ro /dev/vdc /new/opt/lab/sources
busybox mount -t tmpfs tmp /new/tmp
busybox rm -f /new/.dockerenv /new/run/.containerenv
busybox mount --bind /new/opt/lab/disk{prefix} /new{environment}
for place in {places}; do busybox mount --bind /new/opt/lab/disk$place /new$place; done
. /new{results}/before
"""
INIT = f"""#!/bin/busybox sh
set -e
PATH=/bin
busybox mkdir -p /proc /sys /dev
busybox mount -t proc proc /proc
busybox mount -t sysfs sysfs /sys
busybox mount -t devtmpfs dev /dev
for module in /modules/*; do busybox insmod $module 2>/dev/null || :; done
{_MOUNT}
busybox umount /proc
busybox umount /sys
busybox mount --move /dev /new/dev
exec busybox switch_root /new /lib/systemd/systemd
"""
BOOT_SCRIPT = f"""
mountroot() {{{{
{_MOUNT}
busybox mount --move /new ${{{{rootmnt}}}}
}}}}
"""
"""The same mounts, as a boot script of initramfs-tools."""
OF_INITRAMFS_TOOLS = ("boot=lab", "init=/lib/systemd/systemd")
COMMAND = f"""#!/bin/sh
PYTHONPATH={SOURCES} exec {ENVIRONMENT}/bin/python3 -P -c 'import sys
sys.argv[0] = "vfioctl"
from vfioctl.app import console
console()' "$@"
"""
TARGET = """[Unit]
Requires=sysinit.target
After=sysinit.target
Wants=lab.service vfioctl-restore.service
AllowIsolate=yes
"""
SERVICE = f"""[Unit]
DefaultDependencies=no
After=sysinit.target
[Service]
Type=oneshot
Environment=PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
ExecStart=/bin/bash {RESULTS}/script
StandardOutput=file:{RESULTS}/output
StandardError=file:{RESULTS}/errors
"""


@dataclass(frozen=True)
class Boot:
    """What one boot left."""

    status: int
    """Exit status of its script."""
    output: str
    errors: str
    console: str
    seconds: float


@cache
def _shared() -> tuple[Found, Path, Path, Path]:
    """What all machines of this process have: the kernel, unpacked, and the disks that they only read."""
    if not Path("/lib/systemd/systemd").exists():
        raise LabError("apt-get install systemd")
    found = look()
    with disks.making(CACHE):
        kernel = vmlinux.unpacked(found.kernel, CACHE)
        environment, _ = disks.environment_disk(CACHE, kernel)
        # not the lab's, which has more files
        sources = disks.sources_disk(CACHE / "boot-sources.squashfs", REPO, modules.built(CACHE, found))
    return found, kernel, environment, sources


class SystemdMachine:
    """A machine with one state. `folder`: for its disk and the results of each boot. `installed`: the directory of an
    overlay on the root file system, which has vfioctl; without it, vfioctl is that of the sources."""

    def __init__(self, folder: Path, installed: Path | None = None) -> None:
        self._folder, self._installed = folder, installed
        self._found, self._kernel, self._environment, self._sources = _shared()
        self._results = folder / "results"
        self._results.mkdir(parents=True)
        self._state = folder / "state.ext4"
        self._seed()

    def _seed(self) -> None:
        """Make the disk, with the program."""
        upper = self._folder / "seed/upper"
        upper.mkdir(parents=True)
        if self._installed:
            subprocess.run(["cp", "--archive", f"{self._installed}/.", str(upper)], check=True)
        files = {
            **({} if self._installed else {"usr/local/bin/vfioctl": COMMAND}),
            "etc/systemd/system/lab.target": TARGET,
            "etc/systemd/system/lab.service": SERVICE,
            "etc/fstab": "",
            "etc/hostname": "lab\n",
            "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
        }
        for name, text in files.items():
            file = upper / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        if not self._installed:
            (upper / "usr/local/bin/vfioctl").chmod(0o755)
        for unit in NOT_AT_BOOT:
            (upper / "etc/systemd/system" / unit).symlink_to("/dev/null")
        (self._folder / "seed/work").mkdir()
        with self._state.open("wb") as image:
            image.truncate(STATE_BYTES)
        command = ["mkfs.ext4", "-q", "-F", "-d", str(self._folder / "seed"), str(self._state)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=60)
        shutil.rmtree(self._folder / "seed")

    def boot(
        self,
        devices: Sequence[str],
        script: str,
        *,
        arguments: Sequence[str] = (),
        before: str = "",
        initramfs: Path | None = None,
        keep: bool = False,
        limit: float = 300,
    ) -> Boot:
        """Boot with these devices and run a script in the machine. `arguments`: of the kernel.

        `before`: commands of the initramfs, in which the root is at /new. `initramfs`: one of `made_by_mkinitramfs`.
        `keep`: whether later boots find what this one writes. `limit`: seconds."""
        for old in self._results.iterdir():
            old.unlink()
        (self._results / "before").write_text(before)
        finish = f"\necho $? >{RESULTS}/status; sync; echo o >/proc/sysrq-trigger; sleep 60\n"
        (self._results / "script").write_text(f"(\n{script}\n)" + finish)
        began = time.monotonic()
        console = self._folder / "console"
        with console.open("wb") as stream:
            machine = subprocess.Popen(
                self._command(devices, arguments, initramfs, keep=keep),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                self._wait(machine, limit)
            finally:
                machine.kill()
                machine.wait()
        return Boot(
            status=int(self._text("status") or "-1"),
            output=self._text("output"),
            errors=self._text("errors"),
            console=console.read_text(errors="replace"),
            seconds=time.monotonic() - began,
        )

    def _wait(self, machine: "subprocess.Popen[bytes]", limit: float) -> None:
        """Wait for power-off, which a device that is stuck prevents: the script has written its status before it."""
        until = time.monotonic() + limit
        while machine.poll() is None and time.monotonic() < until:
            if self._text("status"):
                with suppress(subprocess.TimeoutExpired):
                    machine.wait(timeout=POWER_OFF_SECONDS)
                return
            time.sleep(0.2)

    def _text(self, name: str) -> str:
        file = self._results / name
        return file.read_text(errors="replace") if file.exists() else ""

    def left(self, name: str) -> bytes:
        """Return a file that the last boot has left in RESULTS."""
        return (self._results / name).read_bytes()

    def made_by_mkinitramfs(self, archive: bytes, drivers: Sequence[str]) -> Path:
        """Return an initramfs made by Debian's program on a host with the files of a tar archive, with these drivers.
        Needs root."""
        image, modules = self._folder / "initrd.img", "\n".join((*MODULES, *drivers, ""))
        with TemporaryDirectory() as folder, overlay(Path(folder)) as view:
            (view.root / "tmp/archive.tar").write_bytes(archive)
            view.says(
                "tar --extract --file=/tmp/archive.tar --directory=/ && cp --archive /etc/initramfs-tools /tmp/conf"
            )
            (view.root / "tmp/conf/modules").write_text(modules)
            (view.root / "tmp/conf/conf.d/lab").write_text("MODULES=list\nCOMPRESS=gzip\n")
            (view.root / "tmp/conf/scripts/lab").write_text(self._filled(BOOT_SCRIPT))
            view.says(f"mkinitramfs -d /tmp/conf -o /tmp/initrd.img {self._found.release}")
            shutil.copy(view.root / "tmp/initrd.img", image)
        return image

    def _command(
        self, devices: Sequence[str], arguments: Sequence[str], initramfs: Path | None, *, keep: bool
    ) -> list[str]:
        append = [
            "console=ttyS0",
            *topology.KERNEL_ARGUMENTS,
            *(() if self._found.kvm else tsc.kernel_arguments()),
            "systemd.unit=lab.target",
            "systemd.log_target=journal",
            "systemd.show_status=no",
            "panic=-1",
            *(OF_INITRAMFS_TOOLS if initramfs else ()),
            *arguments,
        ]
        command = ["qemu-system-x86_64", "-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"]
        command += ["-machine", "q35,kernel-irqchip=split", "-m", "1536", "-smp", str(_processors())]
        if self._found.kvm:
            command += ["-enable-kvm", "-cpu", "host"]
        else:
            command += ["-cpu", topology.CPU, *topology.emulator_arguments()]
        command += ["-kernel", str(self._found.kernel), "-initrd", str(initramfs or self._initramfs())]
        command += ["-append", " ".join(append)]
        command += ["-global", "virtio-pci.ioeventfd=off"]
        for device in (*topology.INTEL, *devices):
            command += ["-device", device]
        for number, (image, how) in enumerate(
            (
                (self._state, "cache=unsafe" if keep else "cache=unsafe,snapshot=on"),
                (self._environment, "readonly=on"),
                (self._sources, "readonly=on"),
            )
        ):
            command += ["-drive", f"if=none,id=disk{number},format=raw,{how},file={image}"]
            command += ["-device", f"virtio-blk-pci,bus=pcie.0,addr={0x10 + number:x},drive=disk{number}"]
        for number, (tag, path, how) in enumerate((("root", "/", ",readonly=on"), ("results", self._results, ""))):
            command += ["-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap{how}"]
            command += ["-device", f"virtio-9p-pci,bus=pcie.0,addr={0x18 + number:x},fsdev={tag},mount_tag={tag}"]
        return command

    def _initramfs(self) -> Path:
        stage, archive = self._folder / "initramfs", self._folder / "initramfs.cpio"
        if archive.exists():
            return archive
        (stage / "bin").mkdir(parents=True)
        (stage / "modules").mkdir()
        shutil.copy(self._found.busybox, stage / "bin/busybox")
        for number, module in enumerate(_modules(self._found.release)):
            shutil.copy(module, stage / f"modules/{number:02}-{module.name}")
        (stage / "init").write_text(self._filled(INIT))
        (stage / "init").chmod(0o755)
        names = "\n".join(str(path.relative_to(stage)) for path in sorted(stage.rglob("*")))
        with archive.open("wb") as out:
            line = ["cpio", "--create", "--format=newc", "--quiet"]
            subprocess.run(line, cwd=stage, input=names.encode(), stdout=out, check=True)
        return archive

    def _filled(self, script: str) -> str:
        places = [str(place) for place in disks.environment_places() if str(place) != sys.prefix]
        return script.format(results=RESULTS, environment=ENVIRONMENT, prefix=sys.prefix, places=shlex.join(places))


def _processors() -> int:
    """Of a machine, two of which run side by side: with two each on two of ours, boots take half as long again."""
    return 2 if len(os.sched_getaffinity(0)) >= 4 else 1


def _modules(release: str) -> list[Path]:
    command = ["modprobe", "--set-version", release, "--all", "--show-depends", *MODULES]
    path = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
    text = subprocess.run(command, capture_output=True, text=True, check=True, env=path).stdout
    return [Path(file) for file in dict.fromkeys(re.findall(r"^insmod (\S+)", text, re.MULTILINE))]
