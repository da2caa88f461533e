"""Builds the file tree of a synthetic Linux host, and writes it in the format of docs/recorded-hosts.md.

Paths, links and texts have the shape that the kernel gives them, so that a reader cannot tell a built host from a
recorded one: link targets are relative as sysfs makes them, BARs lie inside the windows of the bridges above.
Does no input or output.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from os.path import relpath

from tests.hosts.catalogue import CLASSES, INTERFACES, MODULES, VENDORS, Bar, Model, Module
from tests.hosts.option_rom import option_rom

HEADER = "#vfioctl-host 1 synthetic"
ORIGIN = "; written by tests/hosts/generate.py, not recorded from a machine"
PCI = "/sys/bus/pci"
DEVLINK = "/sys/devices/virtual/devlink"
MIB = 1 << 20
WITH_VF_BARS, WITH_WINDOWS = 13, 17
"""How many lines `resource` has: BARs, ROM, BARs of VFs; on a bridge also windows (linux/pci.h, CONFIG_PCI_IOV)."""
DRAWN_TO_GPU = {1: "0403", 2: "0c03", 3: "0c80"}
"""Functions of a GPU that get a device link to its function 0 (quirk_gpu_hda, _usb, _usb_typec_ucsi)."""
REMAPPING = ("dmar", "ivhd")
"""The IOMMUs that remap interrupts, by the beginnings of their names."""
REMAPPED = {"/sys/kernel/irq/0/chip_name": "IR-IO-APIC", "/sys/kernel/irq/24/chip_name": "IR-PCI-MSI"}
PARAMETERS: Mapping[str, Mapping[str, str]] = {
    "vfio": {"enable_unsafe_noiommu_mode": "N"},
    "vfio_iommu_type1": {"allow_unsafe_interrupts": "N", "dma_entry_limit": "65535"},
}
"""The parameters of modules that a host shows while they are loaded."""

ESCAPES = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\0": "\\x00"}
VFIO_MAJOR, VFIO_CDEV_MAJOR = 243, 511


@dataclass
class Root:
    """A PCI host bridge: where its buses hang, which NUMA node and which IOMMU they have."""

    path: str
    node: int
    iommu: str | None

    @property
    def root(self) -> Root:
        return self


@dataclass(eq=False)
class Function:
    """A PCI function, before its facts are written. What is not in its model is set on it afterwards."""

    model: Model
    address: str
    under: Root | Function
    driver: str
    root: Root = field(init=False)
    path: str = field(init=False)
    boot_vga: bool = False
    speed: float | None = None
    power_state: str = "D0"
    driver_override: str = "(null)"
    group_of: Function | None = None
    physfn: Function | None = None
    vfs: list[Function] = field(default_factory=list)
    children: list[Function] = field(default_factory=list)
    regions: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root = self.under.root
        self.path = f"{self.under.path}/{self.address}"
        if isinstance(self.under, Function):
            self.under.children.append(self)

    @property
    def modalias(self) -> str:
        (vendor, device), (subvendor, subdevice) = (ids.upper().split(":") for ids in (self.model.ids, self.subsystem))
        major, minor, interface = (self.model.class_code[n : n + 2].upper() for n in (0, 2, 4))
        return f"pci:v0000{vendor}d0000{device}sv0000{subvendor}sd0000{subdevice}bc{major}sc{minor}i{interface}"

    @property
    def subsystem(self) -> str:
        return self.model.subsystem or self.model.ids

    @property
    def is_iommu(self) -> bool:
        return self.model.class_code.startswith("0806")

    @property
    def is_bridge(self) -> bool:
        return self.model.class_code.startswith("0604")


class AddressSpace:
    """Hands out bus addresses: one cursor for each kind of window that a bridge has."""

    def __init__(self) -> None:
        self._cursor = {"io": 0x1000, "mem": 0x8000_0000, "pref": 0x20_0000_0000}

    def align(self, kind: str, size: int) -> int:
        self._cursor[kind] = -(-self._cursor[kind] // size) * size
        return self._cursor[kind]

    def take(self, bar: Bar) -> tuple[int, int, int]:
        start = self.align(bar.window, bar.size)
        self._cursor[bar.window] += bar.size
        return start, start + bar.size - 1, bar.flags

    def place(self, function: Function) -> None:
        """The function's BARs, then those below it, then the windows around these (pbus_size_mem, roughly)."""
        for bar in function.model.bars:
            function.regions[bar.number] = self.take(bar)
        for bar in function.model.vf_bars:
            whole = bar._replace(number=7 + bar.number, size=bar.size * function.model.total_vfs)
            function.regions[whole.number] = self.take(whole)
        for number, vf in enumerate(function.vfs):
            for bar in function.model.vf_bars:
                start = function.regions[7 + bar.number][0] + number * bar.size
                vf.regions[bar.number] = (start, start + bar.size - 1, bar.flags)
        if function.is_bridge:
            self._place_below(function)

    def _place_below(self, bridge: Function) -> None:
        windows = (("io", 0x1000, 0x101), ("mem", MIB, 0x200), ("pref", MIB, 0x102201))
        starts = {kind: self.align(kind, granule) for kind, granule, _ in windows}
        for child in bridge.children:
            self.place(child)
        for index, (kind, granule, flags) in enumerate(windows, start=WITH_VF_BARS):
            end = self.align(kind, granule)
            if end > starts[kind]:
                bridge.regions[index] = (starts[kind], end - 1, flags)


