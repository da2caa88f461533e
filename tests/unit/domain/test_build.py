"""`vfioctl domain build`: what it takes, what it refuses, and what it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.hosts.machines import copy, machine, original
from tests.unit.conftest import Run
from vfioctl.core.limits import read_document
from vfioctl.domain.build import nccl
from vfioctl.domain.build.build import DomainBuilder
from vfioctl.domain.build.layout.devices import address_space
from vfioctl.domain.build.layout.memory import divide
from vfioctl.domain.build.layout.pci import MOST_PORTS, expanders
from vfioctl.domain.build.limits import refuse_elsewhere
from vfioctl.domain.check.rules.check import check
from vfioctl.domain.document.templates import read_template, templates
from vfioctl.domain.document.tree import remove
from vfioctl.domain.document.xml import parse
from vfioctl.domain.model.finding import Severity
from vfioctl.domain.model.layout import Device
from vfioctl.domain.model.libvirt import Others
from vfioctl.domain.model.spec import DomainSpec, PageSize, Policy
from vfioctl.errors import BadDocument, BadSpec, HostError, NoCapacity
from vfioctl.host import Host
from vfioctl.inventory.model.machine import Processor
from vfioctl.inventory.model.numa_affinity import above
from vfioctl.inventory.model.values import PciAddress
from vfioctl.inventory.probe.machine import read_processor
from vfioctl.kernel.recorded.host import Recorded
from vfioctl.kernel.recorded.tree import form
from vfioctl.placement.model.capacity import HugepagePool
from vfioctl.placement.model.claims import Owner
from vfioctl.placement.model.request import ClaimRequest

GIB = 1 << 30
BUILD = "domain build vm1 --host hgx8"


def xml(run: Run, words: str) -> ET.Element:
    done = run(words)
    assert done.code == 0, done.err
    return ET.fromstring(done.out)  # noqa: S314 - our own


class TestSpecs:
    @pytest.mark.parametrize(
        ("words", "why"),
        [
            ("", "one of them is needed"),
            ("--gpus 1 --claim abcd", "--claim excludes the others"),
            ("--device gpu0 --claim abcd", "--claim excludes the others"),
            ("--gpus 1 --cpus 3", "3 vCPUs do not fill cores of 2 threads"),
            ("--gpus 1 --memory 3QB", "not a size"),
            ("--gpus 1 --memory 1000B", "must be at least 1 MiB"),
            ("--gpus 1 --hugepages 4MiB", "hugepages must be auto, 1GiB, 512MiB, 2MiB or none"),
            ("--gpus 1 --policy never", "policy must be strict or preferred"),
            ("--gpus 1 --template ../../etc/passwd", "template"),
            ("--gpus 1 --template nope", "there is no template 'nope'"),
            ("--gpus 1 --disk relative.img", "disks.0 must be a whole path, such as /var"),
            ("--gpus 1 --network a/b", "networks.0 must have 1 to 200 of the characters A-Z"),
            ("--gpus 1 --node nonsense=0", "not a PCI address: 'nonsense'\n  hint:     write it as 0000:41:00.0"),
            ("--gpus 1 --node 1b:00.0=x", "nodes.0000:1b:00.0 must be a whole number"),
            ("--gpus 1 --node 1b:00.0", "--node 1b:00.0: the NUMA node is missing"),
            ("--gpus 1 --numa 9", "there is no NUMA node 9"),
            ("--gpus 1 --numa x", "numa: any, same or the number of a NUMA node is needed"),
            ("--device gpu77", "gpu77"),
            ("--claim 0123456789ab", "there is no claim"),
        ],
    )
    def test_that_are_refused(self, run: Run, words: str, why: str) -> None:
        done = run(f"{BUILD} {words}")
        assert (done.code, done.out) == (2, "")
        assert why in done.err

    def test_a_name_is_needed(self, run: Run) -> None:
        done = run("domain build --gpus 1 --host hgx8")
        assert (done.code, "name is missing" in done.err) == (2, True)

    @pytest.mark.parametrize("name", ["spec.toml", "spec.yaml"])
    def test_a_file_says_what_options_say(self, run: Run, tmp_path: Path, name: str) -> None:
        toml = 'name = "vm1"\ngpus = 2\ncpus = 16\nmemory = "64GiB"\ndisks = ["/dev/sdx"]\n'
        file = tmp_path / name
        file.write_text(toml if name.endswith("toml") else toml.replace(" = ", ": "))
        options = run(f"{BUILD} --gpus 2 --cpus 16 --memory 64GiB --disk /dev/sdx")
        assert run(f"domain build --spec {file} --host hgx8").out == options.out
        assert len(xml(run, f"domain build --spec {file} --gpus 3 --host hgx8").findall("devices/hostdev")) == 3
        named = xml(run, f"domain build other --spec {file} --device gpu5 --host hgx8")
        assert (named.findtext("name"), len(named.findall("devices/hostdev"))) == ("other", 1)

    @pytest.mark.parametrize(
        ("name", "text", "why"),
        [
            ("a.toml", "gpus = ", "is not understood"),
            ("a.yaml", "gpus: [", "is not understood"),
            ("a.yaml", "a: &x [1, 2]\nb: [*x, *x]\n", "aliases are not allowed"),
            ("a.yaml", "- 1\n- 2\n", "no table of settings"),
            ("a.yaml", "!!python/object/apply:os.system [id]", "is not understood"),
            ("a.toml", "gpu = 1", "gpu is not known"),
            ("a.toml", "gpus = -1", "gpus must be at least 0"),
            ("a.yaml", "gpus: true", "gpus: a whole number is needed"),
            ("a.yaml", "gpus: 1\nmemory: true", "memory: a size with a unit is needed, such as 64GiB"),
            ("a.yaml", "gpus: 1\nmemory: 68719476736", "memory: a size with a unit is needed, such as 64GiB"),
            ("a.toml", "gpus = 1\nmemory = 64.0", "memory: a size with a unit is needed, such as 64GiB"),
            ("a.toml", "gpus = 1\nmemory = '64'", "memory: not a size: '64'"),
            ("a.toml", "gpus = 1\nmemory = '0GiB'", "memory: a size of more than 0 is needed"),
            ("a.toml", "gpus = 1\nmemory = '65TiB'", "must be at least 1 MiB and at most 64 TiB"),
            ("a.yaml", "gpus: 1\nnuma: true", "numa: any, same or the number of a NUMA node is needed"),
            ("a.yaml", "gpus: 1\nnodes: {gpu4: 0}", "nodes.gpu4: not a PCI address"),
            ("a.yaml", "gpus: 1\nnodes: 5", "nodes must be a table"),
            ("a.toml", "name = 5", "a.toml: name must be a text, in quotes\n"),
            ("a.yaml", "name: 5", "a.yaml: name must be a text, in quotes\n"),
            ("a.yaml", "name: 2024-01-01", "a.yaml: name must be a text, in quotes\n"),
            ("a.yaml", "name: a\ndisks: [5]", "a.yaml: disks.0 must be a text, in quotes\n"),
            ("a.yaml", "name: a\n\tb: c", "line 2, column 1: found character '\\t' that cannot start any token\n"),
            ("a.yaml", "a: b: c", "understood: line 1, column 5: mapping values are not allowed here\n"),
            ("a.yaml", "a: 1\nb: \x01", "line 2, column 4: unacceptable character #x0001: special characters"),
            ("a.yaml", "name: a b\ngpus: 1", "name must have 1 to 200 of the characters"),
            ("a.toml", "\xff", ""),
            ("b/none.toml", None, "cannot be read"),
        ],
    )
    def test_files_that_are_refused(self, run: Run, tmp_path: Path, name: str, text: str | None, why: str) -> None:
        file = tmp_path / name
        if text is not None:
            file.write_bytes(text.encode("latin-1"))
        done = run(f"domain build {'' if text and 'name' in text else 'vm1'} --spec {file} --host hgx8")
        assert (done.code, done.out) == (2, "")
        assert why in done.err


class TestTemplates:
    def test_the_administrator_s_hides_ours(self, tmp_path: Path) -> None:
        own = tmp_path / "compute-linux.xml"
        own.write_text("<domain type='kvm'><name>own</name><memory>65536</memory></domain>")
        assert templates(tmp_path)["compute-linux"] == own
        assert read_template("compute-linux", tmp_path).root.findtext("name") == "own"
        assert "minimal" in templates(tmp_path)

    @pytest.mark.parametrize("text", ["<network/>", "<!DOCTYPE a><domain/>", "", "<domain>"])
    def test_what_is_no_template(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "odd.xml").write_text(text)
        with pytest.raises(BadDocument, match=r"the template .*odd\.xml"):
            read_template("odd", tmp_path)

    def test_all_else_is_kept(self, run: Run) -> None:
        built = xml(run, f"{BUILD} --gpus 1 --template windows-desktop")
        template = read_template("windows-desktop").root
        for path in ("name", "vcpu", "memory", "features/kvm", "cpu", "devices", "metadata"):
            remove(built, path)
            remove(template, path)
        for path in ("memoryBacking", "iothreads", "cputune", "numatune"):
            remove(built, path)
            remove(template, path)
        kept = [ET.canonicalize(ET.tostring(root), strip_text=True) for root in (built, template)]
        assert kept[0] == kept[1]

    def test_a_realtime_guest_s_scheduler_has_all_its_vcpus(self, run: Run) -> None:
        built = xml(run, f"{BUILD} --gpus 1 --cpus 4 --memory 64GiB --template realtime")
        scheduler, limit = built.find("cputune/vcpusched"), built.find("memtune/hard_limit")
        assert scheduler is not None
        assert limit is not None
        assert (scheduler.get("vcpus"), limit.text) == ("0-3", str((64 * GIB + GIB + 2 * GIB) >> 10))

    @pytest.mark.parametrize("gpus", [1, 2])
    def test_a_hard_limit_has_room_for_what_vfio_locks_behind_a_viommu(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int
    ) -> None:
        text = templates()["realtime"].read_text()
        iommu = "<iommu model='intel'><driver intremap='on' caching_mode='on'/></iommu></devices>"
        text = text.replace("</devices>", iommu).replace("<features>", "<features><ioapic driver='qemu'/>")
        (tmp_path / "viommu.xml").write_text(text)
        monkeypatch.setattr("vfioctl.domain.document.templates._BUNDLED", (tmp_path,))
        built = run(f"{BUILD} --gpus {gpus} --cpus 4 --memory 64GiB --template viommu").out
        assert not [each for each in check(parse(built)) if "hard_limit" in each.path]
        limit = int(parse(built).root.findtext("memtune/hard_limit", "0")) << 10
        assert limit == (64 * gpus + 1 + 1 + 1) * GIB

    def test_a_confidential_guest_has_one_gpu(self, run: Run) -> None:
        build = "domain build vm1 --host mi300x --template confidential"
        done = run(f"{build} --gpus 2")
        assert (done.code, "gets one GPU" in done.err) == (2, True)
        built = xml(run, f"{build} --gpus 1 --disk /dev/sdx --network a")
        assert built.find("memoryBacking/hugepages") is None
        assert [each.get("iommu") for each in built.iterfind("devices/*/driver[@iommu]")] == ["on", "on", "on"]

    def test_a_mediated_device_with_and_without_display(self, run: Run) -> None:
        build = "domain build a --device 6d3f2c1a-0b4e-4f6d-8a7c-5e9b1f2a3c4d --cpus 4 --memory 8GiB --host a2"
        for words, display in (("", "on"), ("--display", "on"), ("--no-display", None)):
            device = xml(run, f"{build} --template vgpu-desktop {words}").find("devices/hostdev")
            assert device is not None
            assert (device.get("display"), device.get("ramfb")) == (display, display)
        done = run(f"{build} --display")
        assert (done.code, "the template compute-linux has no graphics" in done.err) == (2, True)
        done = run("domain build a --device gpu1 --cpus 4 --template vgpu-desktop --display --host workstation")
        assert (done.code, "gets no mediated device" in done.err) == (2, True)

    @pytest.mark.parametrize("template", ["compute-linux", "realtime", "windows-desktop"])
    def test_a_pinned_guest_for_arm_has_nothing_that_only_x86_has(self, run: Run, template: str) -> None:
        built = run(f"domain build vm1 --gpus 1 --cpus 4 --memory 4GiB --template {template} --host gh200").out
        assert "<vcpupin" in built
        found = check(parse(built))
        assert [each.reason for each in found if each.severity is Severity.ERROR] == []
        root = parse(built).root
        for path in ("cpu/cache", "cpu/maxphysaddr", "features/kvm", "features/hyperv", "features/smm"):
            assert root.find(path) is None, path

    def test_graphics_that_show_nothing_are_reported(self, run: Run) -> None:
        said = "nothing is ever seen on the domain's <graphics>"
        build = "domain build a --cpus 4 --memory 8GiB --template vgpu-desktop"
        assert said in run(f"{build} --device gpu1 --host workstation").err
        assert said not in run(f"{build} --device 6d3f2c1a-0b4e-4f6d-8a7c-5e9b1f2a3c4d --host a2").err

    @pytest.mark.parametrize(("template", "is_said"), [("minimal", True), ("compute-linux", False)])
    def test_bars_that_seabios_cannot_place_are_reported(self, run: Run, template: str, *, is_said: bool) -> None:
        done = run(f"domain build a --gpus 1 --cpus 4 --template {template} --host hgx8")
        assert ("SeaBIOS may find no addresses for such large BARs" in done.err) is is_said
        small = run(f"domain build a --device gpu1 --cpus 4 --template {template} --host workstation")
        assert "SeaBIOS" not in small.err

    @pytest.mark.parametrize(
        ("files", "said"),
        [
            ({"/sys/devices/cpu_core/cpus": "0-7", "/sys/devices/cpu_atom/cpus": "8-400"}, "performance cores"),
            ({f"/sys/devices/system/cpu/cpu{cpu}/cpu_capacity": str(446 << cpu % 2) for cpu in range(400)}, "446"),
            ({"/sys/devices/cpu_core/cpus": "0-400", "/sys/devices/cpu_atom/cpus": "x"}, ""),
            ({}, ""),
        ],
    )
    def test_cores_of_several_kinds_are_reported(
        self, run: Run, tmp_path: Path, files: dict[str, str], said: str
    ) -> None:
        tree = copy(original("hgx8"))
        for path, text in files.items():
            tree.put(path, text)
        (tmp_path / "hybrid.host").write_text(form(tree))
        build = f"domain build a --gpus 1 --cpus 32 --memory 4GiB --host {tmp_path / 'hybrid.host'}"
        done = run(f"{build} --explain")
        assert ("kinds of cores: some vCPUs are slower" in done.out) is bool(said)
        assert said in done.out

    @pytest.mark.parametrize("template", ["compute-linux", "minimal", "realtime"])
    def test_a_guest_for_arm_has_a_serial_console(self, run: Run, template: str) -> None:
        root = parse(run(f"domain build vm1 --gpus 1 --cpus 4 --template {template} --host gh200").out).root
        (serial,), (console,) = root.findall("devices/serial/target"), root.findall("devices/console/target")
        assert serial.get("type") == "system-serial"
        assert [model.attrib for model in serial] == [{"name": "pl011"}]
        assert console.get("type") == "serial"

    @pytest.mark.parametrize(("host", "why"), [("hgx8", "this host's is GenuineIntel"), ("gh200", "aarch64")])
    def test_a_confidential_guest_needs_its_processor(self, run: Run, host: str, why: str) -> None:
        done = run(f"domain build vm1 --gpus 1 --template confidential --host {host}")
        assert (done.code, done.out) == (2, "")
        assert "the template wants sev-snp, which " in done.err
        assert why in done.err

    @pytest.mark.parametrize(("kind", "vendor"), [("tdx", "GenuineIntel"), ("sev", "AuthenticAMD")])
    def test_each_encryption_is_one_vendor_s(self, kind: str, vendor: str) -> None:
        for made_by in ("GenuineIntel", "AuthenticAMD", ""):
            processor = Processor(arch="x86_64", vendor=made_by, is_amd=made_by == "AuthenticAMD")
            if made_by == vendor:
                refuse_elsewhere(kind, processor)
            else:
                with pytest.raises(BadSpec, match=f"the template wants {kind}"):
                    refuse_elsewhere(kind, processor)

    def test_a_confidential_guest_has_no_hugepages(self, run: Run) -> None:
        build = "domain build vm1 --gpus 1 --template confidential --hugepages 1GiB --host mi300x"
        done = run(build)
        assert (done.code, "gets no hugepages" in done.err, "--policy preferred" in done.err) == (2, True, True)
        done = run(f"{build} --policy preferred")
        assert (done.code, "<hugepages>" in done.out) == (0, False)
        assert "hugepages: the memory has ordinary pages, although hugepages were asked for" in done.err


class TestPlacement:
    def test_a_claim_s_devices_and_cpus(self, tmp_path: Path) -> None:
        host = machine(copy(original("hgx8")), tmp_path / "ledger.db")
        gpu = PciAddress("0000:9d:00.0")
        request = ClaimRequest(owner=Owner("vm/db"), devices=(gpu,), cpus=8, hugepages=64 * GIB, bind=False)
        claim = host.claims.create(request).claim
        built = host.domain.build(DomainSpec(name="db", claim=claim.id[:6]))
        assert set(built.layout.pins.values()) == set(claim.cpus)
        assert built.layout.memory == 64 * GIB
        allocation = built.document.root.find("metadata/{urn:vfioctl:1}allocation")
        assert allocation is not None
        assert allocation.get("id") == claim.id
        other = host.domain.build(DomainSpec(name="web", gpus=1, numa=1, cpus=8))
        assert set(other.layout.pins.values()).isdisjoint(claim.cpus)
        assert str(gpu) not in {device.device for device in other.summary().devices}
        host.claims.release(claim.id)
        with pytest.raises(BadSpec, match="it holds nothing"):
            host.domain.build(DomainSpec(name="db", claim=claim.id))

    def test_cpus_that_other_domains_pin_are_left_out(self) -> None:
        building = DomainBuilder(Host.recorded("hgx8").session)
        pinned = dict.fromkeys(range(1, 20), "domain web1")
        built = building.build(DomainSpec(name="a", gpus=1, cpus=8), Others(pinned, {}))
        assert set(built.layout.pins.values()).isdisjoint(pinned)
        excluded = [each for choice in built.layout.choices for each in choice.excluded]
        assert "CPUs 1-19: pinned by domain web1" in excluded

    @pytest.mark.parametrize("colon", ["\t:", " :", ":"])
    def test_arm_is_known_however_its_line_is_spaced(self, colon: str) -> None:
        tree = copy(original("gh200"))
        tree.put("/proc/cpuinfo", f"processor{colon} 0\nCPU implementer{colon} 0x41")
        assert read_processor(Recorded(tree, "")).arch == "aarch64"

    @pytest.mark.parametrize(
        ("cpuinfo", "arch"),
        [
            ("processor\t: 0\ncpu\t\t: POWER10, altivec supported\nplatform\t: PowerNV", "ppc64le"),
            ("vendor_id       : IBM/S390\n# processors    : 8", "s390x"),
            ("system type\t\t: generic-loongson-machine\n\nprocessor\t\t: 0", "loongarch64"),
            ("processor\t: 0\nhart\t\t: 1\nisa\t\t: rv64imafdc_zicsr", "riscv64"),
        ],
    )
    def test_a_processor_without_a_layout_is_refused(self, tmp_path: Path, cpuinfo: str, arch: str) -> None:
        tree = copy(original("hgx8"))
        tree.put("/proc/cpuinfo", cpuinfo)
        host = machine(tree, tmp_path / "ledger.db")
        with pytest.raises(HostError, match=f"builds no domain for {arch}"):
            host.domain.build(DomainSpec(name="db", gpus=1))

    def test_an_unknown_node_is_refused_named_or_done_without(self) -> None:
        host = Host.recorded("lab")
        wish = {"name": "a", "devices": ("01:00.0",), "cpus": 1, "memory": "256MiB"}
        with pytest.raises(HostError, match=r"the NUMA node of 0000:01:00\.0 is not known"):
            host.domain.build(read_document(DomainSpec, wish))
        named = host.domain.build(read_document(DomainSpec, {**wish, "nodes": {"0000:01:00.0": 1}}))
        assert [device.numa_node for device in named.summary().devices] == [1, 1], "the rest of the card too"
        assert named.layout.cells[0].node == 1
        assert set(named.layout.pins.values()) <= {2, 3}
        without = host.domain.build(read_document(DomainSpec, {**wish, "policy": "preferred"}))
        assert [device.cell for device in without.summary().devices] == [None, None]
        assert any("sees no node" in choice.weaker for choice in without.layout.choices)

    def test_a_vf_that_is_no_vgpu(self, run: Run) -> None:
        done = run("domain build vm1 --device 41:00.6 --cpus 4 --memory 8GiB --host l40s --json")
        error = done.document["error"]
        assert (done.code, error["message"]) == (
            3,
            "0000:41:00.6 is no vGPU: NVIDIA's driver has it, without a type",
        )
        assert error["next_command"].startswith("vfioctl vgpu create TYPE --parent 0000:41:00.6")

    def test_a_node_of_a_gpu_that_is_not_chosen_is_told(self, run: Run) -> None:
        done = run(f"{BUILD} --gpus 4 --numa 0 --node df:00.0=1 --node 1b:00.0=0")
        assert (done.code, done.err) == (0, "--node 0000:df:00.0=1: the domain does not get this device\n")
        assert "nodes='0000:1b:00.0=0'" in done.out

    def test_too_few_cpus(self) -> None:
        host, wish = Host.recorded("laptop"), {"name": "a", "gpus": 1, "cpus": 64, "memory": "1GiB"}
        with pytest.raises(NoCapacity):
            host.domain.build(read_document(DomainSpec, wish))
        built = host.domain.build(read_document(DomainSpec, {**wish, "policy": "preferred"}))
        assert (built.layout.pins, built.layout.vcpus) == ({}, 64)
        assert built.document.root.find("cputune") is None
        assert any("shares CPUs" in choice.weaker for choice in built.layout.choices)

    def test_weaker_choices_are_told(self, run: Run) -> None:
        done = run("domain build a --gpus 1 --host laptop")
        assert done.err == "memory: the memory has ordinary pages: it is pinned and mapped more slowly\n"
        assert run("domain build a --gpus 1 --host laptop --quiet").err == ""

    def test_json(self, run: Run) -> None:
        told = run(f"{BUILD} --gpus 2 --cpus 16 --memory 64GiB --json").document
        assert told["xml"] == run(f"{BUILD} --gpus 2 --cpus 16 --memory 64GiB").out
        assert (told["vcpus"], told["memory_bytes"], len(told["pins"])) == (16, 64 * GIB, 16)
        assert told["devices"][1] == {"device": "0000:43:00.0", "alias": "ua-gpu1", "numa_node": 0, "cell": None}


class TestMemory:
    capacity = DomainBuilder(Host.recorded("hgx8").session)._claims.capacity()

    @pytest.mark.parametrize(
        ("pages", "why"),
        [
            (PageSize.AUTO, "the largest that are free in sufficient number"),
            (PageSize.GIB, "as asked for"),
            (PageSize.NONE, "without hugepages"),
        ],
    )
    def test_why_these_pages(self, pages: PageSize, why: str) -> None:
        built = Host.recorded("hgx8").domain.build(DomainSpec(name="a", gpus=1, memory=GIB, hugepages=pages))
        assert [each.why for each in built.layout.choices if each.what == "memory"] == [why]

    def test_pages_of_512_mib_where_the_host_has_them(self) -> None:
        pool = HugepagePool(0, 512 << 20, 16, 16)
        arm = replace(self.capacity, hugepages=(pool, replace(pool, size=2 << 20, total=4096, free=4096)))
        found = divide(4 * GIB, {0: 8}, arm, {}, pages=PageSize.AUTO, policy=Policy.STRICT)
        assert (found.by_node, found.page_size) == ({0: 4 * GIB}, 512 << 20)
        assert found.choices[0].excluded == ("1GiB pages: node 0 has 0 free, 4 are needed",)
        none = divide(900 * GIB, {0: 8, 1: 8}, self.capacity, {}, pages=PageSize.AUTO, policy=Policy.STRICT)
        assert "512MiB" not in str(none.choices)

    def test_is_where_the_pages_are(self) -> None:
        found = divide(900 * GIB, {0: 8, 1: 24}, self.capacity, {}, pages=PageSize.GIB, policy=Policy.STRICT)
        assert found.by_node == {0: 420 * GIB, 1: 480 * GIB}

    @pytest.mark.parametrize(("policy", "pages"), [(Policy.PREFERRED, PageSize.GIB), (Policy.STRICT, PageSize.AUTO)])
    def test_ordinary_pages_where_hugepages_are_few(self, policy: Policy, pages: PageSize) -> None:
        found = divide(700 * GIB, {0: 8}, self.capacity, {0: 800 * GIB}, pages=pages, policy=policy)
        assert (found.by_node, found.page_size) == ({0: 700 * GIB}, None)
        assert found.choices[0].excluded[0] == "1GiB pages: node 0 has 480 free, 700 are needed"

    @pytest.mark.parametrize("pages", [PageSize.GIB, PageSize.AUTO])
    def test_too_little(self, pages: PageSize) -> None:
        with pytest.raises(NoCapacity, match=r"too few free hugepages of 1GiB|too little free memory"):
            divide(700 * GIB, {0: 8}, self.capacity, {0: 600 * GIB}, pages=pages, policy=Policy.STRICT)


class TestPci:
    def devices(self, number: int, complexes: int = 1) -> list[Device]:
        return [
            Device(PciAddress(f"0000:{n:02x}:00.0"), f"gpu{n}", f"0000:{n % complexes:02x}", f"0000:{n:02x}:00", 0)
            for n in range(number)
        ]

    def test_more_cards_than_an_expander_bus_has_slots(self) -> None:
        found = expanders(self.devices(MOST_PORTS + 1), {0: 0}, nccl=True)
        assert [(each.bus_number, len(each.ports)) for each in found] == [(221, 32), (254, 1)]

    def test_more_devices_than_there_are_buses(self) -> None:
        assert expanders(self.devices(112, 112), {0: 0}, nccl=True)[0].bus_number == 32
        with pytest.raises(BadSpec, match="more PCI buses"):
            expanders(self.devices(113, 113), {0: 0}, nccl=True)
        assert sum(len(each.ports) for each in expanders(self.devices(224), {0: 0})) == 224
        with pytest.raises(BadSpec, match="more PCI buses"):
            expanders(self.devices(225), {0: 0})

    def test_only_several_cells_and_nccl_need_expander_buses(self, run: Run, tmp_path: Path) -> None:
        """Windows takes a GPU that moves to another bus for a new device."""
        words = "domain build a --device gpu0 --cpus 4 --memory 8GiB --host hgx8"
        assert "pcie-expander-bus" not in run(words).out
        assert "pcie-expander-bus" in run(words.replace("gpu0", "gpu0 --device gpu4")).out
        done = run(f"{words} --nccl-topo {tmp_path / 'topology.xml'}")
        assert "pcie-expander-bus" in done.out
        why = "NCCL's topology names its number"
        assert why in run(f"{words} --nccl-topo {tmp_path / 'again.xml'} --explain").out.replace("\n", " ")

    @pytest.mark.parametrize(
        ("numbers", "functions"), [((0, 1, 3), (0, 1, 3)), ((1, 2), (0, 1)), ((4,), (0,)), ((0,), (0,))]
    )
    def test_functions_of_a_card(self, numbers: tuple[int, ...], functions: tuple[int, ...]) -> None:
        card = [Device(PciAddress(f"0000:01:00.{n}"), f"d{n}", "0000:00", "0000:01:00", 0) for n in numbers]
        ((port,),) = (each.ports for each in expanders(card, {0: 0}))
        assert tuple(placed.function for placed in port.devices) == functions
        assert [placed.multifunction for placed in port.devices] == [len(numbers) > 1, *([False] * len(numbers))][
            : len(numbers)
        ]


class TestAddressSpace:
    @pytest.mark.parametrize(
        ("bars", "hole"),
        [(0, 0), (GIB, 0), (31 * GIB, 0), (31 * GIB + 1, 64), (63 * GIB, 64), (64 * GIB, 128), (1025 * GIB, 2048)],
    )
    def test_the_hole_is_a_power_of_two_above_the_bars(self, bars: int, hole: int) -> None:
        device = Device(PciAddress("0000:01:00.0"), "gpu0", "0000:00", "0000:01:00", 0, prefetchable=bars)
        found = address_space([device], Processor(arch="x86_64", address_bits=46), 8 * GIB)
        assert (found.hole, found.wide) == (hole * GIB, hole > 0)

    def test_a_narrow_processor_is_told(self) -> None:
        device = Device(PciAddress("0000:01:00.0"), "gpu0", "0000:00", "0000:01:00", 0, prefetchable=128 * GIB)
        found = address_space([device], Processor(arch="x86_64", address_bits=39), 8 * GIB)
        assert "offers 64 GiB for BARs with 39 address bits" in found.choices[1].weaker

    @pytest.mark.parametrize(
        ("bars", "memory", "hint"),
        [
            (128, 254, ""),
            (128, 255, "ask for at most 254GiB with --memory, or for fewer devices"),
            (384, 1, "ask for fewer devices, or make their BARs smaller"),
        ],
    )
    def test_a_hole_that_the_processor_cannot_address(self, bars: int, memory: int, hint: str) -> None:
        """QEMU: "Address space limit 0x7fffffffff < ... phys-bits too low (39)"."""
        device = Device(PciAddress("0000:01:00.0"), "gpu0", "0000:00", "0000:01:00", 0, prefetchable=bars * GIB)
        processor = Processor(arch="x86_64", address_bits=39)
        if not hint:
            assert address_space([device], processor, memory * GIB).hole == 256 * GIB
            return
        with pytest.raises(NoCapacity, match=r"ends above what this CPU addresses \(39 bits, 512 GiB\)") as caught:
            address_space([device], processor, memory * GIB)
        assert hint in caught.value.hint


class TestNcclTopology:
    def test_devices_at_one_switch_of_the_host_are_together(self, run: Run, tmp_path: Path) -> None:
        file = tmp_path / "topology.xml"
        inventory = Host.recorded("hgx8").inventory()
        gpu = inventory.by_address[PciAddress("0000:1b:00.0")]
        _, port, *_ = above(gpu, inventory)
        near = [each.address for each in inventory.functions if port in above(each, inventory) and not each.is_bridge]
        words = " ".join(f"--device {address}" for address in (*near, "0000:9d:00.0"))
        done = run(f"domain build a {words} --cpus 8 --memory 8GiB --nccl-topo {file} --host hgx8")
        assert done.code == 0, done.err
        domain = ET.fromstring(done.out)  # noqa: S314 - our own
        first, second = ET.parse(file).getroot()  # noqa: S314 - our own
        (switch,) = first
        assert (switch.get("busid"), switch.get("class")) == ("ffff:ff:01.0", "0x060400")
        assert len(switch) == len(near) >= 2
        assert {each.get("class") for each in switch} > {"0x030200"}
        assert [cpu.get("numaid") for cpu in (first, second)] == ["0", "1"]
        (bus,) = (each.get("busNr", "") for each in domain.iterfind("devices/controller/target[node='0'][@busNr]"))
        expected = {f"0000:{int(bus) + 1 + slot:02x}:00.0" for slot in range(len(near))}
        assert {each.get("busid") for each in switch} == expected
        again = run(f"domain build a {words} --cpus 8 --memory 8GiB --nccl-topo {file} --host hgx8")
        assert (again.code, "already exists" in again.err) == (2, True)

    def test_devices_that_it_has_not_are_told(self, run: Run, tmp_path: Path) -> None:
        words = f"--device 01:00.0 --cpus 1 --memory 256MiB --policy preferred --nccl-topo {tmp_path / 'a'} --host lab"
        done = run(f"domain build a {words}")
        assert done.code == 0
        assert "--nccl-topo: 0000:01:00.0: not in the file" in done.err
        named = run(f"domain build a {words} --node 01:00.0=1 --force")
        assert (named.code, "--nccl-topo" in named.err) == (0, False)

    def test_is_not_written_to_stdout(self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        done = run("domain build a --gpus 1 --nccl-topo - --host hgx8")
        assert (done.code, done.out, list(tmp_path.glob("-"))) == (2, "", [])
        assert "name a file" in done.err

    @pytest.mark.parametrize(
        ("vcpus", "mask"),
        [([], "00000000"), (range(4), "0000000f"), ([31], "80000000"), (range(16, 48), "0000ffff,ffff0000")],
    )
    def test_masks(self, vcpus: list[int], mask: str) -> None:
        assert nccl._mask(vcpus) == mask
