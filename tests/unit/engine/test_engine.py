"""Sampling: greedy equals the naive model, rows do not touch each other, limits hold, and the calculator is called."""

import gc
import itertools
import random
import weakref
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from engine_helpers import BYTES, lively_model, naive_greedy

from nanochat.contract import ModelConfig, ModelShape
from nanochat.decoding import SMALL, Decoder
from nanochat.engine import Completion, Engine, PromptTooLong, Sampling, choose
from nanochat.errors import BadConfig, BadData
from nanochat.model import GPT, build

GREEDY = Sampling(max_new_tokens=20, temperature=0.0)
STOPS = {BYTES.encode_special("<|assistant_end|>"), BYTES.bos_id}


@pytest.fixture(scope="module")
def model() -> GPT:
    return lively_model()


@pytest.fixture
def engine(model: GPT) -> Engine:
    return Engine(model, BYTES)


def prompts(count: int, seed: int = 0, low: int = 1, high: int = 30) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(256) for _ in range(rng.randint(low, high))] for _ in range(count)]


@pytest.mark.parametrize("prompt", prompts(4))
def test_greedy_equals_the_naive_model_without_a_cache(engine: Engine, model: GPT, prompt: list[int]) -> None:
    assert engine.complete([prompt], GREEDY)[0].tokens == naive_greedy(model, prompt, 20, STOPS)


