"""The names under which GPU time is counted: a bounded number of control groups. May not do I/O."""

from __future__ import annotations

from collections.abc import Collection

from vfioctl.sharing.model.gpu_time import OTHER
from vfioctl.sharing.model.settings import MOST_GROUPS

_MOST_KNOWN = 65_536
_LONGEST = 512
"""Characters of the name of a group that is not listed: users choose them."""


class GroupNames:
    """Maps the group of a process to the name under which its time is counted. `listed`: the paths of listed groups,
    each with all groups below it; without any, each group is counted by itself, as long as there are not too many."""

    def __init__(self, listed: Collection[str] = ()) -> None:
        self._listed = frozenset(listed)
        self._known: dict[str, str] = {}
        self._own: set[str] = set()

    def name_of(self, path: str | None) -> str:
        """Return the name of a group. `path`: None if it is not known."""
        if path is None:
            return OTHER
        name = self._known.get(path)
        if name is None:
            name = self._name(path)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[path] = name
        return name

    def forget(self) -> None:
        """Let groups be counted by themselves that have begun to use a GPU since there were too many, in the place of
        those that have ended. Called now and then."""
        if len(self._own) >= MOST_GROUPS:
            self._own.clear()
            self._known.clear()

    def _name(self, path: str) -> str:
        if self._listed:
            above = path
            while above and above not in self._listed:
                above = above.rpartition("/")[0]
            return above or OTHER
        if path not in self._own and (len(self._own) >= MOST_GROUPS or len(path) > _LONGEST):
            return OTHER
        self._own.add(path)
        return path
