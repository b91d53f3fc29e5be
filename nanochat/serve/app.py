"""The HTTP application: OpenAI's chat protocol, health, metrics, and the page."""

import asyncio
import contextlib
import hmac
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from nanochat.engine import PromptTooLong, Step
from nanochat.errors import TrainerError
from nanochat.serve import protocol
from nanochat.serve.batcher import Batcher, Busy, Request
from nanochat.serve.metrics import render_metrics
from nanochat.serve.protocol import ApiError, ChatRequest
from nanochat.serve.text import TextStream

__all__ = ["Served", "build_app"]

MAX_BODY_BYTES = 4 * 1024 * 1024
PAGE_TYPES = {"html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
SECURITY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cross-origin-opener-policy": "same-origin",
}
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class Served:
    """What is served: a name for the model, the batcher that owns it, and how.

    Attributes:
        name: Model id in the protocol.
        created_s: Unix time of the checkpoint.
        token: Bearer token that callers need; None on loopback.
        loopback: Only requests that were addressed to this computer are answered, so that a web page elsewhere cannot
            reach the server through a name of its own (DNS rebinding).
        default_tokens: Length of an answer when the caller names none.
        facts: For the page: job, stage, step, parameters, context.
    """

    name: str
    batcher: Batcher
    created_s: int
    token: str | None = None
    loopback: bool = True
    default_tokens: int = 512
    facts: dict[str, Any] | None = None


class _Answer:
    """One choice of a request: steps arrive from the batcher's thread, texts leave to the client."""

    def __init__(self, served: Served, prompt: list[int], body: ChatRequest, number: int, seed: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._steps: asyncio.Queue[Step | BaseException] = asyncio.Queue()
        self.request = Request(prompt, body.sampling(served.default_tokens, seed), number, self._arrive)
        self._text = TextStream(served.batcher.engine.tokenizer, body.stops())
        self.finish: str | None = None
        self.tokens = 0

    def _arrive(self, step: Step | BaseException) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._steps.put_nowait, step)

    async def pieces(self) -> AsyncIterator[str]:
        """Text as it comes; sets `finish` at the end."""
        while self.finish is None:
            step = await self._steps.get()
            if isinstance(step, BaseException):
                raise ApiError(500, f"the answer broke off: {step}", kind="server_error") from step
            piece = ""
            if step.token is not None:
                self.tokens += 1
                piece = self._text.push(step.token)
            if self._text.stopped:
                self.finish = "stop"
                self.request.cancel()
            elif step.finish is not None:
                piece += self._text.end()
                self.finish = step.finish
            if piece:
                yield piece

    async def whole(self) -> str:
        """All of the text."""
        return "".join([piece async for piece in self.pieces()])


async def _read(http: HttpRequest) -> ChatRequest:
    declared = http.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        raise ApiError(413, f"the request is larger than {MAX_BODY_BYTES // 2**20} MiB")
    raw = b""
    async for part in http.stream():
        raw += part
        if len(raw) > MAX_BODY_BYTES:
            raise ApiError(413, f"the request is larger than {MAX_BODY_BYTES // 2**20} MiB")
    try:
        body = ChatRequest.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise ApiError(400, f"{where}: {first['msg']}", param=where) from error
    body.refuse_unsupported()
    return body


def _prepare(served: Served, body: ChatRequest) -> tuple[list[_Answer], int]:
    if body.model not in (None, served.name):
        raise ApiError(404, f"there is no model {body.model!r}; this server has {served.name!r}", param="model", code="model_not_found")
    tokenizer = served.batcher.engine.tokenizer
    try:
        prompt = tokenizer.render_for_completion({"messages": body.conversation()})
        seed = random.SystemRandom().randrange(2**31)
        answers = [_Answer(served, prompt, body, number, seed) for number in range(body.n)]
        served.batcher.submit([answer.request for answer in answers])
    except PromptTooLong as error:
        raise ApiError(400, str(error.message), param="messages", code="context_length_exceeded") from error
    except Busy as error:
        raise ApiError(429, f"busy: {error.message}", kind="rate_limit_error", code="queue_full") from error
    except TrainerError as error:
        raise ApiError(400, error.message, param="messages") from error
    return answers, len(prompt)


async def _chat(http: HttpRequest) -> Response:
    served: Served = http.app.state.served
    body = await _read(http)
    answers, prompt_tokens = _prepare(served, body)
    identity = protocol.new_id()
    if body.stream:
        stream = _stream(served, body, answers, identity, prompt_tokens)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store", "x-accel-buffering": "no"})
    texts = await _until_gone(http, answers)
    counts = protocol.usage(prompt_tokens, sum(answer.tokens for answer in answers))
    return JSONResponse(protocol.completion(identity, served.name, [(text, a.finish) for text, a in zip(texts, answers, strict=True)], counts))


async def _until_gone(http: HttpRequest, answers: list[_Answer]) -> list[str]:
    """The texts; if the client goes away first, the answers stop and their slots are free."""
    work = asyncio.gather(*(answer.whole() for answer in answers))
    gone: asyncio.Future[None] = asyncio.ensure_future(_disconnect(http))
    try:
        waited: list[asyncio.Future[Any]] = [work, gone]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ApiError(499, "the client went away")
        return list(work.result())
    finally:
        for answer in answers:
            answer.request.cancel()
        for task in (work, gone):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, ApiError):
                await task


