"""Builds vfioctl's package for Debian 12: `python packaging/deb/build.py WHEEL WHEELS OUT`, or `make deb`.

WHEEL is vfioctl's own, WHEELS a directory with those of the libraries, as requirements-run.lock has them, OUT the
directory for the package. Needs dpkg-deb, strip and the Python of Debian 12, and neither root nor a network. The same
inputs give the same package, byte for byte."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.parser import Parser
from email.utils import format_datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from vfioctl import __version__  # noqa: E402
from vfioctl.console.completion import SCRIPTS  # noqa: E402
from vfioctl.persist.model.installed import FILES, IN_PACKAGE, OPTIONAL_UNIT_NAMES, UNIT_NAMES  # noqa: E402

PYTHON = (3, 11)
HOME = "opt/vfioctl"
SITE = f"{HOME}/lib/python3.11/site-packages"
DOCUMENTS = "usr/share/doc/vfioctl"
COMPLETIONS: Mapping[str, str] = {
    "bash": "usr/share/bash-completion/completions/vfioctl",
    "zsh": "usr/share/zsh/vendor-completions/_vfioctl",
    "fish": "usr/share/fish/vendor_completions.d/vfioctl.fish",
}
SYSTEM_SITE = "/usr/lib/python3/dist-packages"
LIBVIRT = ("libvirt.py", "libvirt_qemu.py", "libvirtmod.cpython-311-{}.so", "libvirtmod_qemu.cpython-311-{}.so")
"""Of Debian's python3-libvirt, which is made for Debian's libvirt: links, that lead nowhere if it is not installed."""
PROGRAM = f"""#!/{HOME}/bin/python3 -I
from vfioctl.app import console

console()
"""
ENVIRONMENT = "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11\n"
EXTRAS = "tui,yaml,cloud-init,kubelet"
MAINTAINER = "vfioctl maintainers <vfioctl@packages.debian.org>"
_DATED = re.compile(r"^## \[(?P<version>[^\]]+)\] - (?P<date>\d{4}-\d\d-\d\d)$", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build vfioctl's package for Debian 12.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("wheels", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--version", default=f"{__version__}-1", help="of the package")
    parser.add_argument("--compress", default="xz", choices=("xz", "gzip"), help="gzip takes less time")
    options = parser.parse_args()
    if sys.version_info[:2] != PYTHON:
        sys.exit(f"a package for Debian 12 needs its Python, 3.11; this is {sys.version.split()[0]}")
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        install_environment(tree, options.wheel, options.wheels)
        install_files(tree)
        install_documents(tree, options.version)
        install_control(tree, options.version)
        print(pack(tree, options.out, options.version, options.compress))


def install_environment(tree: Path, wheel: Path, wheels: Path) -> None:
    """Install the wheels, and a program in place of pip's, whose first line would name the building directory."""
    locked = (ROOT / "requirements-run.lock").read_text()
    for file in sorted(wheels.glob("*.whl")):
        if f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}" not in locked:
            sys.exit(f"{file} is not in requirements-run.lock")
    site = tree / SITE
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-index"]
    pip += ["--no-compile", "--only-binary", ":all:", "--find-links", str(wheels), "--target", str(site)]
    pip += [f"{wheel}[{EXTRAS}]"]
    subprocess.run(pip, check=True)
    for name in ("bin", "share"):
        shutil.rmtree(site / name, ignore_errors=True)
    for address in site.glob("*.dist-info/direct_url.json"):  # names the building directory
        address.unlink()
    for record in site.glob("*.dist-info/RECORD"):
        lines = record.read_text().splitlines(keepends=True)
        record.write_text("".join(line for line in lines if (site / line.partition(",")[0]).exists()))
    put(tree / HOME / "pyvenv.cfg", ENVIRONMENT)
    put(tree / HOME / "bin/vfioctl", PROGRAM, mode=0o755)
    link(tree / HOME / "bin/python3", "/usr/bin/python3")
    link(tree / "usr/bin/vfioctl", f"/{HOME}/bin/vfioctl")
    machine = sysconfig.get_config_var("MULTIARCH")
    for name in LIBVIRT:
        link(site / name.format(machine), f"{SYSTEM_SITE}/{name.format(machine)}")
    for file in site.rglob("*"):
        if file.is_file() and not file.is_symlink():
            file.chmod(0o755 if file.read_bytes()[:2] == b"#!" and file.suffix != ".py" else 0o644)
    libraries = [str(file) for file in site.rglob("*.so") if not file.is_symlink()]
    subprocess.run(["strip", "--strip-unneeded", *libraries], check=True)


