"""Programs attached to cgroups of this machine, through bpf(2). An attachment lasts as long as the cgroup, without a
process or a pin. Nothing here waits. Numbers and layouts are those of linux/bpf.h."""

from __future__ import annotations

import ctypes
import errno as errnos
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress

from vfioctl.errors import HostError, KernelRefused
from vfioctl.kernel.descriptors import call, closing
from vfioctl.kernel.device_lists import CGROUPS, DeviceProgram
from vfioctl.kernel.device_program import MOST, NAME, assemble, is_own, refused_by
from vfioctl.kernel.files import readable

_SYSCALLS = {"x86_64": 321, "aarch64": 280}
_LOAD, _ATTACH, _DETACH, _BY_ID, _INFO, _QUERY = 5, 8, 9, 13, 15, 16
_CGROUP_DEVICE_PROGRAM, _CGROUP_DEVICE, _ALLOW_MULTI = 15, 6, 2
_MOST_PROGRAMS = 64  # BPF_CGROUP_MAX_PROGS
_MOST_INSTRUCTIONS = (2 * MOST + 16) * 8
_INFO_BYTES = 80  # `struct bpf_prog_info` up to its name
_NAME_BYTES = 16
_ATTRIBUTE_BYTES = 256
"""More than `union bpf_attr` has: newer kernels write results behind what this module knows of it."""
_FOLDERS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MOST_CGROUPS = 20_000
"""Cgroups that `restricted` looks at."""


def programs(cgroup: str, home: str = CGROUPS) -> list[DeviceProgram]:
    """Return the programs attached to a cgroup. Raises KernelRefused, HostError."""
    with _opened(cgroup, home) as folder:
        return [program for number in _attached(cgroup, folder) if (program := _described(number))]


def restricted(home: str = CGROUPS) -> list[str]:
    """Return the cgroups that have a program of vfioctl; one that cannot be read costs only itself."""
    found = []
    for cgroup in _below(home):
        try:
            if any(is_own(program) for program in programs(cgroup, home)):
                found.append(cgroup)
        except KernelRefused as error:
            if error.errno != errnos.ENOENT:
                raise
    return sorted(found)


def refuse(cgroup: str, numbers: Sequence[str], home: str = CGROUPS) -> None:
    """Attach the program that refuses these numbers, then detach earlier ones. Raises KernelRefused, HostError.

    In between both apply, so at no moment may a process open more than before and after."""
    with _opened(cgroup, home) as folder:
        earlier = [program.id for number in _attached(cgroup, folder) if (program := _described(number))
                   and is_own(program)]  # fmt: skip
        if numbers:
            with closing(_loaded(cgroup, assemble(numbers))) as fd:
                _attach(cgroup, folder, fd)
        for number in earlier:
            with suppress(FileNotFoundError), closing(_by_id(number)) as fd:
                _call(cgroup, _DETACH, struct.pack("=III", folder, fd, _CGROUP_DEVICE))


def _attach(cgroup: str, folder: int, program: int) -> None:
    try:
        _call(cgroup, _ATTACH, struct.pack("=IIII", folder, program, _CGROUP_DEVICE, _ALLOW_MULTI))
    except KernelRefused as error:
        if error.errno != errnos.EPERM or os.geteuid() != 0:
            raise
        hint = "bpftool cgroup tree shows programs that were attached without the flag multi"
        raise HostError(f"a device program of another owner on {cgroup}, or above it, allows no second one",
                        hint=hint) from None  # fmt: skip


def _below(home: str) -> Iterator[str]:
    waiting, seen = [""], 0
    while waiting and seen < MOST_CGROUPS:
        parent = waiting.pop()
        with suppress(OSError), os.scandir(home + parent) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            waiting += [f"{parent}/{name}" for name in names if readable(name) == name]
        if parent:
            seen += 1
            yield parent


def _opened(cgroup: str, home: str) -> AbstractContextManager[int]:
    """Open the directory of a cgroup, name by name, without following links."""
    fd = -1
    try:
        fd = os.open(home, _FOLDERS)
        for name in cgroup.strip("/").split("/"):
            above, fd = fd, os.open(name, _FOLDERS, dir_fd=fd)
            os.close(above)
    except (OSError, ValueError) as error:
        if fd >= 0:
            os.close(fd)
        errno = error.errno if isinstance(error, OSError) else None
        raise KernelRefused(home + cgroup, errno or errnos.EINVAL) from None
    return closing(fd)


