"""The server as its clients see it: the unchanged openai client, curl-like requests, hostile ones."""

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from serving import engine, server

from nanochat.serve.batcher import Batcher

HELLO = [{"role": "user", "content": "the cat"}]


@pytest.fixture(scope="module")
def batcher() -> Batcher:
    return Batcher(engine(), slots=4, queue=4)


@pytest.fixture(scope="module")
def url(batcher: Batcher) -> Iterator[str]:
    with server(batcher) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as made:
        yield made


def post(url: str, body: object, **headers: str) -> httpx.Response:
    content = body if isinstance(body, (str, bytes)) else json.dumps(body)
    return httpx.post(f"{url}/v1/chat/completions", content=content, headers=headers, timeout=30)


def test_the_openai_client_lists_models_and_gets_an_answer(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["small"]
    answer = client.chat.completions.create(model="small", messages=HELLO, temperature=0, max_tokens=12)
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_a_stream_adds_up_to_the_whole_answer(client: openai.OpenAI) -> None:
    settings = {"model": "small", "messages": HELLO, "temperature": 1.0, "seed": 11, "max_tokens": 20}
    whole = client.chat.completions.create(**settings)
    stream = client.chat.completions.create(**settings, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason


def test_equal_seeds_repeat_and_n_answers_differ(client: openai.OpenAI) -> None:
    settings = {"model": "small", "messages": HELLO, "temperature": 1.5, "seed": 5, "max_tokens": 20, "n": 3}
    first = [choice.message.content for choice in client.chat.completions.create(**settings).choices]
    second = [choice.message.content for choice in client.chat.completions.create(**settings).choices]
    assert first == second
    assert len(set(first)) == 3


def test_a_stop_string_ends_the_answer_and_is_not_shown(client: openai.OpenAI) -> None:
    settings = {"model": "small", "messages": HELLO, "temperature": 1.0, "seed": 3, "max_tokens": 40}
    text = client.chat.completions.create(**settings).choices[0].message.content or ""
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    cut = client.chat.completions.create(**settings, stop=[stop])
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_a_prompt_that_is_too_long_gets_openais_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="small", messages=[{"role": "user", "content": "the cat " * 200}])
    assert caught.value.code == "context_length_exceeded"


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="this server has 'small'"):
        client.chat.completions.create(model="gpt-4", messages=HELLO)


def test_system_messages_and_parts_are_understood(url: str) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "the "}, {"type": "text", "text": "cat"}]}]
    assert post(url, {"messages": messages, "max_tokens": 2}).status_code == 200


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ("", "body"), ("{", "body"), ("[]", "body"), ({}, "messages"), ({"messages": []}, "messages"), ({"messages": HELLO, "temperature": -1}, "temperature"),
        ({"messages": HELLO, "temperature": "NaN"}, "temperature"), ({"messages": HELLO, "n": 99}, "n"), ({"messages": HELLO, "max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "role"), ({"messages": [{"role": "assistant", "content": "x"}]}, "message 0"),
        ({"messages": HELLO, "tools": [{"type": "function"}]}, "tools"), ({"messages": HELLO, "response_format": {"type": "json_object"}}, "only text"),
        ({"messages": HELLO, "logprobs": True}, "logprobs"), ({"messages": HELLO, "stop": ["a"] * 9}, "stop"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "content"),
    ],
)
def test_wrong_requests_get_a_named_error_in_openais_form(url: str, body: object, part: str) -> None:
    response = post(url, body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert part in f"{error['message']} {error['param']}"
    assert set(error) == {"message", "type", "param", "code"}


def test_a_huge_body_is_refused(url: str) -> None:
    assert post(url, b"x" * (5 * 1024 * 1024)).status_code == 413


def test_requests_meant_for_another_host_are_refused(url: str) -> None:
    response = httpx.get(f"{url}/v1/models", headers={"host": "evil.example"})
    assert response.status_code == 403


def test_a_client_that_goes_away_frees_its_slot(url: str, batcher: Batcher) -> None:
    host, port = url.removeprefix("http://").split(":")
    before = batcher.counters.cancelled
    body = json.dumps({"messages": HELLO, "stream": True, "max_tokens": 80, "temperature": 2.0, "seed": 1})
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        raw.recv(200)  # the answer has begun
    for _ in range(200):
        if batcher.active == 0:
            break
        httpx.get(f"{url}/health")
    assert batcher.active == 0
    assert batcher.counters.cancelled + batcher.counters.finished > before


def test_health_and_metrics_speak(url: str) -> None:
    assert httpx.get(f"{url}/health").json()["status"] == "ok"
    text = httpx.get(f"{url}/metrics").text
    assert "nanochat_generated_tokens_total " in text
    assert all(line.startswith("#") or len(line.split()) == 2 for line in text.splitlines())


def test_the_page_is_small_has_no_outside_resource_and_a_strict_policy(url: str) -> None:
    page = httpx.get(url)
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    total = 0
    for name in ("", "app.js", "markdown.js", "texts.js", "style.css", "icon.svg"):
        response = httpx.get(f"{url}/{name}")
        assert response.status_code == 200
        total += len(response.content)
        assert "innerHTML" not in response.text
        assert "http://" not in response.text.replace("http://www.w3.org", "")
    assert total < 60_000


def test_a_token_is_needed_where_one_is_set() -> None:
    with server(Batcher(engine(), slots=1), token="s3cret") as address:
        assert httpx.get(f"{address}/v1/models").status_code == 401
        assert httpx.get(f"{address}/v1/models", headers={"authorization": "Bearer wrong"}).status_code == 401
        assert httpx.get(f"{address}/v1/models", headers={"authorization": "Bearer s3cret"}).status_code == 200
        assert httpx.get(f"{address}/health").status_code == 200
        assert httpx.get(address).status_code == 200


def test_a_full_queue_answers_429_at_once() -> None:
    stuck = Batcher(engine(), slots=1, queue=-1)  # not even the free slot may be used
    with server(stuck) as address:
        response = post(address, {"messages": HELLO})
        assert response.status_code == 429
        assert response.json()["error"]["code"] == "queue_full"
        assert response.headers["retry-after"] == "1"
