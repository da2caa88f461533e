"""The recorded format: what is written is read back, whatever it holds; what is not understood is refused."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.hosts.machines import HOSTS, NAMES, unhurried
from vfioctl.errors import BadDocument, HostError, KernelRefused
from vfioctl.kernel.protocol import NOT_LISTED, Unanswered
from vfioctl.kernel.recorded import host as recorded
from vfioctl.kernel.recorded.host import Recorded, read_tree
from vfioctl.kernel.recorded.tree import HEADER, ROOTS, Node, Tree, form, parse

NASTY = st.text(max_size=12) | st.text(" \t\n\r\\\0\x1b\x7f\x85\u2028nrtx0|=->!%#/é", max_size=12)
NAME = st.text(
    st.characters(exclude_categories=["Cs"], min_codepoint=0x20, exclude_characters="/\x7f"), min_size=1, max_size=6
).filter(lambda name: name not in (".", ".."))
NAMES_BELOW = st.lists(NAME, min_size=1, max_size=4)
PATH = st.builds(lambda root, names: root + "/".join(names), st.sampled_from(ROOTS), NAMES_BELOW)
NODE = st.builds(Node, st.sampled_from("cb"), st.integers(0, 4095), st.integers(0, 1 << 20))
SUBJECT = st.from_regex(r"(hwdb|nvml|sim):[\w:.]{0,12}", fullmatch=True)
KEYS = st.dictionaries(st.from_regex(r"[A-Za-z_]{1,9}", fullmatch=True), NASTY, min_size=1, max_size=3)
COMMENT = (
    st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), max_size=20).filter(str.isprintable).map("# {}".format)
)
FACT = st.one_of(
    st.tuples(st.just("put"), PATH, NASTY),
    st.tuples(st.just("put_link"), PATH, NASTY),
    st.tuples(st.just("put_refused"), PATH, st.sampled_from(sorted(errno.errorcode))),
    st.tuples(st.just("put_node"), PATH, NODE),
    st.tuples(st.just("put_directory"), PATH, st.none()),
)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Trees in which a path is one thing: nothing lies below a file."""
    tree = Tree()
    for put, path, value in draw(st.lists(FACT, max_size=12)):
        above = ["/".join(path.split("/")[:n]) for n in range(2, path.count("/") + 1)]
        if tree.exists(path) or any(tree.exists(place) and place not in tree.directories for place in above):
            continue
        getattr(tree, put)(*((path,) if put == "put_directory" else (path, value)))
    tree.comments = draw(st.lists(COMMENT, max_size=2))
    tree.properties = draw(st.dictionaries(SUBJECT, KEYS, max_size=3))
    return tree


def contents(tree: Tree) -> list[object]:
    return [tree.comments, tree.files, tree.links, tree.refused, tree.nodes, tree.directories, tree.properties]


def parsed(*lines: str) -> Tree:
    return parse("\n".join([HEADER, *lines]), "x.host")


def refusal(*lines: str) -> str:
    with pytest.raises(BadDocument) as caught:
        parsed(*lines)
    return caught.value.message


