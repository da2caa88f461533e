"""What a rule yields, and the type of a rule. May not do input or output."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple
from xml.etree.ElementTree import Element

from vfioctl.domain.model.finding import Severity

if TYPE_CHECKING:
    from vfioctl.domain.document.reader import Domain


class Fault(NamedTuple):
    """What is wrong with an element; an error unless it says otherwise."""

    element: Element
    reason: str
    remedy: str
    severity: Severity = Severity.ERROR


def warning(element: Element, reason: str, remedy: str) -> Fault:
    """Return a fault with which the domain works, but slower, or not everywhere."""
    return Fault(element, reason, remedy, Severity.WARNING)


Rule = Callable[["Domain"], Iterable[Fault]]
