"""What a rule yields, and the type of a rule. May not do input or output."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from xml.etree.ElementTree import Element

from vfioctl.domain.model.finding import Severity

if TYPE_CHECKING:
    from vfioctl.domain.document.reader import Domain


K = TypeVar("K", bound=Hashable)


class Fault(NamedTuple):
    """What is wrong with an element; an error unless it says otherwise."""

    element: Element
    reason: str
    remedy: str
    severity: Severity = Severity.ERROR


def warning(element: Element, reason: str, remedy: str) -> Fault:
    """Return a fault with which the domain works, but slower, or not everywhere."""
    return Fault(element, reason, remedy, Severity.WARNING)


def refused_before(
    domain: Domain, since: tuple[int, int], element: Element, reason: str, remedy: str
) -> Iterator[Fault]:
    """Yield what libvirt refuses before the version `since`: a warning if the version is not known.

    `reason`: with {} for the version.
    """
    if domain.version is None or domain.version < since:
        severity = Severity.WARNING if domain.version is None else Severity.ERROR
        yield Fault(element, reason.format(".".join(map(str, since))), remedy, severity)


def repeats(keys: Iterable[tuple[Element, K | None]]) -> Iterator[tuple[Element, K, Element]]:
    """Yield each element with a key that an earlier one has, the key, and the first one. None is no key."""
    first: dict[K, Element] = {}
    for element, key in keys:
        if key is not None and first.setdefault(key, element) is not element:
            yield element, key, first[key]


def at_most_one(*paths: str, remedy: str = "keep one of them") -> Rule:
    """Return the rule that there is at most one element of each path."""

    def judge(domain: Domain) -> Iterator[Fault]:
        for path in paths:
            for extra in domain.all(path)[1:]:
                yield Fault(extra, f"there are two <{extra.tag}>", remedy)

    return judge


Rule = Callable[["Domain"], Iterable[Fault]]
