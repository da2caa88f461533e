"""Reads PCI functions as plain facts, and which drivers fit. May not write, nor import a model: workers run it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial

from vfioctl.errors import KernelRefused
from vfioctl.inventory.probe.pci import SAFE, Facts, read_everything, read_function
from vfioctl.kernel.lenient import failure_of, names_in, nvidia_gpus, text_of
from vfioctl.kernel.modalias import NATIVE, VFIO, Aliases
from vfioctl.kernel.protocol import IOMMU_GROUPS, PCI_ADDRESS, PCI_DEVICES, PCI_DRIVERS, NvmlAnswer, Reader, Unanswered

_NAMES = {
    "vendor_name": ("ID_VENDOR_FROM_DATABASE",),
    "device_name": ("ID_MODEL_FROM_DATABASE",),
    "subsystem_name": ("ID_PCI_SUBSYS_FROM_DATABASE",),
    "class_name": ("ID_PCI_SUBCLASS_FROM_DATABASE", "ID_PCI_CLASS_FROM_DATABASE"),
}
_GROUPING_LINKS = ("iommu_group", "physfn", "virtfn", "supplier:pci:", "consumer:pci:")
_BEFORE_ADDRESS = len("supplier:pci:")
"""The length of what comes before the address in the name of a link between devices."""
_NOT_ASKED = Unanswered("NVML is not asked while a device is wedged: it may hang as well")


class Scan:
    """A scan of a host's functions, started by the constructor; `results` waits for it."""

    def __init__(
        self,
        kernel: Reader,
        catalogue: Catalogue | None = None,
        *,
        suspects: Collection[str] = (),
        only: Sequence[str] | None = None,
        names: bool = True,
        nvml: bool = True,
    ) -> None:
        """Start the scan. `suspects`: functions whose attributes may block; only safe attributes are read. `only`: the
        functions to read instead of all. `names`: whether names and modules are looked up, which takes longer than
        reading a few functions. `nvml`: whether NVML is asked."""
        self._kernel = kernel
        self._catalogue = (catalogue or Catalogue(kernel)) if names else None
        self.problems: list[tuple[str, str]] = []
        """Subject and text of each problem of what was read."""
        self.unread: dict[str, str] = {}
        """The functions that could not be read, and why; complete after `results`."""
        self.addresses = addresses = self._addresses() if only is None else list(only)
        self._answers = self._survey([a for a in addresses if a not in suspects], wanted=None)
        self._passed_over = {a: "it is wedged, and was not asked" for a in addresses if a in suspects}
        # Initialising NVML takes longer than reading a small host, so it starts first if the nvidia driver has a GPU.
        self.nvidia_gpus = [gpu for gpu in nvidia_gpus(kernel) if only is None or gpu in only] if nvml else []
        """The GPUs that NVML should know."""
        wait = kernel.nvml(self.nvidia_gpus) if self.nvidia_gpus and not suspects else None
        self.nvml: Callable[[], NvmlAnswer] = wait or (lambda: _NOT_ASKED)

    def results(self) -> list[Facts]:
        """Wait, and return the facts of each function in address order."""
        answered, silent = self._sorted_out(self._answers)
        why = silent | self._passed_over
        # A function whose device lock is held can still be identified.
        recovered, never = self._sorted_out(self._survey(why, wanted=SAFE))
        self.unread |= never
        for facts in recovered:
            facts["unknown"]["driver_override"] = why[facts["address"]]
        recovered_now = {facts["address"] for facts in recovered}
        self.problems += [(a, f"reading it did not return: {silent[a]}") for a in silent if a in recovered_now]
        if self._catalogue:
            for facts in answered:
                self._catalogue.learn(facts)
        return sorted(answered + recovered, key=lambda facts: (len(facts["address"]), facts["address"]))

    def _addresses(self) -> list[str]:
        try:
            return self._kernel.children(PCI_DEVICES)
        except KernelRefused as error:
            self.problems.append((PCI_DEVICES, f"no PCI bus: {error.symbol}"))
            return []

    def _survey(
        self, addresses: Iterable[str], wanted: frozenset[str] | None
    ) -> Iterator[tuple[str, Facts | str | Unanswered]]:
        known = self._catalogue.known if self._catalogue else None
        return self._kernel.survey(FunctionReader, addresses, args=(known, wanted))

    def _sorted_out(
        self, answers: Iterable[tuple[str, Facts | str | Unanswered]]
    ) -> tuple[list[Facts], dict[str, str]]:
        """Return the facts of the functions that answered, and why others did not; note those that cannot be read."""
        answered, silent = [], {}
        for address, facts in answers:
            if isinstance(facts, Unanswered):
                silent[address] = facts.reason
            elif isinstance(facts, str):
                self.unread[address] = facts
            else:
                answered.append(facts)
        return answered, silent


