"""The shares of GPUs in the ledger: their text in a claim, and the table that adds up what claims have of each GPU."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from typing import Any

from vfioctl.inventory.model.values import PciAddress
from vfioctl.placement.model.share import WHOLE, Enforcement, GpuShare
from vfioctl.untrusted_text import parse_json

NO_SHARES = "[]"
_MOST = 1 << 50
_ADD = """
    INSERT INTO claim_shared VALUES (?, ?, ?, ?) ON CONFLICT (gpu) DO UPDATE
    SET cores = cores + excluded.cores, memory = memory + excluded.memory, total = max(total, excluded.total)
"""
_SUBTRACT = "UPDATE claim_shared SET cores = cores - ?, memory = memory - ? WHERE gpu = ?"


class NoRoom(Exception):
    """A share does not fit on its GPU."""


def add(db: sqlite3.Connection, share: GpuShare) -> None:
    """Add a share of a claim, in its transaction. Raises NoRoom for more than all of the GPU."""
    try:
        db.execute(_ADD, (share.address, share.cores, share.memory, share.total))
    except sqlite3.IntegrityError:
        raise NoRoom(share.address) from None


def subtract(db: sqlite3.Connection, shares: Iterable[GpuShare]) -> None:
    """Subtract the shares of a claim that ends, after its rows of `claim_part` were deleted."""
    for share in shares:
        if not share.is_whole:
            db.execute(_SUBTRACT, (share.cores, share.memory, share.address))
    db.execute("DELETE FROM claim_shared WHERE gpu NOT IN (SELECT resource FROM claim_part)")


def shares_text(shares: Iterable[GpuShare]) -> str:
    """Return shares as the ledger holds them."""
    return json.dumps([share._asdict() for share in shares])


def shares_in(text: str) -> tuple[GpuShare, ...]:
    """Return the shares in such a text. Raises ValueError, TypeError, LookupError."""
    if text == NO_SHARES:
        return ()
    documents = parse_json(text)
    if not isinstance(documents, list):
        raise ValueError("the shares of a claim are no list")  # noqa: TRY004 - the ledger is wrong, not the caller
    return tuple(map(_share_in, documents))


def _share_in(document: Any) -> GpuShare:
    cores, memory, total = (document[name] for name in ("cores", "memory", "total"))
    if not all(type(amount) is int and 0 <= amount <= _MOST for amount in (cores, memory, total)) or cores > WHOLE:
        raise ValueError("a share has amounts that none can have")
    identity, uuid, enforce = (str(document[name]) for name in ("identity", "uuid", "enforce"))
    address, asked = PciAddress(document["address"]), Enforcement(enforce) if enforce else ""
    return GpuShare(address, cores, memory, total, identity, uuid, asked)
