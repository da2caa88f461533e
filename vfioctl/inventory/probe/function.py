"""Makes functions of the plain facts that workers have read. May not read the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from vfioctl.inventory.model.functions import Bar, Function, Link, Nvml
from vfioctl.inventory.model.values import PciAddress, known_address
from vfioctl.inventory.probe.pci import Facts
from vfioctl.units import Uuid


def function_of(facts: Facts) -> Function:
    """Return the function with these facts. Raises BadAddress if its directory is not named as a function's."""
    for name, made in _MADE.items():
        if name in facts:
            facts[name] = made(facts[name])
    return Function(**facts)


def _addresses(texts: Iterable[str]) -> tuple[PciAddress, ...]:
    return tuple(map(known_address, texts))


@lru_cache(maxsize=4096)  # all VFs of a PF have the same
def _bars(bars: tuple[tuple[int, int, str, bool], ...]) -> tuple[Bar, ...]:
    return tuple(Bar(index=n, size=size, kind=kind, prefetchable=prefetchable) for n, size, kind, prefetchable in bars)


@lru_cache(maxsize=4096)
def _link(link: tuple[float | None, int | None, float | None, int | None]) -> Link:
    speed, width, max_speed, max_width = link
    return Link(speed=speed, width=width, max_speed=max_speed, max_width=max_width)


_MADE: Mapping[str, Callable[..., object]] = {
    "address": known_address,
    "bars": _bars,
    "link": _link,
    "physfn": known_address,
    "virtfns": _addresses,
    "mdevs": lambda texts: tuple(map(Uuid, texts)),
    "suppliers": _addresses,
    "consumers": _addresses,
    "upstream": lambda text: None if text is None else known_address(text),
    "nvml": lambda facts: Nvml(**facts),
}
"""How fields that are more than texts, numbers and tuples of these are made."""
