"""What is shipped: the wheel's content, the rules and templates in it, and the one list of Debian packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.checks import release
from tests.libvirt_schema import validated
from vfioctl.app import main
from vfioctl.kernel.mps import PROGRAM
from vfioctl.persist.model.installed import IN_PACKAGE, OPTIONAL_UNIT_NAMES, STARTED_UNIT_NAMES, UNIT_NAMES

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = sorted((ROOT / "libvirt-templates").glob("*.xml"))
RULES = sorted((ROOT / "udev").glob("*.rules"))
UNITS = sorted((ROOT / "systemd").glob("*.service"))
RESTORE = ROOT / "systemd/vfioctl-restore.service"
KUBELET = ROOT / "systemd/vfioctl-kubelet.service"
SHARE = ROOT / "systemd/vfioctl-share.service"
FAMILIES = {
    RESTORE: "AF_UNIX",
    KUBELET: "AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    SHARE: "AF_UNIX AF_INET AF_INET6",
}
"""The sockets of the units that run as long as a boot, and longer."""
NAMESPACES = {RESTORE: "yes", KUBELET: "mnt", SHARE: "mnt"}
CALLS = {
    RESTORE: {"@system-service", "@module"},
    KUBELET: {"@system-service", "@module", "mount"},
    SHARE: {"@system-service", "mount"},
}
"""NVML's program hides the nodes of other GPUs, which takes both a namespace and mount(2)."""
WRITABLE = {KUBELET: ["-/var/lib/kubelet/device-plugins"]}
EXPOSURE = {RESTORE: 40, KUBELET: 44, SHARE: 42}
"""Tenths, on systemd's scale from 0 to 10. Without these directives it was 9.6. Sockets of the network count 0.3."""
HARDENED = {
    "ProtectSystem": "strict",
    "StateDirectoryMode": "0700",
    "UMask": "0077",
    "SystemCallArchitectures": "native",
    **dict.fromkeys(("NoNewPrivileges", "PrivateTmp", "PrivateMounts", "ProtectHome", "ProtectKernelLogs"), "yes"),
    **dict.fromkeys(("RestrictSUIDSGID", "RestrictRealtime", "LockPersonality"), "yes"),
}
"""What these units have."""
NVIDIAS = f"/usr/bin/{PROGRAM}"
"""The program of NVIDIA's that a unit of ours runs."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = {name: (ROOT / f"requirements-{name}.lock").read_text() for name in ("run", "dev", "libvirt", "mutants")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    assert find_spec("hatchling"), "the development environment builds the wheel: make check"
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built)


def test_the_wheel_has_the_package_and_its_data_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    parts = ("vfioctl/app.py", "vfioctl/hosts/", "vfioctl/data/udev/", "vfioctl/data/systemd/", "vfioctl/data/libvirt-")
    assert all(any(name.startswith(part) for name in release.expected()) for part in parts)
    assert list(release.wrong_in_wheel(wheel.namelist())) == []


def test_the_wheel_has_no_recordings_of_real_machines(wheel: zipfile.ZipFile) -> None:
    recorded = {path.name for path in (ROOT / "tests/hosts/recorded").iterdir()}
    assert any(name.endswith(".host") for name in recorded)
    assert not [name for name in wheel.namelist() if "recorded/" in name and "/hosts/" in name]
    shipped = {name.rpartition("/")[2] for name in wheel.namelist() if name.startswith("vfioctl/hosts/")}
    assert not recorded & shipped


def test_the_wheel_names_its_command_and_its_licence(wheel: zipfile.ZipFile) -> None:
    texts = {name.rpartition("/")[2]: wheel.read(name).decode() for name in wheel.namelist() if ".dist-info/" in name}
    assert "vfioctl = vfioctl.app:console" in texts["entry_points.txt"]
    assert "License-Expression: Apache-2.0" in texts["METADATA"]
    assert "Provides-Extra: libvirt" in texts["METADATA"]


def test_an_installed_wheel_knows_the_bundled_hosts(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path / "site")
    program = (
        "import sys; sys.path.insert(0, 'site')\n"
        "from vfioctl.host import Host\nimport vfioctl\n"
        "assert vfioctl.__file__.startswith(sys.argv[1]), vfioctl.__file__\n"
        "print(len(Host.recorded('hgx8').inventory().gpus))"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_a_template_is_a_domain_of_its_own_name_without_host_devices(template: Path) -> None:
    domain = ET.fromstring(template.read_text())  # noqa: S314 - our own file
    assert domain.tag == "domain"
    assert domain.findtext("name") == template.stem
    kind = domain.find("os/type")
    assert kind is not None
    assert kind.get("machine") == "q35"
    assert not domain.findall("devices/hostdev")


@pytest.mark.skipif(
    not (shutil.which("virt-xml-validate") and shutil.which("xmllint")),
    reason="needs the Debian packages libvirt-clients and libxml2-utils",
)
@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_libvirt_takes_a_template(template: Path) -> None:
    done = validated(template)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("rules", RULES, ids=lambda path: path.name)
def test_udev_rules_are_matches_and_assignments(rules: Path) -> None:
    part = r'[A-Z]+(\{(\[subsystem/pci\])?[\w.]+\})?(==|!=|=|\+=|:=)"[^"]*"'
    lines = [line for line in rules.read_text().splitlines() if line and not line.startswith("#")]
    assert lines
    assert not [line for line in lines if not re.fullmatch(rf"{part}(, {part})*", line)]


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_runs_a_command_that_there_is(unit: Path) -> None:
    (line,) = (line for line in unit.read_text().splitlines() if line.startswith("ExecStart="))
    program, *words = line.removeprefix("ExecStart=").split()
    if program == NVIDIAS:
        return
    if not words:  # a script of ours
        assert program == f"/usr/lib/vfioctl/{Path(program).name}"
        assert os.access(ROOT / "udev" / Path(program).name, os.X_OK)
        return
    assert program == "vfioctl"
    assert main([*words, "--help"]) == 0


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_names_a_page_of_ours_that_its_how_to_installs(unit: Path) -> None:
    (url,) = re.findall(r"^Documentation=(.+)$", unit.read_text(), re.MULTILINE)
    installed = url.removeprefix("file://")
    page = ROOT / "docs/how-to" / Path(installed).name
    assert installed == f"/usr/share/doc/vfioctl/{page.name}"
    assert f"install -D -m 644 docs/how-to/{page.name} {installed}" in page.read_text()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze, of the Debian package systemd")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_takes_a_unit(unit: Path) -> None:
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if unit.name in line]
    # vfioctl need not be installed where systemd looks for it
    programs = ("vfioctl", "/usr/lib/vfioctl/vfioctl-early", NVIDIAS)
    not_installed = tuple(f"Command {program} is not executable" for program in programs)
    assert [line for line in said if not any(words in line for words in not_installed)] == []


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_units_directory_in_run_outlives_it(unit: Path) -> None:
    """Containers have MPS's mounted, and others have files of their own in /run/vfioctl."""
    lines = unit.read_text().splitlines()
    has_one = any(line.startswith("RuntimeDirectory=") for line in lines)
    assert ("RuntimeDirectoryPreserve=yes" in lines) == has_one


