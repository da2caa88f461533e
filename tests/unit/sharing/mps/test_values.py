"""Shares, limits, files and answers: arithmetic, and that no text of another program does harm."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.conftest import Golden
from vfioctl.errors import BadSpec
from vfioctl.inventory.model.values import PciAddress
from vfioctl.sharing.mps.answers import percent_in, pids_in, size_in, speaks_v3, status_in
from vfioctl.sharing.mps.config import v3_config
from vfioctl.sharing.mps.daemon import NAME, Told, name_of, told_in
from vfioctl.sharing.mps.limits import orders
from vfioctl.sharing.mps.share import MIB, Limits, MpsShare, checked_limits, client_edits, daemon_limits

GPU = PciAddress("0000:41:00.0")
UUID = "GPU-00000000-0000-0000-0000-000000000000"
IDS = st.text("0123456789abcdef", min_size=8, max_size=8)
SHARES = st.builds(
    MpsShare, IDS, st.just("user/a"), st.just(GPU), st.integers(1, 100), st.just(0) | st.integers(MIB, 1 << 40)
)
LIMITS = st.builds(checked_limits, st.none() | st.integers(1, 100), st.none() | st.integers(MIB, 1 << 40))


class TestLimits:
    @given(st.lists(SHARES, min_size=1))
    def test_of_a_daemon_leave_each_client_its_share_and_no_more_than_the_largest(self, shares: list[MpsShare]) -> None:
        limits = daemon_limits(shares)
        assert limits.threads == max(share.cores for share in shares)
        if any(share.memory == 0 for share in shares):
            assert limits.memory is None
        else:
            assert limits.memory is not None
            assert all(share.memory - MIB < limits.memory for share in shares)
            assert limits.memory <= max(share.memory for share in shares)

    def test_without_shares_are_none(self) -> None:
        assert daemon_limits([]) == Limits()

    @pytest.mark.parametrize(("threads", "memory"), [(0, None), (101, None), (-1, None), (None, MIB - 1), (150, MIB)])
    def test_that_no_gpu_has_are_refused(self, threads: int | None, memory: int | None) -> None:
        with pytest.raises(BadSpec):
            checked_limits(threads, memory)

    @pytest.mark.parametrize("cores", [101, 200])
    def test_a_share_of_more_than_a_gpu_is_refused(self, cores: int) -> None:
        with pytest.raises(BadSpec):
            daemon_limits([MpsShare("aaaaaaaa", "user/a", GPU, cores, 0)])

    def test_are_set_by_index_for_the_default_and_each_server(self) -> None:
        assert [*orders("memory", 2 << 30, (7, 8))] == [
            "set_default_device_pinned_mem_limit 0 2048M",
            "set_device_pinned_mem_limit 7 0 2048M",
            "set_device_pinned_mem_limit 8 0 2048M",
        ]
        assert [*orders("threads", 40, (7,))] == [
            "set_default_active_thread_percentage 40",
            "set_active_thread_percentage 7 40",
        ]


class TestClients:
    @given(SHARES)
    def test_get_their_own_limits_and_never_a_colon_in_a_path(self, share: MpsShare) -> None:
        edits = client_edits(share, name_of(share.gpu))
        assert edits.environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == str(share.cores)
        limit = edits.environment.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
        assert (limit is None) == (share.memory == 0)
        if limit:
            assert size_in(limit.removeprefix("0=")) == share.memory // MIB * MIB
        assert all(":" not in mount.path for mount in edits.mounts)

    def test_are_edits_of_a_cdi_file(self) -> None:
        edits = client_edits(MpsShare("1a2b3c4d", "user/a", GPU, 40, 2 << 30), "0000-41-00.0", priority=1)
        assert edits.cdi == {
            "env": [
                "CUDA_MPS_PIPE_DIRECTORY=/run/vfioctl/mps/0000-41-00.0",
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40",
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M",
                "CUDA_MPS_CLIENT_PRIORITY=1",
                "VFIOCTL_CLAIM=1a2b3c4d",
            ],
            "mounts": [
                {"hostPath": path, "containerPath": path, "options": ["rw", "nosuid", "nodev", "bind"]}
                for path in ("/run/vfioctl/mps/0000-41-00.0", "/dev/shm")
            ],
        }

    @pytest.mark.parametrize("claim", ["", "x", "1a2b3c4d\n", "1A2B3C4D", "../../etc"])
    def test_of_no_claim_are_refused(self, claim: str) -> None:
        with pytest.raises(BadSpec, match="not the id of a claim"):
            client_edits(MpsShare(claim, "user/a", GPU, 40, 0), "0000-41-00.0")

    @pytest.mark.parametrize("priority", [-1, 2])
    def test_have_two_priorities(self, priority: int) -> None:
        with pytest.raises(BadSpec, match="priority"):
            client_edits(MpsShare("1a2b3c4d", "user/a", GPU, 40, 0), "0000-41-00.0", priority=priority)


class TestFiles:
    @given(LIMITS, IDS | st.just(""), st.sampled_from(["Default", "Prohibited", "Exclusive_Process"]))
    def test_are_read_as_they_are_written(self, limits: Limits, claim: str, mode: str) -> None:
        told = Told(name_of(GPU, claim), GPU, UUID, mode, limits)
        assert NAME.fullmatch(told.name)
        assert told_in(told.text) == told
        assert told.claim == claim

    @given(LIMITS, st.data())
    def test_that_are_damaged_say_nothing_false(self, limits: Limits, data: st.DataObject) -> None:
        text = Told(name_of(GPU), GPU, UUID, "Default", limits).text
        at = data.draw(st.integers(0, len(text)))
        spoilt = text[:at] + data.draw(st.text(max_size=3)) + text[at + data.draw(st.integers(0, 3)) :]
        told = told_in(spoilt)
        assert told is None or told.text == spoilt

    @pytest.mark.parametrize(
        "told",
        [
            Told("../x", GPU, UUID, "Default", Limits()),
            Told("0000-41-00.0", GPU, "GPU-x", "Default", Limits()),
            Told("0000-41-00.0", GPU, UUID, "Odd", Limits()),
            Told("0000-41-00.0", GPU, UUID, "Default", Limits(0)),
            Told("0000-41-00.0", GPU, UUID, "Default", Limits(101)),
            Told("0000-41-00.0", GPU, UUID, "Default", Limits(40, MIB + 1)),
        ],
    )
    def test_that_nobody_writes_say_nothing(self, told: Told) -> None:
        assert told_in(told.text) is None


class TestAnswers:
    @given(st.text(max_size=60))
    def test_whatever_comes_is_a_value_or_unknown(self, text: str) -> None:
        percent, size, pids = percent_in(text), size_in(text), pids_in(text)
        assert percent is None or 1 <= percent <= 100
        assert size is None or size > 0
        assert pids is None or all(pid >= 0 for pid in pids)
        assert status_in(text).isprintable()

    @pytest.mark.parametrize(
        ("text", "percent"), [("40.0\n", 40), ("100.0", 100), ("7", 7), ("0", None), ("101", None)]
    )
    def test_percentages(self, text: str, percent: int | None) -> None:
        assert percent_in(text) == percent

    @pytest.mark.parametrize(
        ("text", "size"),
        [("2G", 2 << 30), ("2048M\n", 2 << 30), ("0", None), ("", None), ("2 G", None), ("1024", 1024)],
    )
    def test_sizes(self, text: str, size: int | None) -> None:
        assert size_in(text) == size

    def test_lists(self) -> None:
        assert pids_in("") == ()
        assert pids_in("12\n13\n12\n") == (12, 13)
        assert pids_in("12\nx") is None
        assert pids_in("1\n" * 5000) is None

    def test_a_program_knows_v3_by_its_options(self) -> None:
        assert not speaks_v3("usage: nvidia-cuda-mps-control [-d | -f]")
        assert not speaks_v3("version 3")
        assert speaks_v3("  -a, --apply <file>\n  -p, --protocol <2|3>")


class TestConfig:
    SHARES = (
        MpsShare("bbbbbbbb", "pod/a/d/c", GPU, 25, 2 << 30),
        MpsShare("aaaaaaaa", "pod/a/b/c", GPU, 60, 0),
    )

    def test_has_a_server_for_each_claim(self, golden: Golden) -> None:
        text = v3_config(UUID, self.SHARES)
        golden("mps/config.toml", text)
        assert v3_config(UUID, self.SHARES[::-1]) == text
        servers = tomllib.loads(text)["servers"]
        assert servers["claim-bbbbbbbb"] == {
            "allowed_devices": UUID,
            "pinned_memory_limit": "2048M",
            "active_thread_percentage": "25",
        }
        assert "pinned_memory_limit" not in servers["claim-aaaaaaaa"]

    def test_of_a_claim_has_one_share(self) -> None:
        with pytest.raises(BadSpec, match="one share"):
            v3_config(UUID, [self.SHARES[0], replace(self.SHARES[0], cores=10)])

    def test_of_a_share_without_cores_has_no_percentage(self) -> None:
        text = v3_config(UUID, [MpsShare("aaaaaaaa", "user/a", GPU, 0, 2 << 30)])
        (server,) = tomllib.loads(text)["servers"].values()
        assert server == {"allowed_devices": UUID, "pinned_memory_limit": "2048M"}
