"""Building, checking and verifying domains: the work in this process; as whole processes, building and verifying.

Building is compared with virt-install; verifying reads the threads of a process like QEMU's (bench/threads.py).

    python -m bench.domain [--runs N] [--json FILE]

Exits with 1 when a limit is not kept. bench/README.md says how to read the table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory

from bench.figures import Figure, keep, show, status
from bench.measure import alternating, medians, output, seconds
from vfioctl.domain.api import DomainApi
from vfioctl.domain.model.spec import DomainSpec
from vfioctl.session import Session

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
    api = DomainApi(Session.recorded(HOST))
    text = api.build(LARGE).xml
    works: dict[str, tuple[Callable[[], object], float]] = {
        "build, 8 GPUs and 128 vCPUs": (lambda: api.build(LARGE).xml, BUILD_MS),
        "check of it, the document alone": (lambda: api.check(text, host=False), CHECK_MS),
        f"check of it on {HOST}": (lambda: api.check(text), CHECK_MS),
    }
    whole = processes(options.runs)
    build, peer = medians(whole).values()
    samples = dict(whole)
    figures = [Figure("build, 1 GPU, whole process / virt-install", build, peer, "s", TO_VIRT_INSTALL)]
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


def processes(runs: int) -> dict[str, list[float]]:
    """Seconds of whole processes that print the XML of a domain with one GPU."""
    with TemporaryDirectory() as folder:
        node = Path(folder, "node.xml")
        node.write_text(NODE)
        ours = (str(Path(sys.executable).with_name("vfioctl")), *ONE_GPU)
        theirs = (*VIRT_INSTALL, "--connect", f"test://{node}")
        return alternating({"build": ours, "virt-install": theirs}, runs)


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
