"""The wheel and the source distribution, installed without a network from what the lock file has."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.lab.packages.conftest import ROOT, Built
from vfioctl import __version__


def test_both_install_offline_as_locked(built: Built, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    # an index that does not answer, and no cache: only the files that `make dist` has made are there
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_NO_CACHE_DIR": "1", "PIP_CONFIG_FILE": os.devnull}
    pip = [f"{tmp_path}/venv/bin/python", "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-deps"]
    locked = ["--find-links", str(built.wheels), "--require-hashes", "--requirement", "requirements-run.lock"]
    for words in (locked, ["--no-build-isolation", str(built.sdist)], ["--force-reinstall", str(built.wheel)]):
        command = [*pip, "--no-index", *words]
        environment = {**os.environ, **nowhere}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert words is locked or _said(tmp_path, "--version") == f"vfioctl {__version__}\n"
    assert _said(tmp_path, "inventory", "--simulate", "hgx8").startswith("9 GPUs")
    assert (tmp_path / "venv/share/man/man1/vfioctl-bind.1").is_file()
    plan = _said(tmp_path, "install", "--dry-run", "--simulate", "hgx8")
    assert "/usr/local/share/man/man1/vfioctl-bind.1" in plan, "pages of an environment are not where man(1) looks"


def _said(folder: Path, *words: str) -> str:
    environment = {"PATH": "/usr/bin:/bin", "XDG_STATE_HOME": str(folder / "state"), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [folder / "venv/bin/vfioctl", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_source_distribution_can_build_the_packages(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"packaging/deb/build.py", "packaging/deb/postinst", "requirements-run.lock", "Makefile", "man/vfioctl.1"}
    assert wanted <= names
