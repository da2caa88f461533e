"""The table `[kubelet]` of the configuration: defaults, and each mistake with its line and words."""

from __future__ import annotations

from pathlib import Path

import pytest

from vfioctl.claims.model.cdi import Node
from vfioctl.config import read_file_of
from vfioctl.errors import BadSpec
from vfioctl.kubelet.model.settings import CdiBy, Consumer, DeviceKind, KubeletSettings, ResourceSettings
from vfioctl.settings import validated
from vfioctl.subsystems import SUBSYSTEMS

MODEL = next(row.settings for row in SUBSYSTEMS if row.name == "kubelet")
ONE = '[[kubelet.resources]]\nname = "nvidia.com/GPU"\n'


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "config.toml"
    monkeypatch.setenv("VFIOCTL_CONFIG", str(place))
    return place


def read(file: Path, text: str) -> KubeletSettings:
    file.write_text(text)
    found = validated(read_file_of(file), "kubelet", MODEL)
    assert isinstance(found, KubeletSettings)
    return found


def refused(file: Path, text: str) -> str:
    with pytest.raises(BadSpec) as refusal:
        read(file, text)
    return refusal.value.message.removeprefix(f"{file}:")


def with_resource(line: str) -> str:
    return f"[kubelet]\n{ONE}{line}\n"


def test_a_whole_table_is_understood(file: Path) -> None:
    found = read(
        file,
        """
        [kubelet]
        plugins = "/srv/plugins/"
        pod_resources = "/srv/pods.sock"
        listen = "[::1]:9000"
        run = "/srv/run"
        allocate_timeout = "2m"
        poll = "1s"
        grace = "1h"
        [[kubelet.resources]]
        name = "nvidia.com/A2-4C"
        devices = "vgpu"
        match = ["10de:25b6", "0000:41:00.0", "a2"]
        type = "A2-4C"
        consumer = "kata"
        node = "cdev"
        bind = false
        cdi = "annotation"
        """,
    )
    assert found.plugins == "/srv/plugins"
    assert [found.seconds(name) for name in ("allocate_timeout", "poll", "grace")] == [120, 1, 3600]
    assert found.names == ["nvidia.com/A2-4C"]
    assert found.resource("nvidia.com/A2-4C") == ResourceSettings(
        name="nvidia.com/A2-4C",
        devices=DeviceKind.VGPU,
        match=("10de:25b6", "0000:41:00.0", "a2"),
        type="A2-4C",
        consumer=Consumer.KATA,
        node=Node.CDEV,
        bind=False,
        cdi=CdiBy.ANNOTATION,
    )
    assert found.resource("nvidia.com/a2-4c") is None


def test_what_is_left_out_has_its_default(file: Path) -> None:
    found = read(file, with_resource(""))
    default = KubeletSettings()
    assert found == KubeletSettings(resources=(ResourceSettings(name="nvidia.com/GPU"),))
    assert (default.plugins, default.run) == ("/var/lib/kubelet/device-plugins", "/run/vfioctl")
    assert (default.pod_resources, default.listen) == ("/var/lib/kubelet/pod-resources/kubelet.sock", "127.0.0.1:9820")
    assert [default.seconds(name) for name in ("allocate_timeout", "poll", "grace")] == [60, 10, 60]
    (resource,) = found.resources
    assert (resource.devices, resource.consumer, resource.node) == ("passthrough", "devices", "group")
    assert (resource.match, resource.type, resource.bind, resource.cdi) == ((), "", True, "field")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('plugins = "device-plugins"', "2: kubelet.plugins is wrong: an absolute path of at most 60 bytes is needed"),
        (f'run = "/{"x" * 60}"', "2: kubelet.run is wrong: an absolute path of at most 60 bytes is needed"),
        ('listen = "9820"', "2: kubelet.listen is wrong: '9820' is no address with a port"),
        ('listen = "127.0.0.1:65536"', "2: kubelet.listen is wrong: '127.0.0.1:65536' is no address with a port"),
        ('listen = "example.com:80"', "2: kubelet.listen is wrong: 'example.com:80' is no address with a port"),
        ('poll = "0s"', "2: kubelet.poll is wrong: a duration from 1s to 1h is needed"),
        ('grace = "61m"', "2: kubelet.grace is wrong: a duration from 1s to 1h is needed"),
        ('allocate_timeout = "soon"', "2: kubelet.allocate_timeout is wrong: "),
        ('socket = "/x"', "2: kubelet.socket is "),
        ('pod_resources = ""', "2: kubelet.pod_resources "),
    ],
)
def test_a_wrong_setting_is_refused_with_its_line(file: Path, line: str, words: str) -> None:
    assert refused(file, f"[kubelet]\n{line}\n").startswith(words)


