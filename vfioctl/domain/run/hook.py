"""What vfioctl does when libvirt calls it: before a domain starts, when it has ended, when libvirtd is started again.
May not ask libvirt, which waits for the hook, but gives it the document. Source: https://libvirt.org/hooks.html"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfioctl.claims.model.claim import LABEL, Claim
from vfioctl.domain.document.needs import Needs, is_owner, needs_of
from vfioctl.domain.model.libvirt import URI
from vfioctl.domain.run.claims import RunClaims
from vfioctl.errors import BadDocument, BadSpec, ClaimConflict, Foreign
from vfioctl.inventory.model.values import PciAddress, Subject

if TYPE_CHECKING:
    from vfioctl.core.change import Intent, Plan
    from vfioctl.core.events import Progress
    from vfioctl.domain.model.hook import InstallHookIntent, RemoveHookIntent
    from vfioctl.session import Session

PREPARE, RELEASE, RECONNECT = ("prepare", "begin"), ("release", "end"), ("reconnect", "begin")
"""The operations that vfioctl handles: before libvirt touches a device, after it has given all back, and libvirtd's
own start, while the domain runs."""
_ATTEMPTS = 3
_RESTART = "libvirtd learns of new hooks when it starts: systemctl restart libvirtd, or virtqemud; guests go on running"


class Hook:
    """Answers libvirt. Its hooks are for qemu:///system only: other libvirts have none in /etc."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._holding = RunClaims(session, URI)

    def answer(self, name: str, operation: tuple[str, str], xml: bytes, progress: Progress | None = None) -> str:
        """Do what an operation on a domain needs, if vfioctl handles it. Return a line for the system's log; empty for
        none. Before a start, any error refuses it: what `RunClaims.take` raises if vfioctl defined the domain, else
        ClaimConflict. For a running one, ClaimConflict: another guest has claimed a device of it; the rest is claimed.
        """
        if operation not in (PREPARE, RELEASE, RECONNECT):
            return ""
        needs = needs_of(xml)
        if needs.name != name:
            if not needs.ours:
                return ""
            raise BadDocument(f"libvirt told of domain {name!r}, and gave the document of {needs.name!r}")
        if operation == RELEASE:
            self._holding.give_back(needs, progress=progress)
        elif operation == RECONNECT:
            self._reflect(needs, refuse=False)
            self._refuse_claimed(needs)
        elif needs.ours:
            self._holding.take(needs, progress=progress)
        else:
            self._holding.end_over(needs)
            self._reflect(needs, refuse=True)
        return _unclaimed(needs) if operation != RELEASE else ""

    def _reflect(self, needs: Needs, *, refuse: bool) -> None:
        """Claim what a domain of others has, if free. `refuse`: raise ClaimConflict for what another guest has."""
        for attempts_left in reversed(range(_ATTEMPTS)):
            if refuse:
                self._refuse_claimed(needs)
            claimed = self._claimed(needs)
            try:
                if is_owner(needs.name):
                    self._holding.adopt(needs, [device for device in needs.devices if device not in claimed])
                return
            except ClaimConflict:  # another domain's hook was faster: look again
                if not attempts_left:
                    raise

    def _refuse_claimed(self, needs: Needs) -> None:
        """Raise ClaimConflict if another VM, one of its name at another libvirt too, or a container has a device of it.
        What a person has claimed may be for this domain: nothing says whose it is."""
        for device, claim in self._claimed(needs).items():
            if not claim.is_of(f"vm/{needs.name}", URI) and not claim.owner.startswith("user/"):
                where = claim.labels.get(LABEL, URI)
                raise ClaimConflict(
                    f"{device} belongs to claim {claim.id} of {claim.owner}{'' if where == URI else f' at {where}'}",
                    hint="stop its owner first, or give the domain another device",
                    next_command=f"vfioctl claim show {claim.id}",
                    facts={"claim": claim.id, "owner": str(claim.owner)},
                )

    def _claimed(self, needs: Needs) -> dict[Subject, Claim]:
        from vfioctl.claims.api import ClaimsApi

        claims = ClaimsApi(self._session).claims()
        whole = {device.subject: claim for claim in claims for device in claim.devices}
        whole |= {PciAddress(share.address): claim for claim in claims for share in claim.shares}
        return {device: whole[device] for device in needs.devices if device in whole}

    def plan_install(self, command: str) -> Plan:
        """Plan to let libvirt call vfioctl. `command`: its path. Raises BadSpec for a path that a shell could take for
        something else, or that another user can change; Foreign if there is a script of somebody else."""
        from vfioctl.domain.model.hook import InstallHookIntent
        from vfioctl.session import LEDGER

        _refuse_untrusted(command)
        ledger = self._session.ledger
        return self._install(InstallHookIntent(command=command, ledger="" if ledger == LEDGER else str(ledger)))

    def plan_remove(self) -> Plan:
        """Plan to remove the hook; domains that run keep their claims. Raises Foreign for a script of somebody else."""
        from vfioctl.domain.model.hook import RemoveHookIntent

        return self._planned(RemoveHookIntent(), "", ())

    def replan(self, intent: Intent) -> Plan:
        """Plan the intent of a saved plan on the host as it is now."""
        from vfioctl.domain.model.hook import InstallHookIntent

        if intent.verb == InstallHookIntent.model_fields["verb"].default:
            return self._install(InstallHookIntent.model_validate(intent.model_dump()))
        return self.plan_remove()

    def _install(self, intent: InstallHookIntent) -> Plan:
        from vfioctl.domain.model.hook import script

        try:
            text = script(intent.command, intent.ledger)
        except ValueError as error:
            raise BadSpec(str(error), hint="use a path of letters, digits and . _ + - /") from None
        return self._planned(intent, text, (_RESTART,))

    def _planned(self, intent: InstallHookIntent | RemoveHookIntent, text: str, notes: tuple[str, ...]) -> Plan:
        from vfioctl.core.change import Change, Draft
        from vfioctl.domain.model.hook import HOOK, SCRIPT, is_ours

        kernel = self._session.kernel
        before = kernel.read(SCRIPT) if kernel.has(SCRIPT) else ""
        if before and not is_ours(before):
            hint = "rename it first, if it is needed: libvirt runs every script there; else delete it"
            raise Foreign(f"vfioctl did not write {SCRIPT}", hint=hint)
        changes = (Change(kind=HOOK, name=SCRIPT, subject=HOOK, before=before, after=text),) if before != text else ()
        return self._session.plan(Draft(intent, changes=changes, notes=notes if changes else ()))


