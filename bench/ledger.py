"""A ledger in use: many finished changes, recorded vGPUs and a mark of this boot. Writes one file."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from vfioctl.core.marks import Mark, MarkKind
from vfioctl.host import Host
from vfioctl.kernel.recorded.bundled import file_of
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.session import BOOT_ID

_COPIES = """
    WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < ?)
    INSERT INTO journal (plan, state, boot_id, began, ended)
    SELECT plan, state, boot_id, began, ended FROM number, journal WHERE id = 1
"""


_CLAIMS = """
    WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < ?)
    INSERT INTO claim
    SELECT printf('%08x', n), printf('vm/v%d', n % 200), state, request, '', devices, cpus, hugepages, labels, since,
        boot_id, expires, ended, plans, why, user, sudo_user, pid, command, shares
    FROM number, (SELECT * FROM claim LIMIT 1)
"""


def write(file: Path, *, entries: int, marked: str, claims: int = 0) -> None:
    """Write a ledger with so many entries, which real changes of simulated hosts made. `marked`: a dead device.

    `claims`: so many live ones, of 200 owners, copied from one that was made."""
    with TemporaryDirectory() as folder:
        server, vgpus = (Host.simulated(_copy(name, folder), file) for name in ("hgx8", "a2"))
        server.apply(server.binding.plan_bind(["1b:00.0"]))
        vgpus.apply(vgpus.vgpu.plan_create("nvidia-754", count=2))
        journal = server.session.journal
        with journal.store.transaction() as db:
            db.execute(_COPIES, (entries - len(journal.entries()),))
        mark = Mark(address=marked, kind=MarkKind.DEAD, since="2026-01-01T00:00:00Z", why="it does not answer")
        if claims:
            server.claims.create(ClaimRequest(owner="vm/v0", cpus=2))
            with journal.store.transaction() as db:
                db.execute(_CLAIMS, (claims - 1,))
                db.execute("INSERT OR IGNORE INTO claim_live SELECT id, NULL FROM claim")
        journal.mark([mark], boot_id=Path(BOOT_ID).read_text().strip())


def _copy(name: str, folder: str) -> str:
    file = Path(folder, f"{name}.host")
    file.write_bytes(file_of(name).read_bytes())
    return str(file)
