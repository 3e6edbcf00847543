"""deploy/kubernetes is valid by Kubernetes' schemas, agrees with compose, policies and code. No cluster runs here."""

from __future__ import annotations

import json

import kubernetes_validate
import pytest
import yaml

from tests.repo.test_compose import SERVICES, command_of, setting_variables
from tests.repo.tree import files, text

FOLDER = "deploy/kubernetes"
BASE = yaml.safe_load(text(f"{FOLDER}/kustomization.yaml"))
OBJECTS = [
    one for name in [*BASE["resources"], "first-key.yaml"] for one in yaml.safe_load_all(text(f"{FOLDER}/{name}"))
]
PODS = {
    one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in OBJECTS if "template" in one.get("spec", {})
}
CONTAINERS = {name: pod["containers"][0] for name, pod in PODS.items()}


@pytest.mark.parametrize("one", OBJECTS, ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_valid_by_the_schemas_of_kubernetes(one):
    kubernetes_validate.validate(one, "1.37", strict=True)


def test_a_fault_is_found():
    broken = {**OBJECTS[0], "spec": {**OBJECTS[0]["spec"], "replicas": "two"}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, "1.37", strict=True)


def test_every_file_is_used_and_every_name_is_there():
    there = {name.removeprefix(f"{FOLDER}/") for name in files() if name.startswith(f"{FOLDER}/")}
    generated = {name for maker in BASE["configMapGenerator"] for name in maker["files"]}
    assert there == {"kustomization.yaml", "first-key.yaml", *BASE["resources"], *generated}
    services = {one["metadata"]["name"] for one in OBJECTS if one["kind"] == "Service"}
    for service in (one for one in OBJECTS if one["kind"] == "Service"):
        assert service["spec"]["selector"]["app.kubernetes.io/name"] in PODS
    backends = yaml.safe_load(text(f"{FOLDER}/policy.yaml"))["backends"]
    assert {one["url"] for one in backends.values()} <= {f"http://{name}:8000" for name in services}
    versions = {image["name"]: image["newTag"] for image in BASE["images"]}
    assert f"breakeven/gateway:{versions['breakeven/gateway']}" == SERVICES["gateway"]["image"]
    assert f"vllm/vllm-openai:{versions['vllm/vllm-openai']}" == SERVICES["vllm-spec"]["image"]
    assert CONTAINERS["first-key"]["image"] == SERVICES["gateway"]["image"]


def test_our_commands_and_variables_exist():
    for name in ("gateway", "migrate", "first-key"):
        command, options = command_of(CONTAINERS[name]["command"])
        assert set(options) <= {word for parameter in command.params for word in parameter.opts}
        ours = {one["name"] for one in CONTAINERS[name]["env"] if one["name"].startswith("BREAKEVEN_")}
        assert ours <= setting_variables() | {"BREAKEVEN_VLLM_KEY"}
    probes = {CONTAINERS["gateway"][name]["httpGet"]["path"] for name in ("readinessProbe", "livenessProbe")}
    assert probes == {"/readyz", "/healthz"}
    assert all(f'"{path}"' in text("gateway/api/health.py") for path in probes)


def test_the_pools_are_those_of_compose():
    for name in ("vllm-spec", "vllm-plain"):
        args = CONTAINERS[name]["args"]
        port = args.index("--port")
        assert args[:port] + args[port + 2 :] == SERVICES[name]["command"]


def test_the_policy_is_the_shipped_one():
    assert yaml.safe_load(text(f"{FOLDER}/policy.yaml")) == yaml.safe_load(text("policies/vllm-minimal.yaml"))
    assert json.dumps(yaml.safe_load(text("policies/vllm-minimal.yaml"))).count("http://vllm-") == 2
