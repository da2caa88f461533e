"""`vfioctl config`, and the tables of subsystems: what is understood, and each error with file, line and key."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts.machines import unhurried
from tests.unit.conftest import ROOT, Run
from vfioctl.config import line_of, read_file_of
from vfioctl.errors import BadSpec
from vfioctl.placement.model.settings import ClaimSettings, Mode
from vfioctl.settings import problems, validated

MODEL = "vfioctl.placement.model.settings:ClaimSettings"
WHOLE = """\
# how this host is shared
[timeouts]
unbind = "1m30s"

[claims]
reserved = ["41:00.0", "10DE:2330"]
reserved_cpus = "0-1"
partitions = [
    ["0000:1b:00.0", "0000:43:00.0"],   # a pair
    ["0000:52:00.0"],
]

[claims.models]
big = ["H100", "10de:2330"]

[claims.modes]
"0000:41:00.0" = "host"
"10de:20b5" = "vgpu"

[claims.quotas]
"vm/train" = 4
"vm/*" = 2
"team=vision" = 8
"""

ON_HGX8 = WHOLE.replace("41:00.0", "02:00.0").replace("10de:20b5", "1a03:2000")
"""The same, with what that host has."""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "config.toml"
    place.write_text(WHOLE)
    monkeypatch.setenv("VFIOCTL_CONFIG", str(place))
    return place


def test_a_whole_file_is_understood(file: Path) -> None:
    found = validated(read_file_of(file), "claims", MODEL)
    assert isinstance(found, ClaimSettings)
    assert found.reserved == ("0000:41:00.0", "10de:2330")
    assert found.reserved_cpus == (0, 1)
    assert found.partitions == (("0000:1b:00.0", "0000:43:00.0"), ("0000:52:00.0",))
    assert found.modes == {"0000:41:00.0": Mode.HOST, "10de:20b5": Mode.VGPU}
    assert found.quotas == {"vm/train": 4, "vm/*": 2, "team=vision": 8}
    assert found.housekeeping_cpus is None


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "words"),
    [
        ('reserved = ["41:00.0"', 'reserved = ["x"', 6, "claims.reserved.0", "'x' is no device"),
        ('reserved_cpus = "0-1"', 'reserved_cpus = "1-0"', 7, "claims.reserved_cpus", "not a list of numbers"),
        ('reserved_cpus = "0-1"', "reserved_cpus = 5", 7, "claims.reserved_cpus", ""),
        ('["0000:52:00.0"],', "[5],", 8, "claims.partitions.1.0", ""),
        ('["0000:52:00.0"],', '["52"],', 8, "claims.partitions.1.0", "not a PCI address"),
        ("big = [", "big = 5 # [", 14, "claims.models.big", "must be a list"),
        ('= "host"', '= "hots"', 17, "claims.modes.0000:41:00.0", "must be host, passthrough or vgpu"),
        ('"10de:20b5" =', '"10de:20b" =', 18, "claims.modes.10de:20b", "is no device"),
        ('"vm/train" = 4', '"vm/train" = -1', 21, "claims.quotas.vm/train", "must be at least 0"),
        ('"vm/train" = 4', '"vm/train" = true', 21, "claims.quotas.vm/train", "must be a whole number"),
        ('"vm/train" = 4', "train = 4", 21, "claims.quotas.train", "is no owner and no label"),
        ("reserved_cpus", "reserved_cpu", 7, "claims.reserved_cpu", "is not known"),
        ('unbind = "1m30s"', "unbind = 90", 3, "timeouts.unbind", "must be a duration with a unit"),
        ('unbind = "1m30s"', "unbnd = 1", 3, "timeouts.unbnd", "is no timeout"),
        ("[timeouts]", "[timeout]", 2, "timeout", "timeout is no table"),
        ("[claims]\n", "[claims\n", 5, "", "is not TOML"),
    ],
)
def test_each_error_has_its_file_line_and_key(
    run: Run, file: Path, old: str, new: str, line: int, key: str, words: str
) -> None:
    assert old in WHOLE
    file.write_text(WHOLE.replace(old, new))
    text, document = run("config check"), run("config check --json").document
    assert (text.code, document["error"]["exit_code"]) == (2, 2)
    (problem,) = document["error"]["facts"]["problems"]
    assert (problem["file"], problem["line"], problem["key"]) == (str(file), line, key)
    assert words in text.out
    assert f"{file}:{line}: {key}" in text.out or "is not TOML" in text.out
    assert "has an error" in text.err


def test_all_errors_are_listed(run: Run, file: Path) -> None:
    file.write_text(WHOLE.replace('= "host"', '= "x"').replace("= 4", "= -4").replace("reserved =", "reservd ="))
    answer = run("config check")
    assert [line.split(":")[1] for line in answer.out.splitlines()] == ["6", "17", "21"]
    assert f"{file} has 3 errors" in answer.err


def test_a_file_in_order(run: Run, file: Path) -> None:
    file.write_text(ON_HGX8)
    assert run("config check --simulate hgx8").out == f"{file} is in order.\n"
    document = run("config check --json --simulate hgx8").document
    assert document == {"file": str(file), "exists": True, "problems": []}


def test_all_errors_of_all_tables_are_listed_at_once(run: Run, file: Path) -> None:
    file.write_text(
        "[claim]\n[timeouts]\nunbnd = 1\nload = 0\nreset = 'x'\n[holders]\nbelieved_users = 1\nusers = []\n"
        "[claims]\nreserved = 1\nrenew_cdi = 1\n[domain]\nconnect = 1\nuri = ''\n[cluster]\n"
    )
    problems = run("config check --json").document["error"]["facts"]["problems"]
    assert [problem["line"] for problem in problems] == [1, 3, 4, 5, 7, 8, 10, 11, 13, 14, 15]


def test_what_the_host_does_not_have_is_an_error(run: Run, file: Path) -> None:
    """The host has 192 CPUs. A table of another subsystem, and the aliases of models, name no device of the host."""
    text = ON_HGX8.replace('"0000:1b:00.0", ', '"0000:1c:00.0", ').replace('"0-1"', '"0-1,190-195"')
    text = text.replace('"1a03:2000" =', '"10de:ffff" =').replace('"02:00.0", ', '"02:00.0", "03:00.0", ')
    file.write_text(f'{text}\n[domain]\nconnect = "qemu:///system"\n')
    answer = run("config check --simulate hgx8")
    assert answer.code == 2
    assert [line.removeprefix(f"{file}:") for line in answer.out.splitlines()] == [
        "6: claims.reserved.1 is 0000:03:00.0, which this host does not have",
        "7: claims.reserved_cpus has CPUs 192-195, which this host does not have online",
        "8: claims.partitions.0.0 is 0000:1c:00.0, which this host does not have",
        "18: claims.modes.10de:ffff is 10de:ffff, which this host does not have",
    ]
    assert len(run("config check --json --simulate hgx8").document["error"]["facts"]["problems"]) == 4


def test_each_setting_in_force_is_shown_with_its_source(run: Run, file: Path) -> None:
    file.write_text('[timeouts]\ndefault = "20s"\nunit = "90s"\n[holders]\n[domain]\nconnect = "qemu:///session"\n')
    document = run("config show --json").document
    timeouts, sources = document["timeouts"], document["sources"]
    shown = {name: (timeouts[name], sources["timeouts"][name]) for name in ("default", "unit", "remove", "libvirt")}
    assert shown == {
        "default": ("20s", "file"),
        "unit": ("90s", "file"),
        "remove": ("20s", "default"),
        "libvirt": ("60s", "default"),
    }
    assert (document["holders"]["believed_users"][0], sources["holders"]) == ("root", {"believed_users": "default"})
    assert (document["domain"]["connect"], sources["domain"]) == ("qemu:///session", {"connect": "file"})
    assert set(sources["claims"].values()) == {"default"}
    assert {name: set(table) for name, table in sources.items()} == {name: set(document[name]) for name in sources}
    lines = run("config show").out.splitlines()
    assert {'remove = "20s"  # default', 'unit = "90s"', "quotas = {}  # default", "[domain]"} <= set(lines)


def test_what_is_shown_of_lists_of_tables_is_a_configuration(run: Run, file: Path) -> None:
    file.write_text(f'{ON_HGX8}[[kubelet.resources]]\nname = "a.b/c"\n[[kubelet.resources]]\nname = "a.b/d"\n')
    before, shown = run("config show --json").document, run("config show").out
    file.write_text(shown)
    after = run("config show --json").document
    assert {**after, "sources": {}} == {**before, "sources": {}}
    assert after["kubelet"]["resources"][1]["name"] == "a.b/d"


def test_no_file_is_in_order_too(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("vfioctl.config.CONFIG", tmp_path / "none")
    monkeypatch.delenv("VFIOCTL_CONFIG", raising=False)
    assert run("config check").out == f"There is no {tmp_path / 'none'}: the defaults are used.\n"
    assert run("config show --json").document["claims"]["quotas"] == {}


def test_what_is_in_force_is_shown_in_the_form_of_the_file(run: Run, file: Path, tmp_path: Path) -> None:
    shown = run("config show").out
    assert 'unbind = "90s"\n' in shown
    assert 'default = "30s"  # default\n' in shown
    assert '[claims.modes]\n"0000:41:00.0" = "host"\n' in shown
    again = tmp_path / "again.toml"
    again.write_text(shown)
    assert not list(problems(read_file_of(again)))
    assert validated(read_file_of(again), "claims", MODEL) == validated(read_file_of(file), "claims", MODEL)
    document = run("config show --json").document
    assert document["timeouts"]["unbind"] == "90s"
    assert document["claims"]["models"] == {"big": ["H100", "10de:2330"]}


def test_the_examples_in_the_reference_are_in_order(run: Run, file: Path) -> None:
    page = (ROOT / "docs/reference/configuration.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(examples) > 1
    for example in examples:
        file.write_text(example)
        assert run("config check --simulate hgx8").code == 0


def test_a_wrong_file_is_not_shown(run: Run, file: Path) -> None:
    file.write_text("[claims]\nreserved = 1\n")
    answer = run("config show")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"vfioctl: {file}:2: claims.reserved must be a list")


def test_a_listing_needs_no_right_table_of_claims(run: Run, file: Path) -> None:
    file.write_text("[claims]\nreserved = 1\n")
    assert run("inventory --host laptop").err == ""
    assert run("inventory").code == 0


@pytest.mark.parametrize(
    ("text", "keys", "line"),
    [
        ("a = 1\nb = 2\n", ["b"], 2),
        ("[a]\n\n# c\n[a.b]\nc = 1\n", ["a", "b", "c"], 5),
        ("[a]\nb.c = 1\nb.d = 2\n", ["a", "b", "d"], 3),
        ('[a]\n"b.c" = 1\n', ["a", "b.c"], 2),
        ("[a]\nb = [\n1,\n2,\n]\nc = 3\n", ["a", "c"], 6),
        ("[a]\nb = [\n1,\n2,\n]\nc = 3\n", ["a", "b", 1], 2),
        ("[a]\nb = {c = 1}\n", ["a", "b", "c"], 2),
        ("[a]\nb = 1\n", ["a", "x"], 1),
        ("[a]\nb = 1\n", ["x"], None),
        ('[a]\nb = """\n[c]\nd = 1\n"""\n[c]\nd = 2\n', ["c", "d"], 7),
        ("[[a]]\nb = 1\n", ["a"], 1),
        ("[[a]]\nb = 1\n[[a]]\nb = 2\n", ["a", 1, "b"], 4),
        ("[[a]]\nb = 1\n[[a]]\nc = 2\n", ["a", 1, "b"], 3),
        ("[a]\n[[a.b]]\nc = 1\n[[a.d]]\nc = 2\n", ["a", "d", 0, "c"], 5),
        ("x = 1\n[[a.b]]\nc = 1\n", ["a"], 2),
    ],
)
def test_the_line_of_a_key(text: str, keys: list[str | int], line: int | None) -> None:
    assert line_of(text, keys) == line


values = st.recursive(
    st.integers() | st.text(max_size=5) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@unhurried
@given(st.dictionaries(st.sampled_from([*(each.name for each in fields(ClaimSettings)), "x"]), values, max_size=4))
def test_whatever_the_table_holds_it_is_understood_or_refused_with_its_key(table: dict[str, object]) -> None:
    def toml(value: object) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + "}"
        return "[" + ", ".join(map(toml, value)) + "]" if isinstance(value, list) else json.dumps(value)

    with tempfile.NamedTemporaryFile() as place:
        lines = [f"{key} = {toml(value)}" for key, value in table.items()]
        place.write("\n".join(["[claims]", *lines]).encode("utf-8", "surrogatepass"))
        place.flush()
        refused: BadSpec | None = None
        try:
            file = read_file_of(Path(place.name))
        except BadSpec:
            return  # a text that TOML cannot hold
        try:
            validated(file, "claims", MODEL)
        except BadSpec as error:
            refused = error
    if refused:
        number = refused.facts["line"]
        assert isinstance(number, int)
        assert str(refused.facts["key"]).split(".")[1] == lines[number - 2].partition(" ")[0]
