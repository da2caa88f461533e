"""Finds the QEMU process of a domain, and reads its threads, its memory and its command line. May not write. Anybody
can start a program under any name and with any arguments, so a process is a domain's QEMU only if its command line has
the domain's UUID and all its users are believed. Workers read, because reading a memory map waits for its lock."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from vfioctl.domain.model.verification import Mapping, Qemu, Thread
from vfioctl.errors import KernelRefused
from vfioctl.kernel.lenient import text_of
from vfioctl.kernel.protocol import Reader, Unanswered, per_subject

PID_FILES = "/run/libvirt/qemu"
"""libvirtd's and virtqemud's: NAME.pid. Only root can write there."""
MEMORY_SECONDS = 30.0
"""Timeout for reading numa_maps: the kernel walks the page tables, and a guest's can have 100 million pages."""
LEAST = 1 << 20
"""Smaller mappings are no guest's memory."""
_VMMS = ("qemu", "kvm")
_PID = re.compile(r"[1-9][0-9]{0,6}", re.ASCII)
_USERS = re.compile(r"^Uid:\t([0-9]{1,10})\t([0-9]{1,10})\t([0-9]{1,10})\t([0-9]{1,10})$", re.ASCII | re.MULTILINE)
_NAME = re.compile(r"^Name:\t(.{0,64})$", re.MULTILINE)
_CPUS = re.compile(r"^Cpus_allowed_list:\t([0-9,-]+)$", re.ASCII | re.MULTILINE)
_NODES = re.compile(r"^Mems_allowed_list:\t([0-9,-]+)$", re.ASCII | re.MULTILINE)
_START = 22 - 3
"""Of the words in /proc/PID/stat, after the name in parentheses."""
_PLACE = re.compile(r"^([0-9a-f]{1,16})-([0-9a-f]{1,16}) ", re.ASCII | re.MULTILINE)
_POLICIES = r"(?:default|local|bind|(?:weighted )?interleave|prefer(?: \(many\))?)"
_LINE = re.compile(
    rf"^([0-9a-f]{{1,16}}) ({_POLICIES})(?:=[a-z|]+)?(?::([0-9,-]*))?(?: (.*))?$", re.ASCII | re.MULTILINE
)
_ON_NODE = re.compile(r"N([0-9]{1,4})=([0-9]{1,15})", re.ASCII)
_PAGE = re.compile(r"kernelpagesize_kB=([0-9]{1,9})", re.ASCII)
_GROUP = re.compile(r"/dev/vfio/([0-9]{1,9})", re.ASCII)
_FILES_OF_MEMORY = ("qemu_back_mem", "memory-backend", "ram-node", "pc.ram")
"""Parts of the names of files that QEMU gives to a guest as memory: libvirt's hugepages, files and memfds."""


_Plain = tuple[int, str, str, int, bool, tuple[tuple[int, int], ...]]
"""A `Mapping` that a worker can send."""


class NotFound(Exception):
    """Why the QEMU process of a domain is not known; text for the user."""


def read_qemu(kernel: Reader, name: str, uuid: str) -> Qemu:
    """Return the QEMU process of the domain with this name and UUID. Raises NotFound."""
    pid, arguments, started = _found(kernel, name, uuid)
    memory = kernel.survey(read_memory, [pid], timeout=MEMORY_SECONDS)
    ((_, status),) = kernel.survey(read_threads, [pid])
    threads, nodes = ([], "") if isinstance(status, Unanswered) else status
    ((_, mappings),) = memory
    qemu = Qemu(int(pid), arguments, tuple(Thread(*thread) for thread in threads), allowed_nodes=nodes, started=started)
    if isinstance(mappings, Unanswered | str):
        return qemu._replace(memory_unknown=mappings if isinstance(mappings, str) else mappings.reason)
    return qemu._replace(memory=tuple(Mapping(*mapping) for mapping in mappings))


def still_runs(kernel: Reader, qemu: Qemu, uuid: str) -> bool:
    """Return whether the process is there, and no other one has its id."""
    ((_, answer),) = kernel.survey(claims_to_be, [str(qemu.pid)], args=[uuid])
    return not isinstance(answer, Unanswered) and answer == (True, "", list(qemu.arguments), qemu.started)


def open_groups(kernel: Reader, pid: int) -> frozenset[str] | None:
    """Return the IOMMU groups whose VFIO files the process has open; None if that cannot be read."""
    ((_, groups),) = kernel.survey(read_groups, [str(pid)])
    return None if groups is None or isinstance(groups, Unanswered) else frozenset(groups)


