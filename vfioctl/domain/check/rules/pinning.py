"""Rules about pinning: <cputune> and I/O threads. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator

from vfioctl.domain.check.rules.rule import Fault, more_than_one, refused_before, repeats, warning
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import REAL_TIME, cpuset, number, shown, text_in

_MASKS = {"vcpusched": "vcpus", "iothreadsched": "iothreads"}
_LEAST_SHARES, _MOST_SHARES, _ANY_SHARES = 2, 262144, (9, 1)
"""The version is not in libvirt's NEWS.rst; 9.0 refuses 1."""
_PIN = "cpuset= with CPUs of the host, such as 2-3"


def pin_cpuset(domain: Domain) -> Iterator[Fault]:
    for name in ("vcpupin", "emulatorpin", "iothreadpin"):
        for pin in domain.all(f"cputune/{name}"):
            text = pin.get("cpuset")
            if text is None:
                yield Fault(pin, f"the {name} has no cpuset=", _PIN)
            elif not cpuset(text):
                yield Fault(pin, f"cpuset='{text[:40]}' names no CPUs", _PIN)


def pin_vcpu(domain: Domain) -> Iterator[Fault]:
    seen: set[int | None] = set()
    for pin in domain.all("cputune/vcpupin"):
        vcpu = number(pin.get("vcpu"))
        if vcpu is None:
            yield Fault(pin, "the vcpupin does not say which vCPU", "vcpu='0' and so on")
        elif vcpu in seen:
            yield Fault(pin, f"vCPU {vcpu} is pinned twice", "keep one of them")
        elif domain.vcpus is not None and vcpu >= domain.vcpus:
            reason = f"there is no vCPU {vcpu}: they are 0 to {domain.vcpus - 1}"
            yield Fault(pin, reason, "remove it, or raise <vcpu>: libvirt drops it without a word")
        seen.add(vcpu)


def pin_partial(domain: Domain) -> Iterator[Fault]:
    pinned = {number(pin.get("vcpu")) for pin in domain.all("cputune/vcpupin")}
    if not pinned or domain.vcpus is None or domain.vcpus > 1 << 16 or domain.at("vcpu").get("cpuset"):
        return
    if free := set(range(domain.vcpus)) - pinned:
        reason = f"vCPU {shown(free)} is not pinned, and may run on the CPUs of the others"
        yield warning(domain.at("cputune"), reason, "pin every vCPU, or none")


def pin_emulator(domain: Domain) -> Iterator[Fault]:
    return more_than_one(domain, "cputune/emulatorpin", "cputune/emulatorsched")


def pin_iothread(domain: Domain) -> Iterator[Fault]:
    seen: set[int | None] = set()
    for pin in domain.all("cputune/iothreadpin"):
        thread = number(pin.get("iothread"))
        if thread is None or thread not in domain.iothreads:
            yield Fault(pin, f"there is no I/O thread {(pin.get('iothread') or '')[:40]}", "<iothreads>, or remove it")
        elif thread in seen:
            yield Fault(pin, f"I/O thread {thread} is pinned twice", "keep one of them")
        seen.add(thread)


def iothread_id(domain: Domain) -> Iterator[Fault]:
    count = domain.one("iothreads")
    if count is not None and number(text_in(count)) is None:
        yield Fault(count, f"'{text_in(count)[:40]}' is no number of I/O threads", "a whole number")
    threads = [(element, number(element.get("id"))) for element in domain.all("iothreadids/iothread")]
    wrong = [element for element, thread in threads if not thread]
    for element in (*wrong, *(element for element, _, _ in repeats(threads))):
        yield Fault(element, "the id of the I/O thread is missing, 0 or not unique", "id='1' and so on, each once")


def pin_shared(domain: Domain) -> Iterator[Fault]:
    """Two vCPUs that are pinned to the same one CPU, or the emulator on the CPU of a vCPU."""
    owners: dict[int, str] = {}
    for pin in domain.all("cputune/vcpupin"):
        cpus = cpuset(pin.get("cpuset")) or frozenset()
        if len(cpus) == 1:
            (cpu,) = cpus
            if cpu in owners and owners[cpu] != pin.get("vcpu"):
                reason = f"vCPU {pin.get('vcpu', '')[:9]} shares CPU {cpu} with vCPU {owners[cpu]}"
                yield warning(pin, reason, "a CPU for each vCPU")
            owners.setdefault(cpu, pin.get("vcpu", "")[:9])
    for name in ("emulatorpin", "iothreadpin"):
        for pin in domain.all(f"cputune/{name}"):
            if taken := (cpuset(pin.get("cpuset")) or frozenset()) & owners.keys():
                reason = f"CPU {shown(set(taken))} runs a vCPU as well"
                yield warning(pin, reason, "CPUs that run no vCPU, of the same node")


