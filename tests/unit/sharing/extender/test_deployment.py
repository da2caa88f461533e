"""The Deployment and the scheduler's configuration that the documents show: rights, arguments, names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from vfioctl import __version__
from vfioctl.console.lazy import built
from vfioctl.sharing.extender.names import MEMORY
from vfioctl.sharing.extender.service import VERBS

ROOT = Path(__file__).resolve().parents[4]
DOCUMENTS: dict[str, dict[str, Any]] = {
    document["kind"]: document for document in yaml.safe_load_all((ROOT / "deploy/vfioctl-extender.yaml").read_text())
}
DEPLOYMENT = DOCUMENTS["Deployment"]["spec"]
POD = DEPLOYMENT["template"]["spec"]
(CONTAINER,) = POD["containers"]
GUIDE = (ROOT / "docs/how-to/schedule-shares.md").read_text()


def test_the_arguments_are_options_of_the_command() -> None:
    from vfioctl.app import places

    words = [argument for argument in CONTAINER["args"] if not argument.startswith("--")]
    assert words == ["share", "extender", "serve"]
    command: Any = built(places()).load("share", ("extender", "serve"))
    known = {option for each in command.commands["extender"].commands["serve"].params for option in each.opts}
    given = {argument.partition("=")[0] for argument in CONTAINER["args"] if argument.startswith("--")}
    assert given <= known
    assert CONTAINER["image"] == f"registry.example.com/vfioctl:{__version__}"


def test_one_process_binds() -> None:
    assert DEPLOYMENT["replicas"] == 1
    assert DEPLOYMENT["strategy"] == {"type": "Recreate"}
    assert DEPLOYMENT["selector"]["matchLabels"] == DEPLOYMENT["template"]["metadata"]["labels"]
    assert DOCUMENTS["Service"]["spec"]["selector"] == DEPLOYMENT["selector"]["matchLabels"]


def test_it_may_do_what_its_requests_need_and_no_more() -> None:
    rights = {
        (resource, verb)
        for r in DOCUMENTS["ClusterRole"]["rules"]
        for resource in r["resources"]
        for verb in r["verbs"]
    }
    assert rights == {
        *(("nodes", verb) for verb in ("list", "watch")),
        *(("pods", verb) for verb in ("get", "list", "watch")),
        ("pods/binding", "create"),
    }
    account = DOCUMENTS["ServiceAccount"]["metadata"]
    assert DOCUMENTS["ClusterRoleBinding"]["subjects"] == [{"kind": "ServiceAccount", **account}]
    assert POD["serviceAccountName"] == account["name"]


def test_it_is_no_root_and_changes_nothing_around_it() -> None:
    assert POD["securityContext"]["runAsNonRoot"] is True
    context = CONTAINER["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert not [volume for volume in POD["volumes"] if "hostPath" in volume]


def test_whoever_can_connect_from_elsewhere_needs_a_certificate() -> None:
    files = {name: value for name, _, value in (a.partition("=") for a in CONTAINER["args"]) if name.endswith("-file")}
    assert files.keys() == {"--tls-cert-file", "--tls-key-file", "--client-ca-file"}
    mounts = {mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    assert {str(Path(path).parent) for path in files.values()} <= mounts
    made = set(re.findall(r"--from-file=([\w.]+)", GUIDE))
    assert {Path(path).name for path in files.values()} == made


def test_the_configuration_of_the_scheduler_names_what_is_served() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    (extender,) = yaml.safe_load(text)["extenders"]
    assert {extender[f"{verb}Verb"] for verb in VERBS} == set(VERBS)
    assert [resource["name"] for resource in extender["managedResources"]] == [MEMORY]
    metadata, port = DOCUMENTS["Service"]["metadata"], DOCUMENTS["Service"]["spec"]["ports"][0]["port"]
    assert extender["urlPrefix"] == f"https://{metadata['name']}.{metadata['namespace']}.svc:{port}"
    assert f"--listen=0.0.0.0:{port}" in CONTAINER["args"]
    assert extender["enableHTTPS"] is True
