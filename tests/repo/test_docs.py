"""What the documents say exists: modules, links, commands, options, make targets and settings."""

from __future__ import annotations

import re
from dataclasses import fields

import click
import pytest

from cli.main import COMMANDS, main
from gateway.settings import Settings
from tests.repo.modules import DOCUMENT, documented, modules
from tests.repo.tree import ROOT, files, text

DOCUMENTS = [name for name in files() if name.endswith(".md") and not name.startswith(("classifier_data/",))]
CONFIGURATION = "docs/configuration.md"


def commands(group=main, path=()):
    """Every command with its words, groups included."""
    context = click.Context(group)
    for name in group.list_commands(context):
        try:
            command = group.get_command(context, name)
        except ModuleNotFoundError:
            command = None
        if command is not None:
            yield (*path, name), command
            if isinstance(command, click.Group):
                yield from commands(command, (*path, name))


def prose(name):
    """A document without the list of modules, which quotes docstrings."""
    return text(name).replace(documented(), "") if name == DOCUMENT else text(name)


KNOWN = {" ".join(words): command for words, command in commands()}


def test_every_module_is_in_the_architecture():
    listed = set(re.findall(r"^\| `([^`]+)` \|", documented(), re.M))
    there = {n.removesuffix("/__init__.py") + "/" if n.endswith("/__init__.py") else n for n in modules()}
    assert listed == there, "run `python -m tests.repo.modules --write`"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name):
    folder = (ROOT / name).parent
    for target in re.findall(r"\]\(([^)\s]+)\)", text(name)):
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            continue
        path, _, anchor = target.partition("#")
        assert (folder / path).resolve().exists(), f"{name}: {target}"
        if anchor and path.endswith(".md"):
            heads = re.findall(r"^#+ (.+)$", (folder / path).read_text(encoding="utf-8"), re.M)
            slugs = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
            assert anchor in slugs, f"{name}: {target}"


@pytest.mark.parametrize("name", [n for n in DOCUMENTS if n != "CHANGELOG.md"])
def test_commands_and_options_exist(name):
    for line in re.findall(r"(?:^|`|\bBREAKEVEN\w*=\S+ )(?:\.venv/bin/)?breakeven ([a-z][^`\n#|]*)", prose(name), re.M):
        words = re.split(r"\s+", line.strip())
        found, at = "", 0
        for at in range(len(words), 0, -1):
            if (found := " ".join(words[:at])) in KNOWN:
                break
        else:
            raise AssertionError(f"{name}: no command `breakeven {line}`")
        options = {option for parameter in KNOWN[found].params for option in parameter.opts}
        used = {word.partition("=")[0].rstrip(".,;:)") for word in words[at:] if word.startswith("--")}
        assert used <= options | {"--help"}, f"{name}: `breakeven {line}`"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_make_targets_exist(name):
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.M))
    used = set(re.findall(r"(?:^|`)make ([a-z-]+)", text(name), re.M))
    assert used <= targets, f"{name}: {used - targets}"


def test_the_readme_names_every_command():
    assert {f"breakeven {name}" for name in COMMANDS} <= set(re.findall(r"`(breakeven [a-z-]+)`", text("README.md")))


def variables():
    """Every environment variable that the code reads: settings, and those of command-line options."""
    found = {f.metadata["env"] for group in Settings.GROUPS.values() for f in fields(group)}
    for command in KNOWN.values():
        for parameter in command.params:
            names = parameter.envvar or ()
            found |= {names} if isinstance(names, str) else set(names)
    return found


def test_every_setting_is_documented_with_its_default():
    rows = dict(re.findall(r"^\| `(BREAKEVEN_\w+)` \|([^|]*)\|", text(CONFIGURATION), re.M))
    assert set(rows) == variables()
    for group in Settings.GROUPS.values():
        for setting in fields(group):
            name, default = setting.metadata["env"], setting.default
            shown = rows[name].strip().strip("`")
            if default in (None, ""):
                assert not shown or not shown[0].isdigit(), name
            elif isinstance(default, int | float):
                assert float(shown.replace(",", "")) == default, name


def test_settings_named_anywhere_exist():
    # The last two are named in policies: any, in docs/policies.md, and what the vLLM pools ask for.
    known = variables() | {"BREAKEVEN_CHROMIUM", "BREAKEVEN_NAME", "BREAKEVEN_VLLM_KEY"}
    for name in [*DOCUMENTS, "docker-compose.yml", ".env.example", "Makefile"]:
        used = {word for word in re.findall(r"\b(BREAKEVEN_[A-Z_]+)\b", text(name)) if not word.endswith("_")}
        assert used <= known, f"{name}: {used - known}"
