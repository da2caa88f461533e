"""Reads the CPUs to which running guests are pinned. May not write.

A VMM gives each virtual CPU a thread of its own. A guest is pinned if these threads may run on some CPUs only, and not
on a whole NUMA node: that is how libvirt keeps a guest near its memory, and takes no CPU from others.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from vfioctl.errors import BadSpec, KernelRefused
from vfioctl.kernel.lenient import text_of
from vfioctl.kernel.protocol import Reader
from vfioctl.units import parse_cpu_list

_VMMS = ("qemu", "kvm", "cloud-hyperviso", "crosvm", "firecracker")
_VCPU = re.compile(r"^Name:\t(?:CPU [0-9]+/[A-Z]+|(?:fc_|crosvm_)?vcpu[ _]?[0-9]+)$", re.ASCII | re.MULTILINE)
_ALLOWED = re.compile(r"^Cpus_allowed_list:\t([0-9,-]+)$", re.ASCII | re.MULTILINE)
_USERS = re.compile(r"^Uid:\t([0-9]+)\t([0-9]+)\t([0-9]+)\t([0-9]+)$", re.ASCII | re.MULTILINE)


def read_pinned(kernel: Reader, nodes: Sequence[Collection[int]]) -> Mapping[int, str]:
    """Return the CPUs of pinned guests, each with the process. `nodes`: the online CPUs of each NUMA node."""
    found: dict[int, str] = {}
    for pid, name in sorted(_vmms(kernel)):
        cpus = _allowed(kernel, pid)
        if cpus and not any(cpus.issuperset(node) for node in nodes if node):
            found.update({cpu: f"process {pid} ({name})" for cpu in sorted(cpus) if cpu not in found})
    return found


def _vmms(kernel: Reader) -> Iterator[tuple[int, str]]:
    """Yield the VMMs whose users are believed: anybody can give a program any name."""
    try:
        names = kernel.texts_below("/proc", "comm").texts
    except KernelRefused:
        return
    for pid, name in names.items():
        if pid.isdecimal() and name.startswith(_VMMS) and _is_believed(kernel, pid):
            yield int(pid), name


def _is_believed(kernel: Reader, pid: str) -> bool:
    users = _USERS.search(text_of(kernel, f"/proc/{pid}/status"))
    believed = kernel.believed_users
    return users is not None and all(
        uid == "0" or uid in believed or kernel.user(int(uid)) in believed for uid in set(users.groups())
    )


def _allowed(kernel: Reader, pid: int) -> set[int]:
    """Return the CPUs on which the threads of virtual CPUs may run; none if there are no such threads."""
    try:
        statuses = kernel.texts_below(f"/proc/{pid}/task", "status").texts.values()
        lists = [_ALLOWED.search(status) for status in statuses if _VCPU.search(status)]
        return {cpu for allowed in lists if allowed for cpu in parse_cpu_list(allowed[1])}
    except (KernelRefused, BadSpec):
        return set()
