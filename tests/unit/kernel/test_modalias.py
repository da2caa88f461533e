"""modules.alias, matched as modprobe does."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts.machines import unhurried
from vfioctl.kernel.modalias import NATIVE, VFIO, Aliases, ids_of

H100 = "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00"
ANY = "v*d*sv*sd*bc*sc*i*"


def modules(*lines: str, bus: str = NATIVE, modalias: str = H100) -> list[str]:
    return list(Aliases("\n".join(f"alias {line}" for line in lines)).modules(modalias, bus))


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("pci:v000010DEd*sv*sd*bc03sc02i00*", True),
        ("pci:v000010DEd00002330sv*sd*bc*sc*i*", True),
        ("pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00", True),
        (f"pci:{ANY}", True),
        ("pci:v000010DEd0000233?sv*sd*bc*sc*i*", False),
        ("pci:v*d*sv*sd*bc03sc*i*", True),
        ("pci:v*d*sv*sd*bc0?sc*i*", True),
        ("pci:v000010DEd00002331sv*sd*bc*sc*i*", False),
        ("pci:v00001002d*sv*sd*bc*sc*i*", False),
        ("pci:v*d*sv000010DFsd*bc*sc*i*", False),
        ("pci:v*d*sv*sd*bc03sc00i00*", False),
        ("pci:v*d*sv*sd*bc*sc*i01", False),
        (f"vfio_pci:{ANY}", False),
        ("usb:v1D6Bp0002d*", False),
    ],
)
def test_a_line_is_for_the_devices_that_it_fits(pattern: str, fits: bool) -> None:
    assert modules(f"{pattern} module") == (["module"] if fits else [])


def test_vfio_drivers_are_a_world_of_their_own() -> None:
    variant = "vfio_pci:v000010DEd00002330sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci"
    lines = (f"pci:{ANY} native", f"vfio_pci:{ANY} vfio_pci", variant)
    assert modules(*lines) == ["native"]
    assert modules(*lines, bus=VFIO) == ["nvgrace_gpu_vfio_pci", "vfio_pci"]


def test_the_most_exact_comes_first_and_then_the_order_of_the_file() -> None:
    found = modules(
        f"pci:{ANY} last",
        "pci:v000010DEd*sv*sd*bc03sc02i00* nvidia",
        "pci:v000010DEd*sv*sd*bc03sc02i00* nvidia_drm",
        "pci:v000010DEd00002330sv*sd*bc*sc*i* exact",
        "pci:v000010DEd*sv*sd*bc03sc*i* nouveau",
    )
    assert found == ["nvidia", "nvidia_drm", "exact", "nouveau", "last"]


def test_a_module_is_named_once() -> None:
    assert modules(f"pci:{ANY} x", "pci:v000010DEd*sv*sd*bc*sc*i* x") == ["x"]


def test_a_line_can_be_written_again() -> None:
    line = "alias vfio_pci:v000010DEd00002330sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci"
    assert [alias.line for alias in Aliases(line).matching(H100, VFIO)] == [line]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "garbage",
        "alias",
        "alias pci:",
        f"alias pci:{ANY}",
        f"alias pci:{ANY} ",
        f"alias  pci:{ANY} x",
        f"Alias pci:{ANY} x",
        f"alias pci:{ANY} x y",
        "alias pci:v*d* x",
    ],
)
def test_a_line_that_is_none_is_passed_over(text: str) -> None:
    assert list(Aliases(f"{text}\nalias pci:{ANY} fine").modules(H100)) == ["fine"]


@pytest.mark.parametrize(
    "modalias",
    [
        "",
        "pci:",
        H100[:-1],
        H100 + "x",
        H100.lower(),
        "usb:v1D6Bp0002",
        "pci:v((((((((d[[[[[[[[sv********sd++++++++bc??sc..i||",
        "pci:v********d********sv********sd********bc**sc**i**",
        H100 + "\n",
    ],
)
def test_what_is_no_modalias_has_no_driver(modalias: str) -> None:
    assert modules(f"pci:{ANY} x", "pci:v(d(sv(sd(bc(sc(i( y", modalias=modalias) == []
    assert ids_of(modalias) is None


@pytest.mark.parametrize(
    "line",
    [
        "pci:v*d" + "sdbcsciv*d" * 7000,
        "pci:v*d*sv*sd" + "bc" * 32_000,
        "pci:v*d*sv*sd*bc*sc*i" + "i" * 65_000,
        "pci:v*d" + "*" * 65_000,
    ],
    ids=len,
)
def test_a_hostile_line_takes_no_time(line: str) -> None:
    began = time.monotonic()
    assert modules(line, f"{line} x", f"pci:{ANY} fine") == ["fine"]
    assert time.monotonic() - began < 2


def test_a_hundred_thousand_lines_take_no_time() -> None:
    lines = [f"alias pci:v0000{number & 0xFFFF:04X}d*sv*sd*bc*sc*i* m{number}" for number in range(100_000)]
    table, began = Aliases("\n".join(lines)), time.monotonic()
    assert table.modules(H100) == ("m4318", "m69854")
    assert time.monotonic() - began < 2


@unhurried
@given(st.text(max_size=200), st.text(max_size=80))
def test_any_text_is_taken(text: str, modalias: str) -> None:
    assert Aliases(text).modules(modalias) == ()
    assert isinstance(Aliases(f"alias pci:v{text}").modules(H100), tuple)
