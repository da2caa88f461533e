"""NVML through pynvml and a shared library that stands in for NVIDIA's: read, told, lost, forbidden, hung.

Loaded by processes of their own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vfioctl.kernel.protocol import NOT_LISTED

ROOT = Path(__file__).resolve().parents[3]
FIRST, SECOND, FAR = "0000:0a:00.0", "0000:0b:00.0", "10000:01:00.0"
NO_PERMISSION, GPU_IS_LOST = 4, 15
LOST = "the GPU is lost, it no longer answers its driver: dmesg | grep -i xid, then reboot"

GPUS = """\
00000000:0A:00.0|NVIDIA GeForce RTX 4090|GPU-aaaa|25757220864|0|0|-|0
00000000:0B:00.0|NVIDIA H100 80GB HBM3|GPU-bbbb|85899345920|1|3|1|0
00010000:01:00.0|NVIDIA L4|GPU-cccc|24152899584|0|2|-|0
"""
FACTS = {
    FIRST: {
        "name": "NVIDIA GeForce RTX 4090",
        "uuid": "GPU-aaaa",
        "memory_bytes": "25757220864",
        "persistence_mode": "0",
        "compute_mode": "Default",
    },
    SECOND: {
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-bbbb",
        "memory_bytes": "85899345920",
        "persistence_mode": "1",
        "compute_mode": "Exclusive_Process",
        "mig_mode": "1",
    },
    FAR: {
        "name": "NVIDIA L4",
        "uuid": "GPU-cccc",
        "memory_bytes": "24152899584",
        "persistence_mode": "0",
        "compute_mode": "Prohibited",
    },
}

VGPU_HOST = f"""\
{GPUS}\
vgpu|00010000:01:00.0|1159|NVIDIA L4-24A|25769803776|1|1280x1024|1
vgpu|00010000:01:00.0|1140|NVIDIA L4-2Q|2147483648|4|7680x4320|12
vgpu|00010000:01:00.0|1150|NVIDIA L4-24C|25769803776|0|0x0|1
mixed|00010000:01:00.0|0
mixed|00000000:0B:00.0|-
"""
VGPU_TYPES = (
    "1140|NVIDIA L4-2Q|2147483648|4|7680x4320|12;"
    "1150|NVIDIA L4-24C|25769803776|0||1;"
    "1159|NVIDIA L4-24A|25769803776|1|1280x1024|1"
)
VGPU_FACTS = {**FACTS, FAR: {**FACTS[FAR], "vgpu_types": VGPU_TYPES, "vgpu_heterogeneous_mode": "0"}}

GPUS_ASKED = ("0000:0a:00.0", "0000:0b:00.0", "10000:01:00.0")
READ = f"print(json.dumps(Live().nvml({GPUS_ASKED})()))"
READ_TYPES = f"print(json.dumps(Live().nvml({GPUS_ASKED}, types=True)()))"
PERSIST = """
try:
    Live(timeouts=Timeouts(default=float(sys.argv[3]))).persist(sys.argv[1], on=sys.argv[2] == "on")
    print("null")
except VfioctlError as error:
    print(json.dumps([type(error).__name__, error.message, error.kernel_said, error.hint]))
"""
COMPUTE = """
try:
    Live().set_compute_mode(*sys.argv[1:3])
    print("null")
except VfioctlError as error:
    print(json.dumps([type(error).__name__, error.message, error.kernel_said, error.hint]))
"""
# A worker that was given up is dead soon, and collected by the fork server, which ends with its kernel.
HANG = """
began = time.monotonic()
kernel = Live()
answer = kernel.nvml(["0000:0a:00.0"])()
took = time.monotonic() - began
kernel.close()
try:
    left = os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    left = None
print(json.dumps({"answer": answer, "took": took, "left": left}))
"""
LISTING = """
from vfioctl.host import Host
host = Host.recorded("workstation")
host.session.kernel.nvml = Live().nvml
host.inventory()
"""
IMPORTS = """
import json, os, sys, time
from vfioctl.errors import VfioctlError
from vfioctl.kernel.timeouts import Timeouts
from vfioctl.kernel.live.host import Live
"""


Begin = Callable[..., "subprocess.Popen[str]"]
Ask = Callable[..., Any]


@pytest.fixture
def begin(nvml_library: Path, tmp_path: Path) -> Begin:
    """Starts a program with the stand-in and its GPUs."""
    (tmp_path / "gpus").write_text(GPUS)

    def begun(program: str, *words: str, faults: str = "") -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(nvml_library),
            "NVML_STANDIN_STATE": str(tmp_path / "gpus"),
            "NVML_STANDIN_FAULTS": faults,
        }
        command = [sys.executable, "-c", IMPORTS + program, *words]
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)

    return begun


@pytest.fixture
def ask(begin: Begin) -> Ask:
    """What such a program prints, as JSON."""

    def asked(program: str, *words: str, faults: str = "") -> Any:
        with begin(program, *words, faults=faults) as process:
            out, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        return json.loads(out)

    return asked


def with_code(gpu: int, code: int) -> str:
    """The state file with one GPU that answers nothing but that."""
    lines = GPUS.splitlines()
    lines[gpu] = f"{lines[gpu].rpartition('|')[0]}|{code}"
    return "\n".join(lines) + "\n"


class TestLinks:
    READ_LINKS = f"print(json.dumps(Live().nvml({GPUS_ASKED}, links=True)()))"
    LINKS = """\
