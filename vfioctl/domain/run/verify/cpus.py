"""Compares where QEMU's threads may run with <cputune>. May not do input or output.

libvirt starts QEMU with names for its threads: `CPU 3/KVM`, `IO iothread1`. All others are the emulator's. Threads that
serve others inherit their CPUs: the pools of I/O threads those of an I/O thread, the kernel's own those of a vCPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from vfioctl.domain.model.process import Qemu, Thread
from vfioctl.domain.model.verification import Area, VerifiedFact, judged, unknown
from vfioctl.domain.run.verify.subject import MOST, Subject, listed, number, numbers

_VCPU = re.compile(r"CPU ([0-9]{1,4})/[A-Z]+", re.ASCII)
_ALL_VCPUS = "ALL CPUs/TCG"
_IO_THREAD = re.compile(r"IO iothread([0-9]{1,9})", re.ASCII)
_NO_OTHERS = (_ALL_VCPUS, "TC ")
"""`TC`: QEMU's thread-context objects, which libvirt puts on the CPUs of a node; they only begin threads."""
_OF_KERNEL = ("vhost-", "kvm-")
ANY = "any CPU"
Cpus = frozenset[int] | None
"""None: any CPU."""


def cpu_facts(subject: Subject, qemu: Qemu) -> Iterator[VerifiedFact]:
    """Yield a fact for each vCPU, the emulator, its other threads, and each I/O thread."""
    if not qemu.threads:
        yield unknown(Area.CPUS, "threads of QEMU", "", "/proc does not show them")
        return
    vcpus, io_threads = _by_number(_VCPU, qemu.threads), _by_number(_IO_THREAD, qemu.threads)
    pins = {vcpu: _pin(subject, "vcpupin", "vcpu", vcpu) for vcpu in _vcpu_numbers(subject)}
    io_pins = {each: _pin(subject, "iothreadpin", "iothread", each) for each in _io_numbers(subject)}
    emulator = _pin(subject, "emulatorpin")
    together = any(each.name == _ALL_VCPUS for each in qemu.threads)
    for vcpu, cpus in pins.items():
        what = f"vCPU {vcpu}"
        if vcpu not in vcpus and together:
            yield unknown(Area.CPUS, what, listed(cpus) or ANY, "QEMU emulates all vCPUs in one thread")
        else:
            remedy = f"{subject.virsh} vcpupin {subject.name} {vcpu} {listed(cpus)} --live"
            yield _fact(what, cpus, vcpus.get(vcpu), remedy)
    remedy = f"{subject.virsh} emulatorpin {subject.name} {listed(emulator)} --live"
    yield _fact("emulator", emulator, next((each for each in qemu.threads if each.id == qemu.pid), None), remedy)
    for each, cpus in io_pins.items():
        remedy = f"{subject.virsh} iothreadpin {subject.name} {each} {listed(cpus)} --live"
        yield _fact(f"I/O thread {each}", cpus, io_threads.get(each), remedy)
    known = {each.id for number, each in vcpus.items() if number in pins}
    known |= {each.id for number, each in io_threads.items() if number in io_pins} | {qemu.pid}
    others = [each for each in qemu.threads if each.id not in known and not each.name.startswith(_NO_OTHERS)]
    yield from _others(
        others,
        [emulator, *io_pins.values()],
        pins.values(),
        f"stop {subject.name} and start it again: threads inherit their CPUs when they begin",
    )


def _vcpu_numbers(subject: Subject) -> Iterable[int]:
    """Return the vCPUs that are plugged in."""
    plugged = [number(each.get("id")) for each in subject.root.iterfind("vcpus/vcpu") if each.get("enabled") == "yes"]
    if plugged:
        return sorted({each for each in plugged if each is not None})[:MOST]
    vcpu = subject.root.find("vcpu")
    if vcpu is None:
        return range(1)
    return range(min(number(vcpu.get("current")) or number(vcpu.text) or 1, MOST))


def _io_numbers(subject: Subject) -> Iterable[int]:
    given = [number(each.get("id")) for each in subject.root.iterfind("iothreadids/iothread")]
    if given:
        return sorted({each for each in given if each is not None})[:MOST]
    return range(1, min(number(subject.root.findtext("iothreads")) or 0, MOST) + 1)


def _pin(subject: Subject, tag: str, key: str = "", value: int = 0) -> Cpus:
    """Return the CPUs of a pin; those of <vcpu cpuset> are the default of all."""
    for each in subject.root.iterfind(f"cputune/{tag}"):
        if not key or number(each.get(key)) == value:
            return numbers(each.get("cpuset", ""))
    vcpu = subject.root.find("vcpu")
    return None if vcpu is None else numbers(vcpu.get("cpuset", ""))


def _by_number(pattern: re.Pattern[str], threads: Iterable[Thread]) -> dict[int, Thread]:
    return {int(found[1]): each for each in threads if (found := pattern.fullmatch(each.name))}


def _fact(what: str, wanted: Cpus, thread: Thread | None, remedy: str) -> VerifiedFact:
    said = listed(wanted) or ANY
    if thread is None:
        return judged(Area.CPUS, what, said, "no such thread", "virsh dumpxml shows how many there should be", ok=False)
    if not thread.cpus:
        return unknown(Area.CPUS, what, said, f"/proc does not tell the CPUs of thread {thread.id}")
    return judged(Area.CPUS, what, said, thread.cpus, remedy, ok=wanted in (None, numbers(thread.cpus)))


def _others(
    threads: Iterable[Thread], pins: Iterable[Cpus], vcpu_pins: Iterable[Cpus], remedy: str
) -> Iterator[VerifiedFact]:
    wanted, of_kernel = _union(pins), _union([*pins, *vcpu_pins])
    known = [each for each in threads if each.cpus]
    if not known:
        return
    elsewhere = [each for each in known if not _within(each, of_kernel if each.name.startswith(_OF_KERNEL) else wanted)]
    if elsewhere:
        found = ", ".join(f"{each.cpus} (thread {each.id}, {each.name})" for each in elsewhere[:4])
        found += f", and {len(elsewhere) - 4} more" if elsewhere[4:] else ""
    else:
        found = listed(_union(numbers(each.cpus) for each in known))
    yield judged(Area.CPUS, "other threads of QEMU", listed(wanted) or ANY, found, remedy, ok=not elsewhere)


def _union(pins: Iterable[Cpus]) -> Cpus:
    found: frozenset[int] = frozenset()
    for each in pins:
        if each is None:
            return None
        found |= each
    return found or None


def _within(thread: Thread, wanted: Cpus) -> bool:
    return wanted is None or (numbers(thread.cpus) or frozenset()) <= wanted
