"""The use case that makes several domains what one file says: all is planned first, then done one after the other."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.domain.belonging import leaving_from, says_of
from vfioctl.domain.definition import in_fleet, read_definition
from vfioctl.domain.disks import refuse_shared, written_by
from vfioctl.domain.itself import beside
from vfioctl.domain.model.definition import DEFINITION
from vfioctl.domain.model.fleet import FleetDocument, FleetItem
from vfioctl.domain.model.storage import IMAGE, SEED
from vfioctl.domain.provisioning import stop_command
from vfioctl.domain.storage import Provided, provided
from vfioctl.domain.templates import read_template
from vfioctl.domain.xml import text_of
from vfioctl.errors import DeviceInUse, VerifyError, VfioctlError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from vfioctl.core.action import Progress
    from vfioctl.core.change import Plan
    from vfioctl.domain.api import DomainApi
    from vfioctl.domain.model.fleet import DefinitionChange, FleetDomain, FleetSpec, Power
    from vfioctl.domain.model.others import Others
    from vfioctl.domain.model.spec import DomainSpec
    from vfioctl.domain.model.storage import Storage
    from vfioctl.domain.provisioning import Known
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

    @property
    def nothing_to_do(self) -> bool:
        return not any(map(is_work, self.items))

    def document(self, result: str, done: Sequence[str] = ()) -> FleetDocument:
        """Return the JSON form. `done`: the domains that were changed."""
        items = tuple(each.model_copy(update={"done": each.domain in done}) for each in self.items)
        return FleetDocument.model_validate({"fleet": self.name, "uri": self.uri, "result": result, "domains": items})


def is_work(item: FleetItem) -> bool:
    """Return whether anything is done to the domain."""
    return bool(item.change != "none" or item.power != "none" or item.volumes)


class _Wanted(NamedTuple):
    """A domain of the file. `digest`: of what it is made from, in short: its spec, and its template."""

    provided: Provided
    digest: str
    running: bool | None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def spec(self) -> DomainSpec:
        return self.provided.spec

    @property
    def storage(self) -> Storage | None:
        return self.provided.storage


class Fleets:
    """Applies fleets on one host."""

    def __init__(self, session: Session, api: DomainApi) -> None:
        self._session, self._api = session, api

    def plan(self, spec: FleetSpec, *, prune: bool = False, connect: str = "") -> Fleet:
        """Plan what makes the domains what the fleet says. Nothing is changed if one of them cannot be had.

        A domain whose spec has not changed keeps its devices and CPUs. `prune`: domains of the fleet that the file
        does not name any more are undefined.

        Raises what `Building.build` and `Provisioning.plan_define` raise, with the domain's name; Foreign for a domain
        that this fleet has not defined, DeviceInUse for one that is to go, and runs; BadSpec and Foreign for a disk
        image of two domains.
        """
        provisioning = self._api.provisioning
        uri = provisioning.uri(connect)
        known = {each.domain.name: each for each in provisioning.known_as_defined(provisioning.libvirt(connect))}
        leaving = leaving_from(spec, known) if prune else []
        items = [self._pruned(each, connect) for each in leaving]
        wanted = [self._wanted(each, uri) for each in spec.domains]
        gone = {each.domain.name for each in leaving} | {each.name for each in wanted if _is_rebuilt(each, spec, known)}
        stay = (each.domain for name, each in known.items() if name not in gone)
        writers = {each.name: written_by((each.live, each.defined)) for each in stay}
        refuse_shared({each.name: each.provided for each in wanted}, writers)
        later: dict[str, str] = {}  # devices and CPUs of the domains before, which are not defined yet
        pinned: dict[int, str] = {}
        for each in wanted:
            with _about(each.name):
                items.append(self._item(spec.fleet, each, known.get(each.name), connect, gone, pinned, later))
        return Fleet(spec.fleet, uri, tuple(items), tuple(each.name for each in spec.domains if each.running))

    def apply(
        self,
        fleet: Fleet,
        *,
        wait_guest: float = 0.0,
        tell: Tell = lambda _: None,
        progress: Progress | None = None,
    ) -> FleetDocument:
        """Do what was planned. The first failure ends it, and what was done before stays.

        A definition that fails is put back. One whose domain cannot be started or stopped after that stays.

        `wait_guest`: seconds that the guests that are to run may take until their agents answer; 0: not at all.

        Raises what `Session.apply` and `Starting` raise, with what was done in `restored`; VerifyError for guests
        that do not answer in time.
        """
        done: list[str] = []
        work = [each for each in fleet.items if is_work(each)]
        for item in work:
            tell(_sentence(item))
            try:
                self._carry_out(item, fleet.uri, progress)
            except VfioctlError as error:
                left = [each.domain for each in work if each.domain not in (*done, item.domain)]
                did = f"done before: {', '.join(done) or 'nothing'}; not done: {', '.join(left) or 'nothing else'}"
                error.message = f"{item.domain}: {error.message}"
                error.restored = "; ".join(filter(None, (error.restored, did)))
                error.facts |= {"done": done, "not_done": left}
                raise
            done.append(item.domain)
        if wait_guest:
            self._await(fleet.running, fleet.uri, wait_guest, tell)
        return fleet.document("done" if work else "nothing to do", done)

    # -- one domain ----------------------------------------------------------------------------------

    def _wanted(self, domain: FleetDomain, uri: str) -> _Wanted:
        with _about(domain.name):
            found = provided(self._session.kernel, uri, domain)
            template = text_of(read_template(found.spec.template))
        digest = sha256(f"{json.dumps(asdict(found.spec), sort_keys=True)}{template}".encode()).hexdigest()[:12]
        return _Wanted(found, digest, domain.running)

    def _item(
        self,
        fleet: str,
        wanted: _Wanted,
        known: Known | None,
        connect: str,
        gone: Collection[str],
        pinned: dict[int, str],
        later: dict[str, str],
    ) -> FleetItem:
        is_active = bool(known and known.domain.is_active)
        power = _power(wanted, is_active=is_active)
        says = says_of(fleet, known, self._api.provisioning.uri(connect)) if known else None
        is_defined = bool(known and known.domain.is_defined)
        if is_defined and says and says.spec == wanted.digest:
            if power == "start":
                self._api.starting.foresee(wanted.name, connect=connect)
            plan = None
            if wanted.storage:
                plan = self._api.provisioning.plan_volumes(wanted.name, wanted.storage, connect=connect)
            return _item(wanted, "none", power, says.devices, plan)
        others = self._api.others(wanted.name, *gone, connect=connect)
        if known:
            others = beside(known.domain, others)
        built = self._api.build_beside(wanted.spec, _and(others, pinned, later))
        definition = read_definition(built.xml)
        later.update(dict.fromkeys(definition.devices, f"domain {wanted.name} of this fleet"))
        pinned.update(dict.fromkeys(built.layout.pins.values(), f"domain {wanted.name} of this fleet"))
        text = in_fleet(built.xml, fleet, wanted.digest)
        plan = self._api.provisioning.plan_define(
            text,
            connect=connect,
            claim=built.spec.claim,
            storage=wanted.storage,
            notes=tuple(f"{wanted.name}: {each.what}: {each.weaker}" for each in built.weaker),
        )
        is_changed = any(each.kind == DEFINITION for each in plan.changes)
        change: DefinitionChange = "none" if not is_changed else "change" if is_defined else "define"
        return _item(wanted, change, power, definition.devices, plan)

    def _pruned(self, known: Known, connect: str) -> FleetItem:
        name, provisioning = known.domain.name, self._api.provisioning
        if known.domain.is_active:
            raise DeviceInUse(
                f"{name}: it is not in the fleet any more, and runs",
                next_command=stop_command(name, provisioning.uri(connect)),
            )
        plan = provisioning.plan_undefine(name, connect=connect)
        return FleetItem(domain=name, change="undefine", power="none", plan=plan)

    def _carry_out(self, item: FleetItem, uri: str, progress: Progress | None) -> None:
        if item.plan:
            self._session.apply(item.plan, progress=progress)
        try:
            if item.power == "start":
                self._api.starting.start(item.domain, connect=uri, progress=progress)
            elif item.power == "stop":
                self._api.starting.stop(item.domain, connect=uri, progress=progress)
        except VfioctlError as error:
            if item.change != "none":
                error.message = f"it is {_DONE[item.change]}, and not {_DONE[item.power]}: {error.message}"
                error.facts["only_defined"] = item.domain
            raise

    def _await(self, names: Sequence[str], uri: str, seconds: float, tell: Tell) -> None:
        until, left = time.monotonic() + seconds, list(names)
        if left:
            tell(f"waiting for the guests of {', '.join(left)}")
        while left := [name for name in left if not self._answers(name, uri)]:
            if time.monotonic() > until:
                raise VerifyError(
                    f"the guest agent of {', '.join(left)} has not answered within {seconds:g} s",
                    hint="everything is defined and started; a guest needs qemu-guest-agent, and its channel",
                )
            time.sleep(_PAUSE)

    def _answers(self, name: str, uri: str) -> bool:
        try:
            self._session.kernel.ask_libvirt(uri, "guest_files", name, _QUESTION)
        except VfioctlError:
            return False
        return True


@contextmanager
def _about(name: str) -> Iterator[None]:
    """Begin the message of an error with the domain's name."""
    try:
        yield
    except VfioctlError as error:
        error.message = f"{name}: {error.message}"
        raise


