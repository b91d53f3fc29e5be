"""Models of upstream nanochat: taken over exactly, their pickles never executed, and refused by name where they are of another kind."""

import json
import os
import pickle
from pathlib import Path

import pytest
import tiktoken
import torch
from engine_helpers import BYTES, lively_model

from nanochat import import_upstream
from nanochat.contract import ExitCode
from nanochat.device import pick
from nanochat.errors import BadData
from nanochat.model import GPT
from nanochat.pickle_reading import read_pickle
from nanochat.tokenizer import SPECIAL_TOKENS, Tokenizer
from nanochat.trained import open_trained

META = {"sequence_len": 64, "vocab_size": 265, "n_layer": 3, "n_head": 3, "n_kv_head": 3, "n_embd": 48, "window_pattern": "SL"}


def encoding(tokenizer: Tokenizer = BYTES) -> tiktoken.Encoding:
    return tiktoken.Encoding(
        name="rustbpe", pat_str=tokenizer.pattern, special_tokens=tokenizer.special_tokens,
        mergeable_ranks={token: rank for rank, token in enumerate(tokenizer.vocabulary)},
    )


@pytest.fixture
def model() -> GPT:
    return lively_model()


@pytest.fixture
def base(tmp_path: Path, model: GPT) -> Path:
    """A folder as upstream leaves it."""
    base = tmp_path / "upstream"
    (base / "tokenizer").mkdir(parents=True)
    (base / "tokenizer" / "tokenizer.pkl").write_bytes(pickle.dumps(encoding()))
    folder = base / "base_checkpoints" / "d3"
    folder.mkdir(parents=True)
    for step in (5, 12):
        torch.save({f"_orig_mod.{name}": value for name, value in model.state_dict().items()}, folder / f"model_{step:06d}.pt")
        (folder / f"meta_{step:06d}.json").write_text('{"val_bpb": Infinity, "model_config": ' + json.dumps(META) + "}")  # as upstream writes it
    return base


def run(base: Path, job: Path, *more: str) -> int:
    return import_upstream.main([str(base), "--job-dir", str(job), *more])


def edit_meta(base: Path, **changes: object) -> None:
    path = base / "base_checkpoints" / "d3" / "meta_000012.json"
    path.write_text(json.dumps({"model_config": {**META, **changes}}))


def edit_weights(base: Path, change) -> None:
    path = base / "base_checkpoints" / "d3" / "model_000012.pt"
    weights = torch.load(path, weights_only=True)
    change(weights)
    torch.save(weights, path)


def test_the_imported_model_says_what_it_said(base: Path, tmp_path: Path, model: GPT, capsys) -> None:
    assert run(base, tmp_path / "job") == 0
    trained = open_trained(tmp_path / "job", pick("cpu"))
    tokens = torch.arange(60).view(2, 30)
    with torch.inference_mode():
        assert torch.equal(trained.model(tokens), model(tokens))
    assert trained.tokenizer.fingerprint == BYTES.fingerprint and trained.manifest.step == 12
    assert "step 12" in capsys.readouterr().out


def test_another_step_stage_and_tag_can_be_asked_for(base: Path, tmp_path: Path, capsys) -> None:
    (base / "base_checkpoints").rename(base / "chatsft_checkpoints")
    assert run(base, tmp_path / "job", "--stage", "sft", "--step", "5", "--tag", "d3") == 0
    assert open_trained(tmp_path / "job", pick("cpu")).chats
    assert run(base, tmp_path / "b", "--stage", "sft", "--tag", "d9") == ExitCode.BAD_DATA
    assert "there are d3" in capsys.readouterr().err


def test_a_checkpoint_is_never_written_over(base: Path, tmp_path: Path, capsys) -> None:
    assert run(base, tmp_path / "job") == 0
    assert run(base, tmp_path / "job") == ExitCode.BAD_CONFIG
    assert "already" in capsys.readouterr().err


def test_weights_without_meta_are_passed_over(base: Path, tmp_path: Path) -> None:
    (base / "base_checkpoints" / "d3" / "meta_000012.json").unlink()
    assert run(base, tmp_path / "job") == 0
    assert open_trained(tmp_path / "job", pick("cpu")).manifest.step == 5


def test_an_older_architecture_is_refused_and_its_tokenizer_can_still_be_had(base: Path, tmp_path: Path, capsys) -> None:
    edit_weights(base, lambda weights: [weights.pop(key) for key in list(weights) if "smear" in key])
    assert run(base, tmp_path / "job") == ExitCode.BAD_CONFIG
    assert "before 2026-03-14" in capsys.readouterr().err and not (tmp_path / "job").exists()
    assert run(base, tmp_path / "job", "--tokenizer-only") == 0
    assert Tokenizer.load(tmp_path / "job" / "tokenizer").fingerprint == BYTES.fingerprint