class HostBuilder:
    """A host that grows by statements; `text` is its file."""

    def __init__(self, depicts: str, *, release: str, cmdline: str, boot: int) -> None:
        self.group_type = "DMA-FQ"
        self._depicts = depicts
        self._facts: dict[tuple[str, str], list[str]] = {}
        self._functions: list[Function] = []
        self._nodes: dict[int, str] = {}
        self._cpus = ""
        self._taken = 0
        self._release = release
        self.file("/proc/cmdline", cmdline)
        self.file("/proc/sys/kernel/osrelease", release)
        self.file("/proc/sys/kernel/random/boot_id", f"00000000-0000-4000-8000-{boot:012d}")
        self.file(f"{PCI}/drivers_autoprobe", "1")

    # -- facts -------------------------------------------------------------------------------------

    def file(self, path: str, text: str) -> None:
        self._put(path, f"{path} = {_escaped(text)}")

    def lines(self, path: str, lines: Sequence[str]) -> None:
        self._put(path, *(f"{path} | {_escaped(line)}" for line in lines))

    def content(self, path: str, lines: Sequence[str]) -> None:
        """A file of any number of lines, of one in the shorter form."""
        self.lines(path, lines) if len(lines) > 1 else self.file(path, *lines)

    def link(self, path: str, target: str) -> None:
        """A link to the absolute path `target`, stored as sysfs does: relative to the link's directory."""
        self._put(path, f"{path} -> {relpath(target, path.rpartition('/')[0])}")

    def directory(self, path: str) -> None:
        self._put(path, f"{path}/")

    def unreadable(self, *paths: str) -> None:
        for path in paths:
            self.refused(path, "EACCES")

    def refused(self, path: str, errno: str) -> None:
        self._put(path, f"{path} ! {errno}")

    def node(self, path: str, major: int, minor: int, kind: str = "c") -> None:
        self._put(path, f"{path} % {kind} {major} {minor}")

    def raw_link(self, path: str, target: str) -> None:
        """A link with its target as it is: the open file of a process."""
        self._put(path, f"{path} -> {_escaped(target)}")

    def user(self, uid: int, name: str) -> None:
        self._say(f"user:{uid}", {"name": name})

    def unit(self, name: str, state: str) -> None:
        """A systemd unit."""
        self._say(f"unit:{name}", {"state": state})

    def claimed(self, number: str, owner: str) -> None:
        """A block device that the kernel lets nobody else have."""
        self._say("sim:claimed", {number: owner})

    def nvml(self, function: Function, name: str, mebibytes: int, **facts: str) -> None:
        """What NVML says; a fact that the GPU does not have (MIG, mostly) is left out."""
        number = sum(subject.startswith("nvml:") and key == "uuid" for subject, key in self._facts)
        known = {
            "name": name,
            "uuid": f"GPU-00000000-0000-0000-0000-{number:012d}",
            "memory_bytes": str(mebibytes * MIB),
            "persistence_mode": "0",
            "compute_mode": "Default",
            **facts,
        }
        self._say(f"nvml:{function.address}", known)

    def vendor_types(self, function: Function, names: Mapping[int, str]) -> None:
        """All types that the card has, also those that no list shows just now."""
        self._say(f"sim:{function.address}", {"types": json.dumps({str(kind): names[kind] for kind in sorted(names)})})

    def rom(self, function: Function) -> None:
        """What the function's ROM holds."""
        content = option_rom(function.model.ids, function.model.class_code)
        self._say(f"sim:{function.address}", {"rom": content.hex()})

    def _say(self, subject: str, facts: dict[str, str]) -> None:
        for key, value in facts.items():
            self._facts[subject, key] = [f"{subject} {key} = {_escaped(value)}"]

    def _put(self, path: str, *lines: str) -> None:
        if (path, "") in self._facts:
            raise ValueError(f"{path} is there already")
        self._facts[path, ""] = list(lines)

    # -- the machine -------------------------------------------------------------------------------

    def processors(
        self,
        cpuinfo: Sequence[str],
        nodes: Sequence[tuple[str, int]],
        *,
        far: int = 21,
        threads: int = 2,
        paired: int = 0,
        sharing: int = 0,
        huge: Mapping[int, tuple[int, int]] | None = None,
    ) -> None:
        """One paragraph of cpuinfo, and the NUMA nodes as (CPUs, GiB); `far` is the distance between two nodes.

        Linux numbers the first threads of a node's cores, then the second ones. `paired`: so many CPUs are threads of
        cores next to each other, as on hybrid processors. `sharing`: the number of cores at an L3 cache, all of a node
        for 0. `huge`: total and free hugepages of each node by size in KiB.
        """
        self.lines("/proc/cpuinfo", cpuinfo)
        self._nodes = {number: cpus for number, (cpus, _) in enumerate(nodes)}
        self._cpus = f"0-{max(int(cpu) for cpus, _ in nodes for cpu in cpus.replace(',', '-').split('-') if cpu)}"
        self.file("/sys/devices/system/cpu/online", self._cpus)
        self.file("/sys/devices/system/node/online", f"0-{len(nodes) - 1}" if len(nodes) > 1 else "0")
        for number, (cpus, gibibytes) in enumerate(nodes):
            home, total = f"/sys/devices/system/node/node{number}", gibibytes << 20
            self.file(f"{home}/cpulist", cpus)
            self.file(f"{home}/distance", " ".join("10" if n == number else str(far) for n in self._nodes))
            sizes = {"MemTotal": total, "MemFree": total - (total >> 3), "MemUsed": total >> 3}
            self.lines(
                f"{home}/meminfo",
                [f"Node {number} {name + ':':<16}{size:8d} kB" for name, size in sizes.items()]
                + [f"Node {number} HugePages_{name + ':':<6}     0" for name in ("Total", "Free", "Surp")],
            )
            for size, (pages, free) in (huge or {}).items():
                self.file(f"{home}/hugepages/hugepages-{size}kB/nr_hugepages", str(pages))
                self.file(f"{home}/hugepages/hugepages-{size}kB/free_hugepages", str(free))
            self._cores(_grouped(_numbers(cpus), threads, paired), sharing)

    def _cores(self, cores: Sequence[Sequence[int]], sharing: int) -> None:
        for first in range(0, len(cores), sharing or len(cores) or 1):
            together = cores[first : first + (sharing or len(cores))]
            cache = _list_of(cpu for core in together for cpu in core)
            for core in together:
                for cpu in core:
                    home = f"/sys/devices/system/cpu/cpu{cpu}"
                    self.file(f"{home}/topology/thread_siblings_list", _list_of(core))
                    self.file(f"{home}/cache/index3/level", "3")
                    self.file(f"{home}/cache/index3/shared_cpu_list", cache)

    def iommu(self, name: str, home: str, facts: Mapping[str, str]) -> str:
        """An IOMMU of /sys/class/iommu with its files. Gives its path."""
        path = f"{home}/iommu/{name}"
        self.link(f"/sys/class/iommu/{name}", path)
        self.link(f"{path}/subsystem", "/sys/class/iommu")
        for key, text in facts.items():
            self.file(f"{path}/{key}", text)
        if name.startswith(REMAPPING):
            self._remap_interrupts()
        return path

    def _remap_interrupts(self) -> None:
        for path, chip in REMAPPED.items():
            if (path, "") not in self._facts:
                self.file(path, chip)

    def modules(self, loaded: Sequence[str], available: Sequence[str]) -> None:
        """Which modules are there, and which of them are loaded, with what they need; built-in ones always are."""
        known = {name: MODULES[name] for name in _with_needs([*loaded, *available])}
        here = [name for name in known if known[name].built_in or name in _with_needs(loaded)]
        home = f"/lib/modules/{self._release}"
        self.lines(
            f"{home}/modules.alias",
            ["# Aliases extracted from modules themselves."]
            + [f"alias {alias} {name}" for name, module in known.items() for alias in module.aliases],
        )
        external = [name for name, module in known.items() if not module.built_in]
        self.lines(f"{home}/modules.dep", [_dependencies(name) for name in external])
        for name in here:
            self._module(name, known[name], sum(name in MODULES[other].needs for other in here))

    def _module(self, name: str, module: Module, users: int) -> None:
        home = f"/sys/module/{name}"
        if not module.built_in:
            self.file(f"{home}/initstate", "live")
            self.file(f"{home}/refcnt", str(users))
        for parameter, text in PARAMETERS.get(name, {}).items():
            self.file(f"{home}/parameters/{parameter}", text)
        for driver in module.drivers:
            self.link(f"{home}/drivers/pci:{driver}", f"{PCI}/drivers/{driver}")
            self.link(f"{PCI}/drivers/{driver}/module", home)

    # -- PCI ---------------------------------------------------------------------------------------

    def root(self, bus: str, *, node: int = -1, iommu: str | None = None, below: Function | None = None) -> Root:
        """A host bridge with its bus, as `0000:15`; `below` is the VMD that it hides behind."""
        return Root(f"{below.path if below else '/sys/devices'}/pci{bus}", node, iommu)

    def add(self, model: Model, address: str, under: Root | Function, driver: str = "") -> Function:
        function = Function(model, address, under, driver)
        self._functions.append(function)
        return function

    def add_vf(self, model: Model, address: str, physfn: Function) -> Function:
        vf = Function(model, address, physfn.under, "")
        vf.physfn = physfn
        physfn.vfs.append(vf)
        self._functions.append(vf)
        return vf

    def share_group(self, leader: Function, *others: Function) -> None:
        for function in others:
            function.group_of = leader

    def device(self, path: str, subsystem: str, number: str = "", node: str = "") -> str:
        """A device of a class, with its number (`226:0`) and its node in /dev where it has them. Gives its path."""
        name = path.rpartition("/")[2]
        self.link(f"{path}/subsystem", f"/sys/class/{subsystem}")
        self.link(f"/sys/class/{subsystem}/{name}", path)
        if number:
            self.file(f"{path}/dev", number)
        if node:
            major, minor = map(int, number.split(":"))
            self.node(node, major, minor, kind="b" if subsystem == "block" else "c")
        return path

    def group_of(self, function: Function) -> int:
        """The IOMMU group that a function will have; its group must be complete."""
        leaders = [f for f in self._functions if f.root.iommu and f.group_of is None and not f.is_iommu]
        return leaders.index(function.group_of or function)

    def take_over(self, function: Function, driver: str = "vfio-pci") -> None:
        """Bound to VFIO, as vfioctl leaves it: with its override, its group's node and its own."""
        function.driver = function.driver_override = driver
        group, number = self.group_of(function), self._taken
        self._taken += 1
        self.device(
            f"{function.path}/vfio-dev/vfio{number}",
            "vfio-dev",
            f"{VFIO_CDEV_MAJOR}:{number}",
            f"/dev/vfio/devices/vfio{number}",
        )
        if (f"/dev/vfio/{group}", "") not in self._facts:
            self.node(f"/dev/vfio/{group}", VFIO_MAJOR, number)

    def text(self) -> str:
        """The host's file. To be asked for once, when all is there."""
        space, numbers = AddressSpace(), count()
        for function in self._functions:
            if isinstance(function.under, Root) and function.physfn is None:
                space.place(function)
        groups: dict[Function, int] = {}
        for function in self._functions:
            self._identity(function)
            self._state(function)
            self._sriov(function)
            if function.root.iommu and function.group_of is None and not function.is_iommu:
                groups[function] = next(numbers)
        for function in self._functions:
            if (leader := function.group_of or function) in groups:
                self._translation(function, groups[leader])
        self._device_links()
        facts = [line for _, lines in sorted(self._facts.items()) for line in lines]
        return "\n".join([HEADER, f"# synthetic: {self._depicts}{ORIGIN}", *facts, "#end"]) + "\n"

    def _identity(self, function: Function) -> None:
        model, home = function.model, function.path
        (vendor, device), (subvendor, subdevice) = model.ids.split(":"), function.subsystem.split(":")
        ids = {"vendor": vendor, "device": device, "subsystem_vendor": subvendor, "subsystem_device": subdevice}
        for name, digits in {**ids, "class": model.class_code, "revision": model.revision}.items():
            self.file(f"{home}/{name}", f"0x{digits}")
        self.file(f"{home}/modalias", function.modalias)
        self.link(f"{PCI}/devices/{function.address}", home)
        self.link(f"{home}/subsystem", PCI)
        size = WITH_WINDOWS if function.is_bridge else WITH_VF_BARS
        regions = (function.regions.get(n, (0, 0, 0)) for n in range(size))
        self.lines(f"{home}/resource", [" ".join(f"0x{value:016x}" for value in region) for region in regions])
        self._say(f"hwdb:{function.modalias}", _names(model))

    def _state(self, function: Function) -> None:
        model, home, node = function.model, function.path, function.root.node
        awake, gone = function.power_state == "D0", function.power_state == "D3cold"
        facts = {
            "d3cold_allowed": "1",
            "driver_override": function.driver_override,
            "enable": "1" if function.driver else "0",
            "local_cpulist": self._nodes.get(node, self._cpus),
            "numa_node": str(node),
            "power/control": "on" if awake else "auto",
            "power/runtime_status": "active" if awake else "suspended",
            "power_state": function.power_state,
        }
        if model.class_code.startswith("0300"):
            facts["boot_vga"] = "1" if function.boot_vga else "0"
        if model.reset:
            facts["reset_method"] = model.reset
            self.unreadable(f"{home}/reset")
        if model.link:
            speed, width = model.link
            # without power the link status reads as all ones: 63 lanes of a speed that is none
            facts["current_link_speed"] = "Unknown" if gone else _speed(function.speed or speed)
            facts["current_link_width"] = str(63 if gone else width)
            facts["max_link_speed"], facts["max_link_width"] = _speed(speed), str(width)
        for name, text in facts.items():
            self.file(f"{home}/{name}", text)
        if function.driver:
            self.link(f"{home}/driver", f"{PCI}/drivers/{function.driver}")
            self.link(f"{PCI}/drivers/{function.driver}/{function.address}", home)

    def _sriov(self, function: Function) -> None:
        model, home = function.model, function.path
        if model.total_vfs:
            self.file(f"{home}/sriov_drivers_autoprobe", "1")
            self.file(f"{home}/sriov_numvfs", str(len(function.vfs)))
            self.file(f"{home}/sriov_totalvfs", str(model.total_vfs))
            offset, stride = _placing(function)
            self.file(f"{home}/sriov_offset", str(offset))
            self.file(f"{home}/sriov_stride", str(stride))
            self.file(f"{home}/sriov_vf_device", (function.vfs[0].model if function.vfs else model).ids[-4:])
        for number, vf in enumerate(function.vfs):
            self.link(f"{home}/virtfn{number}", vf.path)
            self.link(f"{vf.path}/physfn", home)

    def _translation(self, function: Function, group: int) -> None:
        home, unit = f"/sys/kernel/iommu_groups/{group}", function.root.iommu
        if (f"{home}/type", "") not in self._facts:
            self.file(f"{home}/type", self.group_type)
        self.link(f"{home}/devices/{function.address}", function.path)
        self.link(f"{function.path}/iommu_group", home)
        if unit:
            self.link(f"{function.path}/iommu", unit)
            self.link(f"{unit}/devices/{function.address}", function.path)

    def _device_links(self) -> None:
        by_address = {function.address: function for function in self._functions}
        for consumer in self._functions:
            slot, _, number = consumer.address.rpartition(".")
            supplier = by_address.get(f"{slot}.0")
            drawn = DRAWN_TO_GPU.get(int(number), "none")
            if supplier and consumer.model.class_code.startswith(drawn) and supplier.model.class_code.startswith("03"):
                self._device_link(supplier, consumer)

    def _device_link(self, supplier: Function, consumer: Function) -> None:
        home = f"{DEVLINK}/pci:{supplier.address}--pci:{consumer.address}"
        self.file(f"{home}/runtime_pm", "1")
        self.file(f"{home}/status", "not tracked")
        self.link(f"{home}/consumer", consumer.path)
        self.link(f"{home}/supplier", supplier.path)
        self.link(f"{supplier.path}/consumer:pci:{consumer.address}", home)
        self.link(f"{consumer.path}/supplier:pci:{supplier.address}", home)


