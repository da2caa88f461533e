"""Which XIDs are a fault of the GPU."""

from __future__ import annotations

import pytest

from vfioctl.kubelet.choosing.xid import OF_APPLICATIONS, is_critical


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
def test_an_error_of_an_application_leaves_the_gpu_healthy(xid: int) -> None:
    assert not is_critical(xid)


@pytest.mark.parametrize("xid", [46, 48, 62, 64, 74, 79, 94, 95, 119, 120])
def test_an_error_of_the_gpu_is_critical(xid: int) -> None:
    assert is_critical(xid)


@pytest.mark.parametrize("xid", [0, 154, 999, 1 << 63])
def test_one_that_nobody_knows_is_critical(xid: int) -> None:
    assert is_critical(xid)


def test_the_list_is_that_of_nvidias_device_plugin() -> None:
    assert set(OF_APPLICATIONS) == {13, 31, 43, 45, 68, 109}
