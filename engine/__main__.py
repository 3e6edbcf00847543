"""The command that runs one engine process: `python -m engine`, and `breakeven engine` through `cli/engine.py`."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import Any

import click

from engine.config import ConfigError, EngineConfig, default_threads
from engine.errors import EngineError
from engine.memory import set_memory_up
from engine.models.locate import check_name
from engine.server.listen import Listen, bind

DEFAULTS = EngineConfig()


@click.command("engine")
@click.option("--model", envvar="BREAKEVEN_MODEL", default=DEFAULTS.model, show_default=True)
@click.option("--draft-model", envvar="BREAKEVEN_DRAFT_MODEL", help="Offers draft_model speculation.")
@click.option(
    "--draft-head",
    envvar="BREAKEVEN_DRAFT_HEAD",
    default="auto",
    show_default=True,
    help="Offers eagle speculation: a head's file, auto (the built-in model's own) or none.",
)
@click.option("--models-dir", envvar="BREAKEVEN_MODELS_DIR", help="Where fetched models are kept.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8100, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option("--dtype", envvar="BREAKEVEN_DTYPE", default="auto", show_default=True, help="auto, float32 or bfloat16.")
@click.option("--device", envvar="BREAKEVEN_DEVICE", default="auto", show_default=True, help="auto, cpu, cuda, …")
@click.option("--threads", type=int, default=default_threads(), show_default=True, help="torch threads.")
@click.option("--max-batch", type=int, default=DEFAULTS.max_batch, show_default=True)
@click.option("--max-waiting", type=int, default=DEFAULTS.max_waiting, show_default=True)
@click.option("--kv-tokens", type=int, help="KV budget in tokens [default: as many as 384 MiB hold].")
@click.option("--prefill-chunk", type=int, default=DEFAULTS.prefill_chunk, show_default=True)
@click.option("--max-k", type=int, default=DEFAULTS.max_k, show_default=True)
@click.option("--max-model-len", type=int, help="Context window in tokens [default: the model's].")
@click.option("--suffix-store-tokens", type=int, default=0, show_default=True)
@click.option("--synthetic-acceptance", type=click.Path(dir_okay=False), help="Acceptance profile for load tests.")
@click.option("--profile/--no-profile", default=True, show_default=True, help="Profile step costs in idle gaps.")
@click.option("--costs-out", type=click.Path(dir_okay=False), help="Write `breakeven simulate`'s cost file here.")
@click.option("--prefix-reuse/--no-prefix-reuse", default=True, show_default=True)
def main(host: str, port: int, kv_tokens: int | None, **options: Any) -> None:  # noqa: ANN401 - EngineConfig's fields
    """Run the engine: an OpenAI-compatible server with speculation chosen per request."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        if kv_tokens is not None and kv_tokens < 1:
            raise ConfigError(f"kv_tokens: expected at least 1, got {kv_tokens}")
        config = EngineConfig(**options)
        listen = Listen(host, port, os.environ.get("BREAKEVEN_ENGINE_TOKEN") or None)
        for name in filter(None, (config.model, config.draft_model)):
            check_name(name)
        bound = bind(listen)
        set_memory_up()
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads starve the gateway beside them
        os.environ.setdefault("OMP_NUM_THREADS", str(config.num_threads))
        run = importlib.import_module("engine.server.run")  # torch, only now that its environment is set
        run.serve(config, listen, bound, kv_tokens)
    except EngineError as error:
        click.echo(f"breakeven engine: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
