"""Plans the definitions of libvirt's domains: define, change and undefine one. Changes go through the engine."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from uuid import uuid4

from vfioctl.claims.api import ClaimsApi
from vfioctl.core.change import Change, Draft, Intent, Plan
from vfioctl.domain.check.checker import judged
from vfioctl.domain.define.storage import planned_volumes, written_by
from vfioctl.domain.document.differences import is_still
from vfioctl.domain.document.mark import marked
from vfioctl.domain.document.needs import is_owner, needs_nothing, needs_of, refuse_foreign_claim
from vfioctl.domain.document.other_domains import others_in
from vfioctl.domain.document.reader import Domain, read_domain
from vfioctl.domain.document.xml import text_of
from vfioctl.domain.model.definition import (
    DEFINITION,
    DefineIntent,
    Storage,
    UndefineIntent,
    checked_name,
    resource_name,
    subject_of,
)
from vfioctl.domain.model.finding import Severity
from vfioctl.domain.model.libvirt import DomainXml, Libvirt
from vfioctl.domain.probe.domains import Domains, ask_libvirt, stop_command, unknown_domain, validate
from vfioctl.domain.probe.images import refuse_shared_images
from vfioctl.domain.run.claims import RunClaims
from vfioctl.errors import BadDocument, ClaimConflict, DeviceInUse, Foreign
from vfioctl.kernel.libvirt.answers import INVALID_BY_SCHEMA
from vfioctl.session import Session

_MOST_FAULTS = 3


class Definitions:
    """The definitions of libvirt's domains. Any method may raise any VfioctlError; each documents its own errors."""

    def __init__(self, session: Session) -> None:
        self._session, self._kernel = session, session.kernel
        self._domains = Domains(session)

    def replan(self, intent: Intent) -> Plan:
        """Plan the intent of a saved plan on the host as it is now."""
        if intent.verb == DefineIntent.model_fields["verb"].default:
            return self._define(DefineIntent.model_validate(intent.model_dump()))
        return self._undefine(UndefineIntent.model_validate(intent.model_dump()))

    def plan_define(
        self,
        text: str | bytes,
        *,
        connect: str = "",
        claim: str = "",
        replace: bool = False,
        storage: Storage | None = None,
        notes: tuple[str, ...] = (),
        leaving: Collection[str] = (),
    ) -> Plan:
        """Plan to define a domain, or to change its definition. Nothing to do if it is defined so already. `claim`: the
        claim whose devices it has. `replace`: also if vfioctl did not define what is there. `storage`: the volumes that
        it needs, which are created first. `notes`: what else the plan is to say. `leaving`: domains that will have
        given up their disks. Raises BadDocument, BadSpec for a disk of another domain, Foreign, ClaimConflict for a
        claim of somebody else, HostError."""
        wanted = read_domain(text)
        if not wanted.name:
            raise BadDocument("the document has no name", hint="it needs <name>NAME</name>")
        intent = DefineIntent(
            uri=self._domains.uri(connect),
            name=checked_name(wanted.name),
            uuid=wanted.uuid or str(uuid4()),
            document=text_of(wanted.document),
            claim=claim,
            replace=replace,
            storage=storage,
        )
        return self._define(intent, notes, leaving)

    def plan_volumes(self, name: str, storage: Storage, *, connect: str = "") -> Plan:
        """Plan the volumes of a domain whose definition stays. Raises BadSpec, Foreign, HostError."""
        uri = self._domains.uri(connect)
        return self._define(DefineIntent(uri=uri, name=checked_name(name), uuid="", document="", storage=storage))

    def plan_undefine(self, name: str, *, connect: str = "", foreign: bool = False) -> Plan:
        """Plan to remove the definition of a domain that does not run. `foreign`: also if vfioctl did not define it.
        Raises UnknownDomain, Foreign, DeviceInUse, HostError."""
        domain, uri = self._domains.find(name, connect).domain.name, self._domains.uri(connect)
        return self._undefine(UndefineIntent(uri=uri, name=checked_name(domain), foreign=foreign))

    def _define(self, intent: DefineIntent, more: tuple[str, ...] = (), leaving: Collection[str] = ()) -> Plan:
        volumes: Sequence[Change] = ()
        notes: tuple[str, ...] = ()
        if intent.storage:
            volumes, notes = planned_volumes(self._kernel, intent.uri, intent.storage)
        if not intent.document:
            return self._planned(intent, "", "", (), volumes)
        libvirt = ask_libvirt(self._kernel, intent.uri)
        current = next((domain for domain in libvirt.domains if domain.name == intent.name), None)
        wanted = read_domain(intent.document)
        _refuse_clash(libvirt, intent.name, wanted)
        before = self._defined(intent.uri, intent.name)
        known = before or (current.live if current else "")
        if known and not _is_ours(known) and not intent.replace:
            hint = "--replace changes it all the same; or give the document another <name> and <uuid>"
            raise Foreign(f"vfioctl did not define domain {intent.name}", hint=hint)
        others = others_in(libvirt, (), but=(wanted.name, *leaving))
        unread = refuse_shared_images(self._kernel, wanted, others.images, known=written_by((known,)))
        claim = ""
        if intent.claim:
            held = ClaimsApi(self._session).claim(intent.claim)
            refuse_foreign_claim(held, intent.name)
            claim = held.id
        after = marked(intent.document, uuid=current.uuid if current else intent.uuid, claim=claim, before=before)
        self._refuse_invalid(intent.uri, after)
        if is_still(before, after):
            after = before
        notes = (*more, *_notes_of_define(intent.name, current, before, after), *(() if before else notes))
        notes += tuple(text for text in unread.values() if not any(text in note for note in more))
        return self._planned(intent, before, after, notes, volumes)

    def _undefine(self, intent: UndefineIntent) -> Plan:
        libvirt = ask_libvirt(self._kernel, intent.uri)
        current = next((domain for domain in libvirt.domains if domain.name == intent.name), None)
        if current is None:
            raise unknown_domain(intent.name, intent.uri)
        if current.is_active:
            raise DeviceInUse(f"domain {intent.name} runs", next_command=stop_command(intent.name, intent.uri))
        before = self._defined(intent.uri, intent.name)
        if not _is_ours(before) and not intent.foreign:
            hint = "--foreign removes its definition all the same"
            raise Foreign(f"vfioctl did not define domain {intent.name}", hint=hint)
        self._refuse_left_over(intent)
        claim = read_domain(before).mark.claim
        notes = (f"claim {claim} stays, with its devices: vfioctl claim release {claim}",) if claim else ()
        return self._planned(intent, before, "", notes)

    def _refuse_left_over(self, intent: UndefineIntent) -> None:
        """Raise ClaimConflict if the domain has not released what it claimed for its run: nothing would show it."""
        for claim in RunClaims(self._session, intent.uri).made_for(needs_nothing(intent.name)):
            raise ClaimConflict(
                f"domain {intent.name} has ended, and claim {claim.id}, which was made for it, still holds what it had",
                hint="this gives everything back; with vfioctl's hook, libvirt does so when a domain ends",
                next_command=stop_command(intent.name, intent.uri),
            )

    def _planned(
        self,
        intent: DefineIntent | UndefineIntent,
        before: str,
        after: str,
        notes: tuple[str, ...],
        volumes: Sequence[Change] = (),
    ) -> Plan:
        name, subject = resource_name(intent.uri, intent.name), subject_of(intent.name)
        change = Change(kind=DEFINITION, name=name, subject=subject, before=before, after=after)
        changes = (*volumes, change) if before != after else tuple(volumes)
        return self._session.plan(Draft(intent, changes=changes, notes=notes if changes else ()))

    def _defined(self, uri: str, name: str) -> str:
        return str(self._kernel.ask_libvirt(uri, "definition", name))

    def _refuse_invalid(self, uri: str, text: str) -> None:
        """Raise BadDocument for what libvirt's schema refuses; the driver may find more when it defines the domain."""
        try:
            validate(self._kernel, uri, text)
        except BadDocument as error:
            if error.facts.get("libvirt") == INVALID_BY_SCHEMA:
                raise


