"""`POST /v1/chat/completions` and `/v1/completions`: reads, checks and admits a request, sends its answer back.

Plain ASGI inside the Litestar application: on these two routes the framework's parsing would cost more than the rest.
"""

from __future__ import annotations

import asyncio
import time

from litestar.types import HTTPScope, Receive, Send

from gateway.access import Access, Admission
from gateway.api.errors import ErrorAnswer, answer_to, wrong_method
from gateway.api.headers import error_headers, read_headers, response_headers
from gateway.api.incoming import ClientGone, ClientWatch, RequestIds, read_body
from gateway.api.schemas import ChatRequest, check, decode_object, speculation_of
from gateway.api.sse import error_event
from gateway.api.wishes import NONE, forced_arm, has_wishes, read_wishes, visible_headers
from gateway.serve import Exchange, Service
from gateway.types import Endpoint, GenerateRequest, Identity


class GenerateEndpoint:
    """One of the two endpoints."""

    def __init__(self, endpoint: Endpoint, service: Service, access: Access, ids: RequestIds, max_body: int) -> None:
        self._endpoint = endpoint
        self._service = service
        self._access = access
        self._ids = ids
        self._max_body = max_body

    async def __call__(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        arrived = time.perf_counter()
        headers = read_headers(scope)
        request_id, record_id = self._ids.take(headers.get("x-request-id"))
        admission: Admission | None = None
        try:
            if scope["method"] != "POST":
                raise wrong_method(scope["method"], "POST")
            identity = self._access.identify(headers)
            raw = await read_body(receive, self._max_body)
            request = self._parse(raw, headers, identity, arrived)
            request.request_id, request.record_id = request_id, record_id
            admission = await self._access.admit(identity, self._service.expected_tokens(request))
            exchange = self._service.begin(request, await self._service.see(request))
        except ClientGone:
            return
        except Exception as error:
            await _refuse(send, answer_to(error, request_id), request_id, admission)
            if admission is not None:
                self._access.settle(admission, 0)
            return
        await self._exchange(exchange, admission, receive, send)

    def _parse(self, raw: bytes, headers: dict[str, str], identity: Identity, arrived: float) -> GenerateRequest:
        """Check body and headers. `speculation` is read only from those who may set it; else it never goes upstream."""
        body = decode_object(raw)
        checked = check(self._endpoint, body)
        wishes = NONE
        if has_wishes(headers):
            wishes = read_wishes(headers, self._service.policy().task_names, self._service.states(), identity)
        own = speculation_of(body) if identity.may_force and "speculation" in body else None
        arm = wishes.arm
        if own is not None and arm is None:
            arm = forced_arm(own, self._service.states(), checked.model)
        limit = checked.max_tokens
        if isinstance(checked, ChatRequest):
            limit = checked.max_completion_tokens or checked.max_tokens
        return GenerateRequest(
            request_id="",
            endpoint=self._endpoint,
            body=body,
            model=checked.model,
            stream=bool(checked.stream),
            include_usage=bool(checked.stream_options and checked.stream_options.include_usage),
            identity=identity,
            arrived=arrived,
            arrived_at=time.time(),
            temperature=1.0 if checked.temperature is None else checked.temperature,
            max_tokens=limit,
            n=checked.n or 1,
            declared_task=wishes.task,
            path_wish=wishes.path,
            arm_wish=arm,
            debug=wishes.debug,
            headers=visible_headers(headers),
            raw=raw,
            speculation=own,
        )

    async def _exchange(self, exchange: Exchange, admission: Admission, receive: Receive, send: Send) -> None:
        """Run one exchange to its end; whatever happens, it is recorded once."""
        watch = ClientWatch(receive)
        status, code = 500, None
        try:
            first = await exchange.open()
            status = 200
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": response_headers(exchange, admission, len(first)),
                }
            )
            if exchange.request.stream:
                code = await _stream(exchange, first, send)
            else:
                await send({"type": "http.response.body", "body": first, "more_body": False})
        except asyncio.CancelledError:
            if not watch.gone:
                raise
            status, code = 499, "client_closed_request"
            watch.swallow()
        except Exception as error:
            answer = answer_to(error, exchange.request.request_id)
            status, code = answer.status, answer.error.code or type(error).__name__
            await _refuse(send, answer, exchange.request.request_id, admission, exchange)
        finally:
            watch.close()
            exchange.finish(status, code)
            self._access.settle(admission, exchange.used_tokens)


async def _stream(exchange: Exchange, block: bytes, send: Send) -> str | None:
    """Send a stream; a failure now becomes an event. Returns its code."""
    while block:
        last = exchange.complete
        await send({"type": "http.response.body", "body": block, "more_body": not last})
        if last:
            return None
        try:
            block = await exchange.more()
        except Exception as error:
            answer = answer_to(error, exchange.request.request_id)
            await send({"type": "http.response.body", "body": error_event(answer.error), "more_body": False})
            return answer.error.code or type(error).__name__
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    return None


async def _refuse(
    send: Send, answer: ErrorAnswer, request_id: str, admission: Admission | None, exchange: Exchange | None = None
) -> None:
    """Send an error before the first byte."""
    body = answer.body
    headers = error_headers(answer, request_id, len(body), admission, exchange)
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
