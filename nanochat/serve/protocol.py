"""OpenAI's chat protocol: requests read strictly enough to be honest, answers in the shapes that clients expect.

What would silently change the answer and is not done here (tools, log probabilities, other response formats) is refused;
fields that only describe the caller are accepted and ignored.
"""

import time
import uuid
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from nanochat.engine import Sampling

__all__ = ["ApiError", "ChatRequest", "chunk", "completion", "model_list"]

REFUSED = ("tools", "functions", "tool_choice", "function_call", "logprobs", "top_logprobs", "logit_bias", "audio", "modalities", "prediction")


class ApiError(Exception):
    """An answer in OpenAI's error format.

    Args:
        status: HTTP status.
        message: What is wrong, for a person.
        kind: OpenAI's ``type``.
        param: Field that it is about.
        code: OpenAI's ``code``.
    """

    def __init__(self, status: int, message: str, *, kind: str = "invalid_request_error", param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param, self.code = status, message, kind, param, code

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One turn."""

    model_config = ConfigDict(extra="ignore")
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_Part]

    def plain(self) -> dict[str, str]:
        """Role and text as the trainer's conversations have them."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class StreamOptions(BaseModel):
    """How a stream ends."""

    include_usage: bool = False


class ChatRequest(BaseModel):
    """Body of ``POST /v1/chat/completions``."""

    model_config = ConfigDict(extra="allow")
    model: str | None = None
    messages: list[Message] = Field(min_length=1)
    temperature: float = Field(0.6, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(50, ge=0)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: str | list[str] | None = None
    seed: int | None = None
    n: int = Field(1, ge=1, le=16)
    stream: bool = False
    stream_options: StreamOptions | None = None

    @field_validator("stop")
    @classmethod
    def _few_stops(cls, value: str | list[str] | None) -> str | list[str] | None:
        if isinstance(value, list) and len(value) > 4:
            raise ValueError("at most 4 stop strings")
        return value

    def refuse_unsupported(self) -> None:
        """Raises ApiError for a field that would change the answer and is not supported."""
        extra = self.model_extra or {}
        for name in REFUSED:
            if extra.get(name) not in (None, False, [], {}, "none", "auto"):
                raise ApiError(400, f"{name} is not supported", param=name, code="unsupported_parameter")
        form = extra.get("response_format")
        if isinstance(form, dict) and form.get("type", "text") != "text":
            raise ApiError(400, "only text can be answered", param="response_format", code="unsupported_parameter")

    def stops(self) -> list[str]:
        """Stop strings."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])

    def conversation(self) -> list[dict[str, str]]:
        """Turns as the trainer's conversations have them."""
        return [message.plain() for message in self.messages]

    def sampling(self, default_tokens: int, fresh_seed: int) -> Sampling:
        """How tokens are chosen."""
        wanted = self.max_completion_tokens or self.max_tokens or default_tokens
        seed = fresh_seed if self.seed is None else self.seed
        return Sampling(max_new_tokens=wanted, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, seed=seed)


_FINISH = {"stop": "stop", "length": "length", "context": "length", None: None}


def new_id() -> str:
    """A fresh id for an answer."""
    return f"chatcmpl-{uuid.uuid4().hex[:24]}"


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """Tokens read and written."""
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": prompt_tokens + completion_tokens}


def completion(identity: str, model: str, texts: list[tuple[str, str | None]], counts: dict[str, int]) -> dict[str, Any]:
    """The whole answer: texts with the reason for which each ended."""
    choices = [
        {"index": i, "message": {"role": "assistant", "content": text, "refusal": None}, "finish_reason": _FINISH.get(why, "stop"), "logprobs": None}
        for i, (text, why) in enumerate(texts)
    ]
    return {"id": identity, "object": "chat.completion", "created": int(time.time()), "model": model, "choices": choices, "usage": counts}


def chunk(identity: str, model: str, index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    """One piece of a streamed answer."""
    choice = {"index": index, "delta": delta, "finish_reason": _FINISH.get(finish, "stop"), "logprobs": None}
    return {"id": identity, "object": "chat.completion.chunk", "created": int(time.time()), "model": model, "choices": [choice]}


def usage_chunk(identity: str, model: str, counts: dict[str, int]) -> dict[str, Any]:
    """The last piece of a stream whose caller asked for usage."""
    return {"id": identity, "object": "chat.completion.chunk", "created": int(time.time()), "model": model, "choices": [], "usage": counts}


def model_list(name: str, created_s: int) -> dict[str, Any]:
    """Body of ``GET /v1/models``."""
    return {"object": "list", "data": [{"id": name, "object": "model", "created": created_s, "owned_by": "nanochat"}]}
