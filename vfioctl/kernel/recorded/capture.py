"""Records a host as a tree: the facts that a bug report or a simulation needs, and nothing private. Reads through the
kernel protocol only, so that a recorded host can be captured again and gives the same file."""

from __future__ import annotations

import errno as errnos
import re
from collections.abc import Iterable

from vfioctl.errors import KernelRefused
from vfioctl.kernel.host_paths import SILENT, PlaceReader, places
from vfioctl.kernel.lenient import names_in, nvidia_gpus, text_of, text_or_refusal
from vfioctl.kernel.modalias import NATIVE, VFIO, Aliases, ids_in, modalias_of
from vfioctl.kernel.protocol import ACPI_TABLES, PCI_DEVICES, Directory, Reader, Unanswered
from vfioctl.kernel.recorded.redaction import Pseudonyms
from vfioctl.kernel.recorded.tree import Node, Tree, form, unfit

_LISTS = {"local_cpus": "local_cpulist", "cpumap": "cpulist"}
"""Masks of CPUs, and the files that say the same as lists."""
_L3 = "3"
"""The level of the caches that are recorded."""
_MEMORY = re.compile(r"^.*MemTotal:.*", re.M)
"""The line of a node's meminfo that does not change every second."""
IRQS, _IRQ, _MOST_IRQS = "/sys/kernel/irq", re.compile(r"[0-9]{1,6}", re.ASCII), 64
_GPU, _RESIZE = ("0x03", "0x12"), re.compile("resource[0-5]_resize", re.ASCII)
# Words of the kernel command line about devices; all others may be private.
_DEVICE_WORDS = re.compile(
    r"(intel_iommu|amd_iommu|iommu|iommu\.\w+|vfio[\w.-]*|pcie?[\w.]*|video|nomodeset|\w*blacklist|isolcpus|nohz_full"
    r"|(default_)?hugepages\w*|rd\.driver\.\w+|kvm[\w.]*|arm-smmu[\w.-]*)(=\S*)?"
)


def captured_text(kernel: Reader) -> tuple[str, tuple[str, ...]]:
    """Return the redacted text of a host file, and the files that could not be read."""
    tree, unread = capture(kernel)
    origin = "a captured directory" if "/" in kernel.description else kernel.description  # its path is private
    tree.comments = [f"# recorded from {origin} by vfioctl snapshot"]
    return form(tree), tuple(unread)


def capture(kernel: Reader, pseudonyms: Pseudonyms | None = None) -> tuple[Tree, list[str]]:
    """The host's facts, redacted, and the files that could not be read. `pseudonyms`: of other texts about it."""
    recording = _Capture(kernel, pseudonyms or Pseudonyms())
    recording.take_places()
    recording.take_nodes()
    recording.take_resizable()
    recording.take_system()
    recording.leave_out(unfit(recording.tree))
    return recording.tree, sorted(recording.unread)