@pytest.mark.parametrize("listen", ["", "0.0.0.0:1", "localhost:9820", "[::]:65535"])
def test_an_address_to_listen_on(file: Path, listen: str) -> None:
    assert read(file, f'[kubelet]\nlisten = "{listen}"\n').listen == listen


@pytest.mark.parametrize(
    "name",
    [
        "gpu",
        "nvidia.com/",
        "/gpu",
        "Nvidia.com/gpu",
        "nvidia.com/gpu-",
        "nvidia..com/gpu",
        "nvidia.com/a/b",
        f"nvidia.com/{'x' * 64}",
        f"{'x' * 254}/gpu",
        "kubernetes.io/gpu",
        "node.kubernetes.io/gpu",
        "k8s.io/gpu",
        "requests.nvidia.com/gpu",
        "nvidia.com/gpu\\n",
    ],
)
def test_a_name_that_is_no_extended_resource_is_refused(file: Path, name: str) -> None:
    words = refused(file, f'[kubelet]\n[[kubelet.resources]]\nname = "{name}"\n')
    assert words.startswith("3: kubelet.resources.0.name is wrong: ")
    assert "is no extended resource: write DOMAIN/NAME, such as nvidia.com/GA100_A100" in words


@pytest.mark.parametrize("name", ["nvidia.com/GA100_A100", "a/b", "x-1.y.example/A.b_c-d9", f"a.b/{'x' * 63}"])
def test_a_name_of_an_extended_resource(file: Path, name: str) -> None:
    assert read(file, f'[kubelet]\n[[kubelet.resources]]\nname = "{name}"\n').names == [name]


@pytest.mark.parametrize("name", ["3dfx.com/voodoo", "example.com/3d"])
def test_a_name_that_cdi_does_not_allow_is_refused(file: Path, name: str) -> None:
    words = refused(file, f'[kubelet]\n[[kubelet.resources]]\nname = "{name}"\n')
    assert f"{name!r} is no name of CDI devices, too: let it begin with a letter" in words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('devices = "gpu"', "4: kubelet.resources.0.devices "),
        ('consumer = "docker"', "4: kubelet.resources.0.consumer "),
        ('node = "both"', "4: kubelet.resources.0.node "),
        ('cdi = "env"', "4: kubelet.resources.0.cdi "),
        ('bind = "yes"', "4: kubelet.resources.0.bind "),
        ('match = "10de:2330"', "4: kubelet.resources.0.match "),
        ('match = [""]', "4: kubelet.resources.0.match.0 "),
        ('model = "H100"', "4: kubelet.resources.0.model is "),
        ('devices = "vgpu"', "type: vGPUs that are created need one, such as "),
        ('type = "nvidia-63"', "type: passthrough devices have none"),
        ('devices = "vf"\ntype = "nvidia-63"', "type: vf devices have none"),
    ],
)
def test_a_wrong_resource_is_refused_with_its_line(file: Path, line: str, words: str) -> None:
    assert words in refused(file, with_resource(line))


def test_a_resource_needs_a_name(file: Path) -> None:
    assert "kubelet.resources.0.name" in refused(file, '[kubelet]\n[[kubelet.resources]]\nmatch = ["a"]\n')


def test_a_resource_is_there_once(file: Path) -> None:
    assert "resources: two have the name nvidia.com/GPU" in refused(file, f"[kubelet]\n{ONE}{ONE}")


def test_two_resources_may_not_share_a_socket(file: Path) -> None:
    names = (f"nvidia.com/{'x' * 50}{end}" for end in "ab")
    tables = "".join(f'[[kubelet.resources]]\nname = "{name}"\n' for name in names)
    assert f"resources: two have the socket vfioctl-nvidia.com_{'x' * 21}.sock" in refused(file, tables)


def test_the_path_of_a_socket_fits_into_an_address_of_unix_sockets() -> None:
    resource = ResourceSettings(name=f"{'d' * 63}/{'x' * 63}")
    assert len(f"/{'x' * 59}/{resource.endpoint}") <= 107
    assert "/" not in resource.endpoint


def test_an_mdev_may_have_a_type(file: Path) -> None:
    assert read(file, with_resource('devices = "mdev"\ntype = "nvidia-63"')).resources[0].type == "nvidia-63"
