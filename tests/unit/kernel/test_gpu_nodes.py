"""Device files of GPUs that a program does not see. The files are stand-ins; the mount namespace is a real one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vfioctl.kernel.live.gpu_nodes import hide_all_but

ROOT = Path(__file__).resolve().parents[3]
FIRST, SECOND, THIRD = "0000:0a:00.0", "0000:0b:00.0", "0000:0c:00.0"
PROGRAM = """
import sys
from pathlib import Path
from vfioctl.kernel.live.gpu_nodes import hide_all_but
folder = Path(sys.argv[1])
print(hide_all_but(sys.argv[2:], known=str(folder / "gpus"), devices=str(folder / "dev")))
print(*(node.name for node in sorted(folder.glob("dev/*")) if node.read_text()))
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder with what the driver lists, and device files that have a text."""
    (tmp_path / "dev").mkdir()
    for minor, address in enumerate((FIRST, SECOND, THIRD)):
        information = tmp_path / "gpus" / address / "information"
        information.parent.mkdir(parents=True)
        information.write_text(f"Model: \t\t NVIDIA H100\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n")
        (tmp_path / "dev" / f"nvidia{minor}").write_text("x")
    (tmp_path / "dev" / "nvidiactl").write_text("x")
    return tmp_path


def seen(machine: Path, *gpus: str) -> list[str]:
    command = [sys.executable, "-c", PROGRAM, str(machine), *gpus]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    permitted, names = done.stdout.splitlines()
    if permitted == "False":
        pytest.skip("mount namespaces are not permitted here")
    return names.split()


@pytest.mark.parametrize(
    ("gpus", "names"),
    [
        ([SECOND], ["nvidia1", "nvidiactl"]),
        ([FIRST, THIRD], ["nvidia0", "nvidia2", "nvidiactl"]),
        ([FIRST, SECOND, THIRD], ["nvidia0", "nvidia1", "nvidia2", "nvidiactl"]),
        (["0000:ff:00.0"], ["nvidiactl"]),
    ],
)
def test_a_program_sees_its_gpus_only_and_others_see_all(machine: Path, gpus: list[str], names: list[str]) -> None:
    assert seen(machine, *gpus) == names
    assert all(node.read_text() == "x" for node in machine.glob("dev/*"))


def test_a_gpu_without_a_minor_or_a_file_costs_itself(machine: Path) -> None:
    (machine / "gpus" / FIRST / "information").write_text("Model: \t\t NVIDIA H100\n")
    (machine / "gpus" / SECOND / "information").unlink()
    (machine / "dev" / "nvidia2").unlink()
    assert seen(machine) == ["nvidia0", "nvidia1", "nvidiactl"]


def test_without_the_driver_nothing_is_hidden(tmp_path: Path) -> None:
    assert hide_all_but([], known=str(tmp_path / "none"))
