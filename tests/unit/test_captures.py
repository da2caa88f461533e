"""Every listing and every dry run on every host file, as a file and as a directory, against an independent reader.

`tests/captures.py` and lspci are the oracles: they share no code with vfioctl.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import captures
from tests.hosts.machines import HOSTS
from tests.unit.conftest import CONTROL, FAILURES, Answer, Run

CAPTURES = sorted(HOSTS.glob("**/*.host"))
LISTINGS = (
    "inventory",
    "inventory --all",
    "inventory --tree",
    "inventory --tree --all",
    "vgpu types",
    "vgpu list",
    "history",
)
CHANGES_OF_A_GPU = (
    "bind {} --dry-run",
    "bind {} --with-group --allow-boot-vga --dry-run",
    "unbind {} --dry-run",
    "unbind {} --to none --dry-run",
    "reset {} --dry-run",
)
CHANGES_OF_A_PF = (
    "sriov set {} all --dry-run",
    "sriov set {} 1 --foreign --persistent --dry-run",
    "sriov off {} --foreign --dry-run",
)
CHANGES_OF_THE_HOST = ("vgpu restore --dry-run", "recover --dry-run", "recover --forward --dry-run")


@pytest.fixture(scope="module", params=CAPTURES, ids=lambda file: file.stem)
def capture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A host file, and the same host as a directory."""
    return request.param, captures.unpack(request.param, tmp_path_factory.mktemp(request.param.stem))


@pytest.fixture(params=["host", "root"])
def place(request: pytest.FixtureRequest, capture: tuple[Path, Path]) -> str:
    """The option that selects the capture in one of its two forms."""
    return f"--host {capture[0]}" if request.param == "host" else f"--root {capture[1]}"


@pytest.fixture
def tree(capture: tuple[Path, Path]) -> Path:
    return capture[1]


@pytest.fixture(scope="module")
def documents(capture: tuple[Path, Path]) -> dict[str, Any]:
    """Of one capture, what was listed of each of its forms."""
    return {}


@pytest.fixture
def listed(run: Run, place: str, documents: dict[str, Any]) -> Any:
    """The inventory of a capture, as a document."""
    if place not in documents:
        documents[place] = answered(run, f"inventory --all --json {place}").document
    return documents[place]


def test_each_function_is_listed_as_its_files_say(listed: Any, tree: Path) -> None:
    seen = {
        function["address"]: captures.Facts(
            vendor=function["vendor_id"],
            pci_class=function["class"],
            driver=function["driver"],
            iommu_group=function["iommu_group"],
            numa_node=function["numa_node"],
            bars={bar["index"]: bar["size"] for bar in function["bars"]},
            total_vfs=function["sriov_totalvfs"],
            vfs=set(function["virtfns"]),
            pf=function["physfn"],
        )
        for function in listed["functions"]
    }
    assert seen == captures.functions(tree)


def test_each_group_has_the_members_of_its_directory(listed: Any, tree: Path) -> None:
    functions = captures.functions(tree).keys()  # the vGPUs of a host have groups of their own
    seen = {group["id"]: {*group["members"], *group["unread"]} for group in listed["groups"]}
    assert seen == {group: members for group, members in captures.groups(tree).items() if members & functions}


@pytest.mark.skipif(not shutil.which("lspci"), reason="needs lspci")
def test_lspci_reads_the_same_of_the_directory(listed: Any, tree: Path) -> None:
    functions = captures.functions(tree)
    assert {slot["Slot"]: slot for slot in _lspci(tree, functions)} == {
        function["address"]: _known(
            Slot=function["address"],
            Class=function["class"][:4],
            Vendor=function["vendor_id"],
            Device=function["device_id"],
            Driver=function["driver"],
            NUMANode=function["numa_node"],
            IOMMUGroup=function["iommu_group"],
        )
        for function in listed["functions"]
    }


