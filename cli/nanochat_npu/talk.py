"""A conversation with a chat server that speaks OpenAI's protocol, in the terminal."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from nanochat_npu import partial
from nanochat_npu.errors import ClusterError, ClusterUnreachable
from nanochat_npu.i18n import _

__all__ = ["answer", "wait_until_ready"]

TIMEOUT_S = 300.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Asks without a proxy: the address is a forwarded port of this computer, which the one in http_proxy does not have."""


def answer(url: str, messages: list[dict[str, str]], **settings: float) -> Iterator[str]:
    """Pieces of the model's answer, as it writes them.

    Args:
        url: Address of the server.
        messages: The conversation so far, ``{"role", "content"}`` each.
        settings: Further fields of the request: temperature, top_p, top_k, max_tokens, seed.

    Raises:
        ClusterUnreachable: The connection broke.
        ClusterError: The server refuses; its sentence is the message.
    """
    body = json.dumps({**settings, "messages": messages, "stream": True}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", data=body, headers={"Content-Type": "application/json"})  # noqa: S310 - our own address
    try:
        with _DIRECT.open(request, timeout=TIMEOUT_S) as reply:
            for raw in reply:
                line = raw.decode("utf-8", "replace").strip()
                if line.startswith("data:") and line != "data: [DONE]":
                    yield _piece(line.removeprefix("data:"))
    except urllib.error.HTTPError as error:
        with error:
            raise ClusterError(_sentence(error.read()) or _("the server refuses (HTTP {code})").format(code=error.code), where=url) from error
    except OSError as error:
        raise ClusterUnreachable(_("the connection to the model broke: {reason}").format(reason=error), where=url) from error


def wait_until_ready(url: str) -> bool:
    """True if the server answers; False while its model is being loaded."""
    try:
        with _DIRECT.open(f"{url}/health", timeout=10) as reply:
            return bool(reply.status == 200)
    except (OSError, ValueError):
        return False


def _piece(text: str) -> str:
    try:
        chunk: Any = json.loads(text)
    except ValueError:
        return ""
    if message := partial.text(chunk, "error", "message"):
        raise ClusterError(message)
    return partial.text(chunk, "choices", 0, "delta", "content")


def _sentence(body: bytes) -> str:
    try:
        return partial.text(json.loads(body), "error", "message")
    except ValueError:
        return ""
