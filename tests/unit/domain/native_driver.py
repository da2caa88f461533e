"""Asks libvirt's QEMU driver for the command lines of domains, in this process: `qemu:///embed`, without a daemon.

A program for a mount namespace of its own (unshare -m), as root: python native_driver.py FOLDER. Reads a JSON object of
documents from standard input, and writes one of command lines, or of what libvirt says against them.

Nothing is started, but the driver looks at its host all the same. So this host gets, for this process only, the user
that Debian's package makes, NUMA nodes, hugepages, an IOMMU group, the descriptions of firmware and a TPM's programs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

NODES = 16
SWTPM = """#!/bin/sh
echo '{ "type": "swtpm", "features": [ "tpm-1.2", "tpm-2.0", "cmdarg-pwd-fd", "tpm12-not-need-root" ] }'
"""
SETTINGS = """
user = "root"
group = "root"
dynamic_ownership = 0
security_driver = "none"
stdio_handler = "file"
namespaces = []
cgroup_controllers = []
hugetlbfs_mount = ["{0}/2M", "{0}/1G"]
"""


def main(folder: Path) -> None:
    documents: dict[str, str] = json.load(sys.stdin)
    _furnish(folder)
    import libvirt

    libvirt.registerErrorHandler(lambda *_: None, None)
    libvirt.virEventRegisterDefaultImpl()
    connection = libvirt.open(f"qemu:///embed?root={folder}")
    answers = {name: _native(libvirt, connection, text) for name, text in documents.items()}
    print(json.dumps({"version": connection.getLibVersion(), "answers": answers}))


def _native(libvirt: Any, connection: Any, text: str) -> dict[str, str]:
    try:
        return {"command": connection.domainXMLToNative("qemu-argv", text, 0)}
    except libvirt.libvirtError as error:
        return {"refused": str(error)}


def _furnish(folder: Path) -> None:
    for name in ("etc", "2M", "1G", "bin", "qemu/firmware", "groups/1"):
        (folder / name).mkdir(parents=True)
    (folder / "etc/qemu.conf").write_text(SETTINGS.format(folder))
    for size in ("2M", "1G"):
        _mount("-t", "hugetlbfs", "-o", f"pagesize={size}", "none", str(folder / size))
    _add(folder, "/etc/passwd", "libvirt-qemu:x:64055:64055::/nonexistent:/usr/sbin/nologin\n")
    _add(folder, "/etc/group", "libvirt-qemu:x:64055:\n")
    for number in range(NODES):
        node = folder / f"nodes/node{number}"
        node.mkdir(parents=True)
        (node / "meminfo").write_text(f"Node {number} MemTotal: 1073741824 kB\nNode {number} MemFree: 1073741824 kB\n")
        (node / "cpulist").write_text("0\n" if number == 0 else "\n")
        (node / "cpumap").write_text("1\n" if number == 0 else "0\n")
        (node / "distance").write_text(" ".join("10" if each == number else "20" for each in range(NODES)) + "\n")
    for name in ("online", "possible", "has_cpu", "has_memory"):
        (folder / "nodes" / name).write_text(f"0-{NODES - 1}\n")
    for name in ("swtpm", "swtpm_setup", "swtpm_ioctl"):
        (folder / "bin" / name).write_text(SWTPM)
        (folder / "bin" / name).chmod(0o755)
    for kind in ("plain", "secure", "stateless"):
        (folder / f"qemu/firmware/{kind}.json").write_text(json.dumps(_firmware(kind)))
    _mount("--bind", str(folder / "nodes"), "/sys/devices/system/node")
    _mount("--bind", str(folder / "groups"), "/sys/kernel/iommu_groups")
    _mount("--bind", str(folder / "qemu"), "/usr/share/qemu")


def _firmware(kind: str) -> dict[str, object]:
    """As the packages of OVMF describe theirs (docs/interop/firmware.json of QEMU)."""
    file = {"filename": f"/usr/share/OVMF/OVMF_CODE_4M.{kind}.fd", "format": "raw"}
    variables = {"filename": f"/usr/share/OVMF/OVMF_VARS_4M.{kind}.fd", "format": "raw"}
    modes = {"stateless": {"mode": "stateless"}}
    mode = modes.get(kind, {"mode": "split", "nvram-template": variables})
    secure = ["enrolled-keys", "requires-smm", "secure-boot"] if kind == "secure" else []
    return {
        "description": f"OVMF, {kind}",
        "interface-types": ["uefi"],
        "mapping": {"device": "flash", "executable": file, **mode},
        "targets": [{"architecture": "x86_64", "machines": ["pc-q35-*"]}],
        "features": ["acpi-s3", *secure],
        "tags": [],
    }


def _add(folder: Path, file: str, line: str) -> None:
    copy = folder / Path(file).name
    text = Path(file).read_text()
    copy.write_text(text if f"\n{line.partition(':')[0]}:" in text else text + line)
    _mount("--bind", str(copy), file)


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
