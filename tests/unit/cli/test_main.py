"""The entry point: every command is there, and looking at them loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from cli.main import COMMANDS, main


def test_help_names_every_command():
    shown = CliRunner().invoke(main, ["--help"])
    assert shown.exit_code == 0, shown.output
    for name in COMMANDS:
        assert f"  {name} " in shown.output


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself(name):
    shown = CliRunner().invoke(main, [name, "--help"])
    assert shown.exit_code == 0, shown.output
    assert "Usage:" in shown.output


def test_an_unknown_command_is_refused():
    assert CliRunner().invoke(main, ["no-such-command"]).exit_code == 2


def test_help_loads_neither_torch_nor_the_web_framework():
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from cli.main import main\n"
        "CliRunner().invoke(main, ['--help'])\n"
        "print([name for name in ('torch', 'transformers', 'litestar') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout.strip() == "[]"
