"""Plans DevicePolicy and DeviceAllow of a unit: everything that it may open now, but for some GPUs. May not do input or
output. Source: systemd.resource-control(5)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from vfioctl.sharing.allowing.values import Setting

_LINE = re.compile(r"^ *([0-9]{1,4}) (\S{1,64})$", re.M)
_PLAIN = re.compile(r"[A-Za-z0-9_./:+-]+", re.ASCII)
_NODE = re.compile(r"/dev/char/([0-9]{1,4}:[0-9]{1,7})", re.ASCII)
ALL = "rwm"
STANDARD = "/dev/null, zero, full, random, urandom, tty and pseudo terminals"
"""What systemd always allows beside the list, unless the policy is strict."""


class Classes(NamedTuple):
    """The classes of character devices by major number, and the numbers of all nodes that are known."""

    names: Mapping[str, tuple[str, ...]]
    known: frozenset[str]
    paths: Mapping[str, str] = {}
    """the number of the node that an entry names by another path than /dev/char/MAJOR:MINOR"""

    def major_of(self, name: str) -> str:
        """Return the major number of the class; empty if there is none."""
        return next((major for major, names in self.names.items() if name in names), "")


def classes_in(text: str) -> Mapping[str, tuple[str, ...]]:
    """Return the classes of character devices by major number, from the text of /proc/devices."""
    characters = text.partition("Block devices:")[0]
    names: dict[str, tuple[str, ...]] = {}
    for major, name in _LINE.findall(characters):
        names[major] = (*names.get(major, ()), name)
    return names


def restricted(setting: Setting, classes: Classes, *, refused: Collection[str], allowed: Collection[str]) -> Setting:
    """Return the setting that refuses some numbers, allows others, and leaves the rest as far as systemd can.

    DeviceAllow only allows. So of a unit that may open everything, all classes without a refused node are listed, and
    of the other classes each node that is known and not refused."""
    present = setting.entries if setting.restricts else (f"block-* {ALL}", f"char-* {ALL}")
    entries = [entry for line in present for entry in _without(line, classes, refused)]
    covered = Setting(setting.policy, tuple(entries))
    entries += [_entry(number, "rw") for number in allowed if not allows(covered, classes, number)]
    # without an entry, `auto` allows everything
    policy = "closed" if setting.policy == "auto" and not entries else setting.policy
    return Setting(policy, tuple(sorted(_merged(entries))))


def allows(setting: Setting, classes: Classes, number: str) -> bool:
    """Return whether a unit with this setting may open a node, which is no standard one."""
    if not setting.restricts:
        return True
    names = classes.names.get(_major(number), ())
    for entry in setting.entries:
        path, _, _ = entry.partition(" ")
        if path.startswith("char-") and any(fnmatchcase(name, path[5:]) for name in names):
            return True
        if path == "char-*" or _number(path, classes) == number:
            return True
    return False


def _merged(entries: Iterable[str]) -> Iterator[str]:
    """Yield an entry for each path, as systemd keeps and shows it: with the access of all of them."""
    accesses: dict[str, str] = {}
    for entry in entries:
        path, _, access = entry.partition(" ")
        accesses[path] = accesses.get(path, "") + (access or ALL)
    for path, access in accesses.items():
        yield f"{path} {''.join(letter for letter in ALL if letter in access)}"


def _without(line: str, classes: Classes, refused: Collection[str]) -> Iterator[str]:
    path, _, access = line.partition(" ")
    if not path.startswith("char-"):
        if _number(path, classes) not in refused:
            yield line
        return
    pattern = path[5:]
    majors = {major for major, names in classes.names.items() if any(fnmatchcase(name, pattern) for name in names)}
    tainted = {_major(number) for number in refused}
    if not majors & tainted and pattern != "*":
        yield line
        return
    tainted_names = {name for major in tainted for name in classes.names.get(major, ())}
    for major in sorted(majors):
        names = [name for name in classes.names[major] if name not in tainted_names and _PLAIN.fullmatch(name)]
        if major not in tainted and names:
            yield f"char-{names[0]} {access}"
        else:
            yield from (_entry(n, access) for n in classes.known if _major(n) == major and n not in refused)


def notes(setting: Setting, classes: Classes, refused: Collection[str]) -> Iterable[str]:
    """Return what a unit loses beside the refused nodes, for the plan."""
    tainted = sorted({name for number in refused for name in classes.names.get(_major(number), ())})
    if setting.restricts:
        yield "the unit has a list of devices already: what it allows stays, but for the refused nodes"
        return
    yield (
        f"systemd can only list what a unit may open: it keeps {STANDARD}, block devices, all classes of "
        f"/proc/devices, and the nodes of {', '.join(tainted)} that exist now"
    )
    yield "the unit also loses what appears later: classes of drivers that are loaded later, and new nodes of these"


def _entry(number: str, access: str) -> str:
    return f"/dev/char/{number.removeprefix('c ')} {access}"


def _number(path: str, classes: Classes) -> str:
    match = _NODE.fullmatch(path)
    return f"c {match[1]}" if match else classes.paths.get(path, "")


def _major(number: str) -> str:
    return number.removeprefix("c ").partition(":")[0]
