"""The program that refuses device nodes, run by an interpreter of the few instructions that it has."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfioctl.kernel.device_program import MOST, assemble, ordered, parse_number, refused_by

CHARACTER, BLOCK = 2, 1
OPEN_RW, MKNOD = 6, 1
MAJORS, MINORS = st.integers(0, 4095), st.integers(0, (1 << 20) - 1)
NUMBERS = st.builds("c {}:{}".format, MAJORS, MINORS)


def verdict(program: bytes, *, kind: int, access: int, major: int, minor: int) -> int:
    """What the kernel gets from the program for an access: 1 allows it. Independent of how it is assembled."""
    context = struct.pack("=III", access << 16 | kind, major, minor)
    code = list(struct.iter_unpack("=BBhi", program))
    registers, at = [0] * 11, 0
    while True:
        operation, pair, offset, value = code[at]
        target, source = pair & 15, pair >> 4
        at += 1
        if operation == 0x61:  # BPF_LDX | BPF_MEM | BPF_W
            assert source == 1
            (registers[target],) = struct.unpack_from("=I", context, offset)
        elif operation == 0x57:  # BPF_ALU64 | BPF_AND | BPF_K
            registers[target] &= value
        elif operation == 0xB7:  # BPF_ALU64 | BPF_MOV | BPF_K
            registers[target] = value
        elif operation == 0x15:  # BPF_JMP | BPF_JEQ | BPF_K
            assert offset >= 0, "it has no loops"
            at += offset if registers[target] == value else 0
        elif operation == 0x55:  # BPF_JMP | BPF_JNE | BPF_K
            assert offset >= 0, "it has no loops"
            at += offset if registers[target] != value else 0
        elif operation == 0x95:  # BPF_EXIT
            return registers[0]
        else:
            raise AssertionError(f"an instruction that it should not have: {operation:#x}")


@settings(deadline=None)
@given(st.sets(NUMBERS, min_size=1, max_size=60), st.data())
def test_refuses_exactly_what_the_list_says(refused: set[str], data: st.DataObject) -> None:
    program = assemble(refused)
    near = [parse_number(number) for number in sorted(refused)]
    major = data.draw(st.one_of(MAJORS, st.sampled_from([major for major, _ in near])))
    minor = data.draw(st.one_of(MINORS, st.sampled_from([minor for _, minor in near])))
    access = data.draw(st.integers(1, 7))
    allowed = verdict(program, kind=CHARACTER, access=access, major=major, minor=minor)
    assert allowed == (f"c {major}:{minor}" not in refused)


@settings(deadline=None)
@given(st.sets(NUMBERS, min_size=1, max_size=20))
def test_refuses_each_number_and_no_block_device(refused: set[str]) -> None:
    program = assemble(refused)
    for major, minor in map(parse_number, refused):
        for access in (OPEN_RW, MKNOD):
            assert verdict(program, kind=CHARACTER, access=access, major=major, minor=minor) == 0
            assert verdict(program, kind=BLOCK, access=access, major=major, minor=minor) == 1


@settings(deadline=None)
@given(st.sets(NUMBERS, min_size=1, max_size=60))
def test_is_read_back(refused: set[str]) -> None:
    assert refused_by(assemble(refused)) == ordered(refused)


@settings(deadline=None)
@given(st.sets(NUMBERS, min_size=1, max_size=5), st.data())
def test_a_program_of_others_is_not_read(refused: set[str], data: st.DataObject) -> None:
    program = bytearray(assemble(refused))
    place = data.draw(st.integers(0, len(program) - 1))
    program[place] ^= data.draw(st.integers(1, 255))
    read = refused_by(bytes(program))
    assert read is None or assemble(read) == bytes(program)


@pytest.mark.parametrize("program", [b"", b"\x95", bytes(8), struct.pack("=BBhi", 0x95, 0, 0, 0) * 10, bytes(1 << 15)])
def test_other_texts_are_no_program(program: bytes) -> None:
    assert refused_by(program) is None


@pytest.mark.parametrize("number", ["", "c 1", "b 8:0", "c 4096:0", "c 1:1048576", "c -1:0", "c \u0661:1", "c 1:1\n"])
def test_other_texts_are_no_number(number: str) -> None:
    with pytest.raises(ValueError, match="not the number"):
        assemble([number])


@pytest.mark.parametrize("count", [0, MOST + 1])
def test_has_a_limit(count: int) -> None:
    with pytest.raises(ValueError, match="refuses 1 to"):
        assemble([f"c 1:{minor}" for minor in range(count)])


def test_the_longest_program_reaches_its_end() -> None:
    program = assemble([f"c 1:{minor}" for minor in range(MOST)])
    assert verdict(program, kind=CHARACTER, access=OPEN_RW, major=1, minor=0) == 0
    assert verdict(program, kind=CHARACTER, access=OPEN_RW, major=1, minor=MOST - 1) == 0
    assert verdict(program, kind=CHARACTER, access=OPEN_RW, major=1, minor=MOST) == 1
    assert verdict(program, kind=BLOCK, access=OPEN_RW, major=1, minor=0) == 1
