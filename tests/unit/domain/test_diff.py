"""`vfioctl domain diff`: what was built and not changed does not differ, what was changed does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hosts.machines import copy, original
from tests.unit.conftest import Run
from tests.unit.domain.running import PID, UUID, Process
from vfioctl import sources
from vfioctl.domain.build.edit import compared, options_of
from vfioctl.domain.document.differences import differences
from vfioctl.domain.document.reader import read_domain
from vfioctl.domain.document.summary import changed
from vfioctl.domain.document.templates import templates
from vfioctl.domain.document.xml import parse
from vfioctl.domain.model.libvirt import NOBODY, DomainXml
from vfioctl.domain.model.spec import PageSize, Policy, Smt
from vfioctl.kernel.recorded.tree import Tree, form
from vfioctl.session import Session

pytest.importorskip("libvirt")
URI = "test:///default"
ON = {
    "hgx8": "--gpus 8 --cpus 32 --memory 65GiB",
    "mi300x": "--gpus 1 --cpus 4 --memory 4GiB",
    "t4": "--gpus 1 --cpus 4 --memory 4GiB",
    "gh200": "--gpus 1 --cpus 8 --memory 16GiB",
    "workstation": "--device gpu1 --cpus 8 --memory 16GiB",
    "a2": "--device 6d3f2c1a-0b4e-4f6d-8a7c-5e9b1f2a3c4d --cpus 4 --memory 8GiB",
    "mi300x-vf": "--device 05:02.0 --device 05:02.3 --cpus 8 --memory 16GiB",
    "l40s": "--device 41:00.4 --cpus 4 --memory 8GiB",
    "lab": "--device 01:00.0 --device 41:00.0 --cpus 2 --memory 512MiB --policy preferred",
    "xe": "--device 03:00.1 --cpus 4 --memory 8GiB --smt isolate",
}
PAIRS = (
    *(("hgx8", template) for template in sorted(templates())),
    *((host, "compute-linux") for host in sorted(ON) if host != "hgx8"),
    *(("gh200", template) for template in ("realtime", "windows-desktop")),
    *(("mi300x", "confidential"), ("a2", "vgpu-desktop")),
)
"""Each template, and each host; more where the host or its devices make a difference to the template."""
OPTIONS = (
    "--gpus 1 --cpus 4 --memory 4GiB --smt isolate",
    "--gpus 1 --cpus 3 --memory 4GiB --smt isolate",
    "--gpus 2 --cpus 4 --memory 4GiB --hugepages none",
    "--gpus 1 --cpus 4 --memory 4GiB --hugepages 2MiB",
    "--gpus 1 --cpus 4 --memory 4GiB --policy preferred",
    "--gpus 4 --cpus 4 --memory 3GiB --hugepages none --policy preferred",
    "--gpus 2 --cpus 16 --memory 64GiB --policy preferred",
    "--gpus 8 --cpus 128 --memory 512GiB",
    "--gpus 5 --cpus 10 --memory 1001MiB",
    "--gpus 1 --numa 1 --cpus 6 --memory 6GiB",
    "--gpus 8 --cpus 2 --memory 2GiB",
)


THE_SAME = "Domain ml1, as it is defined, is what would be built for its devices.\n"
POOL = "/sys/devices/system/node/node{}/hugepages/hugepages-{}kB"

Serve = Callable[..., Path]


def host_with(host: str = "hgx8", free: dict[tuple[int, int], int] | None = None) -> Tree:
    """A host with so many free hugepages, by node and KiB."""
    tree = copy(original(host))
    for (node, size), number in (free or {}).items():
        home = POOL.format(node, size)
        tree.put(f"{home}/free_hugepages", str(number))
        tree.put(f"{home}/nr_hugepages", str(max(number, int(tree.files.get(f"{home}/nr_hugepages", "0")))))
    return tree


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Makes a simulated host that of all commands."""

    def use(tree: Tree, connect: str = URI) -> Path:
        file = tmp_path / "one.host"
        file.write_text(form(tree))
        monkeypatch.setenv("VFIOCTL_SIMULATE", str(file))
        monkeypatch.setenv("VFIOCTL_CONNECT", connect)
        return file

    return use


def built(run: Run, wish: str, template: str = "compute-linux") -> str:
    done = run(f"domain build ml1 --template {template} {wish}")
    assert done.code == 0, done.err
    return done.out


def define(run: Run, folder: Path, text: str) -> None:
    file = folder / "domain.xml"
    file.write_text(text)
    done = run(f"domain define {file} --yes")
    assert done.code == 0, done.err


