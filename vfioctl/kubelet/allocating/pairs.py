"""What a container was given of the first resource of a pair, until the kubelet asks for the second. In memory: both
calls come to one service, one right after the other."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

_SECONDS = 10.0
"""Between the end of the first call and the second one: the kubelet takes milliseconds."""


class _First(NamedTuple):
    claim: str
    resource: str
    at: float


_guard = threading.Lock()
_firsts: dict[tuple[str, frozenset[str]], _First] = {}


def note(ledger: str, pair: frozenset[str], resource: str, claim: str) -> None:
    """Note the claim of a first call. `ledger`: the one it is in."""
    with _guard:
        _firsts[ledger, pair] = _First(claim, resource, time.monotonic())


def peek(ledger: str, pair: frozenset[str], resource: str) -> str:
    """Return the claim of the call right before, if that was for the other resource of the pair; else nothing."""
    with _guard:
        first = _firsts.get((ledger, pair))
    is_it = first and first.resource != resource and time.monotonic() < first.at + _SECONDS
    return first.claim if first and is_it else ""


def take(ledger: str, pair: frozenset[str], resource: str) -> str:
    """Return the same, and forget it: only one call is the second one."""
    claim = peek(ledger, pair, resource)
    with _guard:
        _firsts.pop((ledger, pair), None)
    return claim
