"""Documents that somebody spoilt, by accident or not: refused as documents, quickly, and never by a bug."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts.machines import HOSTS, REGISTRY, copy, original, unhurried
from tests.probing import read_inventory
from vfioctl.binding.model.intents import BindIntent, UnbindIntent
from vfioctl.binding.plan.bind import plan_bind, plan_unbind
from vfioctl.console.documents import document_text
from vfioctl.core.change import VERSION
from vfioctl.errors import BadDocument, VfioctlError
from vfioctl.host import Host
from vfioctl.inventory.model.document import document_of
from vfioctl.kernel.protocol import PCI_DEVICES
from vfioctl.kernel.recorded import host as recorded
from vfioctl.kernel.recorded.capture import capture
from vfioctl.kernel.recorded.host import Recorded, read_tree
from vfioctl.kernel.recorded.tree import HEADER, Tree, form, parse
from vfioctl.kernel.simulated.host import Simulated

SMALL = (HOSTS / "gh200.host").read_text(encoding="utf-8")
SMALL_LINES = SMALL.split("\n")
ODD = st.text(max_size=12) | st.sampled_from(
    ["", "-1", "\u0663", "1_0", "9" * 5000, "(null)", "\n\n", "0x" * 9, "/..", "\\x00", " -> /", "\0", "(", "*", "\\n"]
)


def put_to_use(tree: Tree) -> None:
    """All that can be done with a host: listed, recorded, planned for and simulated."""
    inventory = read_inventory(Recorded(tree, ""))
    assert document_text(document_of(inventory, everything=True))
    assert form(capture(Recorded(tree, ""))[0])
    for gpu in inventory.gpus:
        bind = BindIntent(devices=(gpu.address,), with_group=True, allow_boot_vga=True)
        with suppress(VfioctlError):
            assert REGISTRY.plan(plan_bind(inventory, bind)).canonical()
        unbind = UnbindIntent(devices=(gpu.address,), with_group=True)
        with suppress(VfioctlError):
            assert REGISTRY.plan(plan_unbind(inventory, unbind, {})).canonical()
    with suppress(VfioctlError):
        Simulated(copy(tree), "").load("vfio-pci")


class TestHostFiles:
    @unhurried
    @given(st.integers(0, len(SMALL)))
    def test_cut_short_anywhere_is_refused_or_used(self, length: int) -> None:
        with suppress(BadDocument):
            put_to_use(parse(SMALL[:length], "x.host"))

    @unhurried
    @given(st.data())
    def test_with_lines_changed_is_refused_or_used(self, data: st.DataObject) -> None:
        lines = list(SMALL_LINES)
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(1, len(lines) - 1))
            start = data.draw(st.integers(0, len(lines[at])))
            lines[at] = lines[at][:start] + data.draw(ODD) + lines[at][start + data.draw(st.integers(0, 9)) :]
        with suppress(BadDocument):
            put_to_use(parse("\n".join(lines), "x.host"))

    @unhurried
    @given(st.data())
    def test_with_values_replaced_is_used(self, data: st.DataObject) -> None:
        tree = copy(original("gh200"))
        for path in data.draw(st.lists(st.sampled_from(sorted(tree.files)), min_size=1, max_size=6)):
            tree.put(path, data.draw(ODD))
        for path in data.draw(st.lists(st.sampled_from(sorted(tree.links)), max_size=3)):
            tree.put_link(path, data.draw(ODD | st.sampled_from(["..", "/", path, "x/" * 3000])))
        for subject in data.draw(st.lists(st.sampled_from(sorted(tree.properties)), max_size=2)):
            tree.properties[subject] = {key: data.draw(ODD) for key in tree.properties[subject]}
        put_to_use(tree)

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"\0" * 100,
            b"\x7fELF\x02\x01\x01",
            b"PK\x03\x04",
            b"\xff\xfe#\0v\0",
            b"\xef\xbb\xbf" + SMALL.encode(),
            HEADER.encode() + b"\n/sys/x = \xc3\x28",
            b"#vfioctl-host 99\n",
            b"{}",
            SMALL.encode("utf-16"),
            HEADER.encode() + b"\n\x1f\x8b\x08",
            HEADER.encode() + b"\n/sys/\0 = 1",
            HEADER.encode() + b"\r/etc/x = 1",
        ],
        ids=range(13),
    )
    def test_of_another_kind_are_refused(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "x.host").write_bytes(content)
        with pytest.raises(BadDocument) as caught:
            Host.recorded(str(tmp_path / "x.host"))
        assert len(caught.value.message) < 300 + len(str(tmp_path))

    @pytest.mark.parametrize("line", ["/sys/x = ", "/sys/x -> ", "/sys/x | ", "# ", "hwdb:x y = ", "/sys/", ""])
    def test_with_a_megabyte_on_a_line_are_refused(self, line: str) -> None:
        with pytest.raises(BadDocument, match=r"line 2: the line has 1\d{6} characters"):
            parse(f"{HEADER}\n{line}{'x' * (1 << 20)}", "x.host")

    def test_of_deep_paths_are_refused(self) -> None:
        with pytest.raises(BadDocument, match="not a path"):
            parse(f"{HEADER}\n/sys{'/a' * 64} = 1", "x.host")
        deepest = "/sys" + "/a" * 63
        assert parse(f"{HEADER}\n{deepest} = 1", "x.host").text(deepest) == "1"

    @pytest.mark.parametrize("target", ["../../../../../../etc/passwd", "/etc/passwd", "/proc/self/root/etc/passwd"])
    def test_with_links_to_files_of_this_machine_read_none_of_them(self, target: str) -> None:
        tree = copy(original("gh200"))
        for path in ("/proc/cmdline", "/proc/sys/kernel/osrelease"):
            del tree.files[path]
            tree.put_link(path, target)
        put_to_use(tree)
        assert "root:" not in form(capture(Recorded(tree, ""))[0])

    def test_with_links_in_circles_lose_only_what_goes_round(self) -> None:
        tree = copy(original("workstation"))
        one, other = f"{PCI_DEVICES}/0000:0a:00.0", f"{PCI_DEVICES}/0000:0a:00.1"
        tree.put_link(one, "0000:0a:00.1")
        tree.put_link(other, "0000:0a:00.0")
        before, after = (read_inventory(Recorded(each, "")) for each in (original("workstation"), tree))
        assert len(after.functions) == len(before.functions) - 2
        assert len(after.warnings) == 2
        put_to_use(tree)

    def test_of_a_hundred_thousand_facts_are_read_at_once(self) -> None:
        facts = [f"/sys/devices/pci0000:00/x{number:06}/numa_node = {number}" for number in range(100_000)]
        began = time.monotonic()
        tree = parse("\n".join([HEADER, *facts]), "x.host")
        assert form(tree).count("\n") == 100_002
        assert time.monotonic() - began < 10

    def test_of_a_file_of_a_hundred_thousand_lines_are_read_at_once(self) -> None:
        lines = ["/lib/modules/x/modules.alias | alias pci:v000010DEd*sv*sd*bc03sc*i* nouveau"] * 100_000
        began = time.monotonic()
        tree = parse("\n".join([HEADER, *lines]), "x.host")
        assert form(tree).count("\n") == 100_002
        assert time.monotonic() - began < 10

    def test_of_more_cpus_than_there_can_be_lose_the_cpus_of_that_node(self) -> None:
        tree = parse(f"{HEADER}\n/sys/devices/system/node/node0/cpulist = 0-99999999\n", "x.host")
        inventory = read_inventory(Recorded(tree, ""))
        assert [(node.id, node.cpus) for node in inventory.numa_nodes] == [(0, ())]
        assert inventory.warnings[-1].subject == "NUMA node 0"

    @pytest.mark.parametrize("kept", [0.3, 0.9, 0.999])
    def test_that_were_cut_short_are_refused(self, tmp_path: Path, kept: float) -> None:
        text = form(original("laptop"))
        (tmp_path / "cut.host").write_text(text[: int(len(text) * kept)])
        with pytest.raises(BadDocument):
            read_tree(tmp_path / "cut.host")

    def test_that_end_with_a_whole_line_but_not_with_the_last_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "cut.host").write_text(form(original("laptop")).removesuffix("#end\n"))
        with pytest.raises(BadDocument, match="is truncated"):
            read_tree(tmp_path / "cut.host")

    def test_without_an_end_are_read_no_further_than_the_most(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(recorded, "MOST_BYTES", 1 << 20)
        (tmp_path / "x.host").write_bytes(b"x" * ((1 << 20) + 1))
        with pytest.raises(BadDocument, match="larger than 1 MiB"):
            read_tree(tmp_path / "x.host")

    def test_may_have_been_written_on_another_system(self, tmp_path: Path) -> None:
        (tmp_path / "x.host").write_bytes(SMALL.replace("\n", "\r\n").encode())
        assert form(read_tree(tmp_path / "x.host")) == SMALL


PLAN = Host.recorded(str(HOSTS / "gh200.host")).binding.plan_bind(["gpu0"]).model_dump_json()
WHOLE = REGISTRY.read_plan(PLAN)


class TestPlanFiles:
    @pytest.mark.parametrize("length", range(0, len(PLAN), 7))
    def test_cut_short_are_refused(self, length: int) -> None:
        with pytest.raises(BadDocument):
            REGISTRY.read_plan(PLAN[:length])

    @unhurried
    @given(st.integers(0, len(PLAN) - 1), st.text(max_size=3), st.integers(0, 3))
    def test_edited_are_refused_unless_they_still_say_the_same(self, at: int, new: str, gone: int) -> None:
        try:
            found = REGISTRY.read_plan(PLAN[:at] + new + PLAN[at + gone :])
        except BadDocument:
            return
        assert found == WHOLE

    @pytest.mark.parametrize(
        "edit",
        [
            {"version": VERSION + 1},
            {"id": ""},
            {"id": "0" * 12},
            {"notes": ["edited"]},
            {"checks": []},
            {"steps": []},
            {"extra": 1},
            {"intent": None},
            {"facts": {}},
            {"version": "1.0.0"},
            {"changes": [{}]},
        ],
        ids=str,
    )
    def test_with_another_value_are_refused(self, edit: dict[str, object]) -> None:
        with pytest.raises(BadDocument):
            REGISTRY.read_plan(json.dumps(json.loads(PLAN) | edit))

    @pytest.mark.parametrize("field", ["id", "intent", "facts", "changes", "steps", "checks"])
    def test_without_a_field_are_refused(self, field: str) -> None:
        document = json.loads(PLAN)
        assert document.pop(field)
        with pytest.raises(BadDocument):
            REGISTRY.read_plan(json.dumps(document))

    @pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
    def test_of_another_version_are_refused_even_with_their_own_id(self, version: int) -> None:
        other = WHOLE.model_copy(update={"version": version, "id": ""})
        honest = other.model_copy(update={"id": other.digest()})
        with pytest.raises(BadDocument, match=f"is of version {version}, and this vfioctl reads version {VERSION}"):
            REGISTRY.read_plan(honest.model_dump_json())

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "null",
            "[]",
            "{}",
            "[" * 200_000,
            '{"a":' * 200_000,
            "1" * 200_000,
            '"' + "x" * (1 << 20),
            "\0",
            '{"id": "\\ud800"}',
            "NaN",
            PLAN + PLAN,
            PLAN.replace("{", "{{", 1),
            PLAN.encode().hex(),
        ],
        ids=range(14),
    )
    def test_of_another_kind_are_refused(self, text: str) -> None:
        with pytest.raises(BadDocument):
            REGISTRY.read_plan(text)