def diff(run: Run, *words: str) -> dict[str, tuple[str | None, str | None]]:
    """What differs, by path: what is found, what would be built."""
    done = run("domain diff ml1 --json", *words)
    assert done.code == (4 if done.document["differences"] else 0)
    return {each["path"]: (each["found"], each["built"]) for each in done.document["differences"]}


class TestUnchanged:
    @pytest.mark.parametrize(("host", "template"), PAIRS)
    def test_a_template_on_a_host(self, run: Run, tmp_path: Path, serve: Serve, host: str, template: str) -> None:
        file = serve(copy(original(host)))
        if template == "confidential":
            self._confidential(run, file, "--gpus 1 --cpus 8 --memory 64GiB" if host == "hgx8" else ON[host])
            return
        define(run, tmp_path, built(run, ON[host], template))
        done = run("domain diff ml1")
        assert (done.code, done.out) == (0, THE_SAME), done.out

    def _confidential(self, run: Run, file: Path, wish: str) -> None:
        """libvirt's schema knows SEV-SNP from 10.5 on: the document is compared as it is built."""
        text = run(f"domain build ml1 --template confidential {wish}").out
        if text:
            domain = DomainXml(name="ml1", uuid=UUID, is_active=False, defined=text)
            found = compared(sources.simulated(Session, str(file), file.with_suffix(".db")), domain, NOBODY)
            assert found.differences == ()

    @pytest.mark.parametrize("wish", OPTIONS)
    def test_options(self, run: Run, tmp_path: Path, serve: Serve, wish: str) -> None:
        serve(host_with(free={(0, 2048): 9000}))
        define(run, tmp_path, built(run, wish))
        done = run("domain diff ml1 --json")
        assert done.code == 0, done.out
        assert done.document == {"name": "ml1", "running": False, "differences": []}

    def test_a_node_that_only_the_user_knows(self, run: Run, tmp_path: Path, serve: Serve) -> None:
        serve(copy(original("lab")))
        wish = "--device 01:00.0 --device 41:00.0 --cpus 2 --memory 512MiB"
        assert run(f"domain build ml1 {wish}").code == 3
        define(run, tmp_path, built(run, f"{wish} --node 0000:01:00.0=0 --node 01:00.1=0"))
        assert diff(run) == {}

    def test_threads_of_cores_that_have_different_numbers(self, run: Run, tmp_path: Path, serve: Serve) -> None:
        serve(copy(original("laptop")))
        define(run, tmp_path, built(run, "--gpus 1 --cpus 3 --memory 4GiB"))
        assert diff(run) == {}

    def test_after_an_edit(self, run: Run, tmp_path: Path, serve: Serve) -> None:
        serve(host_with())
        define(run, tmp_path, built(run, "--gpus 1 --cpus 4 --memory 4GiB --hugepages none", "realtime"))
        assert run("domain edit ml1 --gpus 2 --cpus 3 --memory 4GiB --smt isolate --yes").code == 0
        assert diff(run) == {}

    def test_a_claim_that_was_made_before(self, run: Run, tmp_path: Path, serve: Serve) -> None:
        serve(host_with())
        claim = run("claim create --owner vm/ml1 --gpus 1 --cpus 16 --hugepages 8GiB --yes --json").document["id"]
        define(run, tmp_path, built(run, f"--claim {claim} --cpus 8"))
        assert diff(run) == {}
        assert run(f"claim release {claim} --yes").code == 0
        assert run("domain diff ml1 --json").code in (0, 4), "its devices are free, and are compared without a claim"

    def test_as_it_runs_on_its_own_cpus_and_hugepages(self, run: Run, tmp_path: Path, serve: Serve) -> None:
        serve(host_with())
        text = built(run, "--gpus 2 --cpus 8 --memory 480GiB").replace("</name>", f"</name><uuid>{UUID}</uuid>")
        node = tmp_path / "node.xml"
        node.write_text(f"<node>{text}</node>")
        pins = [str(min(cpus)) for cpus in read_domain(text).pins.values()]
        tree = host_with(free={(0, 1 << 20): 0, (1, 1 << 20): 0})
        Process(threads={PID + n: (f"CPU {n}/KVM", cpu) for n, cpu in enumerate(pins)}, user=0).put(tree)
        serve(tree, f"test://{node}")
        assert run("domain diff ml1 --json").document == {"name": "ml1", "running": True, "differences": []}

    def test_as_it_runs_in_ordinary_memory(self, run: Run, tmp_path: Path, serve: Serve) -> None:
        serve(host_with())
        wish = "--gpus 1 --cpus 4 --memory 64GiB --hugepages none"
        text = built(run, wish).replace("</name>", f"</name><uuid>{UUID}</uuid>")
        node = tmp_path / "node.xml"
        node.write_text(f"<node>{text}</node>")
        tree = host_with()
        tree.put("/sys/devices/system/node/node0/meminfo", "Node 0 MemFree:  1048576 kB")
        serve(tree, f"test://{node}")
        assert diff(run) == {}


