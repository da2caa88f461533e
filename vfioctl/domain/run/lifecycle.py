"""The use cases that start and stop domains. What a domain needs is claimed, bound and verified before it starts. The
only changes of the host are the claims', which are journaled. Whether the domain runs is libvirt's to say: it is asked,
never assumed, and no lock is held while libvirt starts QEMU or a guest shuts down, which may take minutes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.claims.api import ClaimsApi
from vfioctl.claims.model.claim import Claim
from vfioctl.core.events import Cancel, Progress, check_stop
from vfioctl.domain.document.needs import Needs, needs_nothing, needs_of
from vfioctl.domain.model.libvirt import is_elsewhere
from vfioctl.domain.probe.domains import Domains, stop_command
from vfioctl.domain.run.claims import Held, RunClaims
from vfioctl.errors import BadSpec, ClaimConflict, DeviceInUse, StalePlan, UnknownDomain, VerifyError, VfioctlError
from vfioctl.signals import deferred

if TYPE_CHECKING:
    from vfioctl.core.change import Plan
    from vfioctl.placement.model.placement import Placement
    from vfioctl.session import Session

STOP_SECONDS = 60.0
"""How long a guest may take to shut down, unless the user says otherwise."""
_PAUSE = 0.2
_ATTEMPTS = 3


class Started(NamedTuple):
    """A domain that runs, and its claims. `ran_already`: nothing was done."""

    name: str
    uri: str
    kept: tuple[Claim, ...] = ()
    made: tuple[Claim, ...] = ()
    ran_already: bool = False


class Preview(NamedTuple):
    """What starting a domain would do. `placement`: what would be claimed; None if its owner has it all."""

    name: str
    uri: str
    needs: Needs
    kept: tuple[Claim, ...] = ()
    placement: Placement | None = None
    plan: Plan | None = None
    """What would be changed for the claim; None if nothing has to be."""
    over: tuple[Claim, ...] = ()
    """Claims that were made for a run which is over: they would be released first."""
    before: tuple[Plan, ...] = ()
    """What would be changed for those, and for what claims of its owner had bound before a reboot."""
    runs_already: bool = False

    @property
    def plans(self) -> tuple[Plan, ...]:
        """All that would be changed, in order."""
        return (*self.before, *([self.plan] if self.plan else ()))


class Stopped(NamedTuple):
    """A domain that does not run, and the claims that it gave back. `ran`: whether it did before."""

    name: str
    uri: str
    claims: tuple[Claim, ...] = ()
    ran: bool = True


class Lifecycle:
    """Starts and stops the domains of this host's libvirt."""

    def __init__(self, session: Session) -> None:
        self._session, self._kernel = session, session.kernel
        self._domains = Domains(session)

    def preview(self, name: str, *, connect: str = "") -> Preview:
        """Return what `start` would do. Raises what that raises before it changes anything."""
        uri, needs, runs = self._find(name, connect)
        if runs:
            return Preview(needs.name, uri, needs, runs_already=True)
        return self.preview_of(needs, connect=connect)

    def preview_of(self, needs: Needs, *, connect: str = "") -> Preview:
        """Return what `start` would do for a domain that does not run, and may not be defined yet."""
        uri = self._uri(connect)
        holding = RunClaims(self._session, uri)
        ending, serving = tuple(holding.preview_release(needs)), holding.serving(needs)
        over = tuple(claim for claim, _ in ending)
        before = (*(plan for _, plan in ending if plan), *holding.preview_restore(serving, needs))
        result = Preview(needs.name, uri, needs, serving, over=over, before=before)
        if (request := holding.missing(needs)) is None:
            return result
        preview = ClaimsApi(self._session).preview_create(request, over=over)
        return result._replace(placement=preview.placement, plan=preview.plan)

    def start(
        self, name: str, *, connect: str = "", progress: Progress | None = None, cancel: Cancel | None = None
    ) -> Started:
        """Claim, bind and verify what a domain needs, and start it. One that runs is left alone. Raises UnknownDomain;
        what `RunClaims.take` raises; and libvirt's errors, after which the claims are given back."""
        uri, needs, runs = self._find(name, connect)
        holding = RunClaims(self._session, uri)
        if runs:
            made = holding.made_for(needs)
            kept = tuple(claim for claim in holding.of(needs) if claim not in made)
            return Started(needs.name, uri, kept, made, ran_already=True)
        held = holding.take(needs, progress=progress, cancel=cancel)
        try:
            if self._find(name, connect)[1] != needs:
                raise StalePlan(f"domain {needs.name} was changed while its devices were bound", hint="start it again")
            check_stop(cancel)
            with deferred():  # an interrupt comes when libvirt has answered, so that what it has done is known
                self._kernel.tell_libvirt(uri, "start", needs.name)
            if not self._runs(uri, needs.name):
                hint = f"QEMU's last words are in /var/log/libvirt/qemu/{needs.name}.log"
                raise VerifyError(f"domain {needs.name} has ended again right after its start", hint=hint)
            if holding.missing(needs):
                self._kernel.tell_libvirt(uri, "destroy", needs.name)
                raise ClaimConflict(
                    f"claims of domain {needs.name} were released while it started, so it was ended again",
                    hint="somebody else stops the domain, or releases its claims",
                    next_command=f"vfioctl history --owner {needs.owner}",
                )
        except (VfioctlError, KeyboardInterrupt) as error:
            self._undo(holding, needs, held, uri, error)
            raise
        return Started(needs.name, uri, held.kept, held.made)

    def _undo(
        self, holding: RunClaims, needs: Needs, held: Held, uri: str, error: VfioctlError | KeyboardInterrupt
    ) -> None:
        """Give the claims back after a start that failed, unless the domain runs; say in the error what was done."""
        try:
            if self._runs(uri, needs.name):
                restored = f"domain {needs.name} runs, and keeps its claims"
            else:
                released = holding.give_back(needs)
                restored = "its devices are what they were before" if released or held.made else ""
        except VfioctlError as second:
            restored = f"its claims are not given back: {second.message}"
            if isinstance(error, VfioctlError):
                error.next_command = stop_command(needs.name, uri)
        error.restored = restored  # type: ignore[union-attr]

    def preview_stop(self, name: str, *, connect: str = "") -> Stopped:
        """Return what `stop` would do. Raises UnknownDomain."""
        uri, needs, runs = self._stoppable(name, connect)
        return Stopped(needs.name, uri, RunClaims(self._session, uri).made_for(needs), runs)

    def stop(
        self,
        name: str,
        *,
        connect: str = "",
        timeout: float = STOP_SECONDS,
        force: bool = False,
        progress: Progress | None = None,
        cancel: Cancel | None = None,
    ) -> Stopped:
        """Shut a domain down, and give back what was claimed for it, also if it has ended or is not defined any more.
        `timeout`: seconds that the guest may take. `force`: end it as a power cut does. Raises UnknownDomain, libvirt's
        errors, DeviceInUse if it still runs, Busy while it is being started, and what `ClaimsApi.release` raises."""
        uri, needs, _ = self._stoppable(name, connect)
        holding, ran = RunClaims(self._session, uri), False
        claims: tuple[Claim, ...] = ()
        for _ in range(_ATTEMPTS):  # another process may start it meanwhile
            holding.wait_until_made(needs)
            if runs := self._runs(uri, needs.name):
                self._request_end(uri, needs.name, "destroy" if force else "shutdown")
                self._wait(uri, needs.name, timeout, cancel)
            claims, ran = (*claims, *holding.give_back(needs, progress=progress, cancel=cancel)), ran or runs
            if not self._runs(uri, needs.name):
                return Stopped(needs.name, uri, claims, ran)
        raise DeviceInUse(f"domain {needs.name} was started again each time that it was stopped")

    def _stoppable(self, name: str, connect: str) -> tuple[str, Needs, bool]:
        """Return libvirt's URI, a domain's needs, and whether it runs; also for one of which only claims are left."""
        try:
            return self._find(name, connect)
        except UnknownDomain:
            uri, gone = self._uri(connect), needs_nothing(name)
            if not RunClaims(self._session, uri).made_for(gone):
                raise
            return uri, gone, False

    def _request_end(self, uri: str, name: str, order: str) -> None:
        """Ask libvirt to end a domain, which may have ended by itself meanwhile. Raises libvirt's errors."""
        try:
            self._kernel.tell_libvirt(uri, order, name)
        except VfioctlError:
            if self._runs(uri, name):
                raise

    def _wait(self, uri: str, name: str, seconds: float, cancel: Cancel | None) -> None:
        until = time.monotonic() + seconds
        while self._runs(uri, name):
            if time.monotonic() > until:
                raise DeviceInUse(
                    f"domain {name} still runs, {seconds:g} s after it was asked to shut down",
                    hint="--timeout waits longer; --force ends it as a power cut does",
                    next_command=stop_command(name, uri, "--force"),
                )
            check_stop(cancel)
            time.sleep(_PAUSE)

    def _uri(self, connect: str) -> str:
        uri = self._domains.uri(connect)
        if is_elsewhere(uri):
            raise BadSpec(f"{uri} is on another machine, whose devices cannot be claimed here", hint="run it there")
        return uri

    def _find(self, name: str, connect: str) -> tuple[str, Needs, bool]:
        """Return libvirt's URI, what a domain needs when it starts the next time, and whether it runs."""
        uri, domain = self._uri(connect), self._domains.find(name, connect).domain
        return uri, needs_of(domain.defined or domain.live), domain.is_active

    def _runs(self, uri: str, name: str) -> bool:
        return bool(self._kernel.ask_libvirt(uri, "is_running", name))