class Catalogue:
    """Names and modules by modalias, until modules.alias changes. Workers return what they look up; it is kept."""

    def __init__(self, kernel: Reader, known: dict[str, Facts] | None = None) -> None:
        self._kernel = kernel
        self.known = known or {}
        """By modalias; plain data."""
        self._stamp: int | None = None

    def refresh(self) -> None:
        """Forget everything if modules.alias is not the file that the modules were looked up in."""
        stamp = hash(aliases_text(self._kernel))
        if stamp != self._stamp:
            self.known, self._stamp = {}, stamp

    @cached_property
    def _aliases(self) -> Aliases:
        return read_aliases(self._kernel)

    def of(self, modalias: str) -> Facts:
        if modalias not in self.known:
            named = _named(self._kernel.properties(modalias))
            self.known[modalias] = named | {"modules": modules_for(self._aliases, modalias)}
        return self.known[modalias]

    def learn(self, facts: Facts) -> None:
        if facts["modalias"] not in self.known:
            self.known[facts["modalias"]] = {key: facts[key] for key in (*_NAMES, "modules") if key in facts}


def _named(properties: Mapping[str, str]) -> Facts:
    named = {field: next((properties[k] for k in keys if k in properties), None) for field, keys in _NAMES.items()}
    return {field: name for field, name in named.items() if name}


class FunctionReader:
    """Reads functions in a worker. `known`: see Catalogue; None for no names. `wanted`: the files; None for all."""

    def __init__(self, kernel: Reader, known: dict[str, Facts] | None, wanted: frozenset[str] | None) -> None:
        self._read = partial(read_function, kernel, wanted=wanted) if wanted else partial(read_everything, kernel)
        self._catalogue = None if known is None else Catalogue(kernel, known)

    def __call__(self, address: str) -> Facts | str:
        """Return the function's facts, or the reason why they could not be read."""
        try:
            facts = self._read(address)
            return facts | self._catalogue.of(facts["modalias"]) if self._catalogue else facts
        except KernelRefused as error:
            return error.symbol
        except ValueError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - no function may end the scan of all
            return failure_of(error)


def neighbours(kernel: Reader, asked: Iterable[str]) -> list[str] | None:
    """Return the functions with these addresses, those on their buses, and the cards, groups, PFs and VFs of them all.
    None if the whole host has to be read: a function does not exist, or its group does not list it."""
    existing = names_in(kernel, PCI_DEVICES)
    waiting = [name for address in asked for name in (address, *_beginning(existing, address.rpartition(":")[0]))]
    if not set(waiting) <= set(existing):
        return None
    members: set[str] = set()
    while waiting:
        address = waiting.pop()
        if address in members or address not in existing:
            continue
        members.add(address)
        waiting += _beginning(existing, address.rpartition(".")[0])
        try:
            links = kernel.directory(f"{PCI_DEVICES}/{address}", (), _GROUPING_LINKS).links
        except KernelRefused:
            continue
        for name, target in links.items():
            last = target.rpartition("/")[2]
            if name == "iommu_group":
                group = names_in(kernel, f"{IOMMU_GROUPS}/{last}/devices")
                if address not in group:
                    return None
                waiting += group
            else:
                waiting.append(last if name.startswith(("physfn", "virtfn")) else name[_BEFORE_ADDRESS:])
    return sorted(members)


def _beginning(addresses: Sequence[str], beginning: str) -> Iterator[str]:
    return (address for address in addresses if address.startswith(beginning) and PCI_ADDRESS.fullmatch(address))


def read_aliases(kernel: Reader) -> Aliases:
    """Return the running kernel's modules.alias, parsed; empty if it has none."""
    return Aliases(aliases_text(kernel))


def aliases_text(kernel: Reader) -> str:
    """Return the text of the running kernel's modules.alias; empty if it has none."""
    try:
        release = kernel.read("/proc/sys/kernel/osrelease")
        return kernel.read(f"/lib/modules/{release}/modules.alias")
    except KernelRefused:
        return ""


def modules_for(aliases: Aliases, modalias: str) -> tuple[str, ...]:
    """Return the modules that match a device: exact matches first, VFIO modules last."""
    return tuple(module for bus in (NATIVE, VFIO) for module in aliases.modules(modalias, bus))


def drivers_of(kernel: Reader, address: str) -> tuple[str, ...]:
    """Return the drivers that match a function; none if the function is gone."""
    modalias = text_of(kernel, f"{PCI_DEVICES}/{address}/modalias")
    return tuple(dict.fromkeys(driver_names(kernel, modules_for(read_aliases(kernel), modalias)).values()))


def has_aliases(kernel: Reader, driver: str) -> bool:
    """Return whether modules.alias names the module of a registered driver: it then takes only matching devices."""
    try:
        module = kernel.link(f"{PCI_DRIVERS}/{driver}/module").rpartition("/")[2]
    except KernelRefused:
        return False  # built in, or not registered
    return read_aliases(kernel).names(module)


def driver_names(kernel: Reader, modules: Iterable[str]) -> dict[str, str]:
    """Return the name of the driver that each module has registered, or the module's name if it is not loaded."""
    return {module: _driver_name(kernel, module) for module in dict.fromkeys(modules)}


def _driver_name(kernel: Reader, module: str) -> str:
    """Return a module's driver name, which may differ: module vfio_pci, driver vfio-pci."""
    try:
        names = kernel.children(f"/sys/module/{module}/drivers")
    except KernelRefused:
        return "vfio-pci" if module == "vfio_pci" else module
    return next((name.removeprefix("pci:") for name in names if name.startswith("pci:")), module)