class TestChanged:
    @pytest.mark.parametrize(
        ("change", "path", "values"),
        [
            (
                ("--gpus 8 --cpus 32 --memory 65GiB", "(cell id='0' .*?memory)='\\d+'", "\\1='1048576'"),
                "/domain/cpu/numa/cell[id=0]",
                ("1 GiB", "33 GiB"),
            ),
            (
                ("--gpus 1 --cpus 4 --memory 4GiB", "cpuset='97'", "cpuset='60'"),
                "vcpupin[vcpu=1]/@cpuset",
                ("60", "97"),
            ),
            (
                ("--gpus 1 --cpus 4 --memory 4GiB --smt isolate", "vcpu='1' cpuset='2'", "vcpu='1' cpuset='97'"),
                "vcpupin[vcpu=1]/@cpuset",
                ("97", "2"),
            ),
            (
                ("--gpus 1 --cpus 4 --memory 4GiB", "page size='1048576'", "page size='2048'"),
                "hugepages/page[nodeset=0]",
                ("2 MiB", "1 GiB"),
            ),
            (
                ("--gpus 1 --cpus 4 --memory 4GiB --hugepages 2MiB", "page size='2048'", "page size='1048576'"),
                "hugepages/page[nodeset=0]",
                ("1 GiB", "2 MiB"),
            ),
            (("--gpus 1 --cpus 4 --memory 4GiB", "(?s)<hugepages>.*</hugepages>", ""), "page[nodeset=0]", (None, "1")),
            (
                ("--gpus 1 --cpus 4 --memory 4GiB --hugepages none", "mode='strict'", "mode='preferred'"),
                "numatune/memory/@mode",
                ("preferred", "strict"),
            ),
            (
                ("--gpus 1 --cpus 4 --memory 4GiB", "cores='2' threads='2'", "cores='4' threads='1'"),
                "/domain/cpu/topology/@threads",
                ("1", "2"),
            ),
        ],
    )
    def test_it_is_told(
        self,
        run: Run,
        tmp_path: Path,
        serve: Serve,
        change: tuple[str, str, str],
        path: str,
        values: tuple[str | None, str],
    ) -> None:
        """`change`: what is built; what is replaced in the document, and by what."""
        wish, was, is_ = change
        serve(host_with(free={(0, 2048): 9000}))
        text = run(f"domain build ml1 {wish}").out
        changed = re.sub(was, is_, text)
        assert changed != text
        define(run, tmp_path, changed)
        found = {each: pair for each, pair in diff(run).items() if path in each}
        assert found, diff(run)
        ((before, after),) = found.values()
        assert before == values[0]
        assert (after or "").startswith(values[1])

    def test_a_device_of_its_claim_that_it_does_not_have(self, run: Run, tmp_path: Path, serve: Serve) -> None:
        serve(host_with())
        claim = run("claim create --owner vm/ml1 --device gpu0 --device gpu4 --yes --json").document["id"]
        text = built(run, f"--claim {claim} --cpus 4 --memory 4GiB")
        define(run, tmp_path, re.sub(r"(?s)(.*)  <hostdev .*</hostdev>\n", r"\1", text))
        assert {pair[0] for path, pair in diff(run).items() if "/hostdev[" in path} == {None}

    def test_more_devices_than_its_claim_has(self, run: Run, tmp_path: Path, serve: Serve) -> None:
        serve(host_with())
        text = built(run, "--device gpu0 --device gpu5 --cpus 4 --memory 4GiB")
        claim = run("claim create --owner vm/ml1 --device gpu0 --yes --json").document["id"]
        define(run, tmp_path, text.replace("<vfioctl:allocation", f"<vfioctl:allocation id='{claim}'"))
        assert diff(run) == {}