class TestRoundTrip:
    @unhurried
    @given(trees())
    def test_what_is_written_is_read_back(self, tree: Tree) -> None:
        assert contents(parse(form(tree), "x.host")) == contents(tree)

    @unhurried
    @given(trees())
    def test_what_was_read_back_is_written_the_same(self, tree: Tree) -> None:
        assert form(parse(form(tree), "x.host")) == form(tree)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            " ",
            "  x  ",
            "\n",
            "\n\n",
            "a\n",
            "\na",
            "a\n\nb",
            "\\",
            "\\n",
            "\\x41",
            "\t",
            "\r",
            "\r\n",
            "\0",
            "\x1b[0m",
            "\x7f",
            "a = b",
            "a -> b",
            "# no comment",
            "/sys/x = 1",
            "\x85",
            "\u2028",
            "é漢🎛",
            "\ufeff",
        ],
    )
    @pytest.mark.parametrize("place", ["file", "link", "property"])
    def test_nasty_text_is_read_back_from_disk(self, place: str, text: str, tmp_path: Path) -> None:
        tree, file = Tree(), tmp_path / "x.host"
        if place == "file":
            tree.put("/sys/x", text)
        elif place == "link":
            tree.put_link("/sys/x", text)
        else:
            tree.properties["nvml:0000:41:00.0"] = {"name": text}
        file.write_text(form(tree), encoding="utf-8")
        assert contents(read_tree(file)) == contents(tree)

    @pytest.mark.parametrize("name", NAMES)
    def test_a_bundled_host_is_in_this_form_already(self, name: str) -> None:
        text = (HOSTS / f"{name}.host").read_text(encoding="utf-8")
        assert form(parse(text, name)) == text

    def test_facts_are_sorted_by_path_and_a_comment_keeps_its_place(self) -> None:
        tree = Tree()
        tree.comments = ["# second line"]
        tree.put("/sys/b", "1\n2")
        tree.put_link("/proc/c", "../x")
        tree.put_directory("/sys/a")
        tree.put_refused("/dev/d", errno.EACCES)
        tree.put_node("/dev/vfio/12", Node("c", 243, 0))
        tree.properties["nvml:x"] = {"b": "2", "a": "1"}
        assert form(tree).split("\n") == [
            HEADER,
            "# second line",
            "/dev/d ! EACCES",
            "/dev/vfio/12 % c 243 0",
            "/proc/c -> ../x",
            "/sys/a/",
            "/sys/b | 1",
            "/sys/b | 2",
            "nvml:x a = 1",
            "nvml:x b = 2",
            "#end",
            "",
        ]

    def test_a_comment_stays_on_its_line(self) -> None:
        tree = Tree()
        tree.comments = ["# recorded from the files under /tmp/a\nb\rc"]
        assert parse(form(tree), "x.host").comments == ["# recorded from the files under /tmp/a b c"]

    def test_an_errno_without_a_name_is_written_as_a_general_one(self) -> None:
        tree = Tree()
        tree.put_refused("/sys/x", 524)  # ENOTSUPP, which only the kernel has
        assert parse(form(tree), "x.host").refused == {"/sys/x": errno.EIO}


