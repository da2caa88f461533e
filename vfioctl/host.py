"""The library's front door: one object per host, whatever stands behind it.

    >>> from vfioctl.host import Host
    >>> host = Host.recorded("workstation")
    >>> plan = host.plan_bind(["gpu1"])
    >>> [step.target for step in plan.steps][0]
    'vfio-pci'

Every method may raise any class of the error tree in `vfioctl.errors`; a method names those of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from vfioctl.errors import BadDocument, NotPermitted

if TYPE_CHECKING:  # a listing needs neither the store nor the engine, and starts without them
    from vfioctl.apply.engine import Engine, Progress
    from vfioctl.apply.journal import Journal
    from vfioctl.kernel.seam import Kernel
    from vfioctl.kernel.simulated.faults import Fault
    from vfioctl.model.change import JournalEntry, Outcome, Plan
    from vfioctl.model.inventory import Inventory
    from vfioctl.model.rom import Rom
    from vfioctl.model.values import PciAddress
    from vfioctl.probe.scan import Catalogue

LEDGER = Path("/var/lib/vfioctl/ledger.db")
_PACKAGE = Path(__file__).parent


class Host:
    """A host: this machine, a captured directory, a recorded file, or a simulation."""

    def __init__(self, kernel: Kernel, ledger: Path, *, settle: float = 10.0, lock_wait: float = 10.0) -> None:
        self.kernel, self.ledger = kernel, ledger
        self._settle, self._lock_wait = settle, lock_wait

    @cached_property
    def _catalogue(self) -> Catalogue:
        from vfioctl.probe.scan import Catalogue

        return Catalogue(self.kernel)

    @cached_property
    def _journal(self) -> Journal:
        from vfioctl.apply.journal import Journal
        from vfioctl.apply.store import Store

        return Journal(Store(self.ledger))

    @cached_property
    def _engine(self) -> Engine:
        from vfioctl.apply.engine import Engine

        return Engine(self.kernel, self._journal, settle=self._settle, lock_wait=self._lock_wait)

    # -- which host --------------------------------------------------------------------------------

    @classmethod
    def live(cls, ledger: Path | None = None) -> Host:
        """This machine."""
        from vfioctl.kernel.live import Live

        return cls(Live(), ledger or LEDGER)

    @classmethod
    def at(cls, root: Path, ledger: Path | None = None) -> Host:
        """A captured `sys/ proc/ dev/` tree, read-only. Raises BadDocument."""
        from vfioctl.kernel.live import Live

        try:
            place = root.resolve(strict=True)
            captured = (place / "sys").is_dir()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, and what no path can hold
            raise BadDocument(f"{str(root)[:200]} cannot be read: {error}"[:400]) from None
        if not captured:
            raise BadDocument(f"{root} holds no captured host", hint="it should hold sys/, proc/ and dev/")
        return cls(Live(str(place), read_only=True), ledger or (_beside(place) if place.name else LEDGER))

    @classmethod
    def recorded(cls, name: str, ledger: Path | None = None) -> Host:
        """A host file, or a bundled host by its name, read-only. Raises BadDocument."""
        from vfioctl.kernel.recorded import Recorded, read_tree

        file = _file_of(name)
        return cls(Recorded(read_tree(file), f"recorded host {file.name}"), ledger or _beside(file))

    @classmethod
    def simulated(cls, name: str, ledger: Path | None = None, *, faults: Sequence[Fault] = ()) -> Host:
        """A host file, or a bundled host by its name, that answers writes; it is kept in its file.

        A bundled host is copied to the user's state directory first (`simulated_file`). Raises BadDocument.
        """
        from vfioctl.kernel.simulated.faults import parse_fault
        from vfioctl.kernel.simulated.host import Simulated

        file = simulated_file(name)
        told = os.environ.get("VFIOCTL_FAULTS", "")
        faults = (*faults, *(parse_fault(text) for text in told.split(",") if text))
        return cls(Simulated.at(file, faults=faults), ledger or _beside(file), settle=0.0)

    # -- looking -----------------------------------------------------------------------------------

    def inventory(self) -> Inventory:
        """The host as it is now."""
        from vfioctl.probe.scan import Scan

        scan = Scan(self.kernel, self._catalogue)  # its children read while the models are imported
        from vfioctl.probe.inventory import assemble

        return assemble(self.kernel, scan)

    def find(self, selectors: Sequence[str], *, every: bool = False) -> tuple[PciAddress, ...]:
        """The functions that `0000:41:00.0`, `41:00.0`, `gpu0` or `10de:2330` mean.

        Raises BadAddress, UnknownDevice, and BadSpec for ids that mean several without `every`.
        """
        from vfioctl.model.selector import select

        return select(self.inventory(), selectors, every=every)

    def snapshot(self) -> tuple[str, tuple[str, ...]]:
        """The text of a host file, redacted, and the files that could not be read."""
        from vfioctl.kernel.capture import capture
        from vfioctl.kernel.tree import form

        tree, unread = capture(self.kernel)
        tree.comments = [f"# recorded from {self.kernel.description} by vfioctl snapshot"]
        return form(tree), tuple(unread)

    def rom(self, device: str) -> tuple[bytes, Rom]:
        """One function's expansion ROM, and what it holds. Raises VerifyError when it does not answer."""
        from vfioctl.model.selector import select
        from vfioctl.probe.rom import read_rom

        inventory = self.inventory()
        (address,) = select(inventory, [device], every=False)
        return read_rom(self.kernel, inventory.by_address[address])

    def history(self, *, most: int = -1) -> tuple[JournalEntry, ...]:
        """The changes in the journal, the newest first."""
        return self._journal.entries(most=most)

    # -- changing ----------------------------------------------------------------------------------

    def plan_again(self, saved: Plan) -> Plan:
        """The plan that a saved one was made for, made anew: what a file says is never done unless it is this.

        Raises StalePlan when the host has changed, BadDocument when the file was not made by planning.
        """
        from vfioctl.errors import StalePlan
        from vfioctl.model.change import Verb

        asked = saved.intent
        if asked.verb == Verb.BIND:
            fresh = self.plan_bind(
                asked.devices,
                driver=asked.driver,
                with_group=asked.with_group,
                allow_boot_vga=asked.allow_boot_vga,
            )
        else:
            fresh = self.plan_unbind(asked.devices, to=asked.driver, with_group=asked.with_group)
        if fresh == saved:
            return fresh
        changed = [fact.address for fact in saved.facts if fact not in fresh.facts]
        if changed or fresh.nothing_to_do or fresh.facts != saved.facts:
            raise StalePlan(
                f"{', '.join(changed) or 'the host'} changed after the plan was made", hint="make a new plan"
            )
        raise BadDocument("the plan is not what planning makes of its intent here", hint="make a new plan")

    def unfinished(self) -> tuple[JournalEntry, ...]:
        """Changes that were cut short, the newest first."""
        return self._journal.unfinished() if self.ledger.exists() else ()

    def plan_bind(
        self,
        devices: Sequence[str],
        *,
        every: bool = False,
        driver: str | None = None,
        with_group: bool = False,
        allow_boot_vga: bool = False,
    ) -> Plan:
        """What handing the devices to VFIO takes; they are named as for `find`.

        Raises NoIommu, GroupNotViable, DeviceInUse, BadSpec, and what `find` raises.
        """
        from vfioctl.model.change import Intent, Verb
        from vfioctl.model.selector import select
        from vfioctl.plan.bind import plan_bind

        inventory = self.inventory()
        intent = Intent(
            verb=Verb.BIND,
            devices=select(inventory, devices, every=every),
            driver=driver,
            with_group=with_group,
            allow_boot_vga=allow_boot_vga,
        )
        return plan_bind(inventory, intent)

    def plan_unbind(
        self, devices: Sequence[str], *, every: bool = False, to: str | None = None, with_group: bool = False
    ) -> Plan:
        """What giving the devices back takes; they are named as for `find`. Raises DeviceInUse, BadSpec."""
        from vfioctl.model.change import Intent, Verb
        from vfioctl.model.selector import select
        from vfioctl.plan.bind import plan_unbind

        inventory = self.inventory()
        chosen = select(inventory, devices, every=every)
        intent = Intent(verb=Verb.UNBIND, devices=chosen, driver=to, with_group=with_group)
        identities = {function.address: function.identity for function in inventory.functions}
        records = self._journal.records(identities, boot_id=self._engine.boot_id)
        return plan_unbind(inventory, intent, records)

    def apply(self, plan: Plan, *, progress: Progress | None = None) -> Outcome:
        """Does the plan, or leaves the host as it was; see `Engine.apply` for what it raises."""
        return self._engine.apply(plan, progress)

    def recover(self, *, forward: bool = False, progress: Progress | None = None) -> tuple[Outcome, ...]:
        """Finishes what a crash left; see `Engine.recover`."""
        return self._engine.recover(forward=forward, progress=progress)


