"""Takes the steps of a plan one after the other, up to the first that fails. The only module that changes a host.

It proves nothing (`proof` does), and puts nothing back (`engine` does).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from vfioctl.core.change import Intent, Step, StepKind
from vfioctl.errors import DeviceInUse, KernelRefused, Stuck, VfioctlError
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.holders import Holder
from vfioctl.inventory.model.refusals import holding, refuse, told
from vfioctl.inventory.model.values import PciAddress, Subject, Uuid, subject
from vfioctl.inventory.probe.holders import perhaps_open, read_holders, read_mdev_holders
from vfioctl.inventory.probe.processes import Processes
from vfioctl.kernel.lenient import text
from vfioctl.kernel.protocol import PCI_DRIVERS, Kernel, Unanswered
from vfioctl.vgpu.plan.steps import MDEVS, VFS

Progress = Callable[[Step, int, int], None]
"""Told of each step before it is taken: the step, its number from 1, and how many there are."""
_PAUSE = 0.2
_GONE = ("ENOENT", "ENODEV")
_SHORT = 0.3


class Executor:
    """`look` gives the inventory that says what functions are; `settle`: seconds that one may take to be let go of."""

    def __init__(self, kernel: Kernel, look: Callable[[], Inventory], *, settle: float) -> None:
        self._kernel, self._look, self._settle = kernel, look, settle
        self._last_seen: tuple[Holder, ...] = ()
        self.reached = 0
        """How many of the steps were taken, or at least begun and not refused."""
        self.said = ""
        """The last words of a tool whose exit code says nothing."""

    def take(
        self, todo: Sequence[Step], intent: Intent, progress: Progress | None, *, check_interrupt: Callable[[], None]
    ) -> list[str]:
        """Takes all steps; what those that may fail had to say. A Stuck has the step's function in its facts."""
        failures: list[str] = []
        for number, step in enumerate(todo, start=1):
            check_interrupt()
            if progress:
                progress(step, number, len(todo))
            self.reached = number
            try:
                self._take(step, todo, intent)
            except Stuck as error:
                self._explain(error, step)
                raise
            except VfioctlError as error:
                if isinstance(error, KernelRefused):
                    if _is_gone_already(self._kernel, step, error):
                        continue
                    self.reached = number - 1
                if not step.may_fail:
                    raise
                failures.append(f"{error.message} ({error.kernel_said})" if error.kernel_said else error.message)
        return failures

    def _take(self, step: Step, todo: Sequence[Step], intent: Intent) -> None:
        if step.kind == StepKind.LOAD:
            self._kernel.load(step.target)
        elif step.kind == StepKind.CHECK:
            waits = any(other.kind in (StepKind.SERVICE, StepKind.PERSISTENCE) for other in todo)
            self._check(self._concerned(step), intent, self._settle if waits else 0.0)
        elif step.kind == StepKind.PERSISTENCE:
            self._kernel.persist(step.target, on=step.value == "1")
        elif step.kind == StepKind.SERVICE:
            self._kernel.set_unit(step.target, active=step.value == "active")
        elif step.kind == StepKind.KEEP:
            self._kernel.replace_file(step.target, step.value or None)
        elif step.kind == StepKind.NVIDIA_VFS:
            self.said = self._kernel.manage_vfs(step.target, on=step.value == "1")
        elif step.target.endswith("/unbindLock") and step.value == "1":
            self._lock(step)
        else:
            self._kernel.write(self._spelled_file(step.target), self._spelled(step))

    # -- who holds it ------------------------------------------------------------------------------

    def _concerned(self, step: Step) -> list[Subject]:
        """What a check is about."""
        named = [subject(word) for word in step.target.split()]
        if step.value != VFS:
            return named
        known = self._look().by_address
        return [vf for each in named if isinstance(each, PciAddress) and each in known for vf in known[each].virtfns]

    def _check(self, addresses: Sequence[Subject], intent: Intent, timeout: float) -> None:
        """What was just stopped may take a moment to close the device."""
        until = time.monotonic() + timeout
        while against := holding(self._held(addresses), addresses, intent):
            if time.monotonic() >= until:
                refuse(against, self._functions(addresses))
            time.sleep(_PAUSE)

    def _held(self, addresses: Sequence[Subject], timeout: float | None = None) -> tuple[Holder, ...]:
        mdevs = [address for address in addresses if isinstance(address, Uuid)]
        suspects = perhaps_open(self._kernel, mdevs)
        found: tuple[Holder, ...] = ()
        if len(mdevs) < len(addresses) or suspects:
            processes = Processes(self._kernel, timeout=timeout)
            found += read_mdev_holders(self._kernel, suspects, processes).holders if suspects else ()
            if functions := self._functions(addresses):
                found += read_holders(self._kernel, functions, self._look(), processes).holders
        self._last_seen = found
        return found

    def _seen_on(self, address: Subject) -> list[Holder]:
        return [holder for holder in self._last_seen if holder.refuses and holder.address == address]

    def _functions(self, addresses: Sequence[Subject]) -> list[Function]:
        wanted = [address for address in addresses if isinstance(address, PciAddress)]
        known = self._look().by_address if wanted else {}
        return [known[address] for address in wanted if address in known]

    def _explain(self, error: Stuck, step: Step) -> None:
        """Adds who holds the function at that moment: it is they who must let go."""
        if step.address is None or step.kind == StepKind.SERVICE:
            return
        error.facts["address"] = step.address
        # They were looked for just before. Now their device files may be gone, and a holder that hangs itself would
        # keep us waiting; only where nobody was seen is it worth a second look.
        found = self._seen_on(step.address)
        if not found:
            with suppress(VfioctlError):
                self._held([step.address], timeout=_SHORT)
            found = self._seen_on(step.address)
        error.facts["holders"] = [holder.model_dump(mode="json") for holder in found]
        if found:
            error.hint = f"{error.hint}; it is held by {'; '.join(told(holder) for holder in found)}"

    # -- spelling ----------------------------------------------------------------------------------

    def _lock(self, step: Step) -> None:
        """The driver takes the write in any case; only reading it back tells whether it granted the lock."""
        until = time.monotonic() + self._settle
        while True:
            self._kernel.write(step.target, step.value)
            ((_, found),) = self._kernel.survey(text, [step.target])
            if found == "1":
                return
            if time.monotonic() >= until:
                why = found.reason if isinstance(found, Unanswered) else "it still counts users of the GPU"
                raise DeviceInUse(
                    f"the nvidia driver did not grant unbindLock for {step.address}: {why}",
                    hint="an open file that no process shows, or a kernel user such as nvidia_drm: see dmesg",
                )
            time.sleep(_PAUSE)

    def _spelled(self, step: Step) -> str:
        """A driver by the name it registered: a variant's module name has `_` where that may have `-`."""
        if not step.target.endswith("/driver_override") or step.value == "\n":
            return step.value
        return self._registered(step.value)

    def _spelled_file(self, path: str) -> str:
        home, _, attribute = path.rpartition("/")
        if not home.startswith(f"{PCI_DRIVERS}/"):
            return path
        return f"{PCI_DRIVERS}/{self._registered(home.removeprefix(f'{PCI_DRIVERS}/'))}/{attribute}"

    def _registered(self, name: str) -> str:
        spellings = (name, name.replace("_", "-"), name.replace("-", "_"))
        return next((s for s in spellings if self._kernel.has(f"{PCI_DRIVERS}/{s}")), name)


def _is_gone_already(kernel: Kernel, step: Step, error: KernelRefused) -> bool:
    """Whether a mediated device went by itself: some drivers remove it when its guest has ended."""
    home, _, name = step.target.rpartition("/")
    return name == "remove" and home.startswith(f"{MDEVS}/") and error.symbol in _GONE and not kernel.has(home)