def _attached(cgroup: str, folder: int) -> list[int]:
    ids = (ctypes.c_uint32 * _MOST_PROGRAMS)()
    asked = struct.pack("=IIIIQI4x", folder, _CGROUP_DEVICE, 0, 0, ctypes.addressof(ids), _MOST_PROGRAMS)
    buffer = ctypes.create_string_buffer(asked, _ATTRIBUTE_BYTES)
    _call(cgroup, _QUERY, buffer)
    (count,) = struct.unpack_from("=I", buffer.raw, 24)
    return list(ids[: min(count, _MOST_PROGRAMS)])


def _described(number: int) -> DeviceProgram | None:
    """Return what the kernel says of a program; None if it has just been detached."""
    try:
        with closing(_by_id(number)) as fd:
            code = ctypes.create_string_buffer(_MOST_INSTRUCTIONS)
            info = ctypes.create_string_buffer(_INFO_BYTES)
            struct.pack_into("=I", info, 20, _MOST_INSTRUCTIONS)
            struct.pack_into("=Q", info, 32, ctypes.addressof(code))
            _bpf(_INFO, struct.pack("=IIQ", fd, _INFO_BYTES, ctypes.addressof(info)))
    except FileNotFoundError:
        return None
    length, user = struct.unpack_from("=I", info, 20)[0], struct.unpack_from("=I", info, 48)[0]
    name = info.raw[64 : 64 + _NAME_BYTES].partition(b"\0")[0].decode("ascii", "replace")
    refused = refused_by(code.raw[:length]) if 0 < length <= _MOST_INSTRUCTIONS else None
    return DeviceProgram(number, name, user, refused)


def _by_id(number: int) -> int:
    """Return a descriptor of a program. Raises FileNotFoundError if it is gone; KernelRefused."""
    try:
        return _bpf(_BY_ID, struct.pack("=III", number, 0, 0))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise KernelRefused(f"BPF program {number}", error.errno or errnos.EIO) from None


def _loaded(cgroup: str, instructions: bytes) -> int:
    code = ctypes.create_string_buffer(instructions, len(instructions))
    licence = ctypes.create_string_buffer(b"GPL")
    start = struct.pack("=IIQQ", _CGROUP_DEVICE_PROGRAM, len(instructions) // 8, ctypes.addressof(code),
                        ctypes.addressof(licence))  # fmt: skip
    return _call(cgroup, _LOAD, start + struct.pack("=IIQII16s", 0, 0, 0, 0, 0, NAME.encode()))


def _call(cgroup: str, command: int, attributes: bytes | ctypes.Array[ctypes.c_char]) -> int:
    try:
        return _bpf(command, attributes)
    except OSError as error:
        if error.errno in (errnos.ENOSYS, errnos.EINVAL, errnos.EBADF):
            hint = f"it needs Linux 4.15 with CONFIG_CGROUP_BPF, and cgroup version 2 at {CGROUPS}"
            failure = HostError(f"the kernel takes no device program for {cgroup}", hint=hint)
            failure.kernel_said = f"{errnos.errorcode[error.errno]}: {error.strerror}"
            raise failure from None
        raise KernelRefused(f"{CGROUPS}{cgroup}", error.errno or errnos.EIO, "a device program") from None


def _bpf(command: int, attributes: bytes | ctypes.Array[ctypes.c_char]) -> int:
    """Call bpf(2). Raises OSError; HostError on a processor whose number for it is not known here."""
    machine = os.uname().machine
    number = _SYSCALLS.get(machine)
    if number is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        raise HostError(f"vfioctl does not know the kernel's BPF call on {machine}", hint=f"it does on {[*_SYSCALLS]}")
    buffer = attributes
    if isinstance(buffer, bytes):
        buffer = ctypes.create_string_buffer(buffer, _ATTRIBUTE_BYTES)
    return call(number, command, ctypes.addressof(buffer), len(buffer))
