"""Texts in TOML, YAML and JSON that cost a parser much, or that it cannot read, are refused at once and in words."""

import re
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from vfioctl.containers.oci.document import CLAIM, NODES, injected, read_config
from vfioctl.errors import BadDocument
from vfioctl.untrusted_text import (
    MOST_BYTES,
    MOST_BYTES_YAML,
    MOST_TOKENS,
    MOST_TOKENS_TOML,
    MOST_TOKENS_YAML,
    kind_of_yaml,
    parse_json,
    parse_toml,
    parse_yaml,
)

SECONDS, MOST_MEMORY = 5.0, 64 << 20
COSTLY = {
    "dotted keys of TOML, 24 KB": (parse_toml, ".".join("a" * 12_000) + " = 1", "nested too deeply"),
    "dotted keys of TOML, 60 KB": (parse_toml, f"[{'.'.join('a' * 30_000)}]", "nested too deeply"),
    "dotted keys in quotes": (parse_toml, '"a" . ' * 4000 + "b = 1", "nested too deeply"),
    "dotted keys behind an escape": (
        parse_toml,
        'x = "\\\\"\n' + "a." * 9000 + "b=1",
        "deeply",
    ),
    "many dotted keys": (parse_toml, "".join(f"{'a.' * 16}k{n} = 1\n" for n in range(30_000)), "too many values"),
    "arrays of TOML": (parse_toml, "x = " + "[" * 5000, "nested too deeply"),
    "inline tables of TOML": (parse_toml, "x = " + "{a = " * 5000, "nested too deeply"),
    "a key of 900 KB in TOML": (parse_toml, f"{'k' * 900_000} = 1", "a key is too long"),
    "a key of 900 KB in quotes in TOML": (parse_toml, f'"{"k" * 900_000}" = 1', "a key is too long"),
    "base-60 integers": (parse_yaml, "a: 1" + ":1" * 50_000, "not of its type int"),
    "base-60 numbers": (parse_yaml, "a: 1" + ":1" * 50_000 + ".5", "not of its type float"),
    "a long integer": (parse_yaml, "a: " + "9" * 100_000, "not of its type int"),
    "repeated dashes": (parse_yaml, "- " * 30_000, "nested too deeply"),
    "repeated question marks": (parse_yaml, "? " * 30_000, "nested too deeply"),
    "brackets of YAML": (parse_yaml, "[" * 30_000, "nested too deeply"),
    "a key of 900 KB in YAML": (parse_yaml, f"? {'k' * 900_000}\n: 1", "a key is too long"),
    "many entries of YAML": (parse_yaml, "- a\n" * 60_000, "too many values"),
    "!!bool foo": (parse_yaml, "a: !!bool foo", "not of its type bool"),
    '!!int ""': (parse_yaml, 'a: !!int ""', "not of its type int"),
    '!!float ""': (parse_yaml, 'a: !!float ""', "not of its type float"),
    "!!timestamp foo": (parse_yaml, "a: !!timestamp foo", "not of its type timestamp"),
    "a date that there is not": (parse_yaml, "a: 2026-02-31", "not of its type timestamp"),
    "an unknown tag": (parse_yaml, f"a: !{'x' * 5000} b", "could not determine a constructor"),
    "an object of Python": (parse_yaml, "a: !!python/object/apply:os.system [id]", "could not determine a constructor"),
    "aliases": (parse_yaml, "a: &x [1]\nb: *x", "aliases are not allowed"),
    "repeated dashes of cloud-init": (kind_of_yaml, "- " * 30_000, "nested too deeply"),
    "objects of JSON, 600 levels": (parse_json, '{"a":' * 600 + "1" + "}" * 600, "nested too deeply"),
    "arrays of JSON": (parse_json, "[" * 300_000, "nested too deeply"),
    "a key of 900 KB in JSON": (parse_json, f'{{"{"k" * 900_000}": 1}}', "a key is too long"),
    "escaped quotes that never end": (parse_json, '"' + '\\"' * 1_000_000, "no JSON"),
    "many empty arrays": (parse_json, f"[{'[],' * 1_300_000}1]", "too many values"),
    "a long integer of JSON": (parse_json, "[" + "9" * 100_000 + "]", "no JSON"),
    "a text that is too large": (parse_json, " " * (MOST_BYTES + 1), "larger than 4 MiB"),
    "bytes that are no text": (parse_toml, b"\xff", "not UTF-8"),
}


