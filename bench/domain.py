"""Building, checking and verifying domains: the work in this process; as whole processes, building and verifying.

Building is compared with virt-install, on a fresh host and on one in use; verifying reads the threads of a process like
QEMU's (bench/threads.py). vfioctl is compiled first, as pip does when it installs it.

    python -m bench.domain [--runs N] [--json FILE]

Exits with 1 when a limit is not kept. bench/README.md says how to read the table.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory

import vfioctl
from bench import ledger
from bench.figures import Figure, keep, show, status
from bench.measure import alternating, medians, output, seconds
from vfioctl import sources
from vfioctl.domain.api import DomainApi
from vfioctl.domain.model.spec import DomainSpec
from vfioctl.host import Host
from vfioctl.kernel.recorded.bundled import file_of
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.session import Session

IN_USE_TO_VIRT_INSTALL, ENTRIES, CLAIMS, DOMAINS = 1.0, 1000, 5, 20
TO_VIRT_INSTALL, BUILD_MS, CHECK_MS, VERIFY_S = 0.8, 50.0, 30.0, 1.0
VCPUS = 128
UUID = "4e8c5df7-c4fa-4719-904f-5579cd5ac35f"
HOST = "hgx8"
LARGE = DomainSpec(name="bench", gpus=8, cpus=128, memory=512 << 30)
"""On both nodes of the host."""
ONE_GPU = ("domain", "build", "bench", "--gpus", "1", "--cpus", "8", "--memory", "16GiB", "--host", HOST, "--quiet")
# its best case: it need not look for an operating system, nor ask a daemon
VIRT_INSTALL = (
    *("virt-install", "--print-xml", "--name", "bench", "--memory", "16384", "--vcpus", "8", "--import"),
    *("--disk", "none", "--network", "none", "--osinfo", "detect=off,require=off", "--hostdev", "pci_0000_1b_00_0"),
)
NODE = """<node><device><name>pci_0000_1b_00_0</name><capability type='pci'>
<class>0x030200</class><domain>0</domain><bus>27</bus><slot>0</slot><function>0</function>
<product id='0x2330'/><vendor id='0x10de'/></capability></device></node>"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.domain")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    api = DomainApi(sources.recorded(Session, HOST))
    text = api.build(LARGE).xml
    works: dict[str, tuple[Callable[[], object], float]] = {
        "build, 8 GPUs and 128 vCPUs": (lambda: api.build(LARGE).xml, BUILD_MS),
        "check of it, the document alone": (lambda: api.check(text, host=False), CHECK_MS),
        f"check of it on {HOST}": (lambda: api.check(text), CHECK_MS),
    }
    compileall.compile_dir(Path(vfioctl.__file__).parent, quiet=2)
    samples: dict[str, list[float]] = {}
    figures = []
    for name, whole in (("", processes(options.runs)), (", in use", processes(options.runs, is_in_use=True))):
        build, peer = medians(whole).values()
        limit = IN_USE_TO_VIRT_INSTALL if name else TO_VIRT_INSTALL
        figures.append(Figure(f"build, 1 GPU{name}, whole process / virt-install", build, peer, "s", limit))
        samples |= {f"{command}{name}": times for command, times in whole.items()}
    for name, (work, limit) in works.items():
        work()  # imports
        samples[name] = [milliseconds(work) for _ in range(options.runs)]
        figures.append(Figure(f"{name}: / {limit:g} ms", statistics.median(samples[name]), limit, "ms", 1.0))
    samples["verify"] = verifying(options.runs)
    name = f"verify, {VCPUS} vCPUs, whole process: / {VERIFY_S:g} s"
    figures.append(Figure(name, statistics.median(samples["verify"]), VERIFY_S, "s", 1.0))
    show(figures)
    keep(options.json, figures, samples, runs=options.runs)
    return status(figures)


def processes(runs: int, *, is_in_use: bool = False) -> dict[str, list[float]]:
    """Seconds of whole processes that print the XML of a domain with one GPU.

    `is_in_use`: on a host with changes in its ledger, claims, and other domains, which vfioctl asks libvirt for.
    """
    with TemporaryDirectory() as folder:
        node = Path(folder, "node.xml")
        node.write_text(NODE.replace("</node>", "".join(others()) + "</node>") if is_in_use else NODE)
        connect = ("--connect", f"test://{node}")
        ours: tuple[str, ...] = (str(Path(sys.executable).with_name("vfioctl")), *ONE_GPU)
        if is_in_use:
            used = Path(folder, "ledger.db")
            claimed(used, Path(folder, "hgx8.host"))
            ours = (*ours, *connect, "--ledger", str(used))
        return alternating({"build": ours, "virt-install": (*VIRT_INSTALL, *connect)}, runs)


def others() -> Iterator[str]:
    """Domains of libvirt's test driver, each pinned to two CPUs of the host."""
    for number in range(DOMAINS):
        pins = "".join(f"<vcpupin vcpu='{vcpu}' cpuset='{number + 20 + 96 * vcpu}'/>" for vcpu in range(2))
        yield (
            f"<domain type='test'><name>d{number}</name><memory unit='GiB'>1</memory><vcpu>2</vcpu>"
            f"<cputune>{pins}</cputune><os><type>hvm</type></os></domain>"
        )


def claimed(file: Path, host: Path) -> None:
    """Write a ledger of a host in use: many changes, vGPUs, a mark, and claims of most of its GPUs with CPUs."""
    ledger.write(file, entries=ENTRIES, marked="0000:ff:00.0")
    host.write_bytes(file_of(HOST).read_bytes())
    claims = Host.simulated(str(host), file).claims
    for number in range(CLAIMS):
        claims.create(ClaimRequest(owner=f"vm/v{number}", gpus=1, cpus=4))


def verifying(runs: int) -> list[float]:
    """Seconds of whole processes that verify a domain of libvirt's test driver, whose threads are there."""
    cpus = sorted(os.sched_getaffinity(0))
    pins = "".join(f"<vcpupin vcpu='{vcpu}' cpuset='{cpus[vcpu % len(cpus)]}'/>" for vcpu in range(VCPUS))
    domain = (
        f"<domain type='kvm'><name>bench</name><uuid>{UUID}</uuid><memory unit='MiB'>256</memory><vcpu>{VCPUS}</vcpu>"
        f"<cputune>{pins}</cputune><os><type arch='x86_64' machine='q35'>hvm</type></os></domain>"
    )
    like_qemu = (sys.executable, "-m", "bench.threads", str(VCPUS), "-uuid", UUID)
    with TemporaryDirectory() as folder, Popen(like_qemu, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        node = Path(folder, "node.xml")
        node.write_text(f"<node>{domain}</node>")
        command = (str(Path(sys.executable).with_name("vfioctl")), "domain", "verify", "bench", "--json")
        found = json.loads(output((*command, "--connect", f"test://{node}")))
        if (found["state"], found["pid"]) != ("ok", process.pid):
            sys.exit(f"verify found something else: {found}")
        times = [seconds((*command, "--connect", f"test://{node}")) for _ in range(runs)]
        process.communicate()
    return times


def milliseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1000


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