def _found(kernel: Reader, name: str, uuid: str) -> tuple[str, tuple[str, ...], str]:
    """Return the process's id, its arguments, and when it started."""
    noted = text_of(kernel, f"{PID_FILES}/{name}.pid").strip() if "/" not in name else ""
    first = [noted] if _PID.fullmatch(noted) else []
    disbelieved = ""
    for pids in (first, _vmms(kernel)):
        processes: list[tuple[str, tuple[str, ...], str]] = []
        for pid, answer in kernel.survey(claims_to_be, pids, args=[uuid]):
            if isinstance(answer, Unanswered) or answer is None:
                continue
            believed, user, arguments, started = answer
            if believed:
                processes.append((pid, tuple(arguments), started))
            else:
                disbelieved = f"process {pid} says that it is, but user {user} runs it, who is not believed"
        if len(processes) > 1:
            raise NotFound(f"processes {', '.join(sorted(pid for pid, *_ in processes)[:4])} all say that they are")
        if processes:
            return processes[0]
    raise NotFound(disbelieved or "no process has its UUID on the command line")


def _vmms(kernel: Reader) -> list[str]:
    try:
        names = kernel.texts_below("/proc", "comm").texts
    except KernelRefused:
        return []
    return sorted(pid for pid, name in names.items() if _PID.fullmatch(pid) and name.startswith(_VMMS))


class claims_to_be:  # noqa: N801 - called as a function, once in each worker
    """Return whether a process is believed, its user, its arguments and its start; None if it is another or has ended.
    The start is the 22nd word of /proc/PID/stat, in clock ticks since the boot; the 2nd one may have blanks."""

    def __init__(self, kernel: Reader, uuid: str) -> None:
        self._kernel, self._uuid = kernel, uuid

    def __call__(self, pid: str) -> tuple[bool, str, list[str], str] | None:
        arguments = text_of(self._kernel, f"/proc/{pid}/cmdline").rstrip("\0").split("\0")
        if ("-uuid", self._uuid) not in pairwise(arguments):
            return None
        line = _USERS.search(text_of(self._kernel, f"/proc/{pid}/status"))
        if line is None:
            return None
        users, believed = {int(uid) for uid in line.groups()}, self._kernel.believed_users
        for uid in sorted(users - {0}):
            if str(uid) not in believed and self._kernel.user(uid) not in believed:
                return False, self._kernel.user(uid), [], ""
        after_name = text_of(self._kernel, f"/proc/{pid}/stat").rpartition(")")[2].split()
        return True, "", arguments, "".join(after_name[_START : _START + 1])


@per_subject
def read_threads(kernel: Reader, pid: str) -> tuple[list[tuple[int, str, str]], str]:
    """Return each thread's id, name and CPUs, and the NUMA nodes that the process may use."""
    try:
        texts = kernel.texts_below(f"/proc/{pid}/task", "status").texts
    except KernelRefused:
        return [], ""
    threads = [
        (int(task), _first(_NAME, text), _first(_CPUS, text)) for task, text in texts.items() if task.isdecimal()
    ]
    return sorted(threads), _first(_NODES, texts.get(pid, ""))


@per_subject
def read_groups(kernel: Reader, pid: str) -> list[str] | None:
    """Return the numbers of the IOMMU groups that the process has open; None if that cannot be read."""
    try:
        nodes = kernel.open_nodes(pid).nodes
    except KernelRefused:
        return None
    return [match[1] for node in nodes if (match := _GROUP.fullmatch(node.path))]


@per_subject
def read_memory(kernel: Reader, pid: str) -> list[_Plain] | str:
    """Return the process's mappings, as `Mapping` has them; text if they cannot be read."""
    try:
        policies, places = kernel.read(f"/proc/{pid}/numa_maps"), kernel.read(f"/proc/{pid}/maps")
    except KernelRefused as error:
        return f"reading {error.path}: {error.symbol}"
    sizes = {int(first, 16): int(last, 16) - int(first, 16) for first, last in _PLACE.findall(places)}
    return [mapping for line in _LINE.findall(policies) if (mapping := _mapping(line, sizes))]


def _mapping(line: Sequence[str], sizes: dict[int, int]) -> _Plain | None:
    first, policy, nodes, rest = line
    size, words = sizes.get(int(first, 16), 0), rest.split(" ")
    if size < LEAST or {"heap", "stack"} & set(words):
        return None
    file = next((word for word in words if word.startswith("file=")), "")
    huge = "huge" in words
    if file and not huge and not any(part in file for part in _FILES_OF_MEMORY):
        return None
    page = int(_first(_PAGE, rest) or 4) << 10
    used = (match for word in words if (match := _ON_NODE.fullmatch(word)))
    return size, policy, nodes, page, huge, tuple((int(match[1]), int(match[2]) * page) for match in used)


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""