link|00000000:0A:00.0|0|00000000:0B:00.0
link|00000000:0A:00.0|3|00000000:0B:00.0
link|00000000:0A:00.0|17|00010000:05:00.0
link|00010000:01:00.0|0|rubbish
"""

    def test_are_the_addresses_at_their_other_ends(self, ask: Ask, tmp_path: Path) -> None:
        (tmp_path / "gpus").write_text(GPUS + self.LINKS)
        assert ask(self.READ_LINKS) == {**FACTS, FIRST: {**FACTS[FIRST], "nvlink": "0000:0b:00.0 10000:05:00.0"}}

    def test_are_read_only_when_asked_for(self, ask: Ask, tmp_path: Path) -> None:
        (tmp_path / "gpus").write_text(GPUS + self.LINKS)
        assert ask(READ) == FACTS

    def test_that_nvml_does_not_tell_cost_nothing_else(self, ask: Ask, tmp_path: Path) -> None:
        (tmp_path / "gpus").write_text(GPUS + self.LINKS)
        assert ask(self.READ_LINKS, faults="nvmlDeviceGetNvLinkRemotePciInfo_v2=999") == FACTS
        assert ask(self.READ_LINKS, faults="nvmlDeviceGetNvLinkState=3") == FACTS


class TestFacts:
    def test_are_what_the_library_says(self, ask: Ask) -> None:
        assert ask(READ) == FACTS

    def test_of_a_lost_gpu_are_all_that_is_lost(self, ask: Ask, tmp_path: Path) -> None:
        (tmp_path / "gpus").write_text(with_code(1, GPU_IS_LOST))
        found = ask(READ)
        assert found.pop(SECOND) == {"error": LOST}
        assert found == {FIRST: FACTS[FIRST], FAR: FACTS[FAR]}

    def test_of_a_gpu_that_is_lost_while_it_is_asked(self, ask: Ask, tmp_path: Path) -> None:
        (tmp_path / "gpus").write_text(with_code(1, -GPU_IS_LOST))
        assert ask(READ) == {**FACTS, SECOND: {"error": LOST}}

    def test_of_a_gpu_that_nvml_does_not_list_are_lacking_with_a_reason(self, ask: Ask, tmp_path: Path) -> None:
        (tmp_path / "gpus").write_text("".join(line for line in GPUS.splitlines(keepends=True) if "0B" not in line))
        assert ask(READ) == {**FACTS, SECOND: {"error": NOT_LISTED}}

    def test_of_an_odd_bus_id_cost_that_gpu(self, ask: Ask, tmp_path: Path) -> None:
        (tmp_path / "gpus").write_text(GPUS.replace("00000000:0B:00.0", "somewhere"))
        assert ask(READ) == {**FACTS, SECOND: {"error": NOT_LISTED}}

    def test_that_are_not_supported_are_not_there(self, ask: Ask) -> None:
        found = ask(READ, faults="nvmlDeviceGetComputeMode=3,nvmlDeviceGetUUID=3")
        lacking = {"compute_mode", "uuid"}
        assert found == {a: {k: v for k, v in facts.items() if k not in lacking} for a, facts in FACTS.items()}

    @pytest.mark.parametrize(
        ("faults", "reason"),
        [
            ("nvmlInitWithFlags=3", "NVML: Not Supported"),
            ("nvmlInitWithFlags=9", "the nvidia driver does not answer NVML: dmesg | grep -i nvrm"),
            ("nvmlInitWithFlags=18", "driver and library versions differ: reload the driver or reboot"),
            ("nvmlInitWithFlags=999", "NVML: Unknown Error"),
        ],
    )
    def test_that_cannot_be_had_have_a_reason(self, ask: Ask, faults: str, reason: str) -> None:
        assert ask(READ, faults=faults) == [reason]

    def test_without_the_library_have_a_reason(self, tmp_path: Path) -> None:
        (tmp_path / "libnvidia-ml.so.1").write_text("not a library: on a machine with NVML too, there is none to load")
        command, environment = [sys.executable, "-c", IMPORTS + READ], {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        ((reason),) = json.loads(done.stdout)
        assert reason.startswith("NVML's library libnvidia-ml.so.1 was not found")

    def test_reach_the_inventory(self, ask: Ask) -> None:
        found = ask("""