async def _disconnect(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        continue


async def _stream(served: Served, body: ChatRequest, answers: list[_Answer], identity: str, prompt_tokens: int) -> AsyncIterator[str]:
    """Server-sent events of all choices, interleaved as they come."""
    queue: asyncio.Queue[dict[str, Any] | ApiError | None] = asyncio.Queue()

    async def pump(index: int, answer: _Answer) -> None:
        try:
            queue.put_nowait(protocol.chunk(identity, served.name, index, {"role": "assistant", "content": ""}))
            async for piece in answer.pieces():
                queue.put_nowait(protocol.chunk(identity, served.name, index, {"content": piece}))
            queue.put_nowait(protocol.chunk(identity, served.name, index, {}, answer.finish))
        except ApiError as error:
            queue.put_nowait(error)
        finally:
            queue.put_nowait(None)

    pumps = [asyncio.ensure_future(pump(i, answer)) for i, answer in enumerate(answers)]
    try:
        ended = 0
        while ended < len(pumps):
            item = await queue.get()
            if item is None:
                ended += 1
            else:
                yield _event(item.body() if isinstance(item, ApiError) else item)
        if body.stream_options is not None and body.stream_options.include_usage:
            counts = protocol.usage(prompt_tokens, sum(answer.tokens for answer in answers))
            yield _event(protocol.usage_chunk(identity, served.name, counts))
        yield "data: [DONE]\n\n"
    finally:  # also when the client went away: Starlette cancels this generator
        for answer in answers:
            answer.request.cancel()
        for task in pumps:
            task.cancel()


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"


async def _models(http: HttpRequest) -> Response:
    served: Served = http.app.state.served
    return JSONResponse(protocol.model_list(served.name, served.created_s))


async def _health(http: HttpRequest) -> Response:
    batcher = http.app.state.served.batcher
    return JSONResponse({"status": "ok", "active": batcher.active, "waiting": batcher.waiting})


async def _metrics(http: HttpRequest) -> Response:
    return Response(render_metrics(http.app.state.served.batcher), media_type="text/plain; version=0.0.4")


async def _facts(http: HttpRequest) -> Response:
    served: Served = http.app.state.served
    return JSONResponse({"model": served.name, "context": served.batcher.engine.context, **(served.facts or {})})


def _page(name: str) -> Callable[[HttpRequest], Awaitable[Response]]:
    content = resources.files("nanochat.serve").joinpath("page", name).read_bytes()

    async def page(http: HttpRequest) -> Response:
        return Response(content, media_type=PAGE_TYPES[name.rpartition(".")[2]], headers={"cache-control": "no-cache"})

    return page


async def _show_error(http: HttpRequest, error: Exception) -> Response:
    found = error if isinstance(error, ApiError) else ApiError(500, "something went wrong in the server", kind="server_error")
    headers = {"retry-after": "1"} if found.status == 429 else None
    return JSONResponse(found.body(), status_code=found.status, headers=headers)


class _Gate:
    """Before anything else: is the caller allowed, and was this server meant? After it: headers that keep browsers safe."""

    OPEN = ("/health",)
    PAGE = ("/", "/app.js", "/markdown.js", "/texts.js", "/style.css", "/icon.svg")

    def __init__(self, app: ASGIApp, served: Served) -> None:
        self.app, self.served = app, served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        refused = self._refuse(scope["path"], headers)
        if refused is not None:
            await JSONResponse(refused.body(), status_code=refused.status)(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in SECURITY.items())]
            await send(message)

        await self.app(scope, receive, send_with_headers)

    def _refuse(self, path: str, headers: dict[str, str]) -> ApiError | None:
        host = headers.get("host", "")
        name = host[: host.rindex("]") + 1] if "]" in host else host.partition(":")[0]
        if self.served.loopback and name.lower() not in LOOPBACK_NAMES:
            return ApiError(403, f"this server answers requests to localhost only, not to {name!r}", kind="permission_error")
        if self.served.token is None or path in (*self.OPEN, *self.PAGE):
            return None
        given = headers.get("authorization", "").removeprefix("Bearer ").strip()
        if hmac.compare_digest(given.encode(), self.served.token.encode()):
            return None
        return ApiError(401, "a bearer token is needed", kind="authentication_error", code="invalid_api_key")


def build_app(served: Served) -> ASGIApp:
    """The application. Starting and stopping the batcher is the caller's business."""
    names = {"/": "index.html", **{path: path[1:] for path in _Gate.PAGE[1:]}}
    routes = [
        Route("/v1/chat/completions", _chat, methods=["POST"]), Route("/v1/models", _models), Route("/health", _health),
        Route("/metrics", _metrics), Route("/facts", _facts), *(Route(path, _page(name)) for path, name in names.items()),
    ]
    app = Starlette(routes=routes, exception_handlers={ApiError: _show_error, Exception: _show_error})
    app.state.served = served
    return _Gate(app, served)