def _lspci(tree: Path, functions: dict[str, captures.Facts]) -> Iterator[dict[str, str]]:
    bus = tree / "sys/bus/pci"
    for address in functions:
        # lspci opens the configuration space, then takes the ids from the other files
        (bus / "devices" / address / "config").write_bytes(bytes(64))
    command = ["lspci", "-A", "linux-sysfs", "-O", f"sysfs.path={bus}", "-Dvmmkn"]
    blocks = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().split("\n\n")
    wanted = {"Slot", "Class", "Vendor", "Device", "Driver", "NUMANode", "IOMMUGroup"}
    for block in blocks:
        fields = (line.split(":\t", 1) for line in block.splitlines())
        yield {name: value for name, value in fields if name in wanted}


def _known(**fields: object) -> dict[str, str]:
    return {name: str(value) for name, value in fields.items() if value is not None}


@pytest.mark.parametrize("line", LISTINGS)
def test_each_listing_has_an_answer(run: Run, place: str, line: str) -> None:
    shown = answered(run, f"{line} {place}")
    assert shown.code == 0, shown.err
    assert shown.out.strip()
    if "--tree" not in line:
        assert isinstance(answered(run, f"{line} --json {place}").document, dict)


def test_each_gpu_is_shown_with_its_holders(run: Run, place: str, tree: Path) -> None:
    for gpu in gpus(tree):
        for verb in ("show", "holders"):
            assert gpu in answered(run, f"{verb} {gpu} {place}").out
            assert answered(run, f"{verb} {gpu} --json {place}").code == 0, gpu


def test_each_dry_run_answers_with_a_plan_or_the_reason(run: Run, place: str, tree: Path) -> None:
    """As text of the host file only: what is shown of a plan does not depend on where it was read."""
    pfs = ends(address for address, facts in captures.functions(tree).items() if facts.total_vfs)
    for line in (
        *(line.format(gpu) for gpu in gpus(tree) for line in CHANGES_OF_A_GPU),
        *(line.format(pf) for pf in pfs for line in CHANGES_OF_A_PF),
        *CHANGES_OF_THE_HOST,
    ):
        document = answered(run, f"{line} --json {place}")
        assert ("error" in document.document) == (document.code != 0), line
        if place.startswith("--host"):
            text = answered(run, f"{line} {place}")
            assert text.code == document.code, line
            assert text.code == 0 or text.err.startswith("vfioctl: "), line


def test_each_type_of_vgpu_can_be_planned_or_is_refused(run: Run, place: str) -> None:
    cards = answered(run, f"vgpu types --json {place}").document["cards"]
    for name in ends(each["profile"] or each["id"] for card in cards for each in card["types"]):
        assert_plan_or_refusal(answered(run, f"vgpu create {name} --dry-run --json {place}"))
    for vgpu in ends(each["id"] for each in answered(run, f"vgpu list --json {place}").document["instances"]):
        assert_plan_or_refusal(answered(run, f"vgpu remove {vgpu} --foreign --dry-run --json {place}"))


def test_a_plan_takes_whole_groups_and_no_bridge(run: Run, place: str, tree: Path) -> None:
    functions, members = captures.functions(tree), captures.groups(tree)
    for gpu in gpus(tree):
        plan = answered(run, f"bind {gpu} --with-group --allow-boot-vga --dry-run --json {place}").document
        taken = {change["subject"] for change in plan.get("changes", ()) if change["kind"] == "binding"}
        concerned = set().union(*(members[functions[each].iommu_group or 0] for each in taken))
        assert taken == {each for each in concerned if not functions[each].pci_class.startswith("0604")}, gpu
        assert ("error" in plan) or gpu in taken or functions[gpu].driver == "vfio-pci", gpu


def gpus(tree: Path) -> list[str]:
    return ends(a for a, facts in captures.functions(tree).items() if facts.pci_class.startswith(("03", "1200")))


def ends(names: Iterable[str]) -> list[str]:
    """The first and the last: those between are of the same kind, and each costs a second."""
    every = sorted(names)
    return sorted({*every[:1], *every[-1:]})


def answered(run: Run, line: str) -> Answer:
    """Run a command whose exit code must be documented and whose text must be fit for a terminal."""
    answer = run(line)
    assert answer.code in {0, *FAILURES}, line
    assert not CONTROL.search(answer.out + answer.err), line
    return answer


def assert_plan_or_refusal(answer: Answer) -> None:
    assert json.loads(answer.out)["id" if answer.code == 0 else "error"]