from pathlib import Path
from vfioctl.host import Host
host = Host.recorded("workstation")
host.session.kernel.nvml = Live().nvml
gpus = {gpu.address: gpu.nvml and gpu.nvml.name for gpu in host.inventory().gpus}
print(json.dumps(gpus))
""")
        assert found == {"0000:05:00.0": None, FIRST: FACTS[FIRST]["name"], SECOND: FACTS[SECOND]["name"]}


class TestTypesOfVgpus:
    """The second GPU is a vGPU host's and has no types, the first is none of a vGPU host."""

    @pytest.fixture(autouse=True)
    def state(self, begin: Begin, tmp_path: Path) -> Path:  # noqa: ARG002 - which writes the other state
        state = tmp_path / "gpus"
        state.write_text(VGPU_HOST)
        return state

    def test_are_told_in_the_order_of_their_numbers(self, ask: Ask) -> None:
        assert ask(READ_TYPES) == VGPU_FACTS

    def test_are_asked_for_only_where_they_are_shown(self, ask: Ask) -> None:
        assert ask(READ) == FACTS

    def test_and_several_sizes_at_a_time(self, ask: Ask, state: Path) -> None:
        state.write_text(VGPU_HOST.replace("01:00.0|0\n", "01:00.0|1\n"))
        assert ask(READ_TYPES)[FAR]["vgpu_heterogeneous_mode"] == "1"

    @pytest.mark.parametrize(
        ("function", "told"),
        [
            ("nvmlVgpuTypeGetName", "1140||2147483648|4|7680x4320|12"),
            ("nvmlVgpuTypeGetFramebufferSize", "1140|NVIDIA L4-2Q||4|7680x4320|12"),
            ("nvmlVgpuTypeGetNumDisplayHeads", "1140|NVIDIA L4-2Q|2147483648||7680x4320|12"),
            ("nvmlVgpuTypeGetResolution", "1140|NVIDIA L4-2Q|2147483648|4||12"),
            ("nvmlVgpuTypeGetMaxInstances", "1140|NVIDIA L4-2Q|2147483648|4|7680x4320|"),
        ],
    )
    def test_lack_only_what_is_not_supported(self, ask: Ask, function: str, told: str) -> None:
        assert ask(READ_TYPES, faults=f"{function}=3")[FAR]["vgpu_types"].split(";")[0] == told

    @pytest.mark.parametrize(
        ("function", "fact"),
        [
            ("nvmlDeviceGetSupportedVgpus", "vgpu_types"),
            ("nvmlDeviceGetVgpuHeterogeneousMode", "vgpu_heterogeneous_mode"),
        ],
    )
    def test_that_cannot_be_asked_for_cost_themselves(self, ask: Ask, function: str, fact: str) -> None:
        far = {key: value for key, value in VGPU_FACTS[FAR].items() if key != fact}
        assert ask(READ_TYPES, faults=f"{function}=3") == {**FACTS, FAR: far}

    def test_with_an_odd_name_keep_their_form(self, ask: Ask, state: Path) -> None:
        state.write_bytes(VGPU_HOST.replace("L4-24A", "L4;24A").encode().replace(b"L4-2Q", b"L4-\xff"))
        assert ask(READ_TYPES)[FAR]["vgpu_types"] == (
            VGPU_TYPES.replace("L4-24A", "L4 24A").replace("NVIDIA L4-2Q", "")
        )

    def test_outlive_a_change(self, ask: Ask) -> None:
        assert ask(PERSIST, FAR, "on", "30") is None
        assert ask(READ_TYPES) == {**VGPU_FACTS, FAR: {**VGPU_FACTS[FAR], "persistence_mode": "1"}}

    def test_reach_the_listing_of_vgpus(self, ask: Ask, state: Path) -> None:
        state.write_text(VGPU_HOST.replace("00010000:01", "00000000:41"))
        types, mode, free = ask("""
from vfioctl.host import Host
host = Host.recorded("l40s")
host.session.kernel.nvml = Live().nvml
(card,) = host.vgpu.vgpus().cards
types = [[kind.id, kind.profile, kind.heads, kind.max_instances, kind.max_resolution] for kind in card.types[:3]]
print(json.dumps([types, card.size_mode, [kind.id for kind in card.types[3:]]]))
""")
        assert types == [
            ["1140", "L4-2Q", 4, 12, "7680x4320"],
            ["1150", "L4-24C", 0, 1, ""],
            ["1153", "L40S-12Q", None, None, ""],
        ]
        assert (mode, free) == ("same-size", ["1159", "1163"])