@pytest.mark.parametrize(("change", "told"), [
    (lambda w: w.update({"_orig_mod.more": torch.zeros(1)}), "unknown: more"), (lambda w: w.pop("_orig_mod.lm_head.weight"), "missing: lm_head.weight"),
    (lambda w: w.update({"_orig_mod.lm_head.weight": torch.zeros(3, 3)}), r"lm_head.weight is (3, 3)"),
])
def test_weights_that_do_not_fit_are_refused_by_name(base: Path, tmp_path: Path, capsys, change, told: str) -> None:
    edit_weights(base, change)
    assert run(base, tmp_path / "job") == ExitCode.BAD_CONFIG
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("changes", "told"), [({"n_kv_head": 1}, "share 1 key heads"), ({"vocab_size": 999}, "999 tokens"), ({"n_layer": None}, "description")])
def test_descriptions_that_do_not_fit_are_refused_by_name(base: Path, tmp_path: Path, capsys, changes: dict, told: str) -> None:
    edit_meta(base, **changes)
    assert run(base, tmp_path / "job") in (ExitCode.BAD_CONFIG, ExitCode.BAD_DATA)
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("gone", ["tokenizer", "base_checkpoints"])
def test_what_is_missing_is_said(base: Path, tmp_path: Path, capsys, gone: str) -> None:
    (base / gone).rename(tmp_path / "away")
    assert run(base, tmp_path / "job") == ExitCode.BAD_DATA
    assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "job").exists()


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return (os.mkdir, (str(self.path),))


def test_a_tokenizer_that_would_execute_something_is_refused_and_nothing_happens(base: Path, tmp_path: Path, capsys) -> None:
    (base / "tokenizer" / "tokenizer.pkl").write_bytes(pickle.dumps(Evil(tmp_path / "owned")))
    assert run(base, tmp_path / "job") == ExitCode.BAD_DATA
    assert "mkdir, which is not data" in capsys.readouterr().err and not (tmp_path / "owned").exists()


def test_weights_that_would_execute_something_are_refused_and_nothing_happens(base: Path, tmp_path: Path, capsys) -> None:
    torch.save({"x": Evil(tmp_path / "owned")}, base / "base_checkpoints" / "d3" / "model_000012.pt")
    assert run(base, tmp_path / "job") == ExitCode.BAD_DATA
    assert "more than weights" in capsys.readouterr().err and not (tmp_path / "owned").exists()


@pytest.mark.parametrize("content", [
    b"", b"junk", pickle.dumps(encoding())[:-40], pickle.dumps([1, 2]), pickle.dumps({"a": 1}), pickle.dumps(print), pickle.dumps(Path("x")),
    b"cbuiltins\neval\n(S'1'\ntR.", b"c__builtin__\nexec\n.", b"\x80\x04}\x94h\x07.", b"(((((.", b"\x80\x04K\x01b.", b"\x80\x05\x95" + b"\xff" * 8,
    pickle.dumps(encoding()).replace(b"tiktoken.core", b"tiktoken.evil"),
])
def test_whatever_else_is_in_the_file_is_refused(base: Path, tmp_path: Path, content: bytes) -> None:
    (base / "tokenizer" / "tokenizer.pkl").write_bytes(content)
    with pytest.raises(BadData, match=r"tokenizer\.pkl"):
        import_upstream.import_tokenizer(base)


def test_tokenizers_with_other_ids_or_tokens_are_refused(base: Path) -> None:
    for ranks, special in [
        ({b"a": 0, b"b": 2}, {"<|bos|>": 3}), ({bytes([i]): i for i in range(256)}, {"<|bos|>": 256}),
        ({bytes([i]): i for i in range(256)}, {name: 1000 + i for i, name in enumerate(SPECIAL_TOKENS)}),
    ]:
        made = encoding()
        made._mergeable_ranks, made._special_tokens = ranks, special
        (base / "tokenizer" / "tokenizer.pkl").write_bytes(pickle.dumps(made))
        with pytest.raises(BadData, match=r"its token ids|it has no token"):
            import_upstream.import_tokenizer(base)


@pytest.mark.parametrize("value", [
    {"a": [1, -2, 2**70, 1.5, None, True, False], "b": (1, (2, 3), ()), b"c": "text", "d": {}}, list(range(3000)), "é" * 300, b"x" * 300, (), 10**400,
])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_data_is_read_as_pickle_would(tmp_path: Path, value: object, protocol: int) -> None:
    if protocol == 2 and isinstance(value, (bytes, dict)):
        return  # protocol 2 writes bytes as a call of codecs.encode, which is no data
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps(value, protocol))
    assert read_pickle(path, ()) == value
