"""docker-compose.yml is valid by the Compose Specification and agrees with the code. No image is built here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import fields
from importlib import resources
from urllib.parse import urlsplit

import click
import jsonschema
import pytest
import yaml

from cli.main import main
from gateway.settings import Settings
from tests.repo.tree import ROOT, files, text

COMPOSE = yaml.safe_load(text("docker-compose.yml"))
SERVICES = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if service["image"].startswith("breakeven/")]
ELSEWHERE = {"BREAKEVEN_ENGINE_TOKEN", "BREAKEVEN_VLLM_KEY"}
"""Read by the engine itself and by a policy; other variables are those of the command or in the gateway's settings."""


def command_of(words):
    """Resolve `breakeven a b --x y` to its click command and the options used."""
    assert words[0] == "breakeven"
    command, rest = main, list(words[1:])
    while rest and isinstance(command, click.Group):
        name = rest.pop(0)
        command = command.get_command(click.Context(command), name)
        assert command is not None, f"no command {name!r} in {' '.join(words)}"
    return command, [word for word in rest if word.startswith("--")]


def option_variables(command):
    """Environment variables that a click command reads."""
    found = set()
    for parameter in command.params:
        names = parameter.envvar or ()
        found |= {names} if isinstance(names, str) else set(names)
    return found


def setting_variables():
    return {f.metadata["env"] for group in Settings.GROUPS.values() for f in fields(group)}


def test_valid_by_the_compose_specification():
    schemas = resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    schema = json.loads((schemas / "compose-spec.json").read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)
    errors = [f"{list(e.absolute_path)}: {e.message}" for e in validator(schema).iter_errors(COMPOSE)]
    assert not errors


def test_the_services_that_are_promised():
    assert {"gateway", "engine", "engine-gpu", "redis", "postgres", "migrate"} <= set(SERVICES)
    devices = SERVICES["engine-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices[0]["capabilities"] == ["gpu"]
    assert SERVICES["engine-gpu"]["profiles"] == ["gpu"]
    assert "profiles" not in SERVICES["engine"]
    assert SERVICES["vllm-spec"]["profiles"] == SERVICES["vllm-plain"]["profiles"] == ["vllm"]
    long_running = set(SERVICES) - {"migrate"}
    assert all("healthcheck" in SERVICES[name] for name in long_running)


@pytest.mark.parametrize("name", OURS)
def test_commands_and_options_exist(name):
    command, options = command_of(SERVICES[name]["command"])
    known = {word for parameter in command.params for word in parameter.opts}
    assert set(options) <= known


@pytest.mark.parametrize("name", OURS)
def test_environment_names_are_read_by_the_code(name):
    command, _options = command_of(SERVICES[name]["command"])
    known = setting_variables() | option_variables(command) | ELSEWHERE
    assert set(SERVICES[name]["environment"]) <= known


@pytest.mark.parametrize("name", OURS)
def test_dockerfile_exists_copies_what_exists_and_starts_the_same_command(name):
    build = SERVICES[name]["build"]
    dockerfile = text(build["dockerfile"])
    tracked = set(files())
    for line in re.findall(r"^COPY (.+)$", dockerfile, re.M):
        for source in line.split()[:-1]:
            assert any(f == source or f.startswith(f"{source}/") for f in tracked), f"{source} is not in the repository"
    started = json.loads(re.search(r"^CMD (\[.+\])$", dockerfile, re.M)[1])
    command_of(started)
    if name != "migrate":
        assert started[1] == SERVICES[name]["command"][1]
    for variable in re.findall(r"\b(BREAKEVEN_\w+)=", dockerfile):
        assert variable in setting_variables() | option_variables(command_of(started)[0])
    assert "USER breakeven" in dockerfile


def test_ports_agree():
    gateway, engine = SERVICES["gateway"], SERVICES["engine"]
    assert gateway["ports"][0].endswith(":8000")
    assert "8000" in gateway["command"]
    assert ":8000/healthz" in gateway["healthcheck"]["test"][-1]
    url = urlsplit(gateway["environment"]["BREAKEVEN_ENGINE_URL"].replace("${ENGINE:-engine}", "engine"))
    assert (url.hostname, str(url.port)) == ("engine", engine["expose"][0])
    assert engine["expose"][0] in engine["command"]
    assert f":{engine['expose'][0]}/health" in engine["healthcheck"]["test"][-1]
    assert f"EXPOSE {engine['expose'][0]}" in text("docker/engine.Dockerfile")
    assert "EXPOSE 8000" in text("docker/gateway.Dockerfile")


def test_the_vllm_pools_differ_in_speculation_alone_and_the_policy_names_them():
    spec, plain = (SERVICES[name]["command"] for name in ("vllm-spec", "vllm-plain"))
    assert spec[: len(plain)] == plain
    assert spec[len(plain) :: 2] == ["--speculative-config", "--per-request-spec-decode-metrics"]
    drafted = json.loads(spec[len(plain) + 1])
    backends = yaml.safe_load(text("policies/vllm-minimal.yaml"))["backends"]
    assert {urlsplit(one["url"]).hostname for one in backends.values()} == {"vllm-spec", "vllm-plain"}
    assert backends["spec"]["arms"] == f"eagle-k{drafted['num_speculative_tokens']}"


def test_named_volumes_are_declared_and_dependencies_exist():
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            assert volume.split(":")[0] in COMPOSE["volumes"]
        for needed, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[needed]
            else:
                assert SERVICES[needed].get("restart") != "always"


def test_every_secret_is_demanded_and_listed_in_the_example():
    demanded = set(re.findall(r"\$\{(\w+):\?", text("docker-compose.yml")))
    example = set(re.findall(r"^(\w+)=$", text(".env.example"), re.M))
    assert demanded == example
    assert not (ROOT / ".env").exists() or ".env" not in files()


def test_health_checks_ask_for_routes_that_exist():
    assert '"/healthz"' in text("gateway/api/health.py")
    assert any('"/health"' in text(name) for name in files() if name.startswith("engine/server/"))


def test_what_the_gateways_image_runs_needs_no_torch():
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'safetensors', 'xgrammar', 'gguf'): sys.modules[name] = None\n"
        "import gateway.app, cli.db, cli.gateway, cli.keys, cli.report, migrations\n"
        "from gateway.app import create_app\n"
        "from gateway.settings import Settings\n"
        "create_app(Settings.from_env({'BREAKEVEN_DATA_DIR': sys.argv[1]}))\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", code, folder]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
