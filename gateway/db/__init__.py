"""SQLite or PostgreSQL: request records, roll-ups, keys, policy versions, the switch log."""

from gateway.db.audits import AuditResult, AuditSums
from gateway.db.database import Database
from gateway.db.explorer import Found
from gateway.db.keys import ROLES, StoredKey, key_id_of, new_key
from gateway.db.log import StoredPolicy, Switch
from gateway.db.policies import Activation
from gateway.db.reads import Query
from gateway.db.replays import Replay
from gateway.db.subjects import Erased, Subject
from gateway.db.sums import ActivitySums
from gateway.db.texts import StoredText
from gateway.db.window import ActivityPoint, CellActivity, Stratum, Tail, TaskActivity, TaskLatency, Window

__all__ = [
    "ROLES",
    "Activation",
    "ActivityPoint",
    "ActivitySums",
    "AuditResult",
    "AuditSums",
    "CellActivity",
    "Database",
    "Erased",
    "Found",
    "Query",
    "Replay",
    "StoredKey",
    "StoredPolicy",
    "StoredText",
    "Stratum",
    "Subject",
    "Switch",
    "Tail",
    "TaskActivity",
    "TaskLatency",
    "Window",
    "key_id_of",
    "new_key",
]
