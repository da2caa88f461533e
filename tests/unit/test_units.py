"""Sizes as options, specs and libvirt write them, and as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfioctl.errors import BadSpec
from vfioctl.units import (
    Uuid,
    format_cpu_list,
    format_size,
    parse_cpu_list,
    parse_cpu_mask,
    parse_duration,
    parse_size,
    unit_bytes,
)


# libvirt 9.0, src/util/virutil.c, virScaleInteger
@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1B", 1),
        ("1 bytes", 1),
        ("1k", 1024),
        ("1KiB", 1024),
        ("1KB", 1000),
        ("1MB", 1000**2),
        ("2M", 2 << 20),
        ("2MiB", 2 << 20),
        ("40GB", 40 * 1000**3),
        ("40G", 40 << 30),
        ("1.5GiB", 3 << 29),
        ("3tib", 3 << 40),
        ("1PiB", 1 << 50),
        ("1EB", 1000**6),
    ],
)
def test_a_size_is_read_as_libvirt_reads_it(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "64", "0", "0GiB", "0.0M", "1 XiB", "1KiBs", "-1", "1.5.5G", "1e3", "\u0661GiB", "1  GiB", "1GiB\n"],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(BadSpec):
        parse_size(text)


@pytest.mark.parametrize("unit", ["", "x", "iB", "Kb i", "ZiB"])
def test_an_unknown_unit_has_no_size(unit: str) -> None:
    assert unit_bytes(unit) is None


def test_one_amount_is_printed_in_one_form() -> None:
    assert [format_size(count) for count in (0, 512, 2 << 20, 80_000_000_000, 74 << 30, 3 << 40)] == [
        "0 B",
        "512 B",
        "2 MiB",
        "74.5 GiB",
        "74 GiB",
        "3 TiB",
    ]


@given(st.sets(st.integers(0, 8191)))
def test_a_list_of_cpus_is_read_as_it_is_written(numbers: set[int]) -> None:
    assert parse_cpu_list(format_cpu_list(numbers)) == tuple(sorted(numbers))


def test_a_uuid_is_named_in_lower_case() -> None:
    assert Uuid("AAAAAAAA-bbbb-CCCC-dddd-EEEEEEEEEEEE") == "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("1h30m", 5400), ("1d", 86400), ("1w2d3h4m5s", 788645), ("0s", 0), ("0.5S", 0.5), (" 5m ", 300)],
)
def test_a_duration_is_its_parts_together(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["90", "0", "", "m", "30m1h", "1h1h", "1h 30m", "-1s", "1y", "1e3s", "1h30", "inf"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(BadSpec, match="not a duration"):
        parse_duration(text)


def test_a_duration_has_an_end() -> None:
    assert parse_duration("5200w") == 5200 * 7 * 86400
    with pytest.raises(BadSpec, match="at most 5200w"):
        parse_duration("999999w")


@given(st.sets(st.integers(0, 8191)))
def test_a_mask_of_cpus_is_read_as_the_kernel_writes_it(cpus: set[int]) -> None:
    digits = f"{sum(1 << cpu for cpu in cpus):x}"
    words = [digits[max(0, end - 8) : end] for end in range(len(digits), 0, -8)]
    assert parse_cpu_mask(",".join(reversed(words)) + "\n") == tuple(sorted(cpus))


@pytest.mark.parametrize("text", ["", "x", "123456789", "1,,2", "-1", ",".join(["0"] * 257)])
def test_what_is_no_mask_of_cpus_is_refused(text: str) -> None:
    with pytest.raises(BadSpec):
        parse_cpu_mask(text)