class TestParsing:
    def test_the_documented_example_is_read(self) -> None:
        document = (HOSTS.parents[1] / "docs" / "recorded-hosts.md").read_text(encoding="utf-8")
        found = re.search(r"```\n(#vfioctl-host 1\n.*?)```", document, re.S)
        assert found
        tree = parse(found[1], "docs")
        device = tree.resolve("/sys/bus/pci/devices/0000:41:00.0")
        assert tree.links[f"{device}/driver"].endswith("drivers/nvidia")
        assert tree.directories[f"{device}/power"] == set()
        assert tree.refused[f"{device}/reset_method"] == errno.EACCES
        assert tree.files[f"{device}/resource"].count("\n") == 1
        assert tree.nodes["/dev/vfio/12"] == Node("c", 243, 0)
        assert tree.properties["nvml:0000:41:00.0"] == {"name": "NVIDIA H100 80GB HBM3"}

    @unhurried
    @given(st.text(max_size=200))
    def test_any_text_is_read_or_refused_as_a_document(self, text: str) -> None:
        for whole in (text, f"{HEADER}\n{text}"):
            try:
                parse(whole, "x.host")
            except BadDocument as error:
                assert error.message.startswith("x.host")  # noqa: PT017 - some are read

    @unhurried
    @example(["/sys/a = 1", "/sys/a/b = 2"])
    @given(
        st.lists(
            st.builds(
                lambda path, mark, rest: path + mark + rest,
                st.sampled_from(
                    ["/sys/a", "/sys/a/b", "/sys/../a", "/etc/a", "/sys", "", "/sys/a b", "hwdb:x k", "#", "//"]
                ),
                st.sampled_from(["", " ", " = ", " | ", " -> ", " ! ", " % ", "/", " ? ", " =", "="]),
                st.sampled_from(
                    ["", "1", "EACCES", "ENOTHING", "c 1 2", "x 1 2", "c 1", "\\x4", "\\xff", "\0", "../" * 50]
                ),
            ),
            max_size=8,
        )
    )
    def test_a_nearly_right_document_is_read_or_refused(self, lines: list[str]) -> None:
        try:
            text = form(parsed(*lines))
        except BadDocument:
            return
        assert form(parse(text, "again")) == text

    @pytest.mark.parametrize(
        ("line", "why"),
        [
            ("/sys/x", "unknown form"),
            ("/sys/x ? 1", "unknown form"),
            ("/sys/x ! ENOTHING", "not an errno"),
            ("/sys/x % c 1", "not a device node"),
            ("/sys/x % p 1 2", "not a device node"),
            ("/sys/x % c \u0661 2", "not a device node"),
            ("hwdb:x", "SUBJECT KEY = TEXT"),
            ("nvml:x name: y", "SUBJECT KEY = TEXT"),
            ("sim:x  = y", "SUBJECT KEY = TEXT"),
            ("/etc/passwd = x", "not a path"),
            ("/sys/../etc/passwd = x", "not a path"),
            ("/sys/./x = 1", "not a path"),
            ("/sys//x = 1", "not a path"),
            ("/sysx/y = 1", "not a path"),
            ("sys/x = 1", "not a path"),
            ("/sys/x/ = 1", "not a path"),
            ("/", "not a path"),
            (f"/sys/{'x' * 5000} = 1", "not a path"),
            (f"/sys/x = {'x' * 70_000}", "the maximum is 65536"),
        ],
    )
    def test_a_wrong_line_is_refused_by_its_number(self, line: str, why: str) -> None:
        message = refusal("# a comment", "/sys/a = 1", line)
        assert message.startswith("x.host, line 4: ")
        assert why in message
        assert len(message) < 300

    @pytest.mark.parametrize("again", ["= 2", "-> y", "! EACCES", "% c 1 2"])
    @pytest.mark.parametrize("first", ["= 1", "-> y", "! EACCES", "% c 1 2", "| 1"])
    def test_a_path_is_there_once(self, first: str, again: str) -> None:
        assert "/sys/x appears twice" in refusal(f"/sys/x {first}", f"/sys/x {again}")

    @pytest.mark.parametrize("first", ["= 1", "-> y", "! EACCES", "% c 1 2"])
    @pytest.mark.parametrize("second", ["/sys/x/y = 1", "/sys/x/"])
    def test_a_file_is_no_directory(self, first: str, second: str) -> None:
        assert "/sys/x is a directory" in refusal(f"/sys/x {first}", second)
        assert "/sys/x appears twice" in refusal(second, f"/sys/x {first}")

    @pytest.mark.parametrize("first", ["", "#vfioctl-host 2", "\ufeff#vfioctl-host 1", "/sys/x = 1", "\x7fELF"])
    def test_another_first_line_is_refused(self, first: str) -> None:
        with pytest.raises(BadDocument, match="its first line is not"):
            parse(f"{first}\n/sys/x = 1", "x.host")

    def test_empty_lines_and_an_empty_host_are_fine(self) -> None:
        assert contents(parsed("", "")) == contents(Tree())


class TestFiles:
    def test_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(BadDocument, match="No such file"):
            read_tree(tmp_path / "none.host")

    def test_a_directory_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(BadDocument, match="cannot be read"):
            read_tree(tmp_path)

    def test_what_is_not_utf_8_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "x.host"
        file.write_bytes(f"{HEADER}\n/sys/x = ".encode() + b"\xff\xfe")
        with pytest.raises(BadDocument, match="not UTF-8 at byte 25"):
            read_tree(file)

    def test_a_file_that_is_too_large_is_not_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = tmp_path / "x.host"
        file.write_text(f"{HEADER}\n")
        monkeypatch.setattr(recorded, "MOST_BYTES", 8)
        with pytest.raises(BadDocument, match="larger than"):
            read_tree(file)