def _placing(physical: Function) -> tuple[int, int]:
    """How far from the physical function its first VF is, and each from the one before; of most devices 1 and 1."""
    at = [_routing_id(function.address) for function in (physical, *physical.vfs)]
    apart = [later - earlier for earlier, later in pairwise(at)]
    return (apart or [1])[0], (apart[1:] or [1])[0]


def _routing_id(address: str) -> int:
    bus, device, number = address.replace(".", ":").split(":")[1:]
    return int(bus, 16) << 8 | int(device, 16) << 3 | int(number)


def _with_needs(names: Sequence[str]) -> dict[str, None]:
    """The modules and all that they need, in order, each once."""
    found: dict[str, None] = {}
    for name in names:
        found |= {name: None} | _with_needs(MODULES[name].needs)
    return found


def _dependencies(name: str) -> str:
    """A line of modules.dep."""
    needs = [MODULES[other].path for other in _with_needs(MODULES[name].needs) if not MODULES[other].built_in]
    return f"{MODULES[name].path}:{''.join(f' {path}' for path in needs)}"


def _names(model: Model) -> dict[str, str]:
    """What the hardware database has; a name that it does not know has no key."""
    class_name, subclass_name = CLASSES[model.class_code[:4]]
    names = {
        "ID_MODEL_FROM_DATABASE": model.name,
        "ID_PCI_CLASS_FROM_DATABASE": class_name,
        "ID_PCI_INTERFACE_FROM_DATABASE": INTERFACES.get(model.class_code, ""),
        "ID_PCI_SUBCLASS_FROM_DATABASE": subclass_name,
        "ID_VENDOR_FROM_DATABASE": VENDORS[model.ids[:4]],
    }
    return {key: name for key, name in names.items() if name}


def _speed(gigatransfers: float) -> str:
    return f"{gigatransfers:.1f} GT/s PCIe"


def _escaped(text: str) -> str:
    return "".join(ESCAPES.get(char, char) for char in text)


def _numbers(cpus: str) -> list[int]:
    """The CPUs of a list such as `0-47,96-143`."""
    ends = [[int(end) for end in part.split("-")] for part in cpus.split(",") if part]
    return [cpu for first, *last in ends for cpu in range(first, (last or [first])[0] + 1)]


def _grouped(cpus: Sequence[int], threads: int, paired: int) -> list[tuple[int, ...]]:
    if paired:
        return [*zip(cpus[:paired:2], cpus[1:paired:2], strict=True), *((cpu,) for cpu in cpus[paired:])]
    step = len(cpus) // threads
    return [tuple(cpus[core::step]) for core in range(step)]


def _list_of(cpus: Iterable[int]) -> str:
    """The CPUs as the kernel lists them."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][-1] == cpu - 1:
            ranges[-1] = [ranges[-1][0], cpu]
        else:
            ranges.append([cpu])
    return ",".join("-".join(map(str, ends)) for ends in ranges)