class TestRefused:
    def _with_a_claim_of_another(self, run: Run, folder: Path, serve: Serve) -> None:
        serve(host_with())
        define(run, folder, built(run, "--device gpu0 --cpus 4 --memory 4GiB"))
        assert run("claim create --owner vm/other --device gpu0 --yes").code == 0

    def test_json_tells_a_conflict_from_a_difference(self, run: Run, tmp_path: Path, serve: Serve) -> None:
        self._with_a_claim_of_another(run, tmp_path, serve)
        done = run("domain diff ml1 --json")
        assert (done.code, list(done.document), done.document["error"]["kind"]) == (4, ["error"], "ClaimConflict")

    def test_a_clone_does_not_have_the_claim_of_its_original(self, run: Run, tmp_path: Path, serve: Serve) -> None:
        serve(host_with())
        text = built(run, "--device gpu0 --cpus 4 --memory 4GiB")
        claim = run("claim create --owner vm/other --device gpu0 --yes --json").document["id"]
        define(run, tmp_path, text.replace("<vfioctl:allocation", f"<vfioctl:allocation id='{claim}'"))
        assert run("domain diff ml1 --json").document["error"]["kind"] == "ClaimConflict"

    def test_nobody_is_told_to_take_it_away(self, run: Run, tmp_path: Path, serve: Serve) -> None:
        self._with_a_claim_of_another(run, tmp_path, serve)
        done = run("domain diff ml1")
        assert "cannot be compared" in done.err
        assert "vm/other" in done.err
        assert "claim release" not in done.err


class TestMeaning:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("<memory unit='KiB'>4194304</memory>", "<memory unit='GiB'>4</memory>"),
            ("<memory>1000</memory>", "<memory unit='KB'>1024</memory>"),
            ("<memory unit='PiB'>1</memory>", "<memory unit='tib'>1024</memory>"),
            ("<size unit='eb'>1</size>", "<size unit='PB'>1000</size>"),
            ("<a slot='0x01'/>", "<a slot='0x1'/>"),
            ("<a cpuset='0-3,^3'/>", "<a cpuset='0-2'/>"),
            ("<mac address='52:54:00:AA:BB:CC'/>", "<mac address='52:54:00:aa:bb:cc'/>"),
        ],
    )
    def test_values_are_compared_whatever_their_form(self, one: str, other: str) -> None:
        assert differences(parse(f"<d>{one}</d>"), parse(f"<d>{other}</d>")) == ()

    def test_a_path_is_compared_to_the_letter(self) -> None:
        assert differences(parse("<a file='/A.img'/>"), parse("<a file='/a.img'/>"))

    def test_an_element_with_others_below_it_has_the_amount_of_its_attribute(self) -> None:
        one = "<cell id='0' memory='1' unit='GiB'>\n  <distances/>\n</cell>"
        other = "<cell id='0' memory='1048576' unit='KiB'><distances/></cell>"
        assert differences(parse(one), parse(other)) == ()
        less = differences(parse(one), parse(other.replace("1048576", "1048575")))
        assert less == (("/cell[id=0]", "1 GiB", "1048575 KiB"),)

    def test_a_scheduler_is_that_of_each_thread(self) -> None:
        one = "<a><vcpusched vcpus='0-1' priority='1'/><iothreadsched iothreads='1' priority='2'/></a>"
        other = "<a><vcpusched vcpus='1' priority='1'/><vcpusched vcpus='0' priority='3'/></a>"
        assert differences(parse(one), parse(other)) == (
            ("/a/vcpusched[vcpus=0]/@priority", "1", "3"),
            ("/a/iothreadsched[iothreads=1]/@priority", "2", None),
        )


