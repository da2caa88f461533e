"""The use case of the checks: reads a host once and judges it. May not write to the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vfioctl.errors import VfioctlError
from vfioctl.inventory.api import InventoryApi

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim
    from vfioctl.core.change import JournalEntry
    from vfioctl.core.published import BeingChanged
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
        from vfioctl.doctor.report.bundle import Known, private_words, report_files
        from vfioctl.doctor.report.redaction import Redaction
        from vfioctl.kernel.recorded.capture import capture
        from vfioctl.kernel.recorded.tree import form

        session = self._session
        no_claims: tuple[Claim, ...] = ()
        no_changes: tuple[JournalEntry, ...] = ()
        claims, problem = session.from_ledger(partial(ClaimsApi(session).claims, live_only=False), no_claims)
        changes, _ = session.from_ledger(session.entries, no_changes)
        problems = [f"claims.json, changes.json: {problem}"] if problem else []
        redaction = Redaction(private_words(session.kernel, claims, changes))
        tree, unread = capture(session.kernel, redaction.pseudonyms)
        tree.comments = ["# recorded by vfioctl report"]
        doctor = indented_text(document_text(self.examine()))
        known = Known(session.kernel, __version__, form(tree), unread, doctor, claims, changes, problems)
        return report_files(known, redaction)

    def facts(self, devices: Sequence[str] = ()) -> Facts:
        """Return what the checks judge."""
        from vfioctl.doctor.probe.facts import read_facts

        api = InventoryApi(self._session)
        inventory = api.inventory(nvml=False)
        asked = api.chosen(inventory, devices, every=True) if devices else None
        facts = read_facts(self._session.kernel, inventory, api.processor(), asked)
        return self._with_boot(self._with_ledger(replace(facts, packaged_rules=packaged_rules())))

    def _with_boot(self, facts: Facts) -> Facts:
        from vfioctl.persist.api import PersistApi

        api = PersistApi(self._session)
        try:
            return replace(
                facts,
                persistent=api.persistent(facts.inventory),
                switched_off=api.switched_off(),
                not_installed=api.not_installed(),
                has_package=api.has_package(),
            )
        except (VfioctlError, OSError) as error:
            return replace(facts, persist_problem=str(error))

    def _with_ledger(self, facts: Facts) -> Facts:
        none: tuple[BeingChanged, ...] = ()
        changes, problem = self._session.from_ledger(self._session.being_changed, none)
        facts = replace(facts, unfinished=tuple(change.under_way for change in changes), ledger_problem=problem)
        return facts if problem else self._with_claims(facts)

    def _with_claims(self, facts: Facts) -> Facts:
        """Return the facts with the differences of the claims. Without claims nothing is compared: it takes long."""
        from vfioctl.claims.api import ClaimsApi

        api, claims = ClaimsApi(self._session), 0
        try:
            claims = len(api.claims())
            compared = api.reconciling.compare(facts.inventory) if claims else None
        except (VfioctlError, OSError) as error:
            return replace(facts, claims=claims or 1, compare_problem=str(error))
        if compared is None:
            return facts
        problem = "; ".join(compared.unknown)
        return replace(facts, claims=claims, differences=len(compared.differences), compare_problem=problem)


def packaged_rules() -> FileText:
    """Return the udev rules of this release: in the package, or in a source checkout."""
    from vfioctl.doctor.model.facts import FileText

    for place in _RULES:
        file = (_PACKAGE / place).resolve()
        if file.is_file():
            return FileText(str(file), file.read_text(encoding="utf-8"))
    return FileText(Path(_RULES[0]).name)