def _item(
    wanted: _Wanted, change: DefinitionChange, power: Power, devices: Sequence[str], plan: Plan | None
) -> FleetItem:
    changes = plan.changes if plan else ()
    volumes = tuple(each.name.rpartition(" ")[2] for each in changes if each.kind in (IMAGE, SEED))
    return FleetItem(
        domain=wanted.name,
        change=change,
        power=power,
        devices=tuple(devices),
        volumes=volumes,
        plan=plan if changes else None,
    )


def _is_rebuilt(wanted: _Wanted, fleet: FleetSpec, known: Mapping[str, Known]) -> bool:
    """Return whether the domain gives up what it has now; one that runs has it until it is stopped."""
    there = known.get(wanted.name)
    if there is None or there.domain.is_active or there.says is None:
        return False
    return (there.says.fleet, there.says.spec) != (fleet.fleet, wanted.digest)


def _power(wanted: _Wanted, *, is_active: bool) -> Power:
    if wanted.running in (None, is_active):
        return "none"
    return "start" if wanted.running else "stop"


def _and(others: Others, pinned: Mapping[int, str], devices: Mapping[str, str]) -> Others:
    return others._replace(cpus={**others.cpus, **pinned}, devices={**others.devices, **devices})


def _sentence(item: FleetItem) -> str:
    words = {"define": "define", "change": "change the definition of", "undefine": "undefine", "none": ""}[item.change]
    made = f"create {' and '.join(item.volumes)}" if item.volumes else ""
    define = f"{words} {item.domain}" if words else ""
    power = f"{item.power} {item.domain}" if item.power != "none" else ""
    return ", then ".join(filter(None, (made, define, power)))