class TestPersistence:
    @pytest.mark.parametrize(("address", "mode", "taken"), [(FIRST, "on", "1"), (SECOND, "off", "0"), (FAR, "on", "1")])
    def test_is_set_read_back_and_there_for_the_next_process(
        self, ask: Ask, address: str, mode: str, taken: str
    ) -> None:
        assert ask(PERSIST, address, mode, "30") is None
        assert ask(READ) == {**FACTS, address: {**FACTS[address], "persistence_mode": taken}}

    def test_without_permission_says_who_may(self, ask: Ask) -> None:
        said = ask(PERSIST, FIRST, "on", "30", faults=f"nvmlDeviceSetPersistenceMode={NO_PERMISSION}")
        kind, message, kernel_said, _ = said
        assert kind == "HostError"
        assert message == f"switching the persistence mode of {FIRST} on failed"
        assert kernel_said == "NVML refuses it: only root may do that"
        assert ask(READ) == FACTS

    def test_of_a_gpu_that_is_not_there(self, ask: Ask) -> None:
        assert ask(PERSIST, "0000:ff:00.0", "on", "30")[2] == NOT_LISTED

    def test_of_a_lost_gpu(self, ask: Ask, tmp_path: Path) -> None:
        (tmp_path / "gpus").write_text(with_code(0, GPU_IS_LOST))
        assert ask(PERSIST, FIRST, "on", "30")[2] == LOST

    def test_that_is_not_taken_is_noticed(self, ask: Ask) -> None:
        said = ask(PERSIST, FIRST, "on", "30", faults="nvmlDeviceSetPersistenceMode=forget")
        assert said[2] == "NVML reported success, but the mode is still off"

    def test_that_hangs_is_stuck(self, ask: Ask) -> None:
        kind, message, _, hint = ask(PERSIST, FIRST, "on", "0.5", faults="nvmlDeviceSetPersistenceMode=hang")
        assert kind == "Stuck"
        assert message == f"switching the persistence mode of {FIRST} on did not return in 0.5 s"
        assert "dmesg" in hint


class TestComputeMode:
    @pytest.mark.parametrize("mode", ["Exclusive_Process", "Default", "Prohibited"])
    def test_is_set_read_back_and_there_for_the_next_process(self, ask: Ask, mode: str) -> None:
        assert ask(COMPUTE, FIRST, mode) is None
        assert ask(READ) == {**FACTS, FIRST: {**FACTS[FIRST], "compute_mode": mode}}

    def test_without_permission_says_who_may(self, ask: Ask) -> None:
        said = ask(COMPUTE, FIRST, "Prohibited", faults=f"nvmlDeviceSetComputeMode={NO_PERMISSION}")
        assert said[1] == f"setting the compute mode of {FIRST} to Prohibited failed"
        assert said[2] == "NVML refuses it: only root may do that"
        assert ask(READ) == FACTS

    def test_that_is_not_taken_is_noticed(self, ask: Ask) -> None:
        said = ask(COMPUTE, FIRST, "Prohibited", faults="nvmlDeviceSetComputeMode=forget")
        assert said[2] == "NVML reported success, but the mode is still another"


def test_a_library_that_hangs_is_outlived_and_leaves_nothing(begin: Begin, tmp_path: Path) -> None:
    """Both at once: each takes all of its five seconds."""
    began = time.monotonic()
    processes = [
        begin(HANG, faults=f"{name}=hang") for name in ("nvmlInitWithFlags", "nvmlDeviceGetHandleByPciBusId_v2")
    ]
    for process in processes:
        with process:
            out, _ = process.communicate(timeout=120)
        told = json.loads(out)
        assert told["answer"] == ["NVML did not answer within 5 s: dmesg | grep -i nvrm"]
        assert told["took"] == pytest.approx(5, abs=3)
        assert told["left"] is None
    assert time.monotonic() - began < 60
    assert not users_of(tmp_path / "gpus")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_listing_that_is_interrupted_takes_a_library_that_hangs_with_it(
    begin: Begin, tmp_path: Path, number: signal.Signals
) -> None:
    """The library heeds no signal, its process has a session of its own, and may have the GPU's device file open."""
    with begin(LISTING, faults="nvmlInitWithFlags=hang") as process:
        assert reached(lambda: any("libnvidia-ml" in text for text in users_of(tmp_path / "gpus", "maps")))
        process.send_signal(number)
        process.wait(timeout=30)
    assert reached(lambda: not users_of(tmp_path / "gpus"))


def reached(condition: Callable[[], bool], timeout: float = 20.0) -> bool:
    until = time.monotonic() + timeout
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
    return condition()


def users_of(state: Path, name: str = "cmdline") -> list[str]:
    """The file `name` in /proc of each process that was started with that state file."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if str(state).encode() in (place / "environ").read_bytes():
                found.append((place / name).read_text())
        except OSError:
            continue
    return found
