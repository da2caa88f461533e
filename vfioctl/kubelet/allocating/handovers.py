"""Keeps a release that was decided for one container from a claim that another one has been given since. In memory: all
of this happens in the service's process."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from vfioctl.errors import Busy
from vfioctl.kubelet.allocating.deadline import Deadline

_guard = threading.Lock()
_locks: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()  # until nobody has it
_counts: Counter[str] = Counter()


def count_of(claim: str) -> int:
    """Return how often a claim, by its id, was given to a container: what was decided before that is out of date."""
    return _counts[claim]


def given(claim: str) -> None:
    """Note that a claim was given to a container, within `alone_with`."""
    _counts[claim] += 1


def forget(claims: Iterable[str]) -> None:
    """These claims have ended: none of them is given again."""
    for claim in claims:
        _counts.pop(claim, None)


@contextmanager
def alone_with(claim: str, deadline: Deadline) -> Iterator[None]:
    """Give a claim to a container, or release it, and let no other thread do either meanwhile. Raises Busy."""
    with _guard:
        lock = _locks.setdefault(claim, threading.Lock())
    if not lock.acquire(timeout=deadline.left):
        raise Busy(f"claim {claim} is being released", next_command=f"vfioctl claim show {claim}")
    try:
        yield
    finally:
        lock.release()
