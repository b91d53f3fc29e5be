"""The server as its clients see it: the unchanged openai client, curl-like requests, hostile ones."""

import contextlib
import json
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from serving import engine, server

from nanochat.serve.batcher import Batcher
from nanochat.serve.metrics import render_metrics

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


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_slot_and_generation_stops(stream: bool) -> None:
    """The model never ends its answer here, so that only the going away can; the queue behind it gets the slot."""
    endless = Batcher(engine(3000, endless=True), slots=1, queue=4)
    with server(endless) as url:
        host, port = url.removeprefix("http://").split(":")
        body = json.dumps({"messages": HELLO, "stream": stream, "max_tokens": 2900, "temperature": 2.0, "seed": 1})
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            until(lambda: endless.counters.generated_tokens > 5)
            assert endless.active == 1
        until(lambda: endless.active == 0)
        assert (endless.counters.cancelled, endless.counters.finished) == (1, 0)
        written = endless.counters.generated_tokens
        assert written < 2900
        assert post(url, {"messages": HELLO, "max_tokens": 2}).json()["usage"]["completion_tokens"] == 2  # the slot is free
        assert endless.counters.generated_tokens == written + 2  # and nothing else was written meanwhile


def test_a_client_that_leaves_the_queue_is_never_answered() -> None:
    endless = Batcher(engine(3000, endless=True), slots=1, queue=4)
    with server(endless) as url:
        host, port = url.removeprefix("http://").split(":")
        body = json.dumps({"messages": HELLO, "stream": True, "max_tokens": 2900, "temperature": 2.0, "seed": 1})
        request = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        with socket.create_connection((host, int(port))) as first:
            first.sendall(request)
            until(lambda: endless.active == 1)
            with socket.create_connection((host, int(port))) as second:
                second.sendall(request)
                until(lambda: endless.waiting == 1)
            until(lambda: endless.waiting == 0)
            assert endless.active == 1
        until(lambda: endless.active == 0)
        assert endless.counters.cancelled == 2


def until(holds: Callable[[], bool]) -> None:
    for _ in range(3000):
        if holds():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never came to that")


SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[a-zA-Z_][a-zA-Z0-9_]*="[^"\\\n]*"(?:,[a-zA-Z_][a-zA-Z0-9_]*="[^"\\\n]*")*\})? (NaN|[+-]?Inf|[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)')


def parse_metrics(text: str) -> dict[str, tuple[str, dict[str, float]]]:
    """Families by name: type and samples. The text format 0.0.4 as its specification has it; anything else raises.

    https://prometheus.io/docs/instrumenting/exposition_formats/
    """
    assert text.endswith("\n")
    families: dict[str, tuple[str, dict[str, float]]] = {}
    helped, current = "", ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped = line.split(" ", 3)[2]
            assert helped not in families, "a family is written in one piece"
        elif line.startswith("# TYPE "):
            _hash, _type, current, kind = line.split(" ")
            assert current == helped
            assert kind in ("counter", "gauge", "summary", "histogram", "untyped")
            families[current] = (kind, {})
        else:
            found = SAMPLE.fullmatch(line)
            assert found is not None, line
            name, labels, value = found.groups()
            kind, samples = families[current]
            assert name in ((current, f"{current}_sum", f"{current}_count") if kind == "summary" else (current,)), line
            assert (name + (labels or "")) not in samples
            samples[name + (labels or "")] = float(value)
    return families


def test_health_and_metrics_speak(url: str) -> None:
    assert httpx.get(f"{url}/health").json()["status"] == "ok"
    post(url, {"messages": HELLO, "max_tokens": 3})
    response = httpx.get(f"{url}/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = parse_metrics(response.text)
    assert all(name.endswith("_total") for name, (kind, _samples) in families.items() if kind == "counter")
    assert families["nanochat_generated_tokens_total"][1]["nanochat_generated_tokens_total"] >= 3
    summary = families["nanochat_first_token_seconds"][1]
    assert summary["nanochat_first_token_seconds_count"] >= 1
    assert summary['nanochat_first_token_seconds{quantile="0.5"}'] <= summary['nanochat_first_token_seconds{quantile="0.99"}']


def test_metrics_of_a_server_that_nobody_has_asked_are_well_formed_too() -> None:
    summary = parse_metrics(render_metrics(Batcher(engine(), slots=1)))["nanochat_first_token_seconds"][1]
    assert summary["nanochat_first_token_seconds_count"] == 0


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


def test_a_full_queue_answers_429_at_once_and_the_client_raises_its_own_error() -> None:
    endless = Batcher(engine(3000, endless=True), slots=1, queue=1)
    with server(endless) as address, contextlib.ExitStack() as stack:
        for _taken in range(2):  # one is written, one waits
            stack.enter_context(httpx.stream("POST", f"{address}/v1/chat/completions", json={"messages": HELLO, "stream": True, "max_tokens": 2900}, timeout=60))
        until(lambda: endless.active == 1 and endless.waiting == 1)
        response = post(address, {"messages": HELLO})
        assert response.status_code == 429
        assert response.json()["error"]["code"] == "queue_full"
        assert response.headers["retry-after"] == "1"
        with openai.OpenAI(base_url=f"{address}/v1", api_key="unused", max_retries=0) as made, pytest.raises(openai.RateLimitError):
            made.chat.completions.create(model="small", messages=HELLO)
        assert endless.counters.rejected == 2


def test_count_and_sum_of_waiting_never_go_down() -> None:
    """A scraper takes their rates; quantiles are those of the last thousand."""
    batcher = Batcher(engine(), slots=1)
    counters = batcher.counters
    for number in range(1005):
        counters.first_token_s.append(2.0)
        counters.first_tokens, counters.first_token_total_s = number + 1, counters.first_token_total_s + 2.0
    summary = parse_metrics(render_metrics(batcher))["nanochat_first_token_seconds"][1]
    assert (summary["nanochat_first_token_seconds_count"], summary["nanochat_first_token_seconds_sum"]) == (1005, 2010.0)