@pytest.mark.parametrize("unit", FAMILIES, ids=lambda path: path.name)
def test_a_unit_may_do_only_its_work(unit: Path) -> None:
    lines = unit.read_text().splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    assert {name: found.get(name) for name in HARDENED} == HARDENED
    allowed = {"SYS_ADMIN", "SYS_MODULE", "SYS_PTRACE", "DAC_READ_SEARCH", "DAC_OVERRIDE", "MKNOD", "CHOWN"}
    assert {name.removeprefix("CAP_") for name in found["CapabilityBoundingSet"].split()} <= allowed
    assert set(found["SystemCallFilter"].split()) == CALLS[unit]
    assert found["RestrictNamespaces"] == NAMESPACES[unit]
    assert found["RestrictAddressFamilies"] == FAMILIES[unit]
    assert found.get("ReadWritePaths", "").split() == WRITABLE.get(unit, [])
    assert not re.search(r"^(AmbientCapabilities|Environment|PassEnvironment)", unit.read_text(), re.M)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze, of the Debian package systemd")
@pytest.mark.parametrize("unit", EXPOSURE, ids=lambda path: path.name)
def test_systemd_calls_a_unit_hardened(unit: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE[unit]}", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "nrecognized option" in done.stderr:
        pytest.skip("needs systemd 250 or newer")
    assert done.returncode == 0, done.stdout


def test_the_lock_files_are_what_the_project_asks_for() -> None:
    wanted = PROJECT["project"]["dependencies"] + PROJECT["dependency-groups"]["dev"]
    names = {re.split(r"[<>=~ ]", requirement)[0] for requirement in wanted}
    assert names <= set(re.findall(r"^([\w.-]+)==", LOCKS["dev"], re.MULTILINE)), "make lock"
    assert re.match(r"(#.*\n)*libvirt-python==", LOCKS["libvirt"]), "make lock"
    assert re.search(r"^cosmic-ray==", LOCKS["mutants"], re.MULTILINE), "make lock"
    run = dict(re.findall(r"^([\w.-]+)==(\S+)", LOCKS["run"], re.MULTILINE))
    needed = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
    assert {re.split(r"[<>=~ ]", requirement)[0] for requirement in needed} <= run.keys(), "make lock"
    assert all(f"{name}=={version}" in LOCKS["dev"] for name, version in run.items()), "make lock"
    both = [dict(re.findall(r"^([\w.-]+)==(\S+)", LOCKS[name], re.MULTILINE)) for name in ("dev", "mutants")]
    assert all(both[0][name] == both[1][name] for name in both[0].keys() & both[1].keys()), "make lock"


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_file_has_hashes_and_names_no_place(name: str) -> None:
    text = re.sub(r"(?m)^#.*\n", "", LOCKS[name])
    requirements = re.split(r"(?m)^(?=[\w.-]+==)", text)[1:]
    assert requirements
    form = re.compile(r"[\w.-]+==[\w.]+( \\\n    --hash=sha256:[0-9a-f]{64})+\n")
    assert all(form.fullmatch(entry) for entry in requirements)


