"""The checks before a commit and a release: the Makefile and the hooks run the same commands, and the gates close."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from tests.checks import branches, release

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
HOOKS = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def recipe(target: str) -> list[str]:
    """The lines that a target runs, without those of what it needs."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert found, target
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in found[1].splitlines()]


def test_the_hooks_run_what_make_check_runs() -> None:
    entries = re.findall(r"^ +entry: (.+)$", HOOKS, re.MULTILINE)
    assert re.search(r"^check: style\b", MAKEFILE, re.MULTILINE)
    assert entries == [*recipe("style"), *recipe("check")]


def test_the_hooks_download_nothing_and_look_at_all_files() -> None:
    hooks = len(re.findall(r"^ +- id: ", HOOKS, re.MULTILINE))
    assert re.findall(r"^ +- repo: (.+)$", HOOKS, re.MULTILINE) == ["local"]
    for setting in ("language: system", "pass_filenames: false", "always_run: true"):
        assert HOOKS.count(f"        {setting}\n") == hooks, setting


def test_every_target_is_phony_and_listed() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)
    listed = re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE)
    assert sorted(phony.split()) == sorted(listed)


class TestTheGateOfBranches:
    def test_counts_branches_only(self) -> None:
        coverage = PROJECT["tool"]["coverage"]
        assert coverage["run"]["branch"] is True
        assert coverage["report"]["fail_under"] == branches.needed() == 95
        assert any("tests.checks.branches" in line for line in recipe("coverage"))

    @pytest.mark.parametrize(("covered", "code"), [(1000, 0), (950, 0), (949, 1), (0, 1)])
    def test_is_at_95_of_100(self, covered: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        totals = {"covered_branches": covered, "num_branches": 1000, "covered_lines": 10**6, "num_statements": 10**6}
        files = {"vfioctl/x.py": {"summary": {"missing_branches": 1000 - covered}}}
        report = tmp_path / "coverage.json"
        report.write_text(json.dumps({"totals": totals, "files": files}), encoding="utf-8")
        assert branches.main([str(report)]) == code
        assert ("not taken in vfioctl/x.py" in capsys.readouterr().out) is bool(code)

    def test_is_open_where_there_is_nothing_to_cover(self) -> None:
        assert branches.percent({"covered_branches": 0, "num_branches": 0}) == 100.0


class TestTheCheckOfARelease:
    CHANGES = (
        "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2026-01-31\n\n- New.\n\n## [1.1.0] - 2025-12-01\n\n- Old.\n"
    )

    def test_passes_a_version_with_its_section(self) -> None:
        assert list(release.wrong_in_version("1.2.0", self.CHANGES)) == []
        assert list(release.wrong_in_version("1.2.0rc1", self.CHANGES.replace("1.2.0", "1.2.0rc1"))) == []

    @pytest.mark.parametrize(
        ("version", "old", "new", "why"),
        [
            ("1.3.0", "", "", r"nothing below a heading ## \[1.3.0\]"),
            ("1.2.0", "- New.", "", r"nothing below a heading ## \[1.2.0\]"),
            ("1.2.0", " - 2026-01-31", "", "has no date"),
            ("1.2.0", "2026-01-31", "soon", "has no date"),
            ("1.2.0", "[Unreleased]\n", "[Unreleased]\n\n- Newer.\n", r"entries below \[Unreleased\]"),
            ("1.2.0.dev1", "1.2.0", "1.2.0.dev1", "is no version to release"),
        ],
    )
    def test_names_what_is_wrong(self, version: str, old: str, new: str, why: str) -> None:
        (wrong,) = release.wrong_in_version(version, self.CHANGES.replace(old, new) if old else self.CHANGES)
        assert re.search(why, wrong)

    @pytest.mark.parametrize(
        ("here", "tags", "wanted"),
        [((), ("v1.1.0",), ""), (("v1.2.0",), ("v1.1.0", "v1.2.0"), ""), (("v1.2.0", "lts"), ("v1.2.0",), "v1.2.0")],
    )
    def test_passes_a_tag_of_the_version(self, here: tuple[str, ...], tags: tuple[str, ...], wanted: str) -> None:
        assert list(release.wrong_in_tags("1.2.0", here, tags, wanted)) == []

    @pytest.mark.parametrize(
        ("here", "tags", "wanted", "why"),
        [
            ((), ("v1.2.0",), "", "a tag of another commit already"),
            ((), ("v1.2.0",), "v1.2.0", "no annotated tag of this commit"),
            ((), (), "v1.2.0", "git tag --sign v1.2.0"),
            ((), (), "v1.3.0", "not the tag of version 1.2.0"),
            (("v1.1.0",), ("v1.1.0",), "", "has the tag v1.1.0, and is version 1.2.0"),
        ],
    )
    def test_names_what_is_wrong_with_a_tag(
        self, here: tuple[str, ...], tags: tuple[str, ...], wanted: str, why: str
    ) -> None:
        wrong = list(release.wrong_in_tags("1.2.0", here, tags, wanted))
        assert why in wrong[0]

    def test_names_what_is_not_committed(self) -> None:
        assert list(release.wrong_in_tree("")) == []
        assert list(release.wrong_in_tree(" M a\n?? b\n")) == [
            "the tree is not clean:  M a",
            "the tree is not clean: ?? b",
        ]

    def test_names_what_the_wheel_lacks_and_what_it_has_too_much(self) -> None:
        names = {*release.expected(), "vfioctl-1.2.0.dist-info/METADATA"}
        assert list(release.wrong_in_wheel(names)) == []
        names = names - {"vfioctl/data/udev/60-vfioctl.rules"} | {"vfioctl/hosts/recorded/x.host"}
        assert [line.partition(" vfioctl/")[0] for line in release.wrong_in_wheel(names)] == [
            "the wheel lacks",
            "the wheel has",
        ]
