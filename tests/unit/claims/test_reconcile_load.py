"""`vfioctl reconcile` on a host in use: many claims, domains, containers and changes in the journal."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest

from tests.hosts.machines import copy, original, put_process
from vfioctl import sources
from vfioctl.claims.api import ClaimsApi
from vfioctl.inventory.api import InventoryApi
from vfioctl.inventory.model.functions import Function
from vfioctl.kernel.recorded import tree as tree_of_hosts
from vfioctl.kernel.recorded.tree import form, parse
from vfioctl.placement.model.claims import Owner
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.session import Session

CLAIMS, DOMAINS, CONTAINERS, CHANGES = 200, 30, 50, 2000
MOST_SECONDS = 2.0  # 0.25 s where nothing else runs


@pytest.mark.alone
def test_takes_less_than_two_seconds(fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_of_hosts, "ROOTS", (*tree_of_hosts.ROOTS, "/run/"))
    file, ledger = fast_folder / "hgx8.host", fast_folder / "ledger.db"
    file.write_text(form(copy(original("hgx8"))))
    gpus = claimed_gpus(sources.simulated(Session, str(file), ledger))
    add_lost_vgpus(ledger, CLAIMS - len(gpus))
    add_users(file, gpus)
    with_domains(monkeypatch, gpus)

    began = time.monotonic()
    found = ClaimsApi(sources.simulated(Session, str(file), ledger)).reconciling.compare()
    assert time.monotonic() - began < MOST_SECONDS
    assert found.unknown == ()
    lost = CLAIMS - len(gpus)
    assert Counter(each.kind for each in found.differences) == {"vGPU gone": lost, "rebooted": lost}


def claimed_gpus(session: Session) -> list[Function]:
    """Claim all GPUs, and return them."""
    functions = InventoryApi(session).inventory(nvml=False).functions
    gpus = [each.address for each in functions if each.is_gpu and each.vendor_id == "10de"]
    for number, gpu in enumerate(gpus):
        ClaimsApi(session).create(ClaimRequest(owner=Owner(f"vm/web{number}"), devices=(gpu,)))
    return [each for each in InventoryApi(session).inventory(nvml=False).functions if each.address in gpus]


def add_lost_vgpus(ledger: Path, count: int) -> None:
    """Add claims of an earlier boot, whose vGPUs are gone, and changes that look at first like their creation."""
    db = sqlite3.connect(ledger)
    db.row_factory = sqlite3.Row
    claim = dict(db.execute("SELECT * FROM claim").fetchone())
    for number in range(count):
        device = {"address": "0000:1b:00.0", "mdev": str(uuid4()), "identity": "", "asked": True, "undo": "remove"}
        new = claim | {"id": f"{number:08x}", "owner": f"vm/m{number}", "boot_id": "x", "devices": json.dumps([device])}
        insert(db, "claim", new)
        db.execute("INSERT INTO claim_live VALUES (?, NULL)", (new["id"],))
    entry = dict(db.execute("SELECT * FROM journal").fetchone())
    entry["plan"] = entry["plan"].replace("bind", "vgpu create")
    for number in range(CHANGES):
        insert(db, "journal", entry | {"id": 10_000 + number})
    db.commit()
    db.close()


def insert(db: sqlite3.Connection, table: str, row: dict[str, object]) -> None:
    db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", tuple(row.values()))  # noqa: S608


def add_users(file: Path, gpus: list[Function]) -> None:
    """Add processes and containers."""
    tree = parse(file.read_text(), str(file))
    for pid in (1, *range(1000, 1400)):
        put_process(tree, pid, *["/dev/null"] * 20, status="Uid:\t0\t0\t0\t0", cgroup="0::/", cmdline="python3")
    for number in range(CONTAINERS):
        path = f"/run/containerd/io.containerd.runtime.v2.task/default/c{number}/config.json"
        devices = [{"path": "/dev/vfio/vfio"}, {"path": gpus[number % len(gpus)].vfio_group}]
        tree.put(path, json.dumps({"linux": {"devices": devices}}))
    tree.put("/run/libvirt/libvirt-sock", "")
    file.write_text(form(tree))


def with_domains(monkeypatch: pytest.MonkeyPatch, gpus: list[Function]) -> None:
    """libvirt has domains, each with a GPU: its owner's, as far as there are enough."""
    domains = []
    for number in range(DOMAINS):
        gpu = gpus[number % len(gpus)]
        slot = f"<address domain='0' bus='0x{gpu.address.split(':')[1]}' slot='0' function='0'/>"
        xml = f"<domain><devices><hostdev mode='subsystem'><source>{slot}</source></hostdev></devices></domain>"
        domains.append(SimpleNamespace(name=lambda n=number: f"web{n}", XMLDesc=lambda _, x=xml: x))
    connection = SimpleNamespace(listAllDomains=lambda _: domains, close=lambda: None)
    module = SimpleNamespace(
        libvirtError=OSError,
        openReadOnly=lambda _: connection,
        registerErrorHandler=lambda *_: None,
        VIR_CONNECT_LIST_DOMAINS_ACTIVE=1,
    )
    monkeypatch.setitem(sys.modules, "libvirt", module)