class _Capture:
    def __init__(self, kernel: Reader, pseudonyms: Pseudonyms) -> None:
        self._kernel, self.tree = kernel, Tree()
        self.unread: list[str] = []
        self._redacted = pseudonyms.redacted
        self._modaliases: set[str] = set()
        self._resizable: list[str] = []

    def take_places(self) -> None:
        """All of `host_paths`. A UUID of a vGPU has the same pseudonym wherever it appears."""
        wanted = {place.path: (tuple(place.files), place.links) for place in places(self._kernel)}
        for path, answer in self._kernel.survey(PlaceReader, wanted, args=(wanted,)):
            if isinstance(answer, tuple) and not isinstance(answer, Unanswered):
                self._put_directory(self.tree.resolve(self._redacted(path)), Directory(*answer))
            elif answer not in (errnos.ENOENT, errnos.ENOTDIR) or path.rpartition("/")[0] == PCI_DEVICES:
                self.leave_out([path])  # it did not answer, or is refused; or it is a function that has vanished

    def take_nodes(self) -> None:
        """The nodes of VFIO, and which tables the firmware has."""
        for table in names_in(self._kernel, ACPI_TABLES):
            if re.fullmatch(r"[A-Z0-9_]{4}[0-9]{0,2}", table, re.ASCII):  # and not `data` or `dynamic`
                self.tree.put_refused(f"{ACPI_TABLES}/{table}", 13)  # only its presence is recorded
        for place in ("/dev/vfio", "/dev/vfio/devices"):
            for path in (f"{place}/{name}" for name in names_in(self._kernel, place)):
                try:
                    self.tree.put_node(path, Node(*self._kernel.device_number(path)))
                except KernelRefused as error:
                    self.unread += [path] if error.symbol not in ("ENODEV", "EISDIR", "ENOENT") else []

    def take_resizable(self) -> None:
        """The sizes that BARs of GPUs can have. The kernel asks the device itself, so not one that sleeps."""
        answers = self._kernel.survey(text_or_refusal, self._resizable) if self._resizable else ()
        for path, answer in answers:
            if isinstance(answer, Unanswered) or answer[0] is None:
                self.leave_out([path])
            else:
                self.tree.put(path, answer[0])

    def take_system(self) -> None:
        self._take_text("/proc/sys/kernel/osrelease")
        self._take_text("/proc/sys/kernel/random/boot_id")
        words = text_of(self._kernel, "/proc/cmdline").split()
        self.tree.put("/proc/cmdline", self._redacted(" ".join(filter(_DEVICE_WORDS.fullmatch, words))))
        self._take_processor()
        self._take_interrupts()
        self._take_aliases()
        for modalias in sorted(self._modaliases):
            if names := self._kernel.properties(modalias):
                kept = {key: value for key, value in names.items() if key.endswith("_FROM_DATABASE")}
                self.tree.properties[f"hwdb:{modalias}"] = kept
        gpus = nvidia_gpus(self._kernel)
        answer = self._kernel.nvml(gpus, types=True, links=True)() if gpus else {}
        if isinstance(answer, Unanswered):
            self.unread.append(f"NVML: {answer.reason}")
        else:
            for address, facts in sorted(answer.items()):  # in a fixed order, because pseudonyms are numbered
                self.tree.properties[f"nvml:{address}"] = {k: self._redacted(v) for k, v in facts.items()}

    def leave_out(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.tree.remove(path)
            self.unread.append(path)

    def _put_directory(self, path: str, directory: Directory) -> None:
        if directory.texts.get("level", _L3) != _L3:
            return
        self.tree.put_directory(path)
        for name, text in sorted(directory.texts.items()):
            if _LISTS.get(name) in directory.texts:
                continue
            kept = "".join(_MEMORY.findall(text)) if name == "meminfo" else text
            self.tree.put(f"{path}/{self._redacted(name)}", self._redacted(kept))
        for name, target in sorted(directory.links.items()):
            self.tree.put_link(f"{path}/{self._redacted(name)}", self._redacted(target))
        for name in directory.refused:
            self.tree.put_refused(f"{path}/{name}", getattr(errnos, directory.refused[name], errnos.EIO))
            self.unread += [f"{path}/{name}"] if name not in SILENT or directory.refused[name] != "ENXIO" else []
        for name in directory.names & {"reset", "reset_subordinate"}:
            self.tree.put_refused(f"{path}/{name}", errnos.EACCES)  # write-only: only its presence is recorded
        if ids := ids_in(directory.texts):
            self._modaliases.add(modalias_of(ids))
            self._take_text(f"{path}/power/control")
        self._resizable += [f"{path}/{name}" for name in _sizes_of_bars(directory)]
        if "vfio-dev" in directory.names:
            for name in names_in(self._kernel, f"{path}/vfio-dev"):
                self.tree.put_directory(f"{path}/vfio-dev/{name}")

    def _take_text(self, path: str) -> None:
        try:
            self.tree.put(path, self._redacted(self._kernel.read(path)))
        except KernelRefused as error:
            if error.symbol != "ENOENT":
                self.tree.put_refused(path, error.errno)
                self.unread.append(path)

    def _take_processor(self) -> None:
        wanted = re.compile(r"(vendor_id\s*:.*|flags\s*:.*|Features\s*:.*)")
        first = text_of(self._kernel, "/proc/cpuinfo").split("\n\n")[0]
        if lines := [*filter(wanted.fullmatch, first.split("\n"))]:
            self.tree.put("/proc/cpuinfo", "\n".join(lines))

    def _take_interrupts(self) -> None:
        """The first interrupt of each controller: their names show whether the IOMMU remaps interrupts."""
        names = names_in(self._kernel, IRQS)
        chips: dict[str, str] = {}
        for number in sorted(int(name) for name in names if _IRQ.fullmatch(name))[:_MOST_IRQS]:
            path = f"{IRQS}/{number}/chip_name"
            if chip := text_of(self._kernel, path):
                chips.setdefault(chip, path)
        for chip, path in chips.items():
            self.tree.put(path, chip)

    def _take_aliases(self) -> None:
        release = text_of(self._kernel, "/proc/sys/kernel/osrelease")
        path = f"/lib/modules/{release}/modules.alias"
        text = text_of(self._kernel, path)
        if release and text:
            aliases = Aliases(text)
            used = {a.line for name in self._modaliases for bus in (NATIVE, VFIO) for a in aliases.matching(name, bus)}
            self.tree.put(path, "\n".join(line for line in text.split("\n") if line in used))


def _sizes_of_bars(directory: Directory) -> list[str]:
    """Return the files of a GPU that is awake which have the sizes that its BARs can have."""
    texts = directory.texts
    if not texts.get("class", "").startswith(_GPU) or texts.get("power_state") == "D3cold":
        return []
    return sorted(name for name in directory.names if _RESIZE.fullmatch(name))
