"""Applies a file that describes several domains: all are planned first, then changed one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from vfioctl.core.events import Cancel, Progress, check_stop
from vfioctl.domain.define.fleet_plan import FleetPlanning
from vfioctl.domain.model.fleet import FleetDocument, FleetItem, FleetSpec
from vfioctl.domain.run.lifecycle import Lifecycle
from vfioctl.errors import BadSpec, VerifyError, VfioctlError
from vfioctl.session import Session

Tell = Callable[[str], None]
"""Callback (sentence), called before each domain is changed."""
_PAUSE = 0.5
_DONE = {"define": "defined", "change": "changed", "start": "started", "stop": "stopped"}
_QUESTION = "/proc/uptime"
"""A file that any Linux guest has. An agent that refuses to read it has answered as well."""


class Fleet(NamedTuple):
    """A fleet, planned: what would be done to each domain, in the order of the file; those that go come first."""

    name: str
    uri: str
    items: tuple[FleetItem, ...]
    running: tuple[str, ...] = ()
    """The domains that the file wants to run."""
    without_agent: tuple[str, ...] = ()
    """Those of them that have no channel of a guest agent."""
    orphans: tuple[str, ...] = ()
    """The domains of the fleet that the file no longer names, and that stay; each with its state."""

    @property
    def nothing_to_do(self) -> bool:
        return not any(map(is_work, self.items))

    def refuse_without_agent(self) -> None:
        """Raise BadSpec if there is a domain to run whose guest cannot answer, as it has no channel for its agent."""
        if self.without_agent:
            what = f"{', '.join(self.without_agent)}: the domain has no channel of a guest agent, so it never answers"
            raise BadSpec(what, hint="use a template with one, such as compute-linux, or leave out --wait-guest")

    def document(self, result: str, done: Sequence[str] = ()) -> FleetDocument:
        """Return the JSON form. `done`: the domains that were changed."""
        items = tuple(item.model_copy(update={"done": item.domain in done}) for item in self.items)
        return FleetDocument.model_validate({"fleet": self.name, "uri": self.uri, "result": result, "domains": items})


def is_work(item: FleetItem) -> bool:
    """Return whether anything is done to the domain."""
    return bool(item.change != "none" or item.power != "none" or item.volumes)


class Fleets:
    """Applies fleets on one host."""

    def __init__(self, session: Session) -> None:
        self._session, self._lifecycle = session, Lifecycle(session)

    def plan(self, spec: FleetSpec, *, prune: bool = False, connect: str = "") -> Fleet:
        """Plan what makes the domains what the fleet says. Nothing is changed if one of them cannot be had. A domain
        whose spec has not changed keeps its devices and CPUs. `prune`: domains of the fleet that the file does not name
        any more are undefined.
        Raises what `DomainBuilder.build` and `Definitions.plan_define` raise, with the domain's name; Foreign for a
        domain that this fleet has not defined, DeviceInUse for a running one that would be undefined; ClaimConflict for
        a device of two domains; BadSpec and Foreign for a disk of two; and what `Lifecycle.preview` raises."""
        planning = FleetPlanning(self._session, spec, connect)
        items = planning.items(prune=prune)
        running = tuple(domain.name for domain in spec.domains if domain.running)
        orphans = () if prune else planning.orphans()
        return Fleet(spec.fleet, planning.uri, items, running, planning.without_agent(items), orphans)

    def apply(
        self,
        fleet: Fleet,
        *,
        wait_guest: float = 0.0,
        tell: Tell = lambda _: None,
        progress: Progress | None = None,
        cancel: Cancel | None = None,
    ) -> FleetDocument:
        """Do what was planned. The first failure ends it, and what was done before stays. A definition that fails is
        put back; one whose domain cannot be started or stopped after that stays. `wait_guest`: seconds until the agents
        of guests that are to run must answer; 0: not at all. Raises BadSpec, before anything is changed, for such
        guests without an agent's channel; VerifyError if they do not answer in time; what `Session.apply` and
        `Lifecycle` raise, with what was done in `restored`."""
        if wait_guest:
            fleet.refuse_without_agent()
        done: list[str] = []
        work = [item for item in fleet.items if is_work(item)]
        for item in work:
            tell(_sentence(item))
            try:
                check_stop(cancel)
                self._carry_out(item, fleet.uri, progress, cancel)
            except VfioctlError as error:
                left = [other.domain for other in work if other.domain not in (*done, item.domain)]
                did = f"done before: {', '.join(done) or 'nothing'}; not done: {', '.join(left) or 'nothing else'}"
                error.message = f"{item.domain}: {error.message}"
                error.restored = "; ".join(filter(None, (error.restored, did)))
                error.facts |= {"done": done, "not_done": left}
                raise
            done.append(item.domain)
        if wait_guest:
            self._await(fleet.running, fleet.uri, wait_guest, tell, cancel)
        return fleet.document("done" if work else "nothing to do", done)

    def _carry_out(self, item: FleetItem, uri: str, progress: Progress | None, cancel: Cancel | None) -> None:
        if item.plan:
            self._session.apply(item.plan, progress=progress, cancel=cancel)
        try:
            if item.power == "start":
                self._lifecycle.start(item.domain, connect=uri, progress=progress, cancel=cancel)
            elif item.power == "stop":
                self._lifecycle.stop(item.domain, connect=uri, progress=progress, cancel=cancel)
        except VfioctlError as error:
            if item.change != "none":
                error.message = f"it is {_DONE[item.change]}, and not {_DONE[item.power]}: {error.message}"
                error.facts["only_defined"] = item.domain
            raise

    def _await(self, names: Sequence[str], uri: str, seconds: float, tell: Tell, cancel: Cancel | None) -> None:
        until, left = time.monotonic() + seconds, list(names)
        if left:
            tell(f"waiting for the guests of {', '.join(left)}")
        while left := [name for name in left if not self._answers(name, uri)]:
            if time.monotonic() > until:
                raise VerifyError(
                    f"the guest agent of {', '.join(left)} has not answered within {seconds:g} s",
                    hint="everything is defined and started; a guest needs qemu-guest-agent, and its channel",
                )
            check_stop(cancel)
            time.sleep(_PAUSE)

    def _answers(self, name: str, uri: str) -> bool:
        try:
            self._session.kernel.ask_libvirt(uri, "guest_files", name, _QUESTION)
        except VfioctlError:
            return False
        return True


def _sentence(item: FleetItem) -> str:
    words = {"define": "define", "change": "change the definition of", "undefine": "undefine", "none": ""}[item.change]
    create = f"create {' and '.join(item.volumes)}" if item.volumes else ""
    define = f"{words} {item.domain}" if words else ""
    power = f"{item.power} {item.domain}" if item.power != "none" else ""
    return ", then ".join(filter(None, (create, define, power)))
