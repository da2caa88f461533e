"""Resources, claims and lists of pods as values, for the tests of what is decided from them."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from vfioctl.claims.model.claim import Claim, ClaimedDevice, ClaimState
from vfioctl.core.limits import read_document
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.kubelet.model.device import LABEL, PROVISIONAL, Birth, Device, Listing, Pod
from vfioctl.kubelet.model.settings import ResourceSettings
from vfioctl.placement.model.claims import Owner
from vfioctl.units import Uuid

NAME = "nvidia.com/GA100_A100"
GPU, OTHER = PciAddress("0000:41:00.0"), PciAddress("0000:c1:00.0")
MDEV = Uuid("4e8c5df7-c4fa-4719-904f-5579cd5ac35f")
WEB, JOB = Pod("default", "web", "main"), Pod("batch", "job-1", "train")

addresses = st.builds(
    lambda domain, bus, device, function: PciAddress(f"{domain:04x}:{bus:02x}:{device:02x}.{function}"),
    st.integers(0, 0xFFFFFFFF),
    st.integers(0, 255),
    st.integers(0, 31),
    st.integers(0, 7),
)
uuids = st.uuids().map(lambda uuid: Uuid(str(uuid)))
subjects = addresses | uuids


def resource(name: str = NAME, **settings: object) -> ResourceSettings:
    """As the configuration has it."""
    return read_document(ResourceSettings, {"name": name, **settings})


def device(subject: Subject = GPU, *, birth: Birth | None = None) -> Device:
    return Device(str(subject), subject, birth=birth)


def claimed(*subjects: Subject, asked: bool = True) -> tuple[ClaimedDevice, ...]:
    return tuple(
        ClaimedDevice(subject, None, asked=asked)
        if isinstance(subject, PciAddress)
        else ClaimedDevice(GPU, subject, asked=asked)
        for subject in subjects
    )


def claim(
    *subjects: Subject,
    owner: str = PROVISIONAL,
    state: ClaimState = ClaimState.HELD,
    resource: str = NAME,
    id: str = "11111111",  # noqa: A002 - its name in claims
    companions: tuple[Subject, ...] = (),
    why: str = "",
) -> Claim:
    devices = (*claimed(*(subjects or (GPU,))), *claimed(*companions, asked=False))
    return Claim(
        id, Owner(owner), state, devices, "2026-01-01T00:00:00+00:00", "boot", labels={LABEL: resource}, why=why
    )


def listing(pods: Mapping[str, Pod | tuple[Pod, ...]], resource: str = NAME) -> Listing:
    """What the kubelet tells, by the ids of devices of one resource."""
    return Listing({(resource, name): (of,) if isinstance(of, Pod) else of for name, of in pods.items()})