class TestLinks:
    @pytest.mark.parametrize(
        ("target", "there"),
        [
            ("y", "/sys/y"),
            ("/proc/y", "/proc/y"),
            ("../../../../proc/y", "/proc/y"),
            ("./y/.", "/sys/y"),
            ("/", "/"),
            ("../../..", "/"),
            ("//proc//y", "/proc/y"),
            ("", "/sys"),
        ],
    )
    def test_lead_nowhere_but_inside(self, target: str, there: str) -> None:
        tree = Tree()
        tree.put_directory(there)
        tree.put_link("/sys/x", target)
        assert tree.resolve("/sys/x") == there
        assert tree.resolve("/sys/x", follow_last=False) == "/sys/x"
        assert tree.resolve("/sys/x/z") == f"{there.rstrip('/')}/z"

    @pytest.mark.parametrize(("first", "second"), [("x", "x"), ("y", "x"), ("y", "../sys/x"), ("x/x/x", "y")])
    def test_that_go_round_in_circles_are_refused(self, first: str, second: str) -> None:
        tree = parsed(f"/sys/x -> {first}", f"/sys/y -> {second}")
        with pytest.raises(KernelRefused) as caught:
            tree.resolve("/sys/x")
        assert caught.value.symbol == "ELOOP"

    @pytest.mark.parametrize(("hops", "fine"), [(40, True), (41, False)])
    def test_follow_one_another_as_often_as_linux_allows(self, hops: int, fine: bool) -> None:
        tree = parsed(*(f"/sys/{n} -> {n + 1}" for n in range(hops)), f"/sys/{hops} = end")
        if fine:
            assert tree.text("/sys/0") == "end"
        else:
            with pytest.raises(KernelRefused):
                tree.text("/sys/0")

    def test_with_an_endless_target_are_refused(self) -> None:
        tree = parsed(f"/sys/x -> {'y/' * 4000}")
        with pytest.raises(KernelRefused) as caught:
            tree.resolve("/sys/x")
        assert caught.value.symbol == "ENAMETOOLONG"

    def test_that_multiply_are_followed_in_no_time(self) -> None:
        tree = parsed(*(f"/sys/{n} -> {'/'.join([f'../sys/{n + 1}/..'] * 9)}/{n + 1}" for n in range(30)), "/sys/30/")
        with pytest.raises(KernelRefused, match=r"/sys/0"):
            tree.text("/sys/0")

    def test_are_followed_anew_when_one_has_changed(self) -> None:
        tree = parsed("/sys/x -> y", "/sys/y/f = old", "/sys/z/f = new")
        assert tree.text("/sys/x/f") == "old"
        tree.remove("/sys/x")
        tree.put_link("/sys/x", "z")
        assert tree.text("/sys/x/f") == "new"


class TestTree:
    def test_forgets_a_path_with_all_below_it(self) -> None:
        tree = parsed("/sys/a/b/c = 1", "/sys/a/b/d -> c", "/sys/a/e ! EIO", "/sys/f/")
        tree.remove("/sys/a")
        assert form(tree) == f"{HEADER}\n/sys/f/\n#end\n"
        tree.remove("/sys/not-there")

    def test_has_every_kind_of_thing(self) -> None:
        tree = parsed("/sys/a = 1", "/sys/b -> a", "/sys/c ! EIO", "/dev/d % c 1 2", "/sys/e/")
        assert all(tree.exists(path) for path in ("/sys/a", "/sys/b", "/sys/c", "/dev/d", "/sys/e", "/sys", "/"))
        assert not tree.exists("/sys/f")

    def test_keeps_what_a_directory_holds(self) -> None:
        tree = parsed("/sys/a/b = 1")
        tree.put_directory("/sys/a")
        assert tree.directories["/sys/a"] == {"b"}


HOST = Recorded(
    parsed(
        "/sys/d/file = text",
        "/sys/d/link -> file",
        "/sys/d/stuck ! EIO",
        "/sys/d/sub/",
        "/sys/d/loop -> loop",
        "/dev/n % b 8 1",
        "hwdb:pci:v1 KEY = name",
        "nvml:0000:41:00.0 name = H100",
        "sim:x native = y",
    ),
    "a host",
)


