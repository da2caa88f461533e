"""The use cases of domains."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from vfioctl.errors import VfioctlError

if TYPE_CHECKING:
    from pathlib import Path

    from vfioctl.core.change import Intent, Plan
    from vfioctl.domain.build.build import Built
    from vfioctl.domain.define.definitions import Definitions
    from vfioctl.domain.define.fleet import Fleets
    from vfioctl.domain.model.build import Comparison
    from vfioctl.domain.model.finding import CheckDocument
    from vfioctl.domain.model.fleet import FleetSpec
    from vfioctl.domain.model.libvirt import Libvirt
    from vfioctl.domain.model.listing import DomainListDocument, DomainShowDocument
    from vfioctl.domain.model.planned import PlannedGuest
    from vfioctl.domain.model.spec import DomainSpec
    from vfioctl.domain.model.verification import Verification
    from vfioctl.domain.probe.domains import Domains
    from vfioctl.domain.run.hook import Hook
    from vfioctl.domain.run.lifecycle import Lifecycle
    from vfioctl.session import Session


class DomainApi:
    """The libvirt domains of one host."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def spec(self, values: Mapping[str, Any], file: Path | None = None) -> DomainSpec:
        """Return a spec: the content of a TOML or YAML file, with what is given in its place. Raises BadSpec."""
        from vfioctl.domain.build.specs import read_spec

        return read_spec(values, file)

    def build(self, spec: DomainSpec, *, connect: str = "", nccl: bool = False) -> Built:
        """Return the domain of a spec, with the reason for each choice, from what no other domain of libvirt has, if
        there is a libvirt. `nccl`: whether `Built.nccl_topology` is wanted. Raises what `DomainBuilder.build` raises.
        """
        from vfioctl.domain.build.build import DomainBuilder
        from vfioctl.domain.build.placing import read_others

        others = read_others(self._session, spec.name, connect=connect)
        return DomainBuilder(self._session).build(spec, others, nccl=nccl)

    def edited(self, name: str, spec: Mapping[str, Any], file: Path | None = None, *, connect: str = "") -> Built:
        """Return an existing domain with the devices, CPUs and memory of a spec; everything else stays. It keeps its
        own devices. What the spec does not name is as the domain has it, or was built with. Raises UnknownDomain,
        BadDocument for a document that would not work, and what `DomainBuilder.build` raises."""
        from vfioctl.domain.build.edit import edited

        return edited(self._session, name, spec, file, connect=connect)

    def compared(self, name: str, *, connect: str = "") -> Comparison:
        """Compare a domain with what would be built for its devices. Raises UnknownDomain, BadSpec."""
        from vfioctl.domain.build.edit import compared
        from vfioctl.domain.build.placing import read_others

        domain = self.domains.find(name, connect).domain
        return compared(self._session, domain, read_others(self._session, domain.name, connect=connect))

    def verify(self, name: str, *, connect: str = "", guest: bool = True) -> Verification:
        """Compare a running domain with its document; `guest`: also what its guest sees. Raises UnknownDomain;
        HostError for one that does not run."""
        from vfioctl.domain.run.verification import verified

        domain = self.domains.find(name, connect).domain
        return verified(self._session.kernel, self.domains.uri(connect), domain, guest=guest)

    def fleet(self, file: Path) -> FleetSpec:
        """Return the fleet that a TOML or YAML file describes. Raises BadSpec."""
        from vfioctl.domain.build.specs import read_fleet

        return read_fleet(file)

    @cached_property
    def fleets(self) -> Fleets:
        """Apply files that describe several domains."""
        from vfioctl.domain.define.fleet import Fleets

        return Fleets(self._session)

    def check(
        self, text: str | bytes, *, host: bool = True, version: tuple[int, ...] | None = None, connect: str = ""
    ) -> CheckDocument:
        """Return what is wrong with a domain's XML. Raises BadDocument if it is no XML. `host`: whether it is also
        judged against this host, without libvirt. `version`: of the libvirt that will get it; nothing is said of names
        that older ones do not know if it is not known. `connect`: the URI of a libvirt that is asked as well."""
        from vfioctl.domain.check.checker import NOT_ASKED, ask, judged

        asked = ask(self._session.kernel, connect, text) if connect else NOT_ASKED
        return judged(self._session if host else None, text, version, asked)

    def xml_of(self, name: str, *, connect: str) -> str:
        """Return the XML of a domain that the libvirt with this URI has. Raises UnknownDomain, HostError."""
        from vfioctl.domain.check.checker import defined

        return defined(self._session.kernel, connect, name)

    def listing(self, *, connect: str = "") -> DomainListDocument:
        """Return the domains that the libvirt with this URI has, and their claims. Raises HostError, MissingLibrary."""
        from vfioctl.domain.probe.listing import list_document

        libvirt = self.domains.libvirt(connect)
        return list_document(libvirt, self.domains.known(libvirt), self.held(connect=connect))

    def shown(self, name: str, *, connect: str = "") -> DomainShowDocument:
        """Return a domain by its name or UUID, with its documents. Raises UnknownDomain, HostError, MissingLibrary."""
        from vfioctl.domain.probe.listing import show_document

        return show_document(self.domains.find(name, connect), self.held(connect=connect))

    def planned(self, *, connect: str = "") -> tuple[Libvirt, tuple[PlannedGuest, ...]]:
        """Return libvirt with its versions, and the domains that have devices of the host, as they start the next time.
        `unknown` of libvirt says why if it cannot be asked: then there are none. Raises BadSpec."""
        from vfioctl.domain.probe.domains import read_libvirt
        from vfioctl.domain.probe.planned import planned_guests

        libvirt = read_libvirt(self._session.kernel, self.domains.uri(connect))
        return libvirt, tuple(planned_guests(self.domains.known(libvirt, as_defined=True)))

    @cached_property
    def domains(self) -> Domains:
        """Look up libvirt's domains."""
        from vfioctl.domain.probe.domains import Domains

        return Domains(self._session)

    @cached_property
    def definitions(self) -> Definitions:
        """Define and undefine libvirt's domains."""
        from vfioctl.domain.define.definitions import Definitions

        return Definitions(self._session)

    @cached_property
    def lifecycle(self) -> Lifecycle:
        """Start and stop domains, with claims for the time that they run."""
        from vfioctl.domain.run.lifecycle import Lifecycle

        return Lifecycle(self._session)

    @cached_property
    def hook(self) -> Hook:
        """Answer libvirt when it starts and ends a domain; and install that."""
        from vfioctl.domain.run.hook import Hook

        return Hook(self._session)

    def held(self, *, connect: str = "") -> Mapping[str, tuple[str, ...]]:
        """Return the ids of the live claims that the domains of a libvirt hold, by the domain's name."""
        from vfioctl.claims.api import ClaimsApi
        from vfioctl.domain.model.libvirt import known_as

        uri, held = known_as(self.domains.uri(connect)), dict[str, tuple[str, ...]]()
        with suppress(VfioctlError):  # a damaged ledger costs its facts, not the listing
            for claim in ClaimsApi(self._session).claims():
                kind, _, name = claim.owner.partition("/")
                if kind == "vm" and claim.is_of(claim.owner, uri):
                    held[name] = (*held.get(name, ()), claim.id)
        return held

    def replan(self, intent: Intent) -> Plan:
        """Plan an intent of this subsystem on the host as it is now."""
        own = self.hook if intent.verb.startswith("hook ") else self.definitions
        return own.replan(intent)
