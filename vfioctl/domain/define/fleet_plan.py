"""Plans what is done to each domain of a fleet. Reads the host, the ledger and libvirt, and may not write to any."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from shlex import quote
from typing import NamedTuple

from vfioctl.core.change import Plan
from vfioctl.domain.build.build import DomainBuilder
from vfioctl.domain.build.placing import read_others, with_own_usage
from vfioctl.domain.define.definitions import Definitions
from vfioctl.domain.define.storage import Provided, provided, refuse_shared, written_by
from vfioctl.domain.document.mark import in_fleet
from vfioctl.domain.document.needs import Needs, needs_of
from vfioctl.domain.document.reader import AGENT_CHANNEL, Domain, read_domain
from vfioctl.domain.document.templates import read_template
from vfioctl.domain.document.xml import text_of
from vfioctl.domain.model.definition import DEFINITION, IMAGE, SEED, Storage
from vfioctl.domain.model.fleet import DefinitionChange, FleetDomain, FleetItem, FleetSpec, Power
from vfioctl.domain.model.libvirt import DomainXml, Others
from vfioctl.domain.model.spec import DomainSpec
from vfioctl.domain.probe.domains import Domains, Known, stop_command
from vfioctl.domain.run.lifecycle import Lifecycle
from vfioctl.errors import ClaimConflict, DeviceInUse, Foreign, VfioctlError
from vfioctl.inventory.model.values import Subject
from vfioctl.session import Session


class _Wanted(NamedTuple):
    """A domain of the file. `digest`: of what it is made from, in short: its spec, and its template."""

    name: str
    spec: DomainSpec
    storage: Storage | None
    digest: str
    running: bool | None


class FleetPlanning:
    """One fleet at one libvirt."""

    def __init__(self, session: Session, fleet: FleetSpec, connect: str) -> None:
        self._session, self._fleet, self._connect = session, fleet, connect
        self._definitions = Definitions(session)
        domains = Domains(session)
        self.uri = domains.uri(connect)
        known = domains.known(domains.libvirt(connect), as_defined=True)
        self._known = {domain.domain.name: domain for domain in known}
        self._devices: dict[str, str] = {}  # of the domains that are planned already
        self._pinned: dict[int, str] = {}
        self._images: dict[str, str] = {}

    def items(self, *, prune: bool) -> tuple[FleetItem, ...]:
        """Return what is done to domains: those that go, then the file's in order. Raises what `Fleets.plan` raises."""
        leaving = self._leaving() if prune else []
        pruned = [self._pruned(domain) for domain in leaving]
        wanted = [self._wanted(domain) for domain in self._fleet.domains]
        gone = {domain.name for domain in leaving}.union(domain.name for domain in wanted if self._is_rebuilt(domain))
        stay = (known.domain for name, known in self._known.items() if name not in gone)
        writers = {domain.name: written_by((domain.live, domain.defined)) for domain in stay}
        stored = {domain.name: Provided(domain.spec, domain.storage) for domain in wanted}
        refuse_shared(self._session.kernel, stored, writers)
        # those that take any GPUs choose among what the others leave
        turns = sorted(wanted, key=lambda domain: (not self._stays(domain), bool(domain.spec.gpus)))
        items = {domain.name: self._item(domain, gone) for domain in turns}
        in_order = tuple(items[domain.name] for domain in wanted)
        self._refuse_unstartable(in_order)
        return (*pruned, *in_order)

    def without_agent(self, items: Sequence[FleetItem]) -> tuple[str, ...]:
        """Return domains that are to run without an agent's channel; one that runs has those of its live document."""
        wanted = {domain.name for domain in self._fleet.domains if domain.running}
        live = {name: known.domain.live for name, known in self._known.items()}
        texts = {item.domain: live.get(item.domain) or self._document(item) for item in items if item.domain in wanted}
        return tuple(name for name, text in texts.items() if read_domain(text).one(AGENT_CHANNEL) is None)

    def orphans(self) -> tuple[str, ...]:
        """Return the domains of the fleet that its file does not name any more, each with its state."""
        return tuple(f"{domain.name}, {domain.state}" for domain in self._leaving())

    def _leaving(self) -> list[DomainXml]:
        named = {domain.name for domain in self._fleet.domains}
        members = (known for known in self._known.values() if known.says and known.says.mark.fleet == self._fleet.fleet)
        return [member.domain for member in members if member.domain.name not in named]

    def _pruned(self, domain: DomainXml) -> FleetItem:
        if domain.is_active:
            what = f"{domain.name}: it is not in the fleet any more, and runs"
            raise DeviceInUse(what, next_command=stop_command(domain.name, self.uri))
        plan = self._definitions.plan_undefine(domain.name, connect=self._connect)
        return FleetItem(domain=domain.name, change="undefine", power="none", plan=plan)

    def _wanted(self, domain: FleetDomain) -> _Wanted:
        with _about(domain.name):
            stored = provided(self._session.kernel, self.uri, domain)
            template = text_of(read_template(stored.spec.template))
        digest = sha256(f"{json.dumps(asdict(stored.spec), sort_keys=True)}{template}".encode()).hexdigest()[:12]
        return _Wanted(domain.name, *stored, digest, domain.running)

    def _is_rebuilt(self, wanted: _Wanted) -> bool:
        """Return whether the domain gives up what it has now; one that runs has it until it is stopped."""
        known = self._known.get(wanted.name)
        return bool(known and known.says and not known.domain.is_active) and not self._stays(wanted)

    def _stays(self, wanted: _Wanted) -> bool:
        known = self._known.get(wanted.name)
        if known is None or known.says is None or not known.domain.is_defined:
            return False
        return (known.says.mark.fleet, known.says.mark.spec) == (self._fleet.fleet, wanted.digest)

    def _item(self, wanted: _Wanted, gone: Collection[str]) -> FleetItem:
        known = self._known.get(wanted.name)
        power = _power(wanted, is_active=bool(known and known.domain.is_active))
        with _about(wanted.name):
            document = _says_of(self._fleet.fleet, known, self.uri) if known else None
            if document and self._stays(wanted):
                plan = None
                if wanted.storage:
                    plan = self._definitions.plan_volumes(wanted.name, wanted.storage, connect=self._connect)
                item = _item(wanted, "none", power, document.host_devices, plan)
            else:
                item = self._built(wanted, power, known, gone)
        self._devices.update(dict.fromkeys(item.devices, wanted.name))
        images = written_by((self._document(item),))
        self._images.update(dict.fromkeys(images, f"domain {wanted.name} of this fleet"))
        return item

    def _built(self, wanted: _Wanted, power: Power, known: Known | None, gone: Collection[str]) -> FleetItem:
        others = read_others(self._session, wanted.name, *gone, connect=self._connect)
        if known:
            others = with_own_usage(known.domain, others)
        built = DomainBuilder(self._session).build(wanted.spec, self._and_planned(others))
        devices = read_domain(built.xml).host_devices
        if shared := next((device for device in devices if device in self._devices), ""):
            hint = "no two domains of a fleet have one device: give one of them another"
            raise ClaimConflict(f"{shared} is a device of domain {self._devices[shared]} of this fleet", hint=hint)
        self._pinned.update(dict.fromkeys(built.layout.pins.values(), f"domain {wanted.name} of this fleet"))
        plan = self._definitions.plan_define(
            in_fleet(built.xml, self._fleet.fleet, wanted.digest),
            connect=self._connect,
            claim=built.spec.claim,
            storage=wanted.storage,
            leaving=gone,
            notes=tuple(f"{wanted.name}: {choice.what}: {choice.weaker}" for choice in built.weaker),
        )
        is_changed = bool(plan.changes_of(DEFINITION))
        is_defined = bool(known and known.domain.is_defined)
        change: DefinitionChange = "none" if not is_changed else "change" if is_defined else "define"
        return _item(wanted, change, power, devices, plan)

    def _refuse_unstartable(self, items: Sequence[FleetItem]) -> None:
        """Raise what the domains that are to start would be refused for, in the order in which they do. One that needs
        what a domain before it gives back is left out: who has that now is not who has it then."""
        given_back: set[Subject | int] = set()
        for item in items:
            if item.power == "none":
                continue
            has = self._has(item.domain)
            if item.power == "start":
                needs = needs_of(self._document(item))
                wanted = _resources(needs)
                has -= wanted
                if wanted.isdisjoint(given_back):
                    with _about(item.domain):
                        Lifecycle(self._session).preview_of(needs, connect=self._connect)
            given_back |= has

    def _has(self, name: str) -> set[Subject | int]:
        """Return what a domain may have now: claims that were made for it may be left also when it has ended."""
        known = self._known.get(name)
        texts = (known.domain.live, known.domain.defined) if known else ()
        return {resource for text in texts if text for resource in _resources(needs_of(text))}

    def _document(self, item: FleetItem) -> str:
        """Return the document of a domain when its plan was applied."""
        planned = item.plan.changes_of(DEFINITION) if item.plan else ()
        return planned[0].after if planned else self._known[item.domain].domain.defined

    def _and_planned(self, others: Others) -> Others:
        devices = {device: f"domain {name} of this fleet" for device, name in self._devices.items()}
        return others._replace(
            cpus={**others.cpus, **self._pinned},
            devices={**others.devices, **devices},
            images={**others.images, **self._images},
        )


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
    volumes = plan.changes_of(IMAGE, SEED) if plan else ()
    return FleetItem(
        domain=wanted.name,
        change=change,
        power=power,
        devices=tuple(devices),
        volumes=tuple(volume.name.rpartition(" ")[2] for volume in volumes),
        plan=plan if plan and plan.changes else None,
    )


def _power(wanted: _Wanted, *, is_active: bool) -> Power:
    if wanted.running in (None, is_active):
        return "none"
    return "start" if wanted.running else "stop"


def _resources(needs: Needs) -> set[Subject | int]:
    return {*needs.devices, *needs.cpus}


def _says_of(fleet: str, known: Known, uri: str) -> Domain:
    """Return what a domain of the fleet says. Raises Foreign for any other domain."""
    name, document = known.domain.name, known.says
    if document and document.mark.is_own and document.mark.fleet == fleet:
        return document
    if document and document.mark.is_own:
        by, foreign = f"by fleet {document.mark.fleet}" if document.mark.fleet else "by no fleet", ""
    else:
        by, foreign = "and not by vfioctl", " --foreign"
    raise Foreign(
        f"domain {name} is defined already, {by}",
        hint="give the domain of the file another name, or remove the definition that is there first",
        next_command=f"vfioctl domain undefine {quote(name)}{foreign} --connect {quote(uri)}",
    )
