"""The program that refuses device nodes to a cgroup: assembles it from numbers, and reads them back. May not load it.

It is of type BPF_PROG_TYPE_CGROUP_DEVICE: the kernel runs it for each open and mknod of a device node by a process of
the cgroup, with a `struct bpf_cgroup_dev_ctx` (linux/bpf.h), and refuses with EPERM where it returns 0."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vfioctl.kernel.device_lists import DeviceProgram

NAME = "vfioctl_allow"
"""The program's name, by which vfioctl knows its own: at most 15 characters (BPF_OBJ_NAME_LEN)."""
MOST = 1000
"""Numbers that one program may refuse."""
_NUMBER = re.compile(r"c ([0-9]{1,4}):([0-9]{1,7})", re.ASCII)
_MOST_MAJOR, _MOST_MINOR = (1 << 12) - 1, (1 << 20) - 1  # MINORBITS, linux/kdev_t.h
_FORM = struct.Struct("=BBhi")
"""`struct bpf_insn`: code, registers (destination in the low half on little-endian machines), offset, immediate."""
_LOAD, _AND, _MOVE, _EXIT, _IF_EQUAL, _UNLESS_EQUAL = 0x61, 0x57, 0xB7, 0x95, 0x15, 0x55
_CHARACTER = 2  # BPF_DEVCG_DEV_CHAR
_CONTEXT, _TYPE, _MAJOR, _MINOR, _RESULT = 1, 2, 3, 4, 0
_START, _END = 5, 4
"""Instructions before the first number and after the last one."""
_Instruction = tuple[int, int, int, int]


def is_own(program: DeviceProgram) -> bool:
    """Return whether vfioctl, run by root, has attached a program: anybody may name one so, but only root loads it."""
    return program.name == NAME and program.uid == 0


def parse_number(text: str) -> tuple[int, int]:
    """Return major and minor of `c 195:0`. Raises ValueError, also for a number that no device can have."""
    match = _NUMBER.fullmatch(text)
    if match is None or int(match[1]) > _MOST_MAJOR or int(match[2]) > _MOST_MINOR:
        raise ValueError(f"not the number of a character device: {text[:40]!r}")
    return int(match[1]), int(match[2])


def ordered(numbers: Iterable[str]) -> tuple[str, ...]:
    """Return the numbers once each, in the order that programs have. Raises ValueError."""
    return tuple(f"c {major}:{minor}" for major, minor in sorted({parse_number(number) for number in numbers}))


def assemble(refused: Iterable[str]) -> bytes:
    """Return the instructions that refuse these character devices and no other device. Raises ValueError for none or
    for more than `MOST`."""
    pairs = [parse_number(number) for number in ordered(refused)]
    if not 0 < len(pairs) <= MOST:
        raise ValueError(f"a program refuses 1 to {MOST} devices, not {len(pairs)}")
    after = 2 * len(pairs)
    code: list[_Instruction] = [
        (_LOAD, _TYPE | _CONTEXT << 4, 0, 0),
        (_AND, _TYPE, 0, 0xFFFF),  # the high half is the kind of access
        (_LOAD, _MAJOR | _CONTEXT << 4, 4, 0),
        (_LOAD, _MINOR | _CONTEXT << 4, 8, 0),
        (_UNLESS_EQUAL, _TYPE, after, _CHARACTER),
    ]
    for index, (major, minor) in enumerate(pairs):
        to_refusal = after - 2 * index
        code += [(_UNLESS_EQUAL, _MAJOR, 1, major), (_IF_EQUAL, _MINOR, to_refusal, minor)]
    code += [(_MOVE, _RESULT, 0, 1), (_EXIT, 0, 0, 0), (_MOVE, _RESULT, 0, 0), (_EXIT, 0, 0, 0)]
    return b"".join(_FORM.pack(*instruction) for instruction in code)


def refused_by(instructions: bytes) -> tuple[str, ...] | None:
    """Return the numbers that a program refuses; None for one that `assemble` does not make.

    The kernel's verifier leaves such a program as it is: there is no code in it that never runs, and the context is
    read as it is (cg_dev_verifier_ops converts no access)."""
    if len(instructions) % _FORM.size or len(instructions) > (2 * MOST + _START + _END) * _FORM.size:
        return None
    code = list(_FORM.iter_unpack(instructions))
    pairs = code[_START : len(code) - _END]
    numbers = [f"c {major[3]}:{minor[3]}" for major, minor in zip(pairs[::2], pairs[1::2], strict=False)]
    try:
        return _same(numbers, instructions)
    except ValueError:
        return None


def _same(numbers: Sequence[str], instructions: bytes) -> tuple[str, ...] | None:
    return ordered(numbers) if assemble(numbers) == instructions else None
