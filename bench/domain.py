"""The check of one domain with two NUMA nodes, eight GPUs and 128 vCPUs: the work in this process.

    python -m bench.domain [--runs N] [--json FILE]

Exits with 1 when a limit is not kept. bench/README.md says how to read the table.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.figures import Figure, keep, show, status
from vfioctl.domain.api import DomainApi
from vfioctl.session import Session

LIMIT_MS = 30.0
GPUS, VCPUS = 8, 128
HOST = "hgx8"
_PORT = """
    <controller type='pci' index='{index}' model='pcie-root-port'>
      <address type='pci' bus='{bus:#x}' slot='{slot:#x}'/>
    </controller>
    <hostdev mode='subsystem' type='pci' managed='no'>
      <source><address domain='0x0000' bus='{index:#x}' slot='0x00' function='0x0'/></source>
      <address type='pci' bus='{index:#x}' slot='0x00'/>
    </hostdev>"""


def document() -> str:
    """The XML: a vCPU on each CPU, a NUMA cell and an expander bus for each half, hugepages."""
    half = VCPUS // 2
    pins = "".join(f"\n    <vcpupin vcpu='{cpu}' cpuset='{cpu}'/>" for cpu in range(VCPUS))
    cells = "".join(f"<cell id='{n}' cpus='{n * half}-{n * half + half - 1}' memory='64' unit='GiB'/>" for n in (0, 1))
    buses = "".join(
        f"<controller type='pci' index='{n + 1}' model='pcie-expander-bus'>"
        f"<target busNr='{200 + 20 * n}'><node>{n}</node></target></controller>"
        for n in (0, 1)
    )
    ports = "".join(_PORT.format(index=3 + gpu, bus=1 + gpu % 2, slot=gpu // 2) for gpu in range(GPUS))
    return f"""<domain type='kvm'>
  <name>bench</name><memory unit='GiB'>128</memory>
  <memoryBacking><hugepages><page size='1' unit='GiB' nodeset='0-1'/></hugepages></memoryBacking>
  <vcpu>{VCPUS}</vcpu>
  <cputune>{pins}
  </cputune>
  <numatune><memnode cellid='0' nodeset='0'/><memnode cellid='1' nodeset='1'/></numatune>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <cpu mode='host-passthrough'><numa>{cells}</numa></cpu>
  <devices>{buses}{ports}</devices>
</domain>"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.domain")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    api, text = DomainApi(Session.recorded(HOST)), document()
    samples, figures = {}, []
    for name, host in (("check, the document alone", False), (f"check on {HOST}", True)):
        _milliseconds(api, text, host=host)  # imports
        samples[name] = [_milliseconds(api, text, host=host) for _ in range(options.runs)]
        figures.append(Figure(f"{name}: / {LIMIT_MS:g} ms", statistics.median(samples[name]), LIMIT_MS, "ms", 1.0))
    show(figures)
    keep(options.json, figures, samples, runs=options.runs)
    return status(figures)


def _milliseconds(api: DomainApi, text: str, *, host: bool) -> float:
    start = time.perf_counter()
    api.check(text, host=host)
    return (time.perf_counter() - start) * 1000


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
