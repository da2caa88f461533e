"""The initramfs of the second-level guest: static busybox and an init that prints its PCI functions.

It powers off then, or stays when the kernel's command line says `lab.stay`.

Writes one file in the cache folder.
"""

import shutil
import subprocess
from pathlib import Path

INIT = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
echo "L2 begin"
for device in /sys/bus/pci/devices/*; do
    read vendor <$device/vendor; read id <$device/device; read class <$device/class
    read node <$device/numa_node
    echo "L2 pci ${device##*/} ${vendor#0x}:${id#0x} ${class#0x} $node"
done
echo "L2 end"
case "$(/bin/busybox cat /proc/cmdline)" in
*lab.stay*) exec /bin/busybox sleep 100000 ;;
esac
/bin/busybox poweroff -f
"""


def initramfs(cache: Path, busybox: Path) -> Path:
    """The cpio archive, as /run/lab/sources/second-level.cpio in the lab."""
    stage, archive = cache / "second-level", cache / "second-level.cpio"
    shutil.rmtree(stage, ignore_errors=True)
    (stage / "bin").mkdir(parents=True)
    shutil.copy(busybox, stage / "bin/busybox")
    (stage / "init").write_text(INIT)
    (stage / "init").chmod(0o755)
    names = "\n".join(str(path.relative_to(stage)) for path in sorted(stage.rglob("*")))
    with archive.open("wb") as out:
        subprocess.run(
            ["cpio", "--create", "--format=newc", "--quiet"], cwd=stage, input=names.encode(), stdout=out, check=True
        )
    shutil.rmtree(stage)
    return archive