def test_the_makefile_downloads_nothing_without_a_hash() -> None:
    """But for pip-tools, which makes the lock files, and what generates the stubs, in environments of their own."""
    makefile = (ROOT / "Makefile").read_text()
    takes = r"pip\b.* install|\$\(PIP\) (install|download)"
    installs = [line for line in makefile.splitlines() if re.search(takes, line)]
    assert len(installs) > 4
    safe = (
        "--require-hashes --no-deps",
        "--no-deps --no-build-isolation",
        "install pip-tools",
        "$(VENV)/stubs/bin/pip",
    )
    assert not [line for line in installs if not any(each in line for each in safe)]


def test_the_package_installs_what_vfioctl_installs() -> None:
    """Each file has its place in the package, and its scripts know every unit that a boot starts."""
    for path, place in IN_PACKAGE.items():
        assert place.startswith(("/usr/lib/", "/usr/share/initramfs-tools/")), path
    scripts = {name: (ROOT / "packaging/deb" / name).read_text() for name in ("postinst", "prerm", "postrm")}
    assert "for unit in @UNITS@;" in scripts["postinst"]
    assert "for unit in @UNITS@ @OPTIONAL@;" in scripts["postrm"]
    assert all("@OPTIONAL@" in text for text in scripts.values())
    assert sorted(unit.name for unit in UNITS) == sorted(UNIT_NAMES | OPTIONAL_UNIT_NAMES | STARTED_UNIT_NAMES)


def test_purge_asks_for_no_file_that_is_not_ours() -> None:
    """What is removed is named: below a directory that others share, by a name that only vfioctl gives."""
    text = (ROOT / "packaging/deb/postrm").read_text()
    removed = {word for line in re.findall(r"rm -r?f (.+)$", text, re.MULTILINE) for word in line.split()}
    own = r"/(var/lib|run)/vfioctl|/run/cdi/vfioctl(-\*)?\.json|/etc/udev/rules\.d/61-vfioctl-\*\.rules"
    own += r'|/etc/vfioctl/(config\.toml|disabled|devices\.d/\*\.toml|vgpu\.d/\*\.json)|"\$hook"'
    assert len(removed) > 8
    assert [word for word in removed if not re.fullmatch(own, word)] == []


@pytest.mark.parametrize("script", ["preinst", "postinst", "prerm", "postrm"])
def test_a_maintainer_script_is_one_that_sh_takes(script: str) -> None:
    file = ROOT / "packaging/deb" / script
    done = subprocess.run(["sh", "-n", str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert file.read_text().startswith("#!/bin/sh\n")
    assert "\nset -e\n" in file.read_text()


def test_guides_never_install_for_root_where_a_user_writes() -> None:
    texts = {path: path.read_text() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))}
    assert not [
        str(path) for path, text in texts.items() if re.search(r"sudo[^\n]* pip[^\n]* (--user|-U)|sudo pip3? ", text)
    ]
    assert "umask 022 && python3 -m venv /opt/vfioctl" in texts[ROOT / "README.md"]


def test_the_makefile_installs_what_the_lab_looks_for() -> None:
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    listed = re.search(r"^PACKAGES := (.*)$", makefile, re.MULTILINE)
    assert listed
    source = "".join((ROOT / "tests/lab/outside" / name).read_text() for name in ("requirements.py", "kubelet.py"))
    needed = set(re.findall(r'^    "[\w./-]+": "([\w.+-]+)",$', source, re.MULTILINE))
    needed |= set(re.findall(r'^KERNEL_PACKAGE = "([\w.-]+)"$', source, re.MULTILINE))
    assert {"qemu-system-x86", "golang-1.19-go"} <= needed
    assert needed <= set(listed[1].split())


def test_the_packages_are_listed_in_one_place() -> None:
    others = (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / ".ci/run")
    assert not [str(path) for path in others if re.search(r"apt(-get)? install (?!\./dist/)", path.read_text())]
