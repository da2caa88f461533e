"""`vfioctl domain edit` and `diff`, and what other domains have: on a simulated server with libvirt's test driver."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.hosts.machines import HOSTS, copy, original
from tests.unit.conftest import Run
from vfioctl import sources
from vfioctl.domain.document.differences import differences
from vfioctl.domain.document.other_domains import others_in
from vfioctl.domain.document.tree import child
from vfioctl.domain.document.xml import parse
from vfioctl.domain.model.libvirt import DomainXml, Libvirt, Others
from vfioctl.kernel.recorded.tree import form
from vfioctl.session import Session

pytest.importorskip("libvirt")
WISH = "--gpus 2 --cpus 16 --memory 64GiB"
GPU0 = "0000:1b:00.0"
PLAIN = """<domain type='test'><name>old</name><memory unit='GiB'>4</memory><currentMemory unit='GiB'>2</currentMemory>
  <vcpu>4</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os></domain>"""
PIN0, PIN1 = "<vcpupin vcpu='0' cpuset='1'/>", "<vcpupin vcpu='1' cpuset='2'/>"


@pytest.fixture(autouse=True)
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "hgx8.host"
    file.write_text((HOSTS / "hgx8.host").read_text())
    monkeypatch.setenv("VFIOCTL_SIMULATE", str(file))
    monkeypatch.setenv("VFIOCTL_CONNECT", "test:///default")


def define(run: Run, tmp_path: Path, text: str) -> None:
    file = tmp_path / "domain.xml"
    file.write_text(text)
    done = run(f"domain define {file} --yes")
    assert done.code == 0, done.err


def shown(run: Run, name: str) -> ET.Element:
    return ET.fromstring(run(f"domain show {name} --json").document["defined"])  # noqa: S314 - libvirt's


def mark_of(root: ET.Element) -> ET.Element:
    """What its metadata say of a domain."""
    mark = root.find("metadata/{urn:vfioctl:1}allocation")
    assert mark is not None
    return mark


class TestDiff:
    def test_what_was_built_does_not_differ(self, run: Run, tmp_path: Path) -> None:
        define(run, tmp_path, run(f"domain build ml1 {WISH}").out)
        done = run("domain diff ml1")
        assert (done.code, done.out) == (
            0,
            "Domain ml1, as it is defined, is what would be built for its devices.\n",
        )
        assert run("domain diff ml1 --json").document == {"name": "ml1", "running": False, "differences": []}

    @pytest.mark.parametrize(
        ("was", "is_", "path", "values"),
        [
            ("cpuset='97'", "cpuset='60'", "/domain/cputune/vcpupin[vcpu=1]/@cpuset", ("60", "97")),
            (
                "mode='strict' nodeset='0'/>\n  </n",
                "mode='strict' nodeset='1'/>\n  </n",
                "memnode[cellid=0]",
                ("1", "0"),
            ),
            ("busNr='252'", "busNr='254'", "target/@busNr", ("254", "252")),
            (
                ">536870912</pcihole64>",
                ">268435456</pcihole64>",
                "pcihole64",
                ("256 GiB", "512 GiB"),
            ),
            ("<rom bar='off'/>", "", "/rom/@bar", (None, "off")),
        ],
    )
    def test_what_was_changed(
        self, run: Run, tmp_path: Path, was: str, is_: str, path: str, values: tuple[str | None, str]
    ) -> None:
        text = run(f"domain build ml1 {WISH} --nccl-topo {tmp_path / 'topology.xml'}").out
        assert was in text
        define(run, tmp_path, text.replace(was, is_))
        done = run("domain diff ml1 --json")
        assert done.code == 4
        found = [each for each in done.document["differences"] if path in each["path"]]
        assert found, done.out
        assert found[0]["found"] == values[0]
        assert found[0]["built"].startswith(values[1])
        assert "would be" in run("domain diff ml1").out

    def test_a_domain_without_devices_or_of_no_name(self, run: Run) -> None:
        assert run("domain diff test").code == 2
        assert run("domain diff nobody").code == 2


class TestEdit:
    def test_a_built_domain_becomes_what_would_be_built(self, run: Run, tmp_path: Path) -> None:
        define(run, tmp_path, run(f"domain build ml1 {WISH}").out)
        done = run("domain edit ml1 --device gpu5 --device gpu0 --cpus 8 --memory 16GiB --yes")
        assert done.code == 0, done.err
        root = shown(run, "ml1")
        buses = [each.get("bus") for each in root.iterfind("devices/hostdev/source/address")]
        assert sorted(map(str, buses)) == ["0x1b", "0x43", "0xc3"], "what it had stays"
        assert [each.get("id") for each in root.iterfind("cpu/numa/cell")] == ["0", "1"]
        assert len(root.findall("devices/controller[@model='pcie-expander-bus']")) == 3

    def test_everything_else_stays(self, run: Run, tmp_path: Path) -> None:
        old = """<domain type='test'><name>old</name><uuid>2f3c1a52-1c1e-4f5e-8f6c-5f0d8c8f1c11</uuid>
          <title>mine</title><description>of the team</description>
          <metadata><team:note xmlns:team='urn:team' of='a'>b</team:note></metadata>
          <memory unit='GiB'>4</memory><vcpu>4</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os>
          <cpu mode='host-passthrough'/><on_crash>preserve</on_crash>
          <devices><disk type='file' device='disk'>
            <source file='/a.img'/><target dev='vda' bus='virtio'/></disk></devices>
        </domain>"""
        define(run, tmp_path, old)
        before = shown(run, "old")
        done = run("domain edit old --device gpu0 --yes")
        assert done.code == 0, done.err
        after = shown(run, "old")
        assert after.find("devices/hostdev") is not None
        for path in ("title", "description", "uuid", "on_crash", "os", "vcpu", "memory", "devices/disk"):
            one, other = before.find(path), after.find(path)
            assert one is not None
            assert other is not None
            assert "".join(one.itertext()).strip() == "".join(other.itertext()).strip(), path
        assert after.find("metadata/{urn:team}note") is not None

    def test_the_password_of_its_display_stays(self, run: Run, tmp_path: Path) -> None:
        graphics = "<graphics type='vnc' passwd='secret'/></devices>"
        define(run, tmp_path, run(f"domain build ml1 {WISH}").out.replace("</devices>", graphics))
        done = run("domain edit ml1 --gpus 1 --cpus 8 --memory 32GiB --yes")
        assert (done.code, "secret" in done.out) == (0, False)
        plan = run("domain edit ml1 --gpus 1 --cpus 4 --memory 32GiB --dry-run --json").document
        (change,) = plan["changes"]
        assert "passwd='secret'" in change["before"], "the edit before kept it"
        assert "passwd='secret'" in change["after"]

    def test_it_may_have_what_a_claim_of_its_owner_has(self, run: Run, tmp_path: Path) -> None:
        define(run, tmp_path, run("domain build ml1 --gpus 1 --cpus 8 --memory 16GiB").out)
        assert run("claim create --owner vm/ml1 --device gpu4 --yes").code == 0
        assert run("claim create --owner vm/ml2 --device gpu5 --yes").code == 0
        assert run("domain edit ml1 --device gpu5 --yes").code == 4
        assert run("domain edit ml1 --device gpu4 --yes").code == 0

    def test_new_devices_are_laid_out_with_those_that_are_there(self, run: Run, tmp_path: Path) -> None:
        topology = tmp_path / "topology.xml"
        define(run, tmp_path, run(f"domain build ml1 --gpus 1 --cpus 8 --memory 16GiB --nccl-topo {topology}").out)
        before = {each.get("bus"): each for each in shown(run, "ml1").iterfind("devices/hostdev/source/address")}
        done = run("domain edit ml1 --device gpu4 --yes")
        assert done.code == 0, done.err
        root = shown(run, "ml1")
        nodes = {each.get("busNr"): each.findtext("node") for each in root.iterfind("devices/controller/target[node]")}
        assert nodes == {"254": "0", "252": "1"}
        assert root.findtext("devices/controller/pcihole64") == str(512 << 20)
        assert [each.get("nodeset") for each in root.iterfind("numatune/memnode")] == ["0", "1"]
        hosts = {
            each.find("source/address").get("bus"): each.find("address").get("bus")  # type: ignore[union-attr]
            for each in root.iterfind("devices/hostdev")
        }
        assert hosts == {next(iter(before)): "0x02", "0x9d": "0x04"}
        assert run("domain diff ml1").code == 0

    def test_a_device_of_one_cell_stays_where_it_is(self, run: Run, tmp_path: Path) -> None:
        define(run, tmp_path, run("domain build ml1 --gpus 1 --cpus 8 --memory 16GiB").out)
        before = shown(run, "ml1").find("devices/hostdev/address")
        assert run("domain edit ml1 --device gpu1 --yes").code == 0
        root = shown(run, "ml1")
        after = root.find("devices/hostdev/address")
        assert before is not None
        assert after is not None
        assert (after.attrib, len(root.findall("devices/hostdev"))) == (before.attrib, 2)
        assert root.find("devices/controller[@model='pcie-expander-bus']") is None

    def test_the_plan_shows_what_becomes_of_the_definition(self, run: Run, tmp_path: Path) -> None:
        define(run, tmp_path, run("domain build ml1 --gpus 1 --cpus 8 --memory 16GiB").out)
        lines = [" ".join(line.split()) for line in run("domain edit ml1 --device gpu4 --dry-run").out.splitlines()]
        shown = lines[lines.index("In the definition") :]
        assert "devices/hostdev added: 0000:9d:00.0" in shown
        assert "numatune/memory nodeset 0 -> 0-1" in shown
        assert "In the definition" not in run("domain edit ml1 --dry-run").out

    def test_one_without_devices_is_placed_where_there_is_room(self, run: Run, tmp_path: Path) -> None:
        define(run, tmp_path, PLAIN)
        done = run("domain edit old --cpus 8 --dry-run")
        assert done.code == 0, done.err
        lines = [" ".join(line.split()) for line in done.out.splitlines()]
        changes = lines[lines.index("In the definition") :]
        assert "vcpu 4 -> 8" in changes
        assert any(line.startswith("cputune added: vcpupin[vcpu=0]/cpuset") for line in changes)
        assert "VFIO pins it all" not in done.err, "there is no device for which it does"
        assert run("domain edit old --cpus 8 --yes").code == 0
        root = shown(run, "old")
        assert {node.get("nodeset") for node in root.iterfind("numatune/*")} == {"0"}
        assert root.find("devices/controller[@model='pcie-expander-bus']") is None
        assert run("domain edit old --dry-run --json").document["steps"] == []

    def test_one_without_devices_and_room_is_refused_whatever_the_policy(self, run: Run, tmp_path: Path) -> None:
        define(run, tmp_path, PLAIN)
        done = run("domain edit old --cpus 4000 --policy preferred --dry-run")
        assert (done.code, "4000 are needed" in done.err) == (4, True), done.err

    def test_one_that_runs_and_is_not_defined_is_compared_as_it_runs(self, run: Run, tmp_path: Path) -> None:
        file, ledger = tmp_path / "hgx8.host", tmp_path / "ledger.db"
        sources.simulated(Session, str(file), ledger).kernel.tell_libvirt("test:///default", "undefine", "test")
        done = run(f"domain edit test --cpus 4 --replace --dry-run --ledger {ledger}")
        assert done.code == 0, done.err
        assert "vcpu 2 -> 4" in " ".join(done.out.split())
        assert "name" not in done.out.partition("In the definition")[2], "only what changes"

    def test_a_number_of_gpus_means_further_ones(self, run: Run, tmp_path: Path) -> None:
        define(run, tmp_path, run("domain build ml1 --gpus 1 --cpus 8 --memory 16GiB").out)
        assert run("domain edit ml1 --gpus 2 --yes").code == 0
        assert len(shown(run, "ml1").findall("devices/hostdev")) == 3

    def test_what_has_no_options_is_placed_near_its_own_devices(self, run: Run, tmp_path: Path) -> None:
        text = run("domain build ml1 --gpus 1 --cpus 8 --memory 16GiB").out
        define(run, tmp_path, text.replace("cpuset='97'", "cpuset='60'"))
        assert run("domain diff ml1").code == 4
        done = run("domain edit ml1 --yes")
        assert done.code == 0, done.err
        assert run("domain diff ml1").code == 0

    @pytest.mark.parametrize("options", ["", "--device gpu4", "--gpus 1", "--claim {}"])
    def test_what_it_was_built_with_stays(self, run: Run, tmp_path: Path, options: str) -> None:
        wish = "--gpus 1 --cpus 4 --memory 8GiB --smt isolate --hugepages none --policy preferred"
        define(run, tmp_path, run(f"domain build ml1 {wish}").out)
        claim = run("claim create --owner vm/ml1 --device gpu5 --yes --json").document["id"]
        assert run(f"domain edit ml1 {options.format(claim)} --yes").code == 0
        root = shown(run, "ml1")
        topology, mark = root.find("cpu/topology"), mark_of(root)
        assert topology is not None
        assert topology.get("threads") == "1"
        assert root.find("memoryBacking/hugepages") is None
        assert [mark.get(name) for name in ("smt", "hugepages", "policy")] == ["isolate", "none", "preferred"]
        assert run("domain diff ml1").code == 0

    def test_what_an_edit_names_replaces_it(self, run: Run, tmp_path: Path) -> None:
        wish = "--gpus 1 --cpus 3 --memory 8GiB --smt isolate --hugepages none"
        define(run, tmp_path, run(f"domain build ml1 {wish}").out)
        assert run("domain edit ml1 --cpus 4 --smt together --hugepages auto --yes").code == 0
        root = shown(run, "ml1")
        assert {"smt", "hugepages"}.isdisjoint(mark_of(root).keys())
        assert root.find("memoryBacking/hugepages") is not None
        assert run("domain diff ml1").code == 0

    def test_a_node_that_it_was_built_with_stays_beside_another(self, run: Run, tmp_path: Path) -> None:
        define(run, tmp_path, run("domain build ml1 --device gpu0 --cpus 4 --memory 8GiB --node 1b:00.0=0").out)
        assert run("domain edit ml1 --device gpu4 --node 9d:00.0=1 --yes").code == 0
        assert mark_of(shown(run, "ml1")).get("nodes") == "0000:1b:00.0=0,0000:9d:00.0=1"

    def test_a_node_of_a_device_that_it_has_lost_counts_no_more(self, run: Run, tmp_path: Path) -> None:
        text = run("domain build ml1 --device gpu0 --cpus 4 --memory 8GiB --node 1b:00.0=0").out
        define(run, tmp_path, text.replace("bus='0x1b'", "bus='0x43'"))
        assert run("domain diff ml1").code == 0
        done = run("domain edit ml1 --yes")
        assert done.code == 0, done.err
        assert mark_of(shown(run, "ml1")).get("nodes") is None

    def test_a_domain_of_somebody_else_gets_no_hugepages_that_it_has_not(self, run: Run, tmp_path: Path) -> None:
        text = run("domain build ml1 --gpus 1 --cpus 3 --memory 8GiB --smt isolate --hugepages none").out
        define(run, tmp_path, re.sub(r"<vfioctl:allocation .*/>", "", text))
        assert run("domain edit ml1 --device gpu4 --replace --yes").code == 0
        assert shown(run, "ml1").find("memoryBacking/hugepages") is None
        claim = run("claim create --owner vm/ml1 --device gpu5 --hugepages 4GiB --yes --json").document["id"]
        assert run(f"domain edit ml1 --claim {claim} --yes").code == 0
        assert shown(run, "ml1").find("memoryBacking/hugepages") is not None, "the claim has hugepages"

    def test_hugepages_that_somebody_asked_for_stay_or_the_edit_is_refused(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = run("domain build ml1 --gpus 1 --cpus 4 --memory 8GiB --hugepages 1GiB").out
        text = re.sub(r"<vfioctl:allocation .*/>", "", text)
        define(run, tmp_path, re.sub(r"<page .*/>", "", text))  # of the default size, whichever that is
        tree = copy(original("hgx8"))
        for path in [path for path in tree.files if path.endswith("/free_hugepages")]:
            tree.put(path, "0")
        (tmp_path / "few.host").write_text(form(tree))
        monkeypatch.setenv("VFIOCTL_SIMULATE", str(tmp_path / "few.host"))
        define(run, tmp_path, re.sub(r"<page .*/>", "", text))
        refused = run("domain edit ml1 --cpus 8 --replace --yes")
        assert refused.code == 4, refused.err
        assert "domain ml1 has hugepages, and the nodes have too few that are free" in refused.err
        assert shown(run, "ml1").find("memoryBacking/hugepages") is not None
        assert run("domain edit ml1 --cpus 8 --hugepages none --replace --yes").code == 0
        assert shown(run, "ml1").find("memoryBacking/hugepages") is None

    def test_companions_of_a_device_that_libvirt_binds_are_bound_by_it_too(self, run: Run, tmp_path: Path) -> None:
        host = str(HOSTS / "workstation.host")
        text = run(f"domain build win --device gpu1 --cpus 4 --host {host}").out
        root = parse(text).root
        devices = child(root, "devices")
        first, *others = devices.findall("hostdev")
        first.set("managed", "yes")
        for element in others:
            devices.remove(element)
        (tmp_path / "workstation.host").write_text(Path(host).read_text())
        more = f"--simulate {tmp_path / 'workstation.host'}"
        (tmp_path / "win.xml").write_text(ET.tostring(root, encoding="unicode"))
        assert run(f"domain define {tmp_path / 'win.xml'} --yes {more}").code == 0
        done = run(f"domain edit win --replace --yes {more}")
        assert done.code == 0, done.err
        shown_ = ET.fromstring(run(f"domain show win --json {more}").document["defined"])  # noqa: S314 - libvirt's
        assert [element.get("managed") for element in shown_.iterfind("devices/hostdev")] == ["yes"] * 4

    def test_on_one_cell_no_gpu_moves_to_an_expander_bus(self, run: Run, tmp_path: Path) -> None:
        address = "<address domain='0x0000' bus='0x1b' slot='0x00' function='0x0'/>"
        device = f"<hostdev mode='subsystem' type='pci' managed='no'><source>{address}</source>"
        guest = "<address type='pci' domain='0x0000' bus='0x01' slot='0x00' function='0x0'/></hostdev>"
        port = "<controller type='pci' index='1' model='pcie-root-port'/>"
        old = f"""<domain type='test'><name>win</name><memory unit='GiB'>4</memory><vcpu>4</vcpu>
          <os><type arch='x86_64' machine='q35'>hvm</type></os><devices>{port}{device}{guest}</devices></domain>"""
        define(run, tmp_path, old)
        done = run("domain edit win --cpus 8 --replace --yes")
        assert done.code == 0, done.err
        assert "other addresses" not in done.err
        root = shown(run, "win")
        assert root.find("devices/controller[@model='pcie-expander-bus']") is None
        (kept,) = root.findall("devices/hostdev/address")
        assert kept.get("bus") == "0x01"
        assert run("domain edit win --device gpu1 --yes --replace").code == 0
        assert shown(run, "win").find("devices/controller[@model='pcie-expander-bus']") is None

    def test_vcpus_that_fill_cores_do_so_although_those_before_did_not(self, run: Run, tmp_path: Path) -> None:
        text = run("domain build ml1 --gpus 1 --cpus 3 --memory 8GiB --smt isolate").out
        text = re.sub(r"<vfioctl:allocation .*/>|<topology .*/>", "", text)
        define(run, tmp_path, text)
        assert run("domain edit ml1 --cpus 4 --replace --yes").code == 0
        after = shown(run, "ml1").find("cpu/topology")
        assert after is not None
        assert after.get("threads") == "2"

    @pytest.mark.parametrize("mark", [r"", r"<vfioctl:allocation .*/>"])
    def test_vcpus_that_fill_no_cores_get_no_cores_of_their_own_unasked(
        self, run: Run, tmp_path: Path, mark: str
    ) -> None:
        text = run("domain build ml1 --gpus 1 --cpus 4 --memory 8GiB").out
        define(run, tmp_path, re.sub(mark, "", text) if mark else text)
        done = run("domain edit ml1 --cpus 3 --replace --yes")
        assert (done.code, "3 vCPUs do not fill cores of 2 threads" in done.err) == (2, True)
        assert run("domain edit ml1 --cpus 3 --smt isolate --replace --yes").code == 0
        assert mark_of(shown(run, "ml1")).get("smt") == "isolate"

    def test_its_own_claim_gives_it_no_more_than_it_has(self, run: Run, tmp_path: Path) -> None:
        words = "claim create --owner vm/ml1 --gpus 1 --cpus 16 --hugepages 8GiB --yes --json"
        claim = run(words).document["id"]
        define(run, tmp_path, run(f"domain build ml1 --claim {claim} --cpus 8 --memory 4GiB").out)
        assert run("domain edit ml1 --yes").code == 0
        root = shown(run, "ml1")
        assert (root.findtext("vcpu"), root.findtext("memory")) == ("8", str(4 << 20))

    def test_diff_names_the_libvirt_that_was_asked(self, run: Run, tmp_path: Path) -> None:
        text = run("domain build ml1 --gpus 1 --cpus 8 --memory 16GiB").out
        define(run, tmp_path, text.replace("cpuset='97'", "cpuset='60'"))
        done = run("domain diff ml1 --connect test:///default")
        assert "vfioctl domain edit ml1 --dry-run --connect test:///default" in " ".join(done.err.split())

    def test_a_machine_without_pci_express(self, run: Run, tmp_path: Path) -> None:
        text = run("domain build ml1 --gpus 1 --cpus 8 --memory 16GiB").out
        start, end = text.index("    <controller type='pci'"), text.rindex("    <memballoon")
        define(run, tmp_path, (text[:start] + text[end:]).replace("'q35'", "'pc-i440fx-7.2'"))
        done = run("domain edit ml1 --device gpu0 --dry-run")
        assert (done.code, "needs machine q35" in " ".join(done.err.split())) == (2, True)

    def test_a_domain_of_somebody_else(self, run: Run) -> None:
        done = run("domain edit test --device gpu0 --cpus 2 --memory 1GiB --yes")
        assert (done.code, "vfioctl did not define domain test" in done.err) == (4, True)


class TestOthers:
    def test_their_cpus_and_gpus_are_not_chosen(self, run: Run, tmp_path: Path) -> None:
        define(run, tmp_path, run(f"domain build ml1 {WISH}").out)
        again, other = (
            run(f"domain build {name} {WISH} --disk /{name}.raw --json").document for name in ("ml1", "ml2")
        )
        assert set(other["pins"]).isdisjoint(again["pins"])
        devices = [{each["device"] for each in built["devices"]} for built in (again, other)]
        assert devices[0].isdisjoint(devices[1])

    def test_a_named_device_of_another_domain_is_told(self, run: Run, tmp_path: Path) -> None:
        define(run, tmp_path, run(f"domain build ml1 {WISH}").out)
        done = run(f"domain build ml2 --device {GPU0} --cpus 4 --memory 8GiB --disk /ml2.raw")
        assert done.code == 0
        assert "only one of the domains can run at a time" in done.err

    def test_all_pins_but_those_to_every_cpu(self) -> None:
        def domain(name: str, xml: str, *, live: bool = False) -> DomainXml:
            return DomainXml(
                name=name, uuid=name, is_active=live, live=xml if live else "", defined="" if live else xml
            )

        pin = "<domain><name>{}</name><vcpu>1</vcpu><cputune><vcpupin vcpu='0' cpuset='{}'/></cputune></domain>"
        libvirt = Libvirt(
            uri="test:///default",
            domains=(
                domain("a", pin.format("a", "1-3,^2")),
                domain("b", pin.format("b", "0-7")),
                domain("c", pin.format("c", "5"), live=True),
                domain("d", "<domain><oops>"),
                domain("e", pin.format("e", "nonsense")),
                domain("own", pin.format("own", "6")),
            ),
        )
        found = others_in(libvirt, range(8), but=("own",))
        assert found == Others({1: "domain a", 3: "domain a", 5: "running domain c"}, {}, running=("c",))

    @pytest.mark.parametrize(
        ("inside", "cpus"),
        [
            ("<vcpu cpuset='2-3'>2</vcpu>", {2, 3}),
            ("<vcpu cpuset='2-3'>2</vcpu><cputune><vcpupin vcpu='0' cpuset='5'/></cputune>", {2, 3, 5}),
            ("<vcpu cpuset='0-7,^9'>2</vcpu>", set()),
            (
                "<vcpu cpuset='2-3'>1</vcpu><cputune><vcpupin vcpu='0' cpuset='5'/><emulatorpin cpuset='6'/></cputune>",
                {5, 6},
            ),
            (
                "<vcpu>9</vcpu><cputune><emulatorpin cpuset='1'/><iothreadpin iothread='1' cpuset='4'/></cputune>",
                {1, 4},
            ),
            ("<vcpu>9</vcpu><cputune><emulatorpin cpuset='0-7'/></cputune>", set()),
        ],
    )
    def test_cpus_of_all_threads(self, inside: str, cpus: set[int]) -> None:
        xml = f"<domain><name>a</name>{inside}</domain>"
        found = others_in(
            Libvirt(
                uri="test:///default",
                domains=(DomainXml(name="a", uuid="a", is_active=False, live="", defined=xml),),
            ),
            range(8),
            but=(),
        )
        assert set(found.cpus) == cpus

    def test_emulators_share_the_cpus_of_the_host(self, run: Run, tmp_path: Path) -> None:
        define(run, tmp_path, run(f"domain build ml1 {WISH}").out)
        texts = [run(f"domain build {name} {WISH} --disk /{name}.raw").out for name in ("ml1", "ml2")]
        first, second = map(ET.fromstring, texts)
        pins = [root.find("cputune/emulatorpin") for root in (first, second)]
        assert pins[0] is not None
        assert pins[1] is not None
        assert pins[0].get("cpuset") == pins[1].get("cpuset")


class TestDifferences:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("<a><b x='1' y='2'/></a>", "<a><b y='2' x='1'/></a>"),
            ("<a><!-- c --><b/></a>", "<a><b/></a>"),
            ("<a><memory unit='GiB'>1</memory></a>", "<a><memory>1048576</memory></a>"),
            (f"<a>{PIN0}{PIN1}</a>", f"<a>{PIN1}{PIN0}</a>"),
        ],
    )
    def test_what_means_the_same(self, one: str, other: str) -> None:
        assert differences(parse(one), parse(other)) == ()

    @pytest.mark.parametrize(
        ("one", "other", "path"),
        [
            ("<a><b/></a>", "<a/>", "/a/b"),
            ("<a><b/></a>", "<a><b/><b/></a>", "/a/b[2]"),
            ("<a>1</a>", "<a>2</a>", "/a"),
            ("<a><memory unit='GiB'>1</memory></a>", "<a><memory unit='MiB'>1</memory></a>", "/a/memory"),
        ],
    )
    def test_what_differs(self, one: str, other: str, path: str) -> None:
        assert differences(parse(one), parse(other))[0].path == path
