"""The unchanged openai client against ``nanochat-npu serve JOB``: a process of its own, started and stopped as a person does."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "engine"))
from engine_helpers import BYTES, lively_model, write_job

pytestmark = pytest.mark.slow

HELLO = [{"role": "user", "content": "hi"}]
LONG = {"model": "job", "messages": HELLO, "temperature": 1.3, "max_tokens": 40}


class Server:
    """``nanochat-npu serve job`` on a free port."""

    def __init__(self, home: Path, *arguments: str, **env: str) -> None:
        if not (home / "jobs").exists():
            write_job(home / "jobs" / "job", lively_model(), BYTES)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nanochat_npu.main", "serve", "job", "--port", "0", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "NANOCHAT_NPU_HOME": str(home), **env}, start_new_session=True,
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        self.url = self.line.split()[-1] if self.line else ""

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            os.killpg(self.process.pid, how)
        self.process.communicate(timeout=60)
        return self.process.returncode


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = Server(tmp_path_factory.mktemp("home"))
    yield server.url
    server.stop()


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as made:
        yield made


def test_models_answers_streams_choices_stops_seeds_and_usage(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["job"]
    assert client.models.list().data[0].object == "model"
    settings = {**LONG, "seed": 7, "n": 2, "top_p": 0.9, "extra_body": {"top_k": 20}}
    whole = client.chat.completions.create(**settings)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert whole.choices[0].message.content != whole.choices[1].message.content
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    texts = {0: "", 1: ""}
    last = None
    for last in client.chat.completions.create(**settings, stream=True, stream_options={"include_usage": True}):
        for choice in last.choices:
            texts[choice.index] += choice.delta.content or ""
    assert [texts[0], texts[1]] == [choice.message.content for choice in whole.choices]
    assert last is not None
    assert last.usage == whole.usage
    text = whole.choices[0].message.content or ""
    cut = client.chat.completions.create(**settings, stop=text[3:5])
    assert cut.choices[0].message.content == text[: text.index(text[3:5])]


def test_errors_are_the_clients_own_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-x", messages=HELLO)
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model="job", messages=[{"role": "user", "content": "long " * 100}])
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="job", messages=HELLO, temperature=9)


def test_many_async_clients_at_once_get_what_each_gets_alone(url: str, client: openai.OpenAI) -> None:
    async def all_of(seeds: list[int]) -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as many:
            answers = await asyncio.gather(*(many.chat.completions.create(**LONG, seed=seed) for seed in seeds))
        return [answer.choices[0].message.content or "" for answer in answers]

    seeds = list(range(12))
    together = asyncio.run(all_of(seeds))
    assert together == [client.chat.completions.create(**LONG, seed=seed).choices[0].message.content for seed in seeds]


def test_a_token_is_the_clients_api_key(tmp_path: Path) -> None:
    server = Server(tmp_path, NANOCHAT_SERVE_TOKEN="s3cret")
    try:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as stranger, pytest.raises(openai.AuthenticationError):
            stranger.models.list()
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="s3cret", max_retries=0) as friend:
            assert friend.chat.completions.create(model="job", messages=HELLO, max_tokens=3).choices
    finally:
        server.stop()


def test_without_a_token_it_does_not_open_itself_to_others(tmp_path: Path) -> None:
    env = {key: value for key, value in os.environ.items() if key != "NANOCHAT_SERVE_TOKEN"}
    write_job(tmp_path / "jobs" / "job", lively_model(), BYTES)
    done = subprocess.run(
        [sys.executable, "-m", "nanochat_npu.main", "serve", "job", "--host", "0.0.0.0", "--port", "0"], capture_output=True, text=True, timeout=120, check=False,
        env={**env, "NANOCHAT_NPU_HOME": str(tmp_path)},
    )
    assert done.returncode == 2
    assert "NANOCHAT_SERVE_TOKEN" in done.stderr


def test_a_stop_lets_the_answer_at_hand_end(tmp_path: Path) -> None:
    server = Server(tmp_path)
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json={**LONG, "seed": 1, "stream": True}, timeout=60) as stream:
        lines = stream.iter_lines()
        first = next(line for line in lines if line)
        os.killpg(server.process.pid, signal.SIGTERM)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    finish = [json.loads(line[6:])["choices"][0]["finish_reason"] for line in [first, *rest[:-1]]]
    assert finish[-1] in ("stop", "length")
    server.process.communicate(timeout=60)
    assert server.process.returncode in (0, 128 + signal.SIGTERM, -signal.SIGTERM, 7)