@pytest.mark.parametrize("name", COSTLY)
def test_what_costs_too_much_is_refused_at_once_and_in_few_words(name: str) -> None:
    parse, text, words = COSTLY[name]
    began = time.process_time()
    if parse is parse_toml:  # it makes the other parsers slow
        tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=words) as refused:
            parse(text)  # type: ignore[operator]
        peak = tracemalloc.get_traced_memory()[1]  # 0 if it does not trace
    finally:
        tracemalloc.stop()
    assert len(str(refused.value)) < 300
    assert type(refused.value).__module__ in ("builtins", "tomllib")
    assert peak < MOST_MEMORY
    assert time.process_time() - began < 2 * SECONDS


LARGEST: dict[str, tuple[Callable[[str], object], str]] = {
    "text of TOML": (parse_toml, 'a="""' + '""x' * (MOST_BYTES // 3 - 9) + '"""'),
    "lines of TOML": (parse_toml, 'a="""' + "\n" * (MOST_BYTES - 9) + '"""'),
    "values of TOML": (parse_toml, f"a=[{'1,' * (MOST_TOKENS_TOML // 2 - 9)}]"),
    "parts of keys of TOML": (parse_toml, "".join(f"k{n}{'.a' * 16}=1\n" for n in range(MOST_TOKENS_TOML // 36))),
    "depth of TOML": (parse_toml, f"a=[{('[' * 60 + ']' * 60 + ',') * (MOST_TOKENS_TOML // 122)}]"),
    "digits of TOML": (parse_toml, f"a=[{('9' * 250 + ',') * (MOST_BYTES // 251 - 9)}]"),
    "text of JSON": (parse_json, f'"{chr(92)}n{"x" * (MOST_BYTES - 9)}"'),
    "values of JSON": (parse_json, f"[{'1,' * (MOST_TOKENS - 9)}1]"),
    "keys of JSON": (parse_json, f"{{{','.join(f'{chr(34)}{n}{chr(34)}:1' for n in range(MOST_TOKENS // 3 - 9))}}}"),
    "depth of JSON": (parse_json, f"[{('[' * 60 + ']' * 60 + ',') * (MOST_TOKENS // 121 - 9)}1]"),
    "digits of JSON": (parse_json, f"[{('9' * 4000 + ',') * (MOST_BYTES // 4001 - 9)}1]"),
    "words of YAML": (parse_yaml, f"a: {'x ' * (MOST_BYTES_YAML // 2 - 9)}"),
    "lines of YAML": (parse_yaml, f"a: {'x' + chr(10) + ' '}" + "x\n " * (MOST_BYTES_YAML // 3 - 9)),
    "comments of YAML": (parse_yaml, "#\n" * (MOST_BYTES_YAML // 2)),
    "keys of YAML": (parse_yaml, "".join(f"k{n}: 1\n" for n in range(MOST_TOKENS_YAML // 4 - 9))),
    "numbers of YAML": (parse_yaml, f"[{'1:59:59:59:59:59:59:59,' * (MOST_TOKENS_YAML // 2 - 9)}]"),
    "depth of YAML": (parse_yaml, "- a\n" + ("- " * 60 + "a\n") * (MOST_TOKENS_YAML // 183)),
    "merges of YAML": (parse_yaml, f"a: {'{<<: ' * 30}{{{','.join(f'k{n}: 1' for n in range(9_000))}}}{'}' * 30}"),
    "aliases of cloud-init": (kind_of_yaml, "- &a x\n" + "- *a\n" * (MOST_TOKENS_YAML // 2 - 9)),
}
"""Each limit at its edge, with what costs most below it: 1.1 s at most on a machine of 2023."""


@pytest.mark.alone
@pytest.mark.parametrize("name", LARGEST)
def test_the_most_that_is_accepted_takes_seconds(name: str) -> None:
    """Size and number of values bound the CPU time, so the parsers need no clock."""
    parse, text = LARGEST[name]
    began = time.process_time()
    parse(text)
    assert time.process_time() - began < SECONDS


def test_a_string_may_hold_what_would_cost_much_elsewhere() -> None:
    dots = "a." * 1000
    assert parse_toml(f'x = "{dots}"\ny = \'{dots}\'\nz = """\n{dots}"""\n# {dots}\n') == {
        "x": dots,
        "y": dots,
        "z": dots,
    }
    assert parse_json('{"x": "' + "[" * 1000 + '"}') == {"x": "[" * 1000}
    assert parse_yaml('x: "' + "[" * 1000 + '"') == {"x": "[" * 1000}


def test_ordinary_documents_are_read() -> None:
    assert parse_toml('[a.b]\n"c d" = [1.5, {e.f = 2026-11-01}]')["a"]["b"]["c d"][0] == 1.5
    assert parse_yaml("a:\n- b: 12\n  c: 1:30\n") == {"a": [{"b": 12, "c": 90}]}
    assert parse_json(b'\xef\xbb\xbf{"a": [1, null]}') == {"a": [1, None]}


def test_strict_json_has_each_key_once_and_no_nan() -> None:
    assert parse_json('{"a": 1, "a": NaN}')["a"] != 1
    with pytest.raises(ValueError, match="'a' is there twice"):
        parse_json('{"a": 1, "a": 2}', strict=True)
    with pytest.raises(ValueError, match="NaN is not a number of JSON"):
        parse_json('{"a": NaN}', strict=True)


def test_20_000_devices_of_a_bundle_are_edited_in_linear_time() -> None:
    count = 20_000
    nodes = [{"path": f"/dev/x{n}", "type": "c", "major": 240, "minor": n} for n in range(count)]
    rules = [{"allow": True, "type": "c", "major": 240, "minor": n, "access": "rw"} for n in range(count)]
    notes = {CLAIM: "1a2b3c4d", NODES: ",".join(str(node["path"]) for node in nodes)}
    linux = {"devices": nodes, "resources": {"devices": [{"allow": False}, {"allow": True, "major": [1]}, *rules]}}
    began = time.process_time()
    edited = injected({"ociVersion": "1.0.2", "linux": linux, "annotations": notes}, "1a2b3c4d", ()).document
    assert time.process_time() - began < SECONDS
    assert edited["linux"]["devices"] == []
    assert edited["linux"]["resources"]["devices"] == [{"allow": False}, {"allow": True, "major": [1]}]


def test_a_bundle_whose_config_is_600_levels_deep_is_refused() -> None:
    deep = '{"ociVersion": "1.0.2", "x": ' + "[" * 600 + "]" * 600 + "}"
    with pytest.raises(BadDocument, match=r"config\.json: nested too deeply"):
        read_config(deep.encode())


PARSERS = re.compile(r"\bjson\.loads?\(|\btomllib\b|\byaml\.(?:safe_|full_)?(?:load|scan|compose|parse)|\bSafeLoader\b")
EXCEPT = {
    "untrusted_text.py": "it is the one",
    "console/documents.py": "what vfioctl itself has just written",
    "containers/cli/cdi.py": "what vfioctl itself has just written",
    "claims/model/claim.py": "what vfioctl itself has just written",
    "kernel/program_feed.py": "what its own process has just written",
}


def test_no_other_module_calls_a_parser() -> None:
    folder = Path(__file__).parents[2] / "vfioctl"
    found = {str(file.relative_to(folder)) for file in folder.rglob("*.py") if PARSERS.search(file.read_text())}
    assert found == set(EXCEPT)
