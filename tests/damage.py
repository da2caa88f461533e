"""Damages a directory tree as disks, archives and hostile people do: for tests of `--root` on a copy."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

OUTWARD = ("/etc/passwd", "/dev/zero", "/proc/self/mem", "../../../../../../../../etc/passwd", "/", "", "x/" * 2000)
TEXTS = (
    b"",
    b"\n",
    b"\0",
    b"-1",
    b"0x",
    b"\xff\xfe\x80",
    b"\x1b]0;owned\x07\x1b[31m",
    "\u202e\u2028\u0663\x9b31m".encode(),
    b"9" * 5000,
    b"1 2 3\n" * 5000,
    b"../../..",
    b"0xffffffffffffffff 0x0 0x200",
)
NAMES = (
    b"\x1b[31mred",
    b"two\nlines",
    b"\xff\xfe",
    "\u202eright".encode(),
    b"0000:00:00.9",
    b"0000:ZZ:00.0",
    b"-rf",
    b"9" * 200,
    b"x" * 255,
    b" ",
    b"%s{}[red]",
)


def damage(root: Path, chance: random.Random, times: int) -> list[str]:
    """Damage a tree in place, at so many places. Returns what was done, for the message of a test that fails.

    Each directory is chosen as often as another, however many files it has. /sys, /proc and their like stay.
    """
    folders = [folder for folder in sorted(root.rglob("*/")) if folder.parent != root and not folder.is_symlink()]
    places = [entries for folder in folders if (entries := sorted(folder.iterdir()))]
    return [_damage_one(chance.choice(chance.choice(places)), chance) for _ in range(times)]


def _damage_one(path: Path, chance: random.Random) -> str:
    change = chance.choice(_CHANGES)
    if not os.path.lexists(path.parent) or not path.parent.is_dir():
        return f"{path}: gone with its directory"
    change(path, chance)
    return f"{path}: {change.__name__.removeprefix('_')}"


def _remove(path: Path, _: random.Random) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _truncate(path: Path, chance: random.Random) -> None:
    content = _content(path)
    _put(path, chance, content[: chance.randint(0, len(content))])


def _replace(path: Path, chance: random.Random) -> None:
    _put(path, chance, chance.choice(TEXTS))


def _append(path: Path, chance: random.Random) -> None:
    content = _content(path)
    _put(path, chance, content.rstrip(b"\n") + chance.choice(TEXTS))


def _enlarge(path: Path, chance: random.Random) -> None:
    _put(path, chance, b"1\n")
    os.truncate(path, 1 << 36)  # sparse


def _make_a_directory(path: Path, chance: random.Random) -> None:
    _remove(path, chance)
    path.mkdir()


def _make_a_pipe(path: Path, chance: random.Random) -> None:
    _remove(path, chance)
    os.mkfifo(path)


def _make_a_loop(path: Path, chance: random.Random) -> None:
    _remove(path, chance)
    path.symlink_to(chance.choice((path.name, "..", ".", path.parent)))


def _lead_outward(path: Path, chance: random.Random) -> None:
    _remove(path, chance)
    path.symlink_to(chance.choice(OUTWARD) or "nowhere")


def _add_a_name(path: Path, chance: random.Random) -> None:
    """Beside the path: a file, a directory, or a copy of the link."""
    there = os.path.join(os.fsencode(path.parent), chance.choice(NAMES))
    if os.path.lexists(there):
        return
    if path.is_symlink():
        os.symlink(os.readlink(os.fsencode(path)), there)
    elif path.is_dir():
        os.mkdir(there)
    else:
        Path(os.fsdecode(there)).write_bytes(chance.choice(TEXTS))


def _content(path: Path) -> bytes:
    if path.is_symlink() or not path.is_file():
        return b""
    with path.open("rb") as stream:
        return stream.read(1 << 16)


def _put(path: Path, chance: random.Random, content: bytes) -> None:
    _remove(path, chance)
    path.write_bytes(content)


_CHANGES: tuple[Callable[[Path, random.Random], None], ...] = (
    _remove,
    _truncate,
    _replace,
    _append,
    _enlarge,
    _make_a_directory,
    _make_a_pipe,
    _make_a_loop,
    _lead_outward,
    _add_a_name,
)
