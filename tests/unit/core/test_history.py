"""Which changes may be deleted from the history."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from tests.hosts.machines import copy, machine, original
from vfioctl.core.history import prunable


def test_a_change_that_began_at_the_limit_stays(fast_folder: Path) -> None:
    host = machine(copy(original("laptop")), fast_folder / "ledger.db")
    host.apply(host.binding.plan_bind(["01:00.0"]))
    host.apply(host.binding.plan_unbind(["01:00.0"]))
    entries = host.history()
    limit = datetime.fromisoformat(entries[1].began)
    assert prunable(entries, needed=(), keep=0, before=limit) == ()
    assert prunable(entries, needed=(), keep=0, before=limit + timedelta(milliseconds=1)) == entries[1:]