def _unclaimed(needs: Needs) -> str:
    """Return what to say of a domain whose devices cannot be claimed for it; empty if they can."""
    if not needs.devices or is_owner(needs.name):
        return ""
    return (
        f"{', '.join(needs.devices)} cannot be claimed for domain {needs.name[:60]!r}: no owner of a claim can have "
        "its name; give it one of letters, digits and . _ -"
    )


def _refuse_untrusted(command: str) -> None:
    """Raise BadSpec if another user could change what libvirtd would run as root, or put it there later."""
    import os

    from vfioctl.kernel.trusted import KEEP_TO_ROOT, opened_directory, status_of

    if os.geteuid() != 0:
        return
    try:
        with opened_directory(os.path.dirname(command)):
            pass
        folder, name = os.path.split(os.path.realpath(command))
        with opened_directory(folder) as directory:
            status = status_of(directory, name)
    except FileNotFoundError:
        raise BadSpec(f"{command} cannot be libvirt's hook: its directory is not there") from None
    except OSError as error:
        raise BadSpec(f"{command} cannot be libvirt's hook: {error.strerror}", hint=KEEP_TO_ROOT) from None
    if status and status.st_mode & 0o022:
        raise BadSpec(f"{command} cannot be libvirt's hook: other users may write it", hint=KEEP_TO_ROOT)
    if status and not status.st_mode & 0o111:
        raise BadSpec(f"{command} cannot be libvirt's hook: it is no program", hint="give the path of vfioctl")
