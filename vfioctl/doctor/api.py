"""The use case of the checks: reads a host once and judges it. May not write to the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vfioctl.inventory.api import InventoryApi

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim
    from vfioctl.core.change import JournalEntry
    from vfioctl.doctor.model.facts import Facts, FileText
    from vfioctl.doctor.model.result import DoctorDocument
    from vfioctl.session import Session

_PACKAGE = Path(__file__).parents[1]
_RULES = ("data/udev/60-vfioctl.rules", "../udev/60-vfioctl.rules")


class DoctorApi:
    """Checks what stops or harms passthrough on one host."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def examine(self, devices: Sequence[str] = ()) -> DoctorDocument:
        """Return what every check finds on the host. `devices`: judge only these (named as for `InventoryApi.find`) and
        their companions, and the host; else all GPUs. Raises BadAddress, UnknownDevice, BadSpec."""
        from vfioctl.doctor.checks.table import examine
        from vfioctl.doctor.model.result import document_of

        return document_of(examine(self.facts(devices)))

    def report(self) -> Mapping[str, str]:
        """Return the texts of what a bug report needs, redacted, by the names of their files; README.txt first."""
        from vfioctl import __version__
        from vfioctl.claims.api import ClaimsApi
        from vfioctl.console.documents import document_text, indented_text
        from vfioctl.doctor.checks.table import examine
        from vfioctl.doctor.model.result import document_of
        from vfioctl.doctor.report.bundle import Known, names_in_facts, private_words, report_files
        from vfioctl.doctor.report.redaction import Redaction
        from vfioctl.kernel.recorded.capture import capture
        from vfioctl.kernel.recorded.tree import form

        session = self._session
        no_claims: tuple[Claim, ...] = ()
        no_changes: tuple[JournalEntry, ...] = ()
        claims, problem = session.from_ledger(partial(ClaimsApi(session).claims, live_only=False), no_claims)
        changes, _ = session.from_ledger(session.entries, no_changes)
        problems = [f"claims.json, changes.json: {problem}"] if problem else []
        facts = self.facts()
        redaction = Redaction((*private_words(session.kernel, claims, changes), *names_in_facts(facts)))
        tree, unread = capture(session.kernel, redaction.pseudonyms)
        tree.comments = ["# recorded by vfioctl report"]
        doctor = indented_text(document_text(document_of(examine(facts))))
        known = Known(session.kernel, __version__, form(tree), unread, doctor, claims, changes, problems)
        return report_files(known, redaction)

    def facts(self, devices: Sequence[str] = ()) -> Facts:
        """Return what the checks judge."""
        from vfioctl.doctor.probe.facts import read_facts
        from vfioctl.doctor.reading.boot import with_boot
        from vfioctl.doctor.reading.containers import with_containers
        from vfioctl.doctor.reading.guests import with_guests
        from vfioctl.doctor.reading.ledger import with_ledger

        session, api = self._session, InventoryApi(self._session)
        inventory = api.inventory(nvml=False)
        asked = api.chosen(inventory, devices, every=True) if devices else None
        facts = replace(read_facts(session.kernel, inventory, api.processor(), asked), packaged_rules=packaged_rules())
        facts, claims = with_ledger(session, facts)
        facts = with_containers(session, with_guests(session, facts, claims), claims)
        return with_boot(session, facts)


def packaged_rules() -> FileText:
    """Return the udev rules of this release: in the package, or in a source checkout."""
    from vfioctl.doctor.model.facts import FileText

    for place in _RULES:
        file = (_PACKAGE / place).resolve()
        if file.is_file():
            return FileText(str(file), file.read_text(encoding="utf-8"))
    return FileText(Path(_RULES[0]).name)
