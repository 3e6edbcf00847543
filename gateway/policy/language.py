"""The keys of a policy file: one table per section, from which files are read and the JSON Schema is printed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.policy.kinds import (
    Choice,
    Context,
    Flag,
    Key,
    ListOf,
    Off,
    Record,
    Schema,
    Text,
    Value,
    decimal,
    duration,
    share,
    whole,
)
from gateway.policy.nodes import Node, Scalar, describe
from gateway.policy.schema import BACKEND_KINDS, P99, BreakEven, Store, Task
from gateway.policy.values import (
    ARM_PATTERN,
    BACKEND_NAME,
    PRINTABLE,
    RULE_NAME,
    TASK,
    Arms,
    Named,
    Signals,
    Substituted,
    make_backend_config,
)
from gateway.policy.when import When

DAY = 86400.0
WINDOW = 3 * 3600.0
"""How far back live statistics reach: no half-life is longer."""
_URL = Substituted("a URL", url=True)
TASKS = Named(
    Record(
        "task",
        Task,
        {
            "name": Key(TASK, "what headers, statistics and rules call it", required=True),
            "description": Key(Text("a description", limit=2000), "one sentence for people and for training"),
            "examples": Key(ListOf(Text("an example prompt", limit=4000), 2000), "prompts of this task"),
        },
    ),
    TASK,
    limit=200,
    short="description",
)
CLASSIFIER = Record(
    "classifier",
    dict,
    {
        "artefact": Key(Substituted("a path"), "trained artefact; absent: the shipped one"),
        "threshold": Key(decimal(0, 1), "confidence below which the fallback task is used"),
        "fallback_task": Key(TASK, "task of requests that cannot be told apart"),
    },
)
BACKENDS = Named(
    Record(
        "backend",
        make_backend_config,
        {
            "name": Key(BACKEND_NAME, "first part of an arm's name", required=True),
            "kind": Key(Choice(BACKEND_KINDS), "which server this is; openai is any compatible one"),
            "url": Key(_URL, "base URL; ${BREAKEVEN_NAME:-default} is filled in from the environment"),
            "urls": Key(ListOf(_URL, 256), "base URLs of equal replicas"),
            "model": Key(PRINTABLE, "the model's name upstream; absent: the server's only model"),
            "arms": Key(Arms(), "auto, or the arms to use; those the server cannot serve are left out"),
            "api_key": Key(Substituted("a token"), "bearer token for this backend; take it from the environment"),
            "connect_timeout": Key(duration(0.01, 60), "to open a connection"),
            "first_token_timeout": Key(duration(0.1, 3600), "to the first event of an answer"),
            "token_timeout": Key(duration(0.1, 3600), "longest silence within an answer"),
            "max_connections": Key(whole(1, 100_000), "connections at once"),
        },
    ),
    BACKEND_NAME,
    limit=64,
)
RULE = Record(
    "rule",
    lambda node, **values: (node, values),
    {
        "name": Key(RULE_NAME, "what headers and reports call it; absent: rule-<number>"),
        "when": Key(When(), "which requests; absent: all"),
        "path": Key(Choice(("auto", "plain", "speculative")), "auto decides by measurement"),
        "arms": Key(ListOf(ARM_PATTERN, 64, single=True), "arms allowed; * stands for any characters"),
        "draft_lengths": Key(ListOf(whole(1, 64), 64, single=True), "draft lengths k allowed on the speculative path"),
        "break_even": Key(
            Record(
                "break_even",
                BreakEven,
                {
                    "margin": Key(share(), "an arm must be better by this share"),
                    "confidence": Key(share(0.9999, 0.5), "one-sided confidence of that"),
                    "min_requests": Key(whole(1, 1_000_000), "requests before an arm's statistics may decide"),
                    "half_life": Key(duration(60, WINDOW), "age at which a statistic counts half"),
                },
            ),
            "when a difference between arms counts",
        ),
        "zero_accept_alarm": Key(Off(share()), "zero-accept rate that raises an alarm (it switches nothing)"),
        "p99": Key(
            Off(
                Record(
                    "p99",
                    P99,
                    {
                        "metric": Key(Choice(("tpot", "itl", "ttft", "e2e")), "which latency"),
                        "window": Key(duration(10, 7 * DAY), "history looked at"),
                        "budget": Key(duration(1e-6, 3600), "the slowest percent may not exceed this"),
                        "max_ratio_to_plain": Key(decimal(0.1, 1000), "nor this multiple of the plain path's"),
                    },
                )
            ),
            "guard over the slowest percent",
        ),
        "probe": Key(share(0.5), "share of requests that may try another arm, at most"),
        "holdout": Key(share(0.5), "share of conversations kept on fixed paths, to measure the gain"),
        "sticky": Key(Flag(), "whether a conversation keeps its backend"),
        "fallback_path": Key(
            Choice(("plain", "speculative")), "while the statistics are out of reach, or nothing else can serve"
        ),
        "priority": Key(whole(-1_000_000, 1_000_000), "forwarded to engines that take a priority"),
        "store": Key(
            Record(
                "store",
                Store,
                {
                    "prompts": Key(share(), "share of requests whose text is kept"),
                    "retention": Key(duration(3600, 3650 * DAY), "deleted after"),
                },
            ),
            "whether prompts and answers are kept; absent: they are not",
        ),
        "audit": Key(
            share(),
            "share of greedy requests whose answer is compared with that of the other path",
        ),
        "mode": Key(Choice(("enforce", "observe")), "observe decides and records, but changes nothing"),
        "owner": Key(PRINTABLE, "who answers for this rule"),
    },
    positions=True,
)
VERSION = whole(1, 1)


@dataclass(frozen=True)
class Taxonomy:
    """`tasks`: `default`, a file beside the policy (already resolved here), or the tasks themselves."""

    def read(self, node: Node, context: Context) -> Value:
        """Return (node, Task) of each task, or None for the default ones."""
        if isinstance(node, Scalar) and node.text == "default":
            return None
        if isinstance(node, Scalar):
            raise context.wrong(
                node, f"expected 'default', a file such as tasks/support.yaml, or tasks; found {describe(node)}"
            )
        return TASKS.read(node, context)

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        reference = {"type": "string", "pattern": r"^(default|[^/].*\.ya?ml)$"}
        return {"anyOf": [reference, TASKS.schema()]}


POLICY = Record(
    "policy",
    lambda node, **values: (node, values),
    {
        "version": Key(VERSION, "version of this language: 1", required=True),
        "tasks": Key(Taxonomy(), "the taxonomy: default, a file, or tasks with descriptions"),
        "classifier": Key(CLASSIFIER, "how requests are told apart"),
        "backends": Key(BACKENDS, "servers and their arms; absent: the embedded engine"),
        "rules": Key(ListOf(RULE, 5000), "in order; the first whose when holds decides"),
    },
    positions=True,
)
"""The whole file."""


TAXONOMY_FILE = Record(
    "tasks file",
    lambda node, **values: (node, values),
    {
        "version": Key(VERSION, "version of this format: 1"),
        "tasks": Key(TASKS, "the tasks", required=True),
        "fallback": Key(TASK, "task of requests that cannot be told apart; absent: the last one"),
        "signals": Key(Signals(), "structural signal -> the task it settles; for training"),
    },
    positions=True,
)
"""A file that `tasks:` may name; `breakeven classifier train` reads the same file."""
