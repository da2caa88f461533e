"""What a plan says of a definition of a domain. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vfioctl.domain.model.libvirt import DomainXml

_MOST_FAULTS = 3


def is_ours(text: str) -> bool:
    """Return whether vfioctl wrote a definition."""
    from vfioctl.domain.document.reader import read_domain

    return bool(text) and read_domain(text).mark.is_own


def notes_of_define(name: str, there: DomainXml | None, before: str, after: str) -> tuple[str, ...]:
    """Return what the user should know before a domain is defined. `before` and `after`: its definitions."""
    from vfioctl.domain.document.needs import is_owner, needs_of

    notes = list(_faults(after))
    if needs_of(after).is_anything and not is_owner(name):
        notes.append(
            f"vfioctl will not start it: no owner of a claim can be called vm/{name}; give it a name of "
            "letters, digits and . _ -"
        )
    if before and before != after:
        whose = "" if is_ours(before) else ", which is not of vfioctl,"
        notes.append(f"{name} is defined already; its definition{whose} is replaced")
    if there and there.is_active:
        notes.append(f"{name} runs; the new definition counts when it starts the next time")
    return tuple(notes)


def _faults(text: str) -> Iterator[str]:
    """What is wrong with a document that libvirt would define all the same."""
    from vfioctl.domain.check.checker import judged
    from vfioctl.domain.model.finding import Severity

    errors = [each for each in judged(None, text, None).findings if each.severity is Severity.ERROR]
    for each in errors[:_MOST_FAULTS]:
        yield f"it will not work as it is: {each.path}: {each.reason}"
    if errors[_MOST_FAULTS:]:
        yield f"and {len(errors) - _MOST_FAULTS} more; vfioctl domain check lists them with their remedies"
