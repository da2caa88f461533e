"""Compares where QEMU's threads may run with <cputune>. May not do input or output. libvirt starts QEMU with names for
its threads: `CPU 3/KVM`, `IO iothread1`. All others are the emulator's. Threads that serve others inherit their CPUs:
the pools of I/O threads those of an I/O thread, the kernel's own those of a vCPU."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from vfioctl.domain.document.reader import MOST, Domain
from vfioctl.domain.document.values import cpuset, number
from vfioctl.domain.model.verification import Area, Qemu, Thread, VerifiedFact, judged, unknown
from vfioctl.domain.run.verify.subject import Subject
from vfioctl.units import format_cpu_list

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
    domain = subject.domain
    pins: dict[int, Cpus] = {vcpu: domain.pins.get(vcpu, domain.other_cpus) for vcpu in _vcpu_numbers(domain)}
    ids = sorted(domain.iothreads)[:MOST]
    io_pins: dict[int, Cpus] = {iothread: domain.iothread_pins.get(iothread, domain.other_cpus) for iothread in ids}
    emulator = domain.emulator_pin or domain.other_cpus
    together = any(thread.name == _ALL_VCPUS for thread in qemu.threads)
    for vcpu, cpus in pins.items():
        what = f"vCPU {vcpu}"
        if vcpu not in vcpus and together:
            yield unknown(Area.CPUS, what, format_cpu_list(cpus or ()) or ANY, "QEMU emulates all vCPUs in one thread")
        else:
            remedy = f"{subject.virsh} vcpupin {subject.name} {vcpu} {format_cpu_list(cpus or ())} --live"
            yield _fact(what, cpus, vcpus.get(vcpu), remedy)
    remedy = f"{subject.virsh} emulatorpin {subject.name} {format_cpu_list(emulator or ())} --live"
    yield _fact("emulator", emulator, next((thread for thread in qemu.threads if thread.id == qemu.pid), None), remedy)
    for iothread, cpus in io_pins.items():
        remedy = f"{subject.virsh} iothreadpin {subject.name} {iothread} {format_cpu_list(cpus or ())} --live"
        yield _fact(f"I/O thread {iothread}", cpus, io_threads.get(iothread), remedy)
    known = {thread.id for number, thread in vcpus.items() if number in pins}
    known |= {thread.id for number, thread in io_threads.items() if number in io_pins} | {qemu.pid}
    others = [thread for thread in qemu.threads if thread.id not in known and not thread.name.startswith(_NO_OTHERS)]
    remedy = f"stop {subject.name} and start it again: threads inherit their CPUs when they begin"
    yield from _others(others, [emulator, *io_pins.values()], pins.values(), remedy)


def _vcpu_numbers(domain: Domain) -> Iterable[int]:
    ids = {number(vcpu.get("id")) for vcpu in domain.all("vcpus/vcpu[@enabled='yes']")}
    if plugged := [vcpu for vcpu in ids if vcpu is not None]:
        return sorted(plugged)
    return range(min(number(domain.at("vcpu").get("current")) or domain.vcpus or 1, MOST))


def _by_number(pattern: re.Pattern[str], threads: Iterable[Thread]) -> dict[int, Thread]:
    return {int(match[1]): thread for thread in threads if (match := pattern.fullmatch(thread.name))}


def _fact(what: str, wanted: Cpus, thread: Thread | None, remedy: str) -> VerifiedFact:
    expected = format_cpu_list(wanted or ()) or ANY
    if thread is None:
        remedy = "virsh dumpxml shows how many there should be"
        return judged(Area.CPUS, what, expected, "no such thread", remedy, ok=False)
    if not thread.cpus:
        return unknown(Area.CPUS, what, expected, f"/proc does not show the CPUs of thread {thread.id}")
    return judged(Area.CPUS, what, expected, thread.cpus, remedy, ok=wanted in (None, cpuset(thread.cpus)))


def _others(
    threads: Iterable[Thread], pins: Iterable[Cpus], vcpu_pins: Iterable[Cpus], remedy: str
) -> Iterator[VerifiedFact]:
    wanted, of_kernel = _union(pins), _union([*pins, *vcpu_pins])
    known = [thread for thread in threads if thread.cpus]
    if not known:
        return
    limits = ((thread, of_kernel if thread.name.startswith(_OF_KERNEL) else wanted) for thread in known)
    if elsewhere := [thread for thread, cpus in limits if not _within(thread, cpus)]:
        actual = ", ".join(f"{thread.cpus} (thread {thread.id}, {thread.name})" for thread in elsewhere[:4])
        actual += f", and {len(elsewhere) - 4} more" if elsewhere[4:] else ""
    else:
        actual = format_cpu_list(_union(cpuset(thread.cpus) for thread in known) or ())
    expected = format_cpu_list(wanted or ()) or ANY
    yield judged(Area.CPUS, "other threads of QEMU", expected, actual, remedy, ok=not elsewhere)


def _union(pins: Iterable[Cpus]) -> Cpus:
    union: frozenset[int] = frozenset()
    for pin in pins:
        if pin is None:
            return None
        union |= pin
    return union or None


def _within(thread: Thread, wanted: Cpus) -> bool:
    return wanted is None or (cpuset(thread.cpus) or frozenset()) <= wanted
