"""The use cases of domains."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from vfioctl.core.change import Intent, Plan
    from vfioctl.domain.build.build import Built
    from vfioctl.domain.define.definitions import Provisioning
    from vfioctl.domain.define.fleet import Fleets
    from vfioctl.domain.model.comparison import Comparison
    from vfioctl.domain.model.finding import CheckDocument
    from vfioctl.domain.model.fleet import FleetSpec
    from vfioctl.domain.model.other_domains import Others
    from vfioctl.domain.model.spec import DomainSpec
    from vfioctl.domain.model.verification import Verification
    from vfioctl.domain.run.hook import Hook
    from vfioctl.domain.run.start import Starting
    from vfioctl.session import Session


class DomainApi:
    """The libvirt domains of one host."""

    def __init__(self, session: Session) -> None:
        self._session = session

    # -- building ----------------------------------------------------------------------------------

    def spec(self, given: Mapping[str, Any], file: Path | None = None) -> DomainSpec:
        """Return a spec: the content of a TOML or YAML file, with what is given in its place. Raises BadSpec."""
        from vfioctl.domain.build.specs import read_spec

        return read_spec(given, file)

    def build(self, spec: DomainSpec, *, connect: str = "") -> Built:
        """Return the domain of a spec, with the reason for each choice; see `Building.build` for the errors.

        What other domains of libvirt have is left out; a host without libvirt has none.
        """
        return self.build_beside(spec, self.others(spec.name, connect=connect))

    def build_beside(self, spec: DomainSpec, others: Others) -> Built:
        """The same for known other domains, which may not be defined yet."""
        from vfioctl.domain.build.build import Building

        return Building(self._session).build(spec, others)

    def edited(self, name: str, spec: Mapping[str, Any], file: Path | None = None, *, connect: str = "") -> Built:
        """Return a domain that there is, with the devices, CPUs and memory of a spec; everything else stays.

        It has its own devices too. What the spec does not say is as the domain has it, or was built with.
        Raises UnknownDomain, BadDocument for what would not work, and what `Building.build` raises.
        """
        from vfioctl.claims.api import ClaimsApi
        from vfioctl.domain.build.build import Building
        from vfioctl.domain.build.build_options import completed
        from vfioctl.domain.build.compare import options_now
        from vfioctl.domain.build.own_usage import with_own_usage
        from vfioctl.domain.build.specs import content_of, spec_of
        from vfioctl.domain.check.checker import refuse_new_errors
        from vfioctl.domain.document.reader import read_domain

        provisioning = self.provisioning
        found = provisioning.find(name, connect).domain
        # with its passwords, which a listing does not have
        text = self._session.kernel.ask_libvirt(provisioning.uri(connect), "definition", found.name) or found.live
        content = content_of(file) if file else {}
        asked = spec_of({**spec, "name": found.name}, content, file)
        others = with_own_usage(found, self.others(found.name, connect=connect))
        before, claims = read_domain(text), ClaimsApi(self._session)
        named = {*spec, *content}
        if asked.claim and claims.claim(asked.claim).hugepages:
            named.add("hugepages")
        asked = completed(asked, named, options_now(claims, before, asked.cpus))
        built = Building(self._session).build(asked, others, before.document)
        refuse_new_errors(before.document, built.document)
        return built

    def compared(self, name: str, *, connect: str = "") -> Comparison:
        """Compare a domain with what would be built for its devices. Raises UnknownDomain, BadSpec."""
        from vfioctl.domain.build.compare import compared

        found = self.provisioning.find(name, connect).domain
        return compared(self._session, found, self.others(found.name, connect=connect))

    def verify(self, name: str, *, connect: str = "", guest: bool = True) -> Verification:
        """Compare a running domain with its document; `guest`: also what its guest sees.

        Raises UnknownDomain; HostError for one that does not run.
        """
        from vfioctl.domain.run.verification import verified

        found = self.provisioning.find(name, connect).domain
        return verified(self._session.kernel, self.provisioning.uri(connect), found, guest=guest)

    def others(self, *but: str, connect: str = "") -> Others:
        """Return what the domains of libvirt have, without the named ones; nothing where no libvirt runs."""
        from vfioctl.domain.model.libvirt import URI
        from vfioctl.domain.model.other_domains import NOBODY
        from vfioctl.kernel.libvirt import SOCKETS

        uri = self.provisioning.uri(connect)
        if uri == URI and not connect and not any(map(self._session.kernel.has, SOCKETS)):
            return NOBODY
        from vfioctl.claims.api import ClaimsApi
        from vfioctl.domain.document.other_domains import others_in
        from vfioctl.domain.model.libvirt import known_as
        from vfioctl.domain.probe.libvirt import read_libvirt
        from vfioctl.inventory.api import InventoryApi

        claims, owners, here = ClaimsApi(self._session), {f"vm/{name}" for name in but}, known_as(uri)
        online = InventoryApi(self._session).online_cpus()
        found = others_in(read_libvirt(self._session.kernel, uri), online, but=but)
        own = (each.id for each in claims.claims() if each.owner in owners and each.is_of(each.owner, here))
        return found._replace(own=tuple(own))

    # -- fleets --------------------------------------------------------------------------------------

    def fleet(self, file: Path) -> FleetSpec:
        """Return the fleet that a TOML or YAML file describes. Raises BadSpec."""
        from vfioctl.domain.build.specs import read_fleet

        return read_fleet(file)

    @cached_property
    def fleets(self) -> Fleets:
        """Make several domains what one file says."""
        from vfioctl.domain.define.fleet import Fleets

        return Fleets(self._session, self)

    # -- checking ----------------------------------------------------------------------------------

    def check(
        self,
        text: str | bytes,
        *,
        host: bool = True,
        version: tuple[int, ...] | None = None,
        connect: str = "",
    ) -> CheckDocument:
        """Return what is wrong with a domain's XML. Raises BadDocument if it is no XML.

        `host`: whether it is also judged against this host, without libvirt. `version`: of the libvirt that will get
        it; nothing is said of names that older ones do not know if it is not known. `connect`: the URI of a libvirt
        that is asked as well.
        """
        from vfioctl.domain.check.checker import judged
        from vfioctl.domain.check.libvirt import NOT_ASKED, ask

        asked = ask(self._session.kernel, connect, text) if connect else NOT_ASKED
        return judged(self._session if host else None, text, version, asked)

    def xml_of(self, name: str, *, connect: str) -> str:
        """Return the XML of a domain that the libvirt with this URI has. Raises UnknownDomain, HostError."""
        from vfioctl.domain.check.libvirt import defined

        return defined(self._session.kernel, connect, name)

    # -- libvirt's domains ---------------------------------------------------------------------------

    @cached_property
    def provisioning(self) -> Provisioning:
        """List, define and undefine libvirt's domains."""
        from vfioctl.domain.define.definitions import Provisioning

        return Provisioning(self._session)

    @cached_property
    def starting(self) -> Starting:
        """Start and stop domains, with claims for the time that they run."""
        from vfioctl.domain.run.start import Starting

        return Starting(self._session)

    @cached_property
    def hook(self) -> Hook:
        """Answer libvirt when it starts and ends a domain; and install that."""
        from vfioctl.domain.run.hook import Hook

        return Hook(self._session)

    def replan(self, intent: Intent) -> Plan:
        """Plan an intent of this subsystem on the host as it is now."""
        own = self.hook if intent.verb.startswith("hook ") else self.provisioning
        return own.replan(intent)
