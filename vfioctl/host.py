"""The library's front door: one object per host, whatever stands behind it.

    >>> from vfioctl.host import Host
    >>> host = Host.recorded("hgx8")
    >>> host.inventory().gpus[0].address
    '0000:1b:00.0'
"""

from __future__ import annotations
# draft signatures (the implementation follows):
#
# class Host:
#     kernel: Kernel; ledger_file: Path
#     live(ledger: Path | None = None) / at(root: Path) / recorded(name_or_file: str) / simulated(name_or_file: str, ledger=None)
#     inventory() -> Inventory
#     find(selectors: Sequence[str], *, every: bool = False) -> tuple[PciAddress, ...]     # '41:00.0' 'gpu0' '10de:2330'
#     plan_bind(devices, *, driver: str | None = None, with_group=False, allow_boot_vga=False) -> Plan
#     plan_unbind(devices, *, to: str | None = None, with_group=False) -> Plan
#     apply(plan, *, progress: Callable[[Step, int, int], None] | None = None) -> Outcome
#     recover(*, forward: bool = False, progress=None) -> tuple[Outcome, ...]
#     history() -> tuple[JournalEntry, ...]
#     snapshot() -> tuple[str, tuple[str, ...]]      # text of a .host file, and what could not be read
#
# model/change.py gains:
#     class Outcome(Value): plan: Plan; result: 'done' | 'nothing to do' | 'put back' | 'gone with the reboot'; found: tuple[Fact, ...]; seconds: float; notes
#     class JournalEntry(Value): id: int; plan: Plan; state: 'open'|'done'|'back'|'stuck'; began: str (ISO UTC); ended: str | None; boot_id: str; why: str
