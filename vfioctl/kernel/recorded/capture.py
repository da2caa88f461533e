"""Records a host as a tree: the facts that a bug report or a simulation needs, and nothing private.

Reads through the kernel protocol only, so that a recorded host can be captured again and gives the same file.
"""

from __future__ import annotations

import errno as errnos
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress

from vfioctl.errors import KernelRefused
from vfioctl.kernel.host_paths import SILENT, places
from vfioctl.kernel.lenient import nvidia_gpus
from vfioctl.kernel.modalias import NATIVE, VFIO, Aliases, ids_in, modalias_of
from vfioctl.kernel.protocol import (
    ACPI_TABLES,
    FIRMWARE_FRAMEBUFFERS,
    IOMMU_GROUPS,
    PCI_DEVICES,
    PCI_DRIVERS,
    Directory,
    Reader,
    Unanswered,
)
from vfioctl.kernel.recorded.readers import PlaceReader, read_device
from vfioctl.kernel.recorded.tree import Node, Tree, unfit
from vfioctl.units import UUID_FORM

_CPUS = "/sys/devices/system/cpu"
_UUID = re.compile(rf"\b{UUID_FORM}\b", re.I)
_MAC = re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.I)
_UUID_PSEUDONYM, _MAC_PSEUDONYM = "00000000-0000-0000-0000-", "00:00:00:00:00:"
# Words of the kernel command line about devices; all others may be private.
_DEVICE_WORDS = re.compile(
    r"(intel_iommu|amd_iommu|iommu|iommu\.\w+|vfio[\w.-]*|pcie?[\w.]*|video|nomodeset|\w*blacklist|isolcpus|nohz_full"
    r"|(default_)?hugepages\w*|rd\.driver\.\w+|kvm[\w.]*|arm-smmu[\w.-]*)(=\S*)?"
)


def capture(kernel: Reader) -> tuple[Tree, list[str]]:
    """The host's facts, redacted, and the files that could not be read."""
    recording = _Capture(kernel)
    recording.take_devices()
    recording.take_drivers()
    recording.take_iommu()
    recording.take_vgpus()
    recording.take_consoles()
    recording.take_nodes()
    recording.take_processors()
    recording.take_system()
    recording.leave_out(unfit(recording.tree))
    return recording.tree, sorted(recording.unread)


