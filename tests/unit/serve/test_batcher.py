"""Continuous batching gives exactly what the engine gives alone, and slots are free when they should be."""

import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from serving import engine

from nanochat.engine import Engine, PromptTooLong, Sampling, Step
from nanochat.serve.batcher import Batcher, Busy, Request
from nanochat.serve.text import TextStream


class Answer:
    """Collects the steps of one request."""

    def __init__(self, prompt: list[int], sampling: Sampling, number: int = 0) -> None:
        self.steps: list[Step] = []
        self.error: BaseException | None = None
        self.done = threading.Event()
        self.started = threading.Event()
        self.request = Request(prompt, sampling, number, self._take)

    def _take(self, step: Step | BaseException) -> None:
        if isinstance(step, BaseException):
            self.error = step
            self.done.set()
            return
        self.steps.append(step)
        self.started.set()
        if step.finish is not None:
            self.done.set()

    @property
    def tokens(self) -> list[int]:
        return [step.token for step in self.steps if step.token is not None]


@pytest.fixture(scope="module")
def shared_engine() -> Engine:
    return engine()


def alone(shared_engine: Engine, prompt: list[int], sampling: Sampling, number: int) -> list[int]:
    return [s.token for s in shared_engine.stream([prompt], sampling, [number]) if s.token is not None]


def test_requests_that_join_and_leave_at_any_time_get_the_same_tokens_as_alone(shared_engine: Engine) -> None:
    batcher = Batcher(shared_engine, slots=3, queue=100)
    cases = []
    for i in range(12):
        sampling = Sampling(max_new_tokens=5 + 7 * (i % 4), temperature=(0.0, 1.0, 0.7)[i % 3], top_k=(0, 10)[i % 2], top_p=(1.0, 0.9)[i % 2], seed=i)
        cases.append((list(range(5, 6 + 3 * i)), sampling, i))
    expected = [alone(shared_engine, *case) for case in cases]
    answers = [Answer(*case) for case in cases]
    for answer in answers:
        batcher.submit([answer.request])
    batcher.start()
    assert all(answer.done.wait(60) for answer in answers)
    batcher.stop()
    assert [answer.tokens for answer in answers] == expected
    assert batcher.counters.finished == 12
    assert batcher.active == 0


def test_a_long_prompt_is_read_in_pieces_with_the_same_result() -> None:
    long = engine(length=700)
    prompt = [5 + i % 200 for i in range(600)]
    sampling = Sampling(max_new_tokens=8, temperature=0)
    expected = alone(long, prompt, sampling, 0)
    batcher = Batcher(long, slots=2)
    answer = Answer(prompt, sampling)
    batcher.start()
    batcher.submit([answer.request])
    assert answer.done.wait(60)
    batcher.stop()
    assert answer.tokens == expected


def test_a_cancelled_request_stops_generating_and_frees_its_slot(shared_engine: Engine) -> None:
    batcher = Batcher(shared_engine, slots=1, queue=4)
    batcher.start()
    first = Answer([5, 6], Sampling(max_new_tokens=90, temperature=1.0, seed=1))
    second = Answer([7, 8], Sampling(max_new_tokens=4, temperature=0))
    batcher.submit([first.request])
    assert first.started.wait(30)
    first.request.cancel()
    batcher.submit([second.request])
    assert second.done.wait(30)
    stopped_at = len(first.steps)
    batcher.stop()
    assert len(first.steps) == stopped_at < 90
    assert batcher.counters.cancelled == 1


def test_the_queue_is_bounded(shared_engine: Engine) -> None:
    batcher = Batcher(shared_engine, slots=1, queue=2)  # not started: nothing leaves the queue
    for _ in range(3):
        batcher.submit([Answer([5], Sampling()).request])
    with pytest.raises(Busy, match="3 requests are waiting"):
        batcher.submit([Answer([5], Sampling()).request])
    assert batcher.counters.rejected == 1


def test_too_long_and_empty_prompts_never_enter_the_queue(shared_engine: Engine) -> None:
    batcher = Batcher(shared_engine)
    with pytest.raises(PromptTooLong):
        batcher.submit([Answer([5] * 96, Sampling()).request])
    assert batcher.waiting == 0


def test_stopping_finishes_what_runs_and_refuses_what_comes(shared_engine: Engine) -> None:
    batcher = Batcher(shared_engine, slots=2)
    batcher.start()
    answer = Answer([5, 6], Sampling(max_new_tokens=30, temperature=1.0, seed=5))
    batcher.submit([answer.request])
    assert answer.started.wait(30)
    batcher.stop()
    assert answer.done.is_set()
    assert answer.error is None
    with pytest.raises(Busy, match="stopping"):
        batcher.submit([Answer([5], Sampling()).request])


def test_a_failing_model_ends_the_answers_but_not_the_server() -> None:
    broken = engine()
    batcher = Batcher(broken, slots=2)
    good = broken.advance
    broken.advance = lambda *args: (_ for _ in ()).throw(RuntimeError("device lost"))  # type: ignore[method-assign,assignment]
    batcher.start()
    first = Answer([5, 6], Sampling(max_new_tokens=3, temperature=0))
    batcher.submit([first.request])
    assert first.done.wait(30)
    assert "device lost" in str(first.error)
    broken.advance = good  # type: ignore[method-assign]
    second = Answer([5, 6], Sampling(max_new_tokens=3, temperature=0))
    batcher.submit([second.request])
    assert second.done.wait(30)
    batcher.stop()
    assert second.error is None
    assert len(second.tokens) == 3


def pieces(shared_engine: Engine, text: str, stop: list[str]) -> tuple[list[str], bool]:
    stream = TextStream(shared_engine.tokenizer, stop)
    out = [stream.push(token) for token in shared_engine.tokenizer.encode(text)]
    return [piece for piece in [*out, stream.end()] if piece], stream.stopped


def test_characters_over_several_tokens_arrive_whole(shared_engine: Engine) -> None:
    out, _stopped = pieces(shared_engine, "naïve 你好 🚀", [])
    assert "".join(out) == "naïve 你好 🚀"
    assert not any("\ufffd" in piece for piece in out)


@pytest.mark.parametrize(("stop", "expected"), [(["dog"], "the cat and the "), (["zebra"], "the cat and the dog"), (["d the", "dog"], "the cat an"), (["the dogs"], "the cat and the dog"), ([""], "the cat and the dog")])
def test_stop_strings_are_cut_off_even_across_tokens(shared_engine: Engine, stop: list[str], expected: str) -> None:
    out, stopped = pieces(shared_engine, "the cat and the dog", stop)
    assert "".join(out) == expected
    assert stopped == (expected != "the cat and the dog")