def scheduler(domain: Domain) -> Iterator[Fault]:
    for name, attribute in _MASKS.items():
        seen: set[int] = set()
        for element in domain.all(f"cputune/{name}"):
            mask = cpuset(element.get(attribute))
            if not mask:
                yield Fault(element, f"{attribute}= of {name} names nothing", f"{attribute}='0-3'")
                continue
            if seen & mask:
                yield Fault(element, f"two <{name}> for {shown(seen & mask)}", "name each once")
            seen |= mask
            if name == "iothreadsched" and (absent := mask - domain.iothreads):
                yield Fault(element, f"there is no I/O thread {shown(absent)}", "<iothreads>, or remove it")
            above = {vcpu for vcpu in mask if domain.vcpus is not None and vcpu >= domain.vcpus}
            if name == "vcpusched" and above:
                yield warning(element, f"there is no vCPU {shown(above)}", "name vCPUs that there are")
    for name in (*_MASKS, "emulatorsched"):
        for element in domain.all(f"cputune/{name}"):
            policy, priority = element.get("scheduler", ""), number(element.get("priority"))
            if policy in REAL_TIME and not 1 <= (priority or 0) <= 99:
                yield Fault(element, f"scheduler='{policy}' needs a priority", "priority='1' to '99'")


def cpu_quota(domain: Domain) -> Iterator[Fault]:
    for name in ("period", "global_period", "emulator_period", "iothread_period"):
        for element in domain.all(f"cputune/{name}"):
            value = number(text_in(element))
            if value is None or (value and not 1000 <= value <= 1_000_000):
                yield Fault(element, f"'{text_in(element)[:40]}' is out of range", "1000 to 1000000 (us)")
    for name in ("quota", "global_quota", "emulator_quota", "iothread_quota"):
        for element in domain.all(f"cputune/{name}"):
            text = text_in(element)
            value = number(text.removeprefix("-"))
            if value is None or (value and not text.startswith("-") and not 1000 <= value <= 17592186044415):
                yield Fault(element, f"'{text[:40]}' is out of range", "1000 or more (us), or -1 for no limit")


def cpu_shares(domain: Domain) -> Iterator[Fault]:
    """What is allowed depends on the control groups of the host: libvirt leaves it to them since 9.1."""
    element = domain.one("cputune/shares")
    if element is None or not text_in(element):
        return
    value = number(text_in(element))
    if value is None or value > _MOST_SHARES:
        yield Fault(element, f"'{text_in(element)[:40]}' is out of range", f"{_LEAST_SHARES} to {_MOST_SHARES}")
    elif value == 1:
        remedy = f"{_LEAST_SHARES} to {_MOST_SHARES}"
        yield from refused_before(domain, _ANY_SHARES, element, "'1' is too little for libvirt before {}", remedy)


def resource_group(domain: Domain) -> Iterator[Fault]:
    """The vCPUs of a <cachetune> are in no other one, and those of a <memorytune> in no other or all in the same."""
    group_of: dict[int, frozenset[int]] = {}
    for name, part in (("cachetune", "cache"), ("memorytune", "node")):
        for element in domain.all(f"cputune/{name}"):
            named = cpuset(element.get("vcpus")) or frozenset()
            mine = frozenset(vcpu for vcpu in named if vcpu < (domain.vcpus or 0))
            others = {group_of[vcpu] for vcpu in mine & group_of.keys()}
            if others and (name == "cachetune" or others != {mine}):
                reason = f"vCPU {shown(mine & group_of.keys())} is in two <cachetune> or <memorytune>"
                yield Fault(element, reason, "name each vCPU once, or the same vCPUs for cache and memory")
            elif element.find(part) is not None or element.find("monitor") is not None:
                group_of |= dict.fromkeys(mine, mine)
