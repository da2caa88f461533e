"""What must hold before a release: `python -m tests.checks.release [TAG]`. See docs/how-to/release.md.

Builds into dist/ and changes nothing else; uploads nothing.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from vfioctl import __version__

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
DATA = ("udev/*.rules", "udev/vfioctl-early", "systemd/*.service", "initramfs/*/*", "libvirt-templates/*.xml")
PROTOCOLS = tuple(f"vfioctl/kubelet/proto/{name}" for name in ("*.proto", "*_pb2.pyi", "LICENSE"))
"""The kubelet's protocol files, and what is generated of them for type checkers."""
_DATA = f"vfioctl-{__version__}.data/data"
_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(?:(?:a|b|rc)[0-9]+)?", re.ASCII)
_SECTION = re.compile(r"^## \[(?P<name>[^\]]+)\](?: - (?P<date>\S+))?$", re.MULTILINE)
_DATE = re.compile(r"20[0-9]{2}-[01][0-9]-[0-3][0-9]", re.ASCII)


def expected() -> set[str]:
    """All that the wheel must hold, by name: modules, protocol files, bundled hosts, udev rules, units, templates,
    manual pages."""
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "vfioctl").rglob("*.py")}
    protocols = {str(path.relative_to(ROOT)) for pattern in PROTOCOLS for path in ROOT.glob(pattern)}
    hosts = {f"vfioctl/hosts/{path.name}" for path in (ROOT / "tests/hosts").glob("*.host")}
    data = {f"vfioctl/data/{path.relative_to(ROOT)}" for pattern in DATA for path in ROOT.glob(pattern)}
    pages = {f"{_DATA}/share/man/man1/{path.name}" for path in (ROOT / "man").iterdir()}
    return sources | protocols | hosts | data | pages | {"vfioctl/py.typed"}


def wrong_in_version(version: str, changelog: str) -> Iterator[str]:
    """What is wrong with the version and its section of the changelog."""
    if not _VERSION.fullmatch(version):
        yield f"{version} in vfioctl/__init__.py is no version to release: X.Y.Z, or X.Y.Zrc1"
    sections = list(_SECTION.finditer(changelog))
    ends = [section.start() for section in sections[1:]] + [len(changelog)]
    texts = {
        section["name"]: changelog[section.end() : end].strip() for section, end in zip(sections, ends, strict=True)
    }
    dates = {section["name"]: section["date"] or "" for section in sections}
    if not texts.get(version):
        yield f"CHANGELOG.md says nothing below a heading ## [{version}] - YYYY-MM-DD"
    elif not _DATE.fullmatch(dates[version]):
        yield f"the section [{version}] of CHANGELOG.md has no date: ## [{version}] - YYYY-MM-DD"
    if texts.get("Unreleased"):
        yield f"CHANGELOG.md has entries below [Unreleased]: move them to [{version}]"


def wrong_in_tree(status: str) -> Iterator[str]:
    """What `git status --porcelain` says."""
    for line in status.splitlines():
        yield f"the tree is not clean: {line}"


def wrong_in_tags(version: str, here: Collection[str], tags: Collection[str], wanted: str = "") -> Iterator[str]:
    """What is wrong with the tags. `here`: those of this commit that are annotated. `tags`: all. `wanted`: a tag that
    must be there; empty before it is made."""
    name = f"v{version}"
    if wanted and wanted != name:
        yield f"{wanted} is not the tag of version {version}: {name}"
    elif wanted and name not in here:
        yield f"{name} is no annotated tag of this commit: git tag --sign {name} --message 'vfioctl {version}'"
    elif name in tags and name not in here:
        yield f"{name} is a tag of another commit already, or a light one: release under another version"
    for other in sorted(here):
        if re.fullmatch("v[0-9].*", other) and other != name:
            yield f"this commit has the tag {other}, and is version {version}"


def wrong_in_wheel(names: Iterable[str]) -> Iterator[str]:
    """What the wheel lacks, and what it has beyond that."""
    shipped = {name for name in names if ".dist-info/" not in name}
    for name in sorted(expected() - shipped):
        yield f"the wheel lacks {name}"
    for name in sorted(shipped - expected()):
        yield f"the wheel has {name}, which does not belong there"


def build() -> Path:
    """The wheel, built anew beside the source distribution."""
    for old in [*DIST.glob("vfioctl-*.whl"), *DIST.glob("vfioctl-*.tar.gz")]:
        old.unlink()
    subprocess.run([sys.executable, "-m", "hatchling", "build", "--directory", str(DIST)], cwd=ROOT, check=True)
    (wheel,) = DIST.glob("vfioctl-*.whl")
    return wheel


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def main(wanted_tag: str = "") -> int:
    here = _git("for-each-ref", "--points-at", "HEAD", "--format", "%(objecttype) %(refname:short)", "refs/tags")
    annotated = [line.removeprefix("tag ") for line in here.splitlines() if line.startswith("tag ")]
    wrong = [
        *wrong_in_version(__version__, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")),
        *wrong_in_tags(__version__, annotated, _git("tag", "--list").split(), wanted_tag),
        *wrong_in_tree(_git("status", "--porcelain")),
    ]
    wheel = build()
    if not wheel.name.startswith(f"vfioctl-{__version__}-"):
        wrong.append(f"{wheel.name} is not of version {__version__}")
    with zipfile.ZipFile(wheel) as content:
        wrong += wrong_in_wheel(content.namelist())
    tagged = f"tagged v{__version__}" if f"v{__version__}" in annotated else "not tagged yet"
    print(*wrong or [f"vfioctl {__version__} can be released, {tagged}: {wheel.relative_to(ROOT)}"], sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
