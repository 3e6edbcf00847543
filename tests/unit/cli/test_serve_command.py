"""`breakeven serve` refuses what cannot work before it starts anything, in one line."""

import socket

import pytest
from click.testing import CliRunner

from cli.serve import free_port, make_plan, serve
from gateway.settings import Settings


@pytest.fixture
def refused(tmp_path, monkeypatch):
    for name in ("BREAKEVEN_REDIS_URL", "BREAKEVEN_DATABASE_URL", "BREAKEVEN_POLICY", "BREAKEVEN_HOST"):
        monkeypatch.delenv(name, raising=False)

    def run(*options):
        result = CliRunner().invoke(serve, ["--port", "0", "--data-dir", str(tmp_path / "data"), *options])
        assert result.exit_code == 1
        assert "Traceback" not in result.output
        assert not (tmp_path / "data" / "redis").exists()
        return result.stderr

    return run


def test_a_data_folder_in_use_names_who_uses_it(refused, tmp_path):
    plan = make_plan(Settings.from_env({}, data_dir=tmp_path / "data", port=0))
    told = refused()
    assert "in use by another `breakeven serve`" in told
    assert f"port {plan.port}" in told
    plan.lock.close()


def test_a_port_in_use(refused):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        told = refused("--port", str(taken.getsockname()[1]))
    assert "Address already in use; choose another with --port" in told


def test_an_address_that_is_not_ours(refused):
    assert "cannot listen on 192.0.2.1:" in refused("--host", "192.0.2.1")


def test_a_bad_policy_is_shown_with_its_place(refused, tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text("version: 1\nrules: 3\n")
    assert f"{bad}:2:" in refused("--policy", str(bad))


def test_a_missing_policy(refused, tmp_path):
    assert "none.yaml" in refused("--policy", str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--redis-url", "http://x", "BREAKEVEN_REDIS_URL"),
        ("--database-url", "mysql://x", "BREAKEVEN_DATABASE_URL"),
    ],
)
def test_malformed_urls_name_the_variable(refused, option, value, told):
    assert told in refused(option, value)


def test_a_data_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(serve, ["--port", "0", "--data-dir", str(tmp_path / "file" / "data")])
    assert result.exit_code == 1
    assert "choose another with --data-dir" in result.stderr


def test_only_engines_that_the_policy_names_are_started(tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\ntasks: default\nbackends:\n  p: {kind: vllm, url: 'http://127.0.0.1:9', arms: plain}\n"
        "rules:\n  - {name: all, path: auto}\n"
    )
    plan = make_plan(Settings.from_env({}, data_dir=tmp_path / "a", port=0, path=policy))
    default = make_plan(Settings.from_env({}, data_dir=tmp_path / "b", port=0))
    assert plan.engine_port is None
    assert default.engine_port is not None
    for made in (plan, default):
        made.lock.close()


def test_the_url_to_show_can_be_reached(tmp_path):
    plan = make_plan(Settings.from_env({}, data_dir=tmp_path, port=0, host="0.0.0.0"))
    assert plan.url == f"http://127.0.0.1:{plan.port}"
    plan.lock.close()


def test_free_port_keeps_a_given_one():
    port = free_port("127.0.0.1", 0)
    assert free_port("127.0.0.1", port) == port
