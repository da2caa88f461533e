"""Every template on every bundled host against golden XML, which libvirt's own schema takes.

After a change that is meant: pytest tests/unit/domain/test_build_golden.py --renew-golden, and read the diff.
"""

from __future__ import annotations

import shutil

import pytest

from tests.libvirt_schema import validated
from tests.unit.conftest import GOLDEN, Golden, Run
from vfioctl.domain.document.templates import templates
from vfioctl.host import Host
from vfioctl.kernel.recorded.bundled import bundled_hosts

HOSTS, TEMPLATES = sorted(bundled_hosts()), sorted(templates())
WISHES = {
    "hgx8": "--gpus 8 --cpus 128 --memory 512GiB",
    "mi300x": "--gpus 7 --cpus 56 --memory 448GiB",
    "gh200": "--gpus 1 --cpus 64 --memory 128GiB",
    "workstation": "--device gpu1 --cpus 8 --memory 16GiB --disk /dev/nvme0n1 --disk /srv/games.qcow2 --cdrom /a.iso",
    "a2": "--device 6d3f2c1a-0b4e-4f6d-8a7c-5e9b1f2a3c4d --cpus 4 --memory 8GiB",
    "lab": "--device 01:00.0 --device 41:00.0 --cpus 2 --memory 512MiB --policy preferred",
    "xe": "--device 03:00.1 --cpus 4 --memory 8GiB --smt isolate",
    "mi300x-vf": "--device 05:02.0 --device 05:02.3 --cpus 8 --memory 16GiB --hugepages none",
    "l40s": "--device 41:00.4 --cpus 4 --memory 8GiB --network lab --network storage --viommu intel",
}
"""What is asked for on a host; one GPU and four CPUs on the others. Not every host has what is asked for."""
CONFIDENTIAL = "--gpus 1 --cpus 8 --memory 64GiB"
"""A confidential domain gets one GPU."""


def wish(host: str, template: str) -> str:
    if template == "confidential" and host == "mi300x":
        return CONFIDENTIAL
    if template == "realtime" and host == "hgx8":  # it has no core for each of so many vCPUs
        return f"{WISHES[host]} --smt together"
    return WISHES.get(host, "--gpus 1 --cpus 4 --memory 4GiB")


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("host", HOSTS)
def test_a_domain(run: Run, golden: Golden, host: str, template: str) -> None:
    done = run(f"domain build vm1 --template {template} {wish(host, template)} --host {host}")
    golden(f"{host}/domain-{template}.xml", done.out or f"<!--\n{done.err}-->\n")


@pytest.mark.parametrize("host", HOSTS)
def test_why_it_is_so(terminal: Run, golden: Golden, host: str) -> None:
    done = terminal(f"domain build vm1 {wish(host, 'compute-linux')} --explain --host {host}")
    golden(f"{host}/domain-explain.txt", done.out or done.err)


def test_what_is_built_is_not_only_refused() -> None:
    built = [host for host in HOSTS if "<domain" in (GOLDEN / host / "domain-minimal.xml").read_text()]
    assert len(built) >= 8, built


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("host", HOSTS)
def test_the_checker_takes_them(host: str, template: str) -> None:
    text = (GOLDEN / host / f"domain-{template}.xml").read_text()
    found = Host.recorded(host).domain.check(text, host=False).findings if "<domain" in text else ()
    expected = ["confidential-guest"] if found and template == "confidential" else []  # QEMU 9.1 alone is wrong
    assert [finding.rule for finding in found] == expected


@pytest.mark.parametrize("host", HOSTS)
def test_the_checker_takes_their_cpus_on_the_host(host: str) -> None:
    files = [GOLDEN / host / f"domain-{template}.xml" for template in TEMPLATES]
    texts = [text for file in files if "<domain" in (text := file.read_text())]
    found = [each for text in texts for each in Host.recorded(host).domain.check(text, host=True).findings]
    assert [each for each in found if each.rule.startswith("host-cpu")] == []


@pytest.mark.skipif(
    not (shutil.which("virt-xml-validate") and shutil.which("xmllint")),
    reason="needs the Debian packages libvirt-clients and libxml2-utils",
)
@pytest.mark.parametrize("template", TEMPLATES)
def test_the_schema_takes_them(template: str) -> None:
    files = [GOLDEN / host / f"domain-{template}.xml" for host in HOSTS]
    domains = [file for file in files if "<domain" in file.read_text()]
    assert domains
    for domain in domains:
        done = validated(domain)
        assert done.returncode == 0, done.stderr