def install_files(tree: Path) -> None:
    """Install what a boot needs, and completions."""
    for path, source in FILES.items():
        text = (ROOT / source).read_text()
        put(tree / IN_PACKAGE[path].removeprefix("/"), text, mode=0o755 if text.startswith("#!") else 0o644)
    for shell, path in COMPLETIONS.items():
        put(tree / path, SCRIPTS[shell] + "\n")


def install_documents(tree: Path, version: str) -> None:
    """Install the manual pages, the changelogs, the licences, and the pages that the units name."""
    for page in sorted((ROOT / "man").iterdir()):
        put_packed(tree / f"usr/share/man/man1/{page.name}.gz", page.read_text())
    changelog = (ROOT / "CHANGELOG.md").read_text()
    put_packed(tree / DOCUMENTS / "changelog.gz", changelog)
    entry = f"vfioctl ({version}) bookworm; urgency=medium\n\n  * Release {__version__}: see changelog.gz.\n\n"
    entry += f" -- {maintainer()}  {format_datetime(released(changelog))}\n"
    put_packed(tree / DOCUMENTS / "changelog.Debian.gz", entry)
    put(tree / DOCUMENTS / "copyright", (HERE / "copyright").read_text().replace("@LIBRARIES@", licences(tree)))
    put(tree / "usr/share/lintian/overrides/vfioctl", (HERE / "lintian-overrides").read_text())
    for unit in (ROOT / "systemd").iterdir():
        for name in re.findall(rf"^Documentation=file:///{DOCUMENTS}/(.+)$", unit.read_text(), re.MULTILINE):
            put(tree / DOCUMENTS / name, (ROOT / "docs/how-to" / name).read_text())


def licences(tree: Path) -> str:
    """Return a line for each library: its name, its version, and the licence that it states."""
    lines = []
    for file in sorted((tree / SITE).glob("*.dist-info/METADATA")):
        about = Parser().parsestr(file.read_text(), headersonly=True)
        classes = [text.rpartition(" :: ")[2] for text in about.get_all("Classifier", []) if text.startswith("License")]
        licence = about["License-Expression"] or ", ".join(classes) or about["License"]
        if about["Name"] != "vfioctl":
            lines.append(f" {about['Name']} {about['Version']}: {licence}")
    return "\n".join(lines)


def install_control(tree: Path, version: str) -> None:
    """Install the control file, the maintainer scripts, and the checksums."""
    words = {
        "VERSION": version,
        "ARCHITECTURE": said("dpkg", "--print-architecture"),
        "MAINTAINER": maintainer(),
        "SIZE": str(sum(-(-file.lstat().st_size // 1024) for file in files_of(tree))),
        "UNITS": " ".join(sorted(UNIT_NAMES)),
        "OPTIONAL": " ".join(sorted(OPTIONAL_UNIT_NAMES)),
    }
    sums = [
        f"{hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()}  {file.relative_to(tree)}\n"
        for file in files_of(tree)
        if not file.is_symlink()
    ]
    put(tree / "DEBIAN/md5sums", "".join(sums))
    for name in ("control", "preinst", "postinst", "prerm", "postrm"):
        text = re.sub("@([A-Z]+)@", lambda match: words[match[1]], (HERE / name).read_text())
        put(tree / "DEBIAN" / name, text, mode=0o644 if name == "control" else 0o755)


def pack(tree: Path, out: Path, version: str, compress: str) -> Path:
    """Make the package, with the time of the release as that of all files."""
    out.mkdir(parents=True, exist_ok=True)
    package = out / f"vfioctl_{version}_{said('dpkg', '--print-architecture')}.deb"
    time = int(released((ROOT / "CHANGELOG.md").read_text()).timestamp())
    for file in tree.rglob("*"):
        os.utime(file, (time, time), follow_symlinks=False)
    command = ["dpkg-deb", f"-Z{compress}", "--root-owner-group", "--build", str(tree), str(package)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(time)}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return package


def files_of(tree: Path) -> Iterator[Path]:
    """Yield the files and links in order, without those of DEBIAN."""
    paths = (path for path in sorted(tree.rglob("*")) if path.is_symlink() or path.is_file())
    return (path for path in paths if path.relative_to(tree).parts[0] != "DEBIAN")


def released(changelog: str) -> datetime:
    """Return the time of the last release that has a date."""
    found = _DATED.search(changelog)
    if found is None:
        sys.exit("CHANGELOG.md has no release with a date")
    return datetime.fromisoformat(found["date"]).replace(tzinfo=UTC)


def maintainer() -> str:
    """Return who builds the package, as Debian's own tools are told it."""
    name, mail = os.environ.get("DEBFULLNAME"), os.environ.get("DEBEMAIL")
    return f"{name} <{mail}>" if name and mail else MAINTAINER


def said(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def put(file: Path, text: str, *, mode: int = 0o644) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)


def put_packed(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


def link(file: Path, target: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.symlink_to(target)


if __name__ == "__main__":
    main()