def _refuse_clash(libvirt: Libvirt, name: str, wanted: Domain) -> None:
    """Raise Foreign if another domain has the UUID, or the domain has another one: libvirt would refuse it."""
    for domain in libvirt.domains:
        if domain.name == name and wanted.uuid and domain.uuid != wanted.uuid:
            what = f"domain {name} has the UUID {domain.uuid}, and the document another one"
            raise Foreign(what, hint="remove <uuid> from the document, or change its <name>")
        if domain.name != name and wanted.uuid == domain.uuid:
            raise Foreign(f"domain {domain.name} has the UUID of the document", hint="remove <uuid> from the document")


def _is_ours(text: str) -> bool:
    return bool(text) and read_domain(text).mark.is_own


def _notes_of_define(name: str, current: DomainXml | None, before: str, after: str) -> tuple[str, ...]:
    notes = list(_faults(after))
    if needs_of(after).is_anything and not is_owner(name):
        notes.append(
            f"vfioctl will not start it: no owner of a claim can be called vm/{name}; give it a name of "
            "letters, digits and . _ -"
        )
    if before and before != after:
        whose = "" if _is_ours(before) else ", which is not of vfioctl,"
        notes.append(f"{name} is defined already; its definition{whose} is replaced")
    if current and current.is_active:
        notes.append(f"{name} runs; the new definition counts when it starts the next time")
    return tuple(notes)


def _faults(text: str) -> Iterator[str]:

    errors = [finding for finding in judged(None, text, None).findings if finding.severity is Severity.ERROR]
    for error in errors[:_MOST_FAULTS]:
        yield f"it will not work as it is: {error.path}: {error.reason}"
    if errors[_MOST_FAULTS:]:
        yield f"and {len(errors) - _MOST_FAULTS} more; vfioctl domain check lists them with their remedies"