class TestRecordedHost:
    def test_says_what_it_is(self) -> None:
        assert HOST.description == "a host"
        assert HOST.read_only

    @pytest.mark.parametrize(
        ("path", "symbol"),
        [("/sys/d", "EISDIR"), ("/sys/none", "ENOENT"), ("/sys/d/stuck", "EIO"), ("/sys/d/loop", "ELOOP")],
    )
    def test_refuses_to_read_as_linux_does(self, path: str, symbol: str) -> None:
        with pytest.raises(KernelRefused) as caught:
            HOST.read(path)
        assert (caught.value.symbol, caught.value.path, caught.value.text) == (symbol, path, None)

    def test_reads_files_links_and_directories(self) -> None:
        assert HOST.read("/sys/d/link") == "text"
        assert HOST.link("/sys/d/link") == "file"
        assert HOST.children("/sys/d") == ["file", "link", "loop", "stuck", "sub"]
        assert HOST.device_number("/dev/n") == ("b", 8, 1)

    @pytest.mark.parametrize(
        ("ask", "path", "symbol"),
        [
            ("link", "/sys/d/file", "EINVAL"),
            ("link", "/sys/none", "ENOENT"),
            ("children", "/sys/d/file", "ENOTDIR"),
            ("children", "/sys/none", "ENOENT"),
            ("device_number", "/sys/none", "ENOENT"),
        ],
    )
    def test_refuses_the_wrong_question(self, ask: str, path: str, symbol: str) -> None:
        with pytest.raises(KernelRefused) as caught:
            getattr(HOST, ask)(path)
        assert caught.value.symbol == symbol

    def test_knows_what_is_there(self) -> None:
        assert [HOST.has(f"/sys/d/{name}") for name in ("file", "link", "stuck", "sub", "none", "loop")] == [
            True,
            True,
            True,
            True,
            False,
            False,
        ]

    def test_reads_a_directory_at_once(self) -> None:
        found = HOST.directory("/sys/d", {"file", "link", "stuck", "sub", "none"})
        assert found.names == {"file", "link", "loop", "stuck", "sub"}
        assert (found.texts, found.links) == ({"file": "text"}, {"link": "file", "loop": "loop"})
        assert found.refused == {"stuck": "EIO", "sub": "EISDIR"}

    def test_has_properties(self) -> None:
        assert HOST.properties("pci:v1") == {"KEY": "name"}
        assert HOST.properties("pci:v2") == {}
        known, unknown = "0000:41:00.0", "0000:42:00.0"
        assert HOST.nvml([known, unknown])() == {known: {"name": "H100"}, unknown: {"error": NOT_LISTED}}
        assert Recorded(Tree(), "").nvml([known])() == Unanswered("not recorded")
        unusable = Tree()
        unusable.properties = {"sim:nvml": {"error": "it is old"}, f"nvml:{known}": {"name": "H100"}}
        assert Recorded(unusable, "").nvml([known])() == Unanswered("it is old")

    def test_cannot_be_changed(self, tmp_path: Path) -> None:
        assert not HOST.writable("/sys/d/file")
        with pytest.raises(KernelRefused) as caught:
            HOST.write("/sys/d/file", "1")
        assert caught.value.symbol == "EROFS"
        with pytest.raises(KernelRefused):
            HOST.viable(1)
        with pytest.raises(HostError, match="cannot load"):
            HOST.load("vfio-pci")
        with pytest.raises(HostError, match="read-only"):
            HOST.exclusive(tmp_path / "lock", wait=0)


def test_a_host_file_has_nothing_that_a_terminal_obeys() -> None:
    tree = parse(f"{HEADER}\n", "x.host")
    tree.put("/sys/red\x9b31m", "\x1b[31m \x7f \x85 \x9b31m")
    text = form(tree)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    assert parse(text, "x.host").files == tree.files
