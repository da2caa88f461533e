"""The initramfs of the second-level guest: static busybox, and an init that prints its PCI functions.

It stays then. Debian's QEMU guest agent runs in it if it has a virtio serial device, which is what libvirt gives a
domain with a channel for the agent.

Writes one file in the cache folder.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.lab.outside.requirements import Found

INIT = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /run
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
if /bin/busybox grep -q -e 0x1003 -e 0x1043 /sys/bus/pci/devices/*/device; then
    /bin/busybox mount -t devtmpfs dev /dev
    for module in /modules/*; do /bin/busybox insmod $module; done
    /bin/qemu-ga --method=virtio-serial --path=/dev/vport0p1 --statedir=/run &
fi
echo "L2 begin"
for device in /sys/bus/pci/devices/*; do
    read vendor <$device/vendor; read id <$device/device; read class <$device/class
    read node <$device/numa_node
    echo "L2 pci ${device##*/} ${vendor#0x}:${id#0x} ${class#0x} $node"
done
echo "L2 end"
exec /bin/busybox sleep 100000
"""


def initramfs(cache: Path, found: Found) -> Path:
    """The cpio archive, as /run/lab/sources/second-level.cpio in the lab."""
    stage, archive = cache / "second-level", cache / "second-level.cpio"
    shutil.rmtree(stage, ignore_errors=True)
    for folder in ("bin", "modules"):
        (stage / folder).mkdir(parents=True)
    shutil.copy(found.busybox, stage / "bin/busybox")
    for library in _libraries(found.agent):
        place = stage / library.relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, place)
    shutil.copy(found.agent, stage / "bin/qemu-ga")
    for number, module in enumerate(_modules(found.release)):
        shutil.copy(module, stage / f"modules/{number}-{module.name}")
    (stage / "init").write_text(INIT)
    (stage / "init").chmod(0o755)
    names = "\n".join(str(path.relative_to(stage)) for path in sorted(stage.rglob("*")))
    with archive.open("wb") as out:
        subprocess.run(
            ["cpio", "--create", "--format=newc", "--quiet"], cwd=stage, input=names.encode(), stdout=out, check=True
        )
    shutil.rmtree(stage)
    return archive


def _modules(release: str) -> list[Path]:
    """The modules of a virtio serial device, in the order in which they need each other."""
    command = ["modprobe", "--set-version", release, "--all", "--show-depends", "virtio_pci", "virtio_console"]
    path = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=path).stdout
    return [Path(found) for found in dict.fromkeys(re.findall(r"^insmod (\S+)", told, re.MULTILINE))]


def _libraries(program: Path) -> list[Path]:
    """The shared libraries that a program needs, and the loader."""
    told = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    return [Path(found) for found in re.findall(r"(/\S+) \(0x", told)]
