"""Who else than root may open the device nodes of a claim. Looks up users and groups, and reads nothing else."""

from __future__ import annotations

import grp
import pwd
import re
from typing import NamedTuple

from vfioctl.errors import BadSpec

ACCESS = "access"
"""The label of a claim whose device nodes a user or a group may open. Its value is `Access.text`."""
_NUMBERS = re.compile(r"([0-9]{1,10}):([0-9]{1,10})", re.ASCII)
_MOST = 2**32 - 2
"""The highest uid and gid: 2**32 - 1 stands for none (chown(2))."""


class Access(NamedTuple):
    """The user and the group that may open a device node. 0: only root may."""

    uid: int = 0
    gid: int = 0

    @property
    def text(self) -> str:
        """`1000:0`, as a claim's label has it."""
        return f"{self.uid}:{self.gid}"

    @property
    def permissions(self) -> str:
        """Owner, group and mode of the node, as `Reader.permissions` returns them."""
        return f"{self.uid}:{self.gid}:{'660' if self.gid else '600'}"


def access_in(text: str) -> Access:
    """Return the access that `USER`, `:GROUP` or `USER:GROUP` means; names or numbers. Raises BadSpec."""
    user, _, group = text.partition(":")
    access = Access(_user(user) if user else 0, _group(group) if group else 0)
    if access == Access():
        raise BadSpec(f"not a user or a group: {text[:60]!r}", hint="write USER, :GROUP or USER:GROUP; root needs none")
    return access


def labelled_access(text: str) -> Access:
    """Return the access that a claim's label names. Raises BadSpec."""
    match = _NUMBERS.fullmatch(text)
    if match is None or max(map(int, match.groups())) > _MOST:
        raise BadSpec(f"not the access of a claim: {text[:60]!r}", hint="claim create --access sets it")
    return Access(int(match[1]), int(match[2]))


def _user(name: str) -> int:
    try:
        return _number(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        raise BadSpec(f"there is no user {name[:60]!r}", hint="getent passwd lists them") from None


def _group(name: str) -> int:
    try:
        return _number(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        raise BadSpec(f"there is no group {name[:60]!r}", hint="getent group lists them") from None


def _number(text: str) -> int:
    number = int(text) if text.isascii() and len(text) < 11 else _MOST + 1
    if number > _MOST:
        raise ValueError(text)
    return number