def test_a_small_step_of_one_row_leaves_the_number_of_threads_as_it_was(model: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone it is faster; whoever comes next has all threads again, also after an error."""
    seen = []
    monkeypatch.setattr(Decoder, "_norm", lambda self, x, gain=1.0: seen.append(torch.get_num_threads()) or x)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for rows, wanted in ((1, 1), (2, 2)):
            cache = model.new_cache(rows, 4)
            model.hidden(torch.zeros(rows, 2, dtype=torch.long), cache)
            Decoder(model, rows).step([1] * rows, cache)
            assert (set(seen), torch.get_num_threads()) == ({wanted}, 2)
            seen.clear()
        with pytest.raises(IndexError):
            Decoder(model, 1).step([10**6], cache)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_prompts_of_different_length_in_one_batch_answer_as_alone(engine: Engine, model: GPT) -> None:
    many = prompts(9, seed=1)
    for prompt, completion in zip(many, engine.complete(many, GREEDY), strict=True):
        assert completion.tokens == naive_greedy(model, prompt, 20, STOPS)


@pytest.mark.parametrize("sampling", [Sampling(12, 0.8, top_k=20), Sampling(12, 1.2, top_p=0.9), Sampling(12, 1.0)])
def test_a_row_says_the_same_whatever_else_is_in_the_batch(engine: Engine, sampling: Sampling) -> None:
    many = prompts(7, seed=2)
    together = engine.complete(many, sampling)
    in_threes = engine.complete(many, sampling, batch=3)
    assert [c.tokens for c in together] == [c.tokens for c in in_threes]
    assert engine.complete(many, Sampling(**{**vars(sampling), "seed": 1}))[0].tokens != together[0].tokens


def test_equal_prompts_get_answers_of_their_own(engine: Engine) -> None:
    samples = engine.complete([[1, 2, 3]] * 6, Sampling(10, 1.0))
    assert len({tuple(sample.tokens) for sample in samples}) > 1
    assert engine.complete([[1, 2, 3]] * 6, Sampling(10, 1.0))[5].tokens == samples[5].tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pattern", ["L", "SL"])
def test_a_step_of_the_decoder_is_a_step_of_the_model(dtype: torch.dtype, pattern: str) -> None:
    config = ModelConfig(depth=4, aspect_ratio=16, head_dim=16, sequence_len=600, window_pattern=pattern)  # a short window is 256
    model = build(ModelShape.of(config, 265), dtype, "cpu", 0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    tokens = torch.randint(265, (2, 290), generator=torch.Generator().manual_seed(2))
    stepped, plain = model.new_cache(2), model.new_cache(2)
    with torch.inference_mode():
        model.hidden(tokens[:, :270], stepped)
        model.hidden(tokens[:, :270], plain)
        decoder = Decoder(model)
        for at in range(270, 290):
            got = decoder.step(tokens[:, at].tolist(), stepped)
            expected = model(tokens[:, at : at + 1], cache=plain)[:, 0]
            assert got.dtype == torch.float32
            assert (got - expected).abs().max() < (2e-4 if dtype == torch.float32 else 0.35)  # torch.testing would import sympy
    assert stepped.length == plain.length == 290


@pytest.mark.parametrize("prepared_for", [1, 8])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matrices_laid_out_for_the_processor_give_what_the_model_gives(dtype: torch.dtype, rows: int, prepared_for: int) -> None:
    config = ModelConfig(depth=2, aspect_ratio=64, head_dim=32, sequence_len=40)
    model = build(ModelShape.of(config, 300), dtype, "cpu", 0).eval()
    assert model.shape.width**2 >= SMALL  # or nothing is laid out
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    tokens = torch.randint(300, (rows, 12), generator=torch.Generator().manual_seed(2))
    stepped, plain = model.new_cache(rows), model.new_cache(rows)
    decoder = Decoder(model, prepared_for)
    with torch.inference_mode():
        for at in range(12):
            got = decoder.step(tokens[:, at].tolist(), stepped)
            expected = model(tokens[:, at : at + 1], cache=plain)[:, 0]
            assert (got - expected).abs().max() < (2e-4 if dtype == torch.float32 else 0.35)


def test_where_nothing_is_laid_out_the_answers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelConfig(depth=2, aspect_ratio=64, head_dim=32, sequence_len=40)
    model = build(ModelShape.of(config, 265), torch.float32, "cpu", 3).eval()
    many = prompts(5, seed=4)
    laid_out = Engine(model, BYTES).complete(many, GREEDY)
    monkeypatch.setattr("nanochat.decoding.packs_weights", lambda device, dtype: False)
    monkeypatch.setattr("nanochat.decoding.attends_in_fp32", lambda device: False)
    assert Engine(model, BYTES).complete(many, GREEDY) == laid_out


def test_bf16_on_a_processor_without_its_instructions_is_not_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that an NPU trained in bf16, opened on an older computer: oneDNN raises there, torch's own product does not."""
    def refuse(weight: torch.Tensor, rows: int) -> torch.Tensor:
        raise RuntimeError("mkldnn_reorder_linear_weight: bf16 path needs the cpu support avx_ne_convert or avx512bw, avx512vl and avx512dq")

    config = ModelConfig(depth=2, aspect_ratio=64, head_dim=32, sequence_len=40)
    model = build(ModelShape.of(config, 265), torch.bfloat16, "cpu", 3).eval()
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", SimpleNamespace(default=refuse))
    assert all(completion.tokens for completion in Engine(model, BYTES).complete(prompts(3, seed=4), GREEDY))


def test_an_engine_of_a_fixed_model_prepares_once_and_again_only_for_more_rows(model: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr("nanochat.engine.Decoder", lambda model, rows: made.append(rows) or Decoder(model, rows))
    fixed = Engine(model, BYTES, fixed=True)
    expected = Engine(model, BYTES).complete([[1, 2, 3]] * 3, GREEDY)
    made.clear()
    for count in (1, 1, 3, 1):
        assert fixed.complete([[1, 2, 3]] * count, GREEDY) == expected[:count]
    assert made == [1, 3]


def test_batches_of_one_call_share_what_is_prepared(model: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr("nanochat.engine.Decoder", lambda model, rows: made.append(rows) or Decoder(model, rows))
    engine = Engine(model, BYTES)
    engine.complete(prompts(6, seed=5), GREEDY, batch=2)
    assert made == [2]
    engine.complete(prompts(2, seed=5), GREEDY, batch=2)
    assert made == [2, 2]


@pytest.mark.parametrize("leave", ["complete", "stream", "half a stream"])
def test_a_copy_of_weights_that_go_on_learning_is_not_kept(model: GPT, monkeypatch: pytest.MonkeyPatch, leave: str) -> None:
    made: list[weakref.ref[Decoder]] = []

    def prepare(model: GPT, rows: int) -> Decoder:
        decoder = Decoder(model, rows)
        made.append(weakref.ref(decoder))
        return decoder

    monkeypatch.setattr("nanochat.engine.Decoder", prepare)
    engine = Engine(model, BYTES)
    if leave == "complete":
        engine.complete([[1, 2, 3]], GREEDY)
    else:
        steps = engine.stream([[1, 2, 3]], GREEDY)
        for _step in itertools.islice(steps, 2 if leave == "half a stream" else None):
            pass
        del steps
    gc.collect()
    assert [reference() for reference in made] == [None]


def test_the_decoder_begins_at_the_first_position_and_ends_with_the_cache(model: GPT) -> None:
    cache = model.new_cache(1, 2)
    decoder = Decoder(model)
    with torch.inference_mode():
        assert (decoder.step([5], cache) - model(torch.tensor([[5]]))[:, 0]).abs().max() < 2e-4
    decoder.step([6], cache)
    with pytest.raises(BadData, match="cache of 2"):
        decoder.step([7], cache)


def test_what_a_model_learns_between_two_answers_is_heard(model: GPT) -> None:
    learner = lively_model(seed=3)
    engine = Engine(learner, BYTES)
    before = engine.complete([[1, 2, 3]], GREEDY)[0].tokens
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.data.mul_(-1.0)
    assert engine.complete([[1, 2, 3]], GREEDY)[0].tokens == naive_greedy(learner, [1, 2, 3], 20, STOPS) != before


class Scripted:
    """Stands for a model whose likeliest tokens are given: row by row what it would say after each position."""

    def __init__(self, model: GPT, scripts: list[list[int]], prompt_len: int) -> None:
        self.model, self.scripts, self.prompt_len = model, scripts, prompt_len
        self.shape, self.device, self.new_cache = model.shape, model.device, model.new_cache
        self.fed: list[list[int]] = []

    def hidden(self, tokens: torch.Tensor, cache) -> torch.Tensor:
        self.fed.append(tokens[:, -1].tolist())
        cache.length += tokens.size(1)
        return torch.full((tokens.size(0), 1, 1), float(cache.length - self.prompt_len))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = []
        for i, place in enumerate(hidden[:, 0].long().tolist()):
            script = self.scripts[i % len(self.scripts)]
            rows.append(torch.nn.functional.one_hot(torch.tensor(script[min(place, len(script) - 1)]), 265).float())
        return torch.stack(rows)


class ScriptedEngine(Engine):
    """An engine that asks the script at every step."""

    def _stepper(self, rows):
        return lambda tokens, cache: self._forward([[token] for token in tokens], cache)


def scripted(model: GPT, script: list[int], calculator=None) -> Completion:
    fake = Scripted(model, [script], 3)
    return ScriptedEngine(fake, BYTES, calculator).complete([[1, 2, 3]], GREEDY)[0]  # type: ignore[arg-type]


END = BYTES.encode_special("<|assistant_end|>")
PYTHON = [BYTES.encode_special(f"<|python_{side}|>") for side in ("start", "end")]
OUTPUT = [BYTES.encode_special(f"<|output_{side}|>") for side in ("start", "end")]


def test_a_stop_token_ends_the_row_and_is_left_out(model: GPT) -> None:
    assert scripted(model, [65, 66, END, 67]) == Completion([65, 66], [1, 1], "stop", END)
    assert scripted(model, [BYTES.bos_id]) == Completion([], [], "stop", BYTES.bos_id)


def test_an_answer_without_end_stops_at_the_limit(model: GPT) -> None:
    assert scripted(model, [65]) == Completion([65] * 20, [1] * 20, "length")


def test_a_call_is_worked_out_and_its_result_is_forced_upon_the_model(model: GPT) -> None:
    said = [65, PYTHON[0], *BYTES.encode("6*7"), PYTHON[1], 1, 1, 1, 1, 66, END]
    completion = scripted(model, said)
    assert completion.tokens == [65, PYTHON[0], *BYTES.encode("6*7"), PYTHON[1], OUTPUT[0], *BYTES.encode("42"), OUTPUT[1], 66]
    assert completion.sampled == [1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1]
    assert completion.finish == "stop"


def test_a_call_without_result_leaves_the_model_to_go_on(model: GPT) -> None:
    completion = scripted(model, [PYTHON[0], *BYTES.encode("6//"), PYTHON[1], 66, END])
    assert completion.tokens[-1] == 66 and OUTPUT[0] not in completion.tokens


def test_the_calls_of_a_row_do_not_end_it_even_if_a_result_holds_a_stop_token(model: GPT) -> None:
    completion = scripted(model, [PYTHON[0], 49, PYTHON[1], 1, 1, 1, 1, 1, 66, END], calculator=lambda _: "12")
    assert completion.finish == "stop" and completion.tokens[-1] == 66


def test_what_is_spoken_leaves_calls_and_results_out(engine: Engine) -> None:
    tokens = [*BYTES.encode("It is "), PYTHON[0], 49, PYTHON[1], OUTPUT[0], 50, OUTPUT[1], *BYTES.encode("42.")]
    assert engine.text(Completion(tokens)) == "It is 42."


def test_finished_rows_leave_the_batch(model: GPT) -> None:
    fake = Scripted(model, [[END], [END], [END], [65] * 30], 3)
    completions = ScriptedEngine(fake, BYTES).complete([[1, 2, 3], [1, 2, 4], [1, 2, 5], [1, 2, 6]], GREEDY)  # type: ignore[arg-type]
    assert len(fake.fed[0]) == 4 and {len(fed) for fed in fake.fed[1:]} == {1}
    assert [c.finish for c in completions[:3]] == ["stop"] * 3


def test_prompt_and_answer_fill_the_context_and_no_more(engine: Engine) -> None:
    completion = engine.complete([[1] * 60], Sampling(500, 0.0))[0]
    assert (completion.finish == "context" and len(completion.tokens) == 4) or completion.finish == "stop"
    assert engine.complete([[1] * 63], Sampling(5, 0.0))[0].finish in ("context", "stop")


@pytest.mark.parametrize("length", [64, 65, 5000])
def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers(engine: Engine, length: int) -> None:
    with pytest.raises(PromptTooLong, match=f"{length} tokens, the model's context 64"):
        engine.complete([[1], [1] * length], GREEDY)


def test_an_empty_prompt_and_no_prompt(engine: Engine) -> None:
    with pytest.raises(BadData, match="empty"):
        engine.complete([[]], GREEDY)
    assert engine.complete([], GREEDY) == []


@pytest.mark.parametrize("wrong", [
    {"max_new_tokens": 0}, {"temperature": -1.0}, {"temperature": float("nan")}, {"temperature": float("inf")}, {"top_k": -1},
    {"top_p": 0.0}, {"top_p": 1.1},
])
def test_impossible_settings_are_refused_by_name(wrong: dict) -> None:
    with pytest.raises(BadConfig, match=next(iter(wrong))):
        Sampling(**wrong)


def frequencies(sampling: Sampling, logits: list[float], draws: int = 4000) -> dict[int, float]:
    rng = random.Random(0)
    rows = torch.tensor(logits).expand(draws, -1)
    counts = Counter(choose(rows, sampling, [rng.random() for _ in range(draws)]))
    return {token: count / draws for token, count in counts.items()}


def test_tokens_come_as_often_as_the_softmax_says() -> None:
    logits = [0.0, 1.0, 2.0, -1.0]
    for temperature in (0.5, 1.0, 2.0):
        expected = torch.softmax(torch.tensor(logits) / temperature, 0).tolist()
        found = frequencies(Sampling(temperature=temperature), logits)
        assert all(abs(found.get(i, 0) - p) < 0.03 for i, p in enumerate(expected))


def test_top_k_and_top_p_cut_the_tail_and_keep_the_proportions() -> None:
    logits = [float(x) for x in torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05])).tolist()]
    assert set(frequencies(Sampling(top_k=2), logits)) == {0, 1}
    found = frequencies(Sampling(top_p=0.7), logits)
    assert set(found) == {0, 1} and abs(found[0] - 0.625) < 0.03
    assert set(frequencies(Sampling(top_p=0.01), logits)) == {0}
    assert set(frequencies(Sampling(top_k=50), logits)) == {0, 1, 2, 3}
    assert set(frequencies(Sampling(top_k=3, top_p=0.81), logits)) == {0, 1}


def test_the_extremes_of_the_random_number_stay_within_the_vocabulary() -> None:
    logits = torch.zeros(2, 7)
    assert choose(logits, Sampling(), [0.0, 1.0 - 1e-12]) == [0, 6]
    assert choose(logits, Sampling(top_p=0.5), [0.0, 1.0 - 1e-12])[1] < 7
