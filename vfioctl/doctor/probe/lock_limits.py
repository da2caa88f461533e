"""Reads how much memory users may lock. May not write. Sources: limits.conf(5), systemd-system.conf(5)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vfioctl.claims.model.access import Access
from vfioctl.doctor.model.facts import FileText, LockLimit
from vfioctl.doctor.probe.accounts import ID, entries, memberships, names_by_id
from vfioctl.doctor.probe.files import read_text
from vfioctl.kernel.lenient import names_in, text_of
from vfioctl.kernel.protocol import FileReader

_PAM, _SYSTEMD = "/etc/security/limits", "systemd/system.conf"
_HOMES = ("/usr/lib", "/usr/local/lib", "/run", "/etc")
"""Where systemd looks, those that take precedence last."""
_DEFAULT = 8 << 20
"""Of systemd since 251, and of Linux since 5.16; before it was 64 KiB."""
_MOST_FILES = 200
_SETTING = re.compile(r"^[ \t]*DefaultLimitMEMLOCK[ \t]*=[ \t]*([^:\s]{1,24})(?::\S*)?[ \t]*$", re.MULTILINE)
_SIZE = re.compile(r"([0-9]{1,15})([KMGT]?)", re.ASCII)
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_ANY = ("unlimited", "infinity", "-1")
_FIELDS = 4
_MOST_ID = 2**32 - 1


class _Limit(NamedTuple):
    size: int | None
    """None: any"""
    source: str


class _Subject(NamedTuple):
    """Whose processes have a limit: a user, or the members of a group."""

    user: str
    """Empty for members of a group."""
    uid: int
    primary: int | None
    """The gid of the user's own group, which alone counts in ranges of gids."""
    gids: frozenset[int]
    groups: frozenset[str]
    """Their names."""


class LimitFiles:
    """The files that set limits, read once."""

    def __init__(self, kernel: FileReader) -> None:
        names = [name for name in names_in(kernel, f"{_PAM}.d") if name.endswith(".conf")]
        paths = [f"{_PAM}.conf", *(f"{_PAM}.d/{name}" for name in names[:_MOST_FILES])]
        self._pam = [read_text(kernel, path) for path in paths]
        self._systemd = [read_text(kernel, path) for path in _systemd_paths(kernel)]
        passwd, group = text_of(kernel, "/etc/passwd"), text_of(kernel, "/etc/group")
        self._users, self._groups = names_by_id(passwd), names_by_id(group)
        self._primary = {f[0]: int(f[3]) for f in entries(passwd) if ID.fullmatch(f[3])}
        self._members = memberships(group)

    def limit_of(self, claim: str, access: Access, memory: int | None) -> LockLimit:
        """Return the limit of the user, or of the members of the group, that may open the nodes of a claim."""
        user = self._users.get(access.uid, str(access.uid)) if access.uid else ""
        group = self._groups.get(access.gid, str(access.gid)) if access.gid else ""
        limit = self._limit(self._subject(access, user))
        unread = next((file for file in (*self._pam, *self._systemd) if file.refused), None)
        return LockLimit(claim, user or f"@{group}", limit.size, limit.source, memory, unread)

    def _subject(self, access: Access, user: str) -> _Subject:
        """Return whose processes have a limit. Of members of a group, only that group is known."""
        primary = self._primary.get(user)
        gids = {*self._members.get(user, ()), *([access.gid] if access.gid else ())}
        gids |= set() if primary is None else {primary}
        groups = {self._groups[gid] for gid in gids if gid in self._groups}
        return _Subject(user, access.uid, primary, frozenset(gids), frozenset(groups))

    def _limit(self, subject: _Subject) -> _Limit:
        """The soft limit counts, which the hard one bounds; the most exact line, and of two such lines the last one."""
        lines = [line for file in self._pam for line in _lines(file, subject)]
        soft = _last(lines, ("-", "soft")) or self._default()
        hard = _last(lines, ("-", "hard"))
        if hard is not None and hard.size is not None and (soft.size is None or soft.size > hard.size):
            return hard
        return soft

    def _default(self) -> _Limit:
        found = _Limit(_DEFAULT, "the default of systemd")
        for file in self._systemd:
            for text in _SETTING.findall(file.text or ""):
                known, size = _systemd_size(text)
                found = _Limit(size, f"{file.path}: DefaultLimitMEMLOCK={text}") if known else found
        return found


class _Line(NamedTuple):
    rank: int
    """How exact it is: of all users, of a group, of the user."""
    kind: str
    limit: _Limit


def _lines(file: FileText, subject: _Subject) -> Iterator[_Line]:
    for text in (file.text or "").splitlines():
        fields = text.partition("#")[0].split()
        if len(fields) == _FIELDS and fields[2].lower() == "memlock" and (rank := _rank(fields[0], subject)):
            known, size = _pam_size(fields[3])
            if known:
                yield _Line(rank, fields[1], _Limit(size, f"{file.path}: {' '.join(fields)}"))


def _rank(domain: str, subject: _Subject) -> int:
    """Return how exactly the first field of a line names somebody; 0 if it does not. Source: pam_limits.c of
    Linux-PAM, parse_config_file: a range of uids counts like the user, one of gids like a group."""
    if domain == "*":
        return 1
    if domain.startswith("@"):
        numbers = _range(domain[1:])
        if numbers is None:
            return 2 if domain[1:] in subject.groups else 0
        gids = subject.gids if domain[1] == ":" else (subject.primary,)
        return 2 if any(gid is not None and gid in numbers for gid in gids) else 0
    numbers = _range(domain)
    is_named = domain == subject.user if numbers is None else subject.uid in numbers
    return 3 if subject.user and is_named else 0


def _range(text: str) -> range | None:
    """Return the ids of `MIN:MAX`, `MIN:` or `:ID`; None for a name."""
    least, colon, most = text.partition(":")
    if not colon or not (least or most) or not all(ID.fullmatch(part or "0") for part in (least, most)):
        return None
    return range(int(least or most), (int(most) if most else _MOST_ID) + 1)


def _last(lines: Sequence[_Line], kinds: Sequence[str]) -> _Limit | None:
    fitting = [line for line in lines if line.kind in kinds]
    best = max((line.rank for line in fitting), default=0)
    return next((line.limit for line in reversed(fitting) if line.rank == best), None)


def _pam_size(text: str) -> tuple[bool, int | None]:
    """Return whether a text is a limit, and its bytes: it is in KiB."""
    if text in _ANY:
        return True, None
    match = _SIZE.fullmatch(text)
    return (True, int(match[1]) << 10) if match and not match[2] else (False, None)


def _systemd_size(text: str) -> tuple[bool, int | None]:
    if text in _ANY:
        return True, None
    match = _SIZE.fullmatch(text)
    return (True, int(match[1]) << _UNITS[match[2]]) if match else (False, None)


def _systemd_paths(kernel: FileReader) -> list[str]:
    """Return the main file and the drop-ins: a file hides those of its name in earlier homes."""
    mains = [path for home in _HOMES if kernel.has(path := f"{home}/{_SYSTEMD}")]
    folders = [f"{home}/{_SYSTEMD}.d" for home in _HOMES]
    places = {name: folder for folder in folders for name in names_in(kernel, folder) if name.endswith(".conf")}
    return [*mains[-1:], *(f"{folder}/{name}" for name, folder in sorted(places.items())[:_MOST_FILES])]
