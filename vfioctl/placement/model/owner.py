"""Who may hold a claim: a VM, a container, or a person. May not do input or output."""

from __future__ import annotations

import re
from typing import Self

from vfioctl.errors import BadSpec

_FORMS = {"vm": 1, "pod": 3, "user": 1}
"""The number of names that follow each kind."""
_LONGEST = 253  # of a Kubernetes object's name; libvirt and Linux allow less, or nothing that we refuse
_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.@:+-]*", re.ASCII)


class Owner(str):
    """The owner of a claim: ``vm/NAME``, ``pod/NAMESPACE/NAME/CONTAINER`` or ``user/NAME``. Raises BadSpec."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        kind, *names = text.split("/")
        if _FORMS.get(kind) != len(names) or not all(len(n) <= _LONGEST and _NAME.fullmatch(n) for n in names):
            raise BadSpec(
                f"not an owner: {text[:60]!r}", hint="write it as vm/NAME, pod/NAMESPACE/NAME/CONTAINER or user/NAME"
            )
        return super().__new__(cls, text)

    @property
    def kind(self) -> str:
        """``vm``, ``pod`` or ``user``."""
        return self.partition("/")[0]

    @property
    def name(self) -> str:
        """What follows the kind."""
        return self.partition("/")[2]
