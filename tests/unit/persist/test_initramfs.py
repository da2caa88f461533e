"""What is copied into the initramfs, with stand-ins for the functions of initramfs-tools and dracut; and when the
initramfs is outdated.

Paths of the scripts below /etc and /usr are those of the test's directory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hosts.machines import original
from tests.hosts.vgpu_machines import BootableHost
from tests.unit.conftest import Run
from tests.unit.persist.initramfs import REPO, definition
from vfioctl.core.change import Plan
from vfioctl.errors import KernelRefused
from vfioctl.host import Host
from vfioctl.kernel.captured.host import Captured
from vfioctl.kernel.host_paths import DRACUT, DRACUT_MODULE, INITRAMFS_TOOLS, RENEWERS, UPDATE_INITRAMFS
from vfioctl.kernel.initramfs import HOOKS, outdated, renewal
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.recorded.host import Recorded
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.persist.model.installed import FILES, ONLY_WITH

GPU, AUDIO, PLACE = "0000:01:00.0", "0000:01:00.1", "pci0000:00/0000:00:01.0"
HOSTILE = ("a b.toml", "0000:01:00.0\n.toml", "$(touch x).toml", "-rf.toml", ".toml", "0000:01:00.0.toml~", "x.toml")
INITRAMFS_TOOLS_FUNCTIONS = """
copy_file() {
    target=$DESTDIR/${3:-${2#ROOT}}
    [ ! -e "$target" ] || return 1
    mkdir -p "${target%/*}"
    cp -p "$2" "$target"
}
manual_add_modules() { echo "$@" >>"$DESTDIR/modules"; }
"""
DRACUT_FUNCTIONS = """
inst_simple() {
    local target=$DESTDIR${2:-${1#ROOT}}
    mkdir -p "${target%/*}"
    cp -p "$1" "$target"
}
inst_rules() { [[ ! -e $1 ]] || inst_simple "$1" "/lib/udev/rules.d/${1##*/}"; }
inst_hook() { inst_simple "$3" "/lib/dracut/hooks/$1/$2-${3##*/}"; }
instmods() { echo "$@" >>"$DESTDIR/modules"; }
"""
DRACUT_CALLS = """
moddir=MODULE
. MODULE/module-setup.sh
check || exit
[[ $(depends) == udev-rules ]]
installkernel
install
"""


class HostFiles:
    """The files of a host, and what a program copies of them."""

    def __init__(self, root: Path, program: str) -> None:
        self.root, self.program, self.image = root, program, root / "image"
        self.put("usr/lib/vfioctl/vfioctl-early", "#!/bin/sh\n").chmod(0o755)
        self.put("usr/lib/udev/rules.d/62-vfioctl-boot.rules", "# of the package\n")
        self.put(f"etc/vfioctl/devices.d/{GPU}.toml", definition(GPU, PLACE))
        self.put(f"etc/udev/rules.d/61-vfioctl-{GPU}.rules", "# of the device\n")
        self.put("etc/udev/rules.d/70-other.rules", "# of another program\n")

    def put(self, name: str, text: str) -> Path:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def makes(self) -> set[str]:
        """Return the files of the initramfs, without the list of modules."""
        shutil.rmtree(self.image, ignore_errors=True)
        self.image.mkdir()
        module = self.root / "module"
        if self.program == "dracut":
            shutil.copytree(REPO / "initramfs/dracut", module, dirs_exist_ok=True)
            text = self._here((module / "module-setup.sh").read_text())
            (module / "module-setup.sh").write_text(text)
            line = DRACUT_FUNCTIONS.replace("ROOT", str(self.root)) + DRACUT_CALLS.replace("MODULE", str(module))
            command = ["bash", "-e", "-c", line]
        else:
            functions = INITRAMFS_TOOLS_FUNCTIONS.replace("ROOT", str(self.root))
            self.put("usr/share/initramfs-tools/hook-functions", functions)
            hook = self.put("hook", self._here((REPO / "initramfs/initramfs-tools/hook").read_text()))
            command = ["sh", str(hook)]
        environment = {**os.environ, "DESTDIR": str(self.image)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=self.root)
        assert done.stderr == ""
        assert done.returncode in (0, 255)
        assert self.program == "dracut" or done.returncode == 0
        return {str(file.relative_to(self.image)) for file in self.image.rglob("*") if file.is_file()} - {"modules"}

    def _here(self, text: str) -> str:
        return re.sub(r"(?<![\w/])/(etc|usr)/", rf"{self.root}/\1/", text).replace(f"#!{self.root}", "#!")

    @property
    def modules(self) -> list[str]:
        return (self.image / "modules").read_text().split()


@pytest.fixture(params=["initramfs-tools", "dracut"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> HostFiles:
    return HostFiles(tmp_path, request.param)


OF_DRACUT = {"lib/dracut/hooks/pre-udev/00-vfioctl-reserve.sh", "lib/dracut/hooks/pre-pivot/00-vfioctl-release.sh"}
WHOLE = {
    f"etc/vfioctl/devices.d/{GPU}.toml",
    f"lib/udev/rules.d/61-vfioctl-{GPU}.rules",
    "lib/udev/rules.d/62-vfioctl-boot.rules",
    "usr/lib/vfioctl/vfioctl-early",
}


class TestWhatIsCopied:
    def test_what_the_rule_needs_and_nothing_else(self, host: HostFiles) -> None:
        assert host.makes() - OF_DRACUT == WHOLE
        assert host.modules == ["vfio-pci", "vfio", "vfio_iommu_type1", "vfio_virqfd"]
        assert (host.image / "usr/lib/vfioctl/vfioctl-early").stat().st_mode & 0o777 == 0o755

    def test_the_drivers_of_all_devices(self, host: HostFiles) -> None:
        host.put(
            f"etc/vfioctl/devices.d/{AUDIO}.toml", definition(AUDIO, PLACE).replace("vfio-pci", "nvgrace_gpu_vfio_pci")
        )
        assert f"etc/vfioctl/devices.d/{AUDIO}.toml" in host.makes()
        assert host.modules[:2] == ["vfio-pci", "nvgrace_gpu_vfio_pci"]

    def test_nothing_without_a_persistent_device(self, host: HostFiles) -> None:
        (host.root / f"etc/vfioctl/devices.d/{GPU}.toml").unlink()
        assert host.makes() == set()
        assert not (host.image / "modules").exists()

    def test_the_rule_of_the_host_before_that_of_a_package(self, host: HostFiles) -> None:
        host.put("etc/udev/rules.d/62-vfioctl-boot.rules", "# of vfioctl install\n")
        host.makes()
        assert (host.image / "lib/udev/rules.d/62-vfioctl-boot.rules").read_text() == "# of vfioctl install\n"

    def test_the_file_that_turns_it_off(self, host: HostFiles) -> None:
        host.put("etc/vfioctl/disabled", "")
        assert host.makes() - OF_DRACUT == {*WHOLE, "etc/vfioctl/disabled"}

    @pytest.mark.parametrize("name", HOSTILE)
    def test_no_file_with_another_name(self, host: HostFiles, name: str) -> None:
        host.put(f"etc/vfioctl/devices.d/{name}", definition(GPU, PLACE).replace("vfio-pci", "evil"))
        assert host.makes() - OF_DRACUT == WHOLE
        assert "evil" not in host.modules
        assert not list(host.root.rglob("x"))

    @pytest.mark.parametrize("driver", ["../../evil", "evil x", "$(touch x)", "--remove", ""])
    def test_no_file_with_another_driver(self, host: HostFiles, driver: str) -> None:
        """Its name goes to modprobe."""
        host.put(f"etc/vfioctl/devices.d/{AUDIO}.toml", definition(AUDIO, PLACE).replace("vfio-pci", driver))
        assert host.makes() - OF_DRACUT == WHOLE
        assert len(host.modules) == 4
        assert not list(host.root.rglob("x"))

    def test_no_link_and_no_directory(self, host: HostFiles) -> None:
        secret = host.put("etc/shadow", 'driver = "vfio-pci"\n')
        (host.root / f"etc/vfioctl/devices.d/{AUDIO}.toml").symlink_to(secret)
        (host.root / "etc/vfioctl/devices.d/0000:02:00.0.toml").mkdir()
        os.mkfifo(host.root / "etc/vfioctl/devices.d/0000:03:00.0.toml")
        assert host.makes() - OF_DRACUT == WHOLE


SCRIPTS = [file for file in FILES.values() if file.startswith("initramfs/")]


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda name: name.rpartition("/")[2])
def test_a_script_is_one_that_its_shell_takes(file: str) -> None:
    text = (REPO / file).read_text()
    shell = text.partition("\n")[0].removeprefix("#!/bin/")
    assert shell in ("sh", "bash")
    done = subprocess.run([shell, "-n", str(REPO / file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert os.access(REPO / file, os.X_OK)


@pytest.mark.parametrize(("script", "before"), [("hook", ""), ("init-top", ""), ("init-bottom", "udev\n")])
def test_initramfs_tools_can_ask_what_a_script_needs(script: str, before: str, tmp_path: Path) -> None:
    """It runs each script for that while it makes an image: nothing else may happen then."""
    command = ["/bin/sh", str(REPO / "initramfs/initramfs-tools" / script), "prereqs"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env={"PATH": "/nowhere"})
    assert (done.returncode, done.stdout.replace("\n\n", "\n"), done.stderr) == (0, before, "")


# -- installing the hooks -------------------------------------------------------------------------------

SERVER_GPU = "0000:43:00.0"


@pytest.fixture
def server(fast_folder: Path) -> BootableHost:
    return BootableHost(fast_folder, original("hgx8"))


def installed(server: BootableHost) -> set[str]:
    return {path for path in server.tree.files if path.startswith((f"{INITRAMFS_TOOLS}/", f"{DRACUT_MODULE}/"))}


def install(host: Host) -> Plan:
    return host.persist.plan_install()


class TestInstall:
    @pytest.mark.parametrize("folder", ONLY_WITH)
    def test_only_for_the_program_that_the_host_has(self, server: BootableHost, folder: str) -> None:
        server.does(install)
        assert installed(server) == set()
        server.add(ONLY_WITH[folder], "")
        assert {path.rpartition("/")[0].startswith(folder) for path in server.host.persist.not_installed()} == {True}
        server.does(install)
        assert installed(server) == {path for path in FILES if path.startswith(f"{folder}/")}
        assert server.host.persist.not_installed() == ()

    @pytest.mark.parametrize("program", RENEWERS)
    def test_names_the_command_that_renews_the_initramfs(self, server: BootableHost, program: str) -> None:
        server.add(program, "")
        note = f"the initramfs changes when it is made again: {RENEWERS[program]}"
        assert note in install(server.host).notes
        server.does(install)
        assert note in server.host.persist.plan_uninstall().notes
        assert note not in install(server.host).notes

    def test_leaves_nothing_when_it_is_uninstalled(self, server: BootableHost, run: Run) -> None:
        server.add(UPDATE_INITRAMFS, "")
        server.add(DRACUT, "")
        before = server.tree.files
        server.does(install)
        assert len(installed(server)) == 6
        assert run("uninstall --dry-run --simulate", str(server.file)).out.count("initramfs-tools") >= 3
        assert len(installed(server)) == 6
        server.does(lambda host: host.persist.plan_uninstall())
        assert server.tree.files == before

    def test_removes_the_hook_of_a_program_that_is_gone(self, server: BootableHost) -> None:
        server.add(UPDATE_INITRAMFS, "")
        server.does(install)
        server.edit(lambda tree: tree.remove(UPDATE_INITRAMFS))
        server.does(install)
        assert installed(server) == set()


class TestNotes:
    CHANGES: tuple[Callable[[Host], Plan], ...] = (
        lambda host: host.binding.plan_bind([SERVER_GPU], persistent=True),
        lambda host: host.binding.plan_unbind([SERVER_GPU], persistent=True),
        lambda host: host.persist.plan_remove([SERVER_GPU]),
    )

    @pytest.mark.parametrize("number", range(3), ids=["bind", "unbind", "remove"])
    def test_tell_to_renew_the_initramfs_only_if_vfioctl_is_in_it(self, server: BootableHost, number: int) -> None:
        bind, ask = self.CHANGES[0], self.CHANGES[number]
        if number:
            server.does(bind)

        def notes() -> list[str]:
            return [note for note in ask(server.host).notes if "then run update-initramfs -u -k all" in note]

        assert notes() == []
        server.add(UPDATE_INITRAMFS, "")
        assert notes() == []
        server.does(install)
        assert len(notes()) == 1

    def test_tell_nothing_of_a_bind_that_is_not_persistent(self, server: BootableHost) -> None:
        server.add(UPDATE_INITRAMFS, "")
        server.does(install)
        assert not [n for n in server.host.binding.plan_bind([SERVER_GPU]).notes if "initramfs" in n]


# -- an outdated initramfs ------------------------------------------------------------------------------

RENEWERS_OF = {command: program for program, command in RENEWERS.items()}
RELEASE, DEVICES = "6.1.0-1-amd64", "etc/vfioctl/devices.d"


class TestOutdated:
    @pytest.fixture(params=[("boot/initrd.img-", UPDATE_INITRAMFS, HOOKS[0]), ("boot/initramfs-", DRACUT, HOOKS[2])])
    def root(self, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
        """A host whose initramfs is newer than all."""
        image, program, hook = request.param
        self.image = f"/{image}{RELEASE}{'.img' if 'initramfs-' in image else ''}"
        self.hook, self.command = hook, RENEWERS[program]
        texts = {"/proc/sys/kernel/osrelease": f"{RELEASE}\n", program: "", hook: "", self.image: ""}
        for path, text in {**texts, f"/{DEVICES}/{GPU}.toml": definition(GPU, PLACE)}.items():
            file = Path(f"{tmp_path}{path}")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        for path in (hook, f"/{DEVICES}/{GPU}.toml", f"/{DEVICES}"):
            os.utime(f"{tmp_path}{path}", (1000, 1000))
        os.utime(f"{tmp_path}{self.image}", (2000, 2000))
        return tmp_path

    def told(self, root: Path) -> str:
        return outdated(Captured(str(root)))

    def test_not_if_it_is_newer(self, root: Path) -> None:
        assert renewal(Captured(str(root))) == self.command
        assert self.told(root) == ""

    @pytest.mark.parametrize("change", ["add", "remove", "replace"])
    def test_by_a_change_of_what_is_persistent(self, root: Path, change: str) -> None:
        file = root / DEVICES / f"{GPU}.toml"
        if change == "add":
            file.with_name(f"{AUDIO}.toml").touch()
        elif change == "remove":
            file.unlink()
        else:
            beside = file.with_name(".new")
            beside.write_text("")
            beside.replace(file)
        assert self.told(root) == f"{self.image} is older than /{DEVICES}: {self.command}"

    def test_by_a_hook_that_is_new_if_something_is_persistent(self, root: Path) -> None:
        os.utime(f"{root}{self.hook}", (3000, 3000))
        assert self.told(root) == f"{self.image} is older than {self.hook}: {self.command}"
        (root / DEVICES / f"{GPU}.toml").unlink()
        os.utime(root / DEVICES, (1000, 1000))
        assert self.told(root) == ""

    @pytest.mark.parametrize("missing", ["hook", "image", "release"])
    def test_nothing_is_told_that_is_not_known(self, root: Path, missing: str) -> None:
        os.utime(root / DEVICES, (3000, 3000))
        assert self.told(root) != ""
        gone = {"hook": self.hook, "image": self.image, "release": "/proc/sys/kernel/osrelease"}[missing]
        Path(f"{root}{gone}").unlink()
        assert self.told(root) == ""

    def test_is_not_known_of_a_recorded_host(self, root: Path) -> None:
        tree = Tree()
        for path in (self.hook, RENEWERS_OF[self.command], f"/{DEVICES}/{GPU}.toml", "/proc/sys/kernel/osrelease"):
            tree.put(path, Path(f"{root}{path}").read_text())
        kernel = Recorded(tree, "a recorded host")
        assert renewal(kernel) == self.command
        assert outdated(kernel) == ""
        with pytest.raises(KernelRefused) as caught:
            kernel.modified(f"/{DEVICES}")
        assert caught.value.symbol == "ENODATA"

    def test_of_this_machine_is_told_by_the_times_of_its_files(self, root: Path) -> None:
        file = root / DEVICES
        assert Live().modified(str(file)) == Captured(str(root)).modified(f"/{DEVICES}") == 1000
        with pytest.raises(KernelRefused) as caught:
            Live().modified(f"{file}/none")
        assert caught.value.symbol == "ENOENT"

    def test_is_told_by_persist_check(self, root: Path, run: Run) -> None:
        for folder in ("sys/bus/pci/devices", "dev"):
            (root / folder).mkdir(parents=True)
        os.utime(root / DEVICES, (3000, 3000))
        answer = run("persist list --root", str(root))
        assert f"The initramfs is outdated: {self.image} is older than" in " ".join(answer.out.split())
        assert self.command in run("persist list --json --root", str(root)).out