# -- bundled hosts -----------------------------------------------------------------------------------


def bundled_hosts() -> Mapping[str, Path]:
    """The hosts that come with vfioctl, by name: in the package, or in the tests of a source checkout."""
    for home in (_PACKAGE / "hosts", _PACKAGE.parent / "tests" / "hosts"):
        if home.is_dir():
            return {file.stem: file for file in sorted(home.glob("*.host"))}
    return {}


def simulated_file(name: str) -> Path:
    """The file that a simulated host lives in; a bundled one is copied there when it is first asked for."""
    if not _is_name(name):
        return Path(name)
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    file = state / "vfioctl" / "simulated" / f"{name}.host"
    if not file.exists():
        original = _file_of(name)
        _copy(original, file)
    return file


def reset_simulated(name: str) -> Path:
    """Puts a simulated bundled host back to its start, its ledger too. Raises BadDocument, NotPermitted."""
    if name not in bundled_hosts():
        raise BadDocument(f"{name[:80]!r} is no bundled host", hint=f"they are {', '.join(bundled_hosts())}")
    file = simulated_file(name)
    _copy(bundled_hosts()[name], file)
    ledger = _beside(file)
    for ending in ("", "-wal", "-shm", ".lock"):
        ledger.with_name(ledger.name + ending).unlink(missing_ok=True)
    return file


def _beside(file: Path) -> Path:
    """Another host's ledger is never this machine's."""
    return file.with_name(f"{file.name}.ledger.db")


def _copy(original: Path, file: Path) -> None:
    from vfioctl.kernel.simulated.host import replace

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace(file, original.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotPermitted(f"{file} cannot be written: {error.strerror}", hint="set XDG_STATE_HOME") from None


def _is_name(name: str) -> bool:
    looks_so = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}", name, re.ASCII) is not None
    return looks_so and (name in bundled_hosts() or not Path(name).exists())


def _file_of(name: str) -> Path:
    if not _is_name(name):
        return Path(name)
    if name not in bundled_hosts():
        raise BadDocument(
            f"there is no host file and no bundled host {name!r}",
            hint=f"the bundled hosts are {', '.join(bundled_hosts())}",
        )
    return bundled_hosts()[name]