class TestInAFewLines:
    """What an edit shows: a line for each kind of element."""

    BEFORE = """<domain><name>a</name><currentMemory unit='KiB'>4194304</currentMemory>
      <metadata><x/></metadata><features><smm state='on'/></features>
      <cputune><vcpupin vcpu='0' cpuset='1'/><vcpupin vcpu='1' cpuset='2'/></cputune>
      <cpu mode='host-model'><cache mode='emulate' level='3'/></cpu>
      <devices><hostdev type='pci'><source><address domain='0x0000' bus='0x1b' slot='0x00' function='0x0'/></source>
      </hostdev></devices></domain>"""
    AFTER = """<domain><name>a</name><currentMemory unit='GiB'>8</currentMemory><iothreads>1</iothreads>
      <metadata><y/></metadata>
      <cputune><vcpupin vcpu='0' cpuset='3'/><vcpupin vcpu='2' cpuset='4'/><vcpupin vcpu='3' cpuset='5'/></cputune>
      <numatune><memory mode='strict' nodeset='0'/><memnode cellid='0' nodeset='0'/></numatune>
      <cpu mode='host-model' check='none'/>
      <devices><controller type='pci' index='1' model='pcie-root-port'><target chassis='1' port='2'/></controller>
      <hostdev type='pci'><source><address domain='0x0000' bus='0x1b' slot='0x00' function='0x0'/></source>
      <rom bar='off'/></hostdev></devices></domain>"""

    def test_what_is_added_removed_and_changed(self) -> None:
        assert changed(parse(self.BEFORE), parse(self.BEFORE)) == ()
        assert dict(changed(parse(self.BEFORE), parse(self.AFTER))) == {
            "currentMemory": "4 GiB -> 8 GiB",
            "features": "removed: smm/state on",
            "cputune/vcpupin": "vcpu=0 cpuset 1 -> 3; removed: vcpu=1 cpuset 2; "
            "added: vcpu=2 cpuset 4, vcpu=3 cpuset 5",
            "cpu/cache": "removed: mode emulate, level 3",
            "iothreads": "added: 1",
            "numatune": "added: memory/mode strict, memory/nodeset 0 and 1 more",
            "cpu": "check absent -> none",
            "devices/controller": "added: pcie-root-port index=1",
            "devices/hostdev/rom": "added: 0000:1b:00.0 bar off",
        }

    @pytest.mark.parametrize(
        ("one", "other", "expected"),
        [
            ("<a/>", "<a><b c='1'/></a>", {"a/b": "added: c 1"}),
            ("<a><b/></a>", "<a>text<b/></a>", {"a": "absent -> text"}),
            ("<a id='['><b/></a>", "<a id=']'><b/></a>", {"a": "id [ -> ]"}),
            ("<cell id='[' a='1'/>", "<cell id='[]]/' a='1'/>", None),
        ],
    )
    def test_odd_documents(self, one: str, other: str, expected: dict[str, str] | None) -> None:
        documents = [parse(f"<domain>{each}</domain>") for each in (one, other)]
        for found in (changed(*documents), changed(*documents[::-1])):
            assert found
        if expected is not None:
            assert dict(changed(*documents)) == expected


def _pages(*pages: str) -> str:
    return f"<memoryBacking><hugepages>{''.join(f'<page {each}/>' for each in pages)}</hugepages></memoryBacking>"


class TestWishes:
    """Of a domain that somebody else has made."""

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("<vcpu>4</vcpu>", (PageSize.NONE, Policy.STRICT, Smt.TOGETHER)),
            ("<memoryBacking><hugepages/></memoryBacking>", (PageSize.AUTO, Policy.STRICT, Smt.TOGETHER)),
            (_pages("size='2' unit='MiB'"), (PageSize.MIB, Policy.STRICT, Smt.TOGETHER)),
            (_pages("size='1048576' nodeset='0'"), (PageSize.GIB, Policy.STRICT, Smt.TOGETHER)),
            (_pages("size='2048'", "size='1' unit='G'"), (PageSize.AUTO, Policy.STRICT, Smt.TOGETHER)),
            (_pages("size='16' unit='GiB'"), (PageSize.AUTO, Policy.STRICT, Smt.TOGETHER)),
            ("<numatune><memnode mode='preferred'/></numatune>", (PageSize.NONE, Policy.PREFERRED, Smt.TOGETHER)),
            ("<cpu><topology threads='1'/></cpu>", (PageSize.NONE, Policy.STRICT, Smt.ISOLATE)),
            ("<cpu><topology threads='2'/></cpu>", (PageSize.NONE, Policy.STRICT, Smt.TOGETHER)),
            ("<vcpu>3</vcpu>", (PageSize.NONE, Policy.STRICT, Smt.ISOLATE)),
        ],
    )
    def test_its_document_shows_them(self, text: str, expected: tuple[PageSize, Policy, Smt]) -> None:
        xml = f"<domain><name>a</name>{text}</domain>"
        spec = options_of(read_domain(xml), lambda: 2)
        assert (spec.hugepages, spec.policy, spec.smt) == expected
        assert options_of(read_domain(xml), lambda: 1).smt is Smt.TOGETHER

    def test_nonsense_in_the_metadata(self) -> None:
        mark = "<a:allocation xmlns:a='urn:vfioctl:1' template='x' smt='no' hugepages='3' nodes='1,x=2,00:01.0=x'/>"
        xml = f"<domain><metadata>{mark}</metadata></domain>"
        spec = options_of(read_domain(xml), lambda: 2)
        assert (spec.hugepages, spec.smt, spec.nodes) == (PageSize.AUTO, Smt.TOGETHER, {})