class _Capture:
    def __init__(self, kernel: Reader) -> None:
        self._kernel, self.tree = kernel, Tree()
        self.unread: list[str] = []
        self._pseudonyms: dict[str, str] = {}
        self._modaliases: set[str] = set()

    # -- what is recorded -----------------------------------------------------------------------

    def take_devices(self) -> None:
        self.tree.put_directory(PCI_DEVICES)
        addresses = self._children(PCI_DEVICES)
        for address, answer in self._kernel.survey(read_device, addresses):
            if isinstance(answer, Unanswered) or answer is None:
                self.unread.append(f"{PCI_DEVICES}/{address}")
                continue
            target, directory = answer
            if target:
                self.tree.put_link(f"{PCI_DEVICES}/{address}", target)
            self._put_directory(self.tree.resolve(f"{PCI_DEVICES}/{address}"), Directory(*directory))
            if ids := ids_in(directory[1]):
                self._modaliases.add(modalias_of(ids))

    def take_drivers(self) -> None:
        self._take_text("/sys/bus/pci/drivers_autoprobe")
        self.tree.put_directory(PCI_DRIVERS)
        for driver in self._children(PCI_DRIVERS):
            links = self._take_links(f"{PCI_DRIVERS}/{driver}")
            if "module" in links.links:
                self._take_module(links.links["module"].rpartition("/")[2])

    def take_iommu(self) -> None:
        for group in self._children(IOMMU_GROUPS):
            self._take_text(f"{IOMMU_GROUPS}/{group}/type")
            self._take_links(f"{IOMMU_GROUPS}/{group}/devices")
        self._take_links("/sys/class/iommu")
        for table in self._children(ACPI_TABLES):
            if re.fullmatch(r"[A-Z0-9_]{4}[0-9]{0,2}", table, re.ASCII):  # and not `data` or `dynamic`
                self.tree.put_refused(f"{ACPI_TABLES}/{table}", 13)  # only its presence is recorded
        for place in ("/dev/vfio", "/dev/vfio/devices"):
            for name in self._children(place):
                self._take_device_node(f"{place}/{name}")

    def take_vgpus(self) -> None:
        """Types, vGPUs and profiles. A vGPU's UUID has the same pseudonym wherever it appears."""
        wanted = {place.path: (tuple(place.files), place.links) for place in places(self._kernel)}
        for path, answer in self._kernel.survey(PlaceReader, wanted, args=(wanted,)):
            if isinstance(answer, Unanswered):
                self.unread.append(path)
            elif answer is not None:
                self._put_directory(self.tree.resolve(self._redacted(path)), Directory(*answer))

    def take_consoles(self) -> None:
        """The text console and the framebuffers."""
        for place in ("/sys/class/vtconsole", "/sys/class/graphics"):
            for name in self._take_links(place).links:
                home = self.tree.resolve(f"{place}/{name}")
                with suppress(KernelRefused):
                    self._put_directory(home, self._kernel.directory(home, ("name", "bind", "dev"), ("subsystem",)))
        for driver in FIRMWARE_FRAMEBUFFERS:
            if self._kernel.has(f"/sys/bus/platform/drivers/{driver}"):
                self._take_links(f"/sys/bus/platform/drivers/{driver}")

    def take_nodes(self) -> None:
        for name in self._children("/sys/devices/system/node"):
            home = f"/sys/devices/system/node/{name}"
            if re.fullmatch(r"node[0-9]+", name):
                self._take_text(f"{home}/cpulist", otherwise=f"{home}/cpumap")
                self._take_text(f"{home}/distance")
                self._take_text(f"{home}/meminfo", keep="MemTotal:")  # the rest changes every second
                for pages in self._children(f"{home}/hugepages"):
                    self._take_text(f"{home}/hugepages/{pages}/nr_hugepages")
                    self._take_text(f"{home}/hugepages/{pages}/free_hugepages")

    def take_processors(self) -> None:
        """Which CPUs are online, isolated, share a core, and share an L3 cache."""
        for name in ("online", "isolated", "nohz_full"):
            self._take_text(f"{_CPUS}/{name}")
        for name in self._children(_CPUS):
            if not re.fullmatch(r"cpu[0-9]+", name, re.ASCII):
                continue
            self._take_text(f"{_CPUS}/{name}/topology/thread_siblings_list")
            for index in self._children(f"{_CPUS}/{name}/cache"):
                if self._text(f"{_CPUS}/{name}/cache/{index}/level") == "3":
                    self._take_text(f"{_CPUS}/{name}/cache/{index}/level")
                    self._take_text(f"{_CPUS}/{name}/cache/{index}/shared_cpu_list")

    def take_system(self) -> None:
        self._take_text("/proc/sys/kernel/osrelease")
        self._take_text("/proc/sys/kernel/random/boot_id")
        self._take_command_line()
        self._take_processor()
        self._take_aliases()
        for modalias in sorted(self._modaliases):
            if names := self._kernel.properties(modalias):
                self.tree.properties[f"hwdb:{modalias}"] = {
                    key: value for key, value in names.items() if key.endswith("_FROM_DATABASE")
                }
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

    # -- how it is read ----------------------------------------------------------------------------

    def _put_directory(self, path: str, directory: Directory) -> None:
        self.tree.put_directory(path)
        for name, text in sorted(directory.texts.items()):
            if name == "local_cpus" and "local_cpulist" in directory.texts:
                continue  # they say the same
            self.tree.put(f"{path}/{self._redacted(name)}", self._redacted(text))
        for name, target in sorted(directory.links.items()):
            self.tree.put_link(f"{path}/{self._redacted(name)}", self._redacted(target))
        for name in directory.refused:
            self.tree.put_refused(f"{path}/{name}", _errno_of(directory.refused[name]))
            self.unread += [f"{path}/{name}"] if name not in SILENT or directory.refused[name] != "ENXIO" else []
        for name in directory.names & {"reset", "reset_subordinate"}:
            self.tree.put_refused(f"{path}/{name}", errnos.EACCES)  # write-only: only its presence is recorded
        if "power" in directory.names and ids_in(directory.texts):
            self._take_text(f"{path}/power/control")
        if "vfio-dev" in directory.names:
            for name in self._children(f"{path}/vfio-dev"):
                self.tree.put_directory(f"{path}/vfio-dev/{name}")

    def _take_module(self, module: str) -> None:
        self.tree.put_directory(f"/sys/module/{module}")
        self._take_links(f"/sys/module/{module}/drivers")

    def _take_links(self, path: str) -> Directory:
        try:
            directory = self._kernel.directory(path, ())
        except KernelRefused as error:
            if error.symbol != "ENOENT":
                self.unread.append(path)
            return Directory(frozenset(), {}, {}, {})
        self._put_directory(path, directory)
        return directory

    def _take_text(self, path: str, keep: str = "", otherwise: str = "") -> None:
        """Records a file; of `keep` only the lines with this text. `otherwise`: the file to record if there is none."""
        try:
            text = self._kernel.read(path)
        except KernelRefused as error:
            if error.symbol == "ENOENT" and otherwise:
                self._take_text(otherwise)
            elif error.symbol != "ENOENT":
                self.tree.put_refused(path, error.errno)
                self.unread.append(path)
            return
        if keep:
            text = "\n".join(line for line in text.split("\n") if keep in line)
        self.tree.put(path, self._redacted(text))

    def _take_device_node(self, path: str) -> None:
        try:
            self.tree.put_node(path, Node(*self._kernel.device_number(path)))
        except KernelRefused as error:
            if error.symbol not in ("ENODEV", "EISDIR", "ENOENT"):
                self.unread.append(path)

    def _take_command_line(self) -> None:
        words = self._text("/proc/cmdline").split()
        kept = [word for word in words if _DEVICE_WORDS.fullmatch(word)]
        self.tree.put("/proc/cmdline", self._redacted(" ".join(kept)))

    def _take_processor(self) -> None:
        wanted = re.compile(r"(vendor_id\s*:.*|flags\s*:.*|Features\s*:.*)")
        first = self._text("/proc/cpuinfo").split("\n\n")[0]
        lines = [line for line in first.split("\n") if wanted.fullmatch(line)]
        if lines:
            self.tree.put("/proc/cpuinfo", "\n".join(lines))

    def _take_aliases(self) -> None:
        release = self._text("/proc/sys/kernel/osrelease")
        path = f"/lib/modules/{release}/modules.alias"
        text = self._text(path)
        if release and text:
            self.tree.put(path, "\n".join(_matching_lines(text, self._modaliases)))

    def _children(self, path: str) -> list[str]:
        try:
            return self._kernel.children(path)
        except KernelRefused:
            return []

    def _text(self, path: str) -> str:
        try:
            return self._kernel.read(path)
        except KernelRefused:
            return ""

    def _redacted(self, text: str) -> str:
        """Replaces UUIDs and MAC addresses, each always by the same pseudonym, so that files stay comparable."""
        text = _UUID.sub(lambda m: self._pseudonym(m[0], _UUID_PSEUDONYM, "{:012x}"), text)
        return _MAC.sub(lambda m: self._pseudonym(m[0], _MAC_PSEUDONYM, "{:02x}"), text)

    def _pseudonym(self, private: str, begins: str, ends: str) -> str:
        if private.startswith(begins):
            return private
        return self._pseudonyms.setdefault(private, begins + ends.format(len(self._pseudonyms) + 1))


def _errno_of(symbol: str) -> int:
    import errno

    return int(getattr(errno, symbol, errno.EIO))


def _matching_lines(text: str, modaliases: Iterable[str]) -> Iterator[str]:
    table = Aliases(text)
    used = {alias.line for modalias in modaliases for bus in (NATIVE, VFIO) for alias in table.matching(modalias, bus)}
    return (line for line in text.split("\n") if line in used)
