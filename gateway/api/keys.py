"""`/v1/keys`: create, list and revoke API keys. For operators; on loopback without keys, for whoever is there.

A key's secret is shown once, in the answer that creates it. Bodies must be declared as JSON, which a foreign page in a
browser cannot do without being asked first.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.datastructures import State
from litestar.params import FromPath
from msgspec import Meta

from gateway.access import Access
from gateway.api.given import Given
from gateway.api.ops import require_operator
from gateway.api.schemas import violation
from gateway.db import Database
from gateway.db.keys import Role, StoredKey, new_key
from gateway.errors import InvalidRequest, NotFound

Req = Request[Any, Any, State]
PerMinute = Annotated[int, Meta(ge=1, le=10**12)] | None


class NewKey(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /v1/keys`."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    role: Role = "app"
    may_force: bool | None = None
    """Whether it may choose paths; absent: operators may."""
    requests_per_minute: PerMinute = None
    tokens_per_minute: PerMinute = None


class KeyInfo(msgspec.Struct):
    """A key without its secret."""

    id: str
    name: str
    role: Role
    may_force: bool
    requests_per_minute: int | None
    tokens_per_minute: int | None
    created_at: datetime
    revoked_at: datetime | None
    key: str
    """What may be shown of it; the whole of it in the answer that creates it."""


class KeysController(Controller):
    """The routes."""

    path = "/v1/keys"

    @get("/")
    async def list_keys(self, request: Req, access: Given[Access], database: Given[Database]) -> list[KeyInfo]:
        """List all keys, revoked ones included."""
        require_operator(access, request)
        return [_info(key, key.prefix) for key in await database.list_keys()]

    @post("/", status_code=201)
    async def create(self, request: Req, access: Given[Access], database: Given[Database]) -> KeyInfo:
        """Create a key."""
        require_operator(access, request)
        actor = access.identify(dict(request.headers)).name
        if request.content_type[0] != "application/json":
            raise InvalidRequest("expected content-type: application/json", param="content-type")
        try:
            asked = msgspec.json.decode(await request.body(), type=NewKey)
        except msgspec.ValidationError as error:
            raise violation(error) from error
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from error
        stored, token = new_key(
            asked.role,
            asked.name,
            created_at=datetime.now(UTC),
            may_force=asked.may_force,
            requests_per_minute=asked.requests_per_minute,
            tokens_per_minute=asked.tokens_per_minute,
        )
        await database.create_key(stored, actor=actor)
        await access.refresh()
        return _info(stored, token)

    @delete("/{key_id:str}", status_code=200)
    async def revoke(
        self, request: Req, access: Given[Access], database: Given[Database], key_id: FromPath[str]
    ) -> dict[str, Any]:
        """Revoke a key; it stops working here at once and on other gateways within a second."""
        require_operator(access, request)
        actor = access.identify(dict(request.headers)).name
        if not await database.revoke_key(key_id, actor=actor):
            raise NotFound(f"no valid key {key_id[:64]!r}", param="key_id", code="no_such_key")
        await access.refresh()
        return {"id": key_id, "revoked": True}


def _info(key: StoredKey, shown: str) -> KeyInfo:
    return KeyInfo(
        key.key_id,
        key.name,
        key.role,
        key.may_force,
        key.requests_per_minute,
        key.tokens_per_minute,
        key.created_at,
        key.revoked_at,
        shown,
    )
