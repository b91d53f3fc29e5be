"""Exported models: other libraries load them, and they say the same; what cannot be held is refused and leaves nothing."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nanochat.contract import ExitCode, ModelConfig, ModelShape, layout
from nanochat.data import toy
from nanochat.device import pick
from nanochat.engine import Engine, Sampling
from nanochat.errors import BadConfig, BadData
from nanochat.export import FORMATS, export
from nanochat.export.command import main
from nanochat.model import build
from nanochat.tokenizer import Tokenizer
from nanochat.trained import TrainedModel, open_trained

TEXTS = [
    "What is 2 + 3?", "  blanks\n\n\tand  tabs ", "don't we'LL I'd", "1234567 12 3", "汉字 and émoji 🦊", "", "a" * 300, "x\r\ny", "<b>&amp;</b>!!!...\n",
]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job with a model whose every part matters, and a tokenizer with merges."""
    job = tmp_path_factory.mktemp("jobs") / "tiny"
    tokenizer = Tokenizer.train(toy.documents(1, 300), 500)
    config = ModelConfig(depth=3, aspect_ratio=16, head_dim=16, sequence_len=32, window_pattern="SL")
    model = build(ModelShape.of(config, tokenizer.vocab_size), torch.float32, "cpu", 0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    folder = layout.checkpoint_dir(job, "sft", 7)
    folder.mkdir(parents=True)
    torch.save(model.state_dict(), folder / "model.pt")
    raw = (folder / "model.pt").read_bytes()
    (folder / "manifest.json").write_text(json.dumps({
        "v": 1, "complete": True, "stage": "sft", "step": 7, "world_size": 1, "pieces": {}, "updates": 7, "loop": {}, "loader": [],
        "files": {"model.pt": {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}},
        "about": {"job": "tiny", "shape": asdict(model.shape), "tokenizer": tokenizer.fingerprint, "run": {"dtype": "float32"}},
    }))
    tokenizer.save(layout.tokenizer_dir(job))
    return job


@pytest.fixture(scope="module")
def trained(job: Path) -> TrainedModel:
    return open_trained(job, pick("cpu"))


@pytest.fixture(scope="module")
def folder(trained: TrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("out") / "hf"
    export(trained, "hf", target)
    return target


@pytest.fixture
def transformers(tmp_path, monkeypatch):
    """The library, which copies a model's own code into a cache before it runs it."""
    import transformers
    from transformers import dynamic_module_utils

    transformers.utils.logging.set_verbosity_error()
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    return transformers


def load(transformers, folder: Path):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()


def test_transformers_loads_it_with_equal_logits(transformers, trained, folder):
    model = load(transformers, folder)
    tokens = torch.randint(0, trained.tokenizer.vocab_size, (2, 50), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        ours, theirs = trained.model(tokens), model(tokens).logits
    assert theirs.shape == ours.shape
    torch.testing.assert_close(theirs, ours, atol=2e-5, rtol=1e-5)
    assert torch.equal(theirs.argmax(-1), ours.argmax(-1))


def test_every_weight_is_there_and_none_is_new(transformers, trained, folder):
    model = load(transformers, folder)
    ours = trained.model.state_dict()
    assert {name: tuple(t.shape) for name, t in model.state_dict().items()} == {name: tuple(t.shape) for name, t in ours.items()}
    assert all(torch.equal(t, ours[name]) for name, t in model.state_dict().items())


def test_transformers_generates_what_our_engine_says(transformers, trained, folder):
    model = load(transformers, folder)
    prompt = trained.tokenizer.render_for_completion({"messages": [{"role": "user", "content": "2 + 3"}]})
    ours = Engine(trained.model, trained.tokenizer).complete([prompt], Sampling(max_new_tokens=8, temperature=0.0))[0].tokens
    theirs = model.generate(torch.tensor([prompt]), max_new_tokens=len(ours), do_sample=False)[0, len(prompt):].tolist()
    assert theirs == ours


def test_padding_on_the_right_changes_nothing_and_on_the_left_is_refused(transformers, folder):
    model = load(transformers, folder)
    row = torch.tensor([[5, 6, 7, 0]])
    with torch.inference_mode():
        assert torch.allclose(model(row, attention_mask=torch.tensor([[1, 1, 1, 0]])).logits[:, :3], model(row[:, :3]).logits, atol=1e-5)
        with pytest.raises(ValueError, match="padded on the left"):
            model(row, attention_mask=torch.tensor([[0, 1, 1, 1]]))


@pytest.mark.parametrize("text", TEXTS)
def test_the_tokenizer_gives_the_same_ids(trained, folder, text):
    import tokenizers

    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = theirs.encode(text).ids
    assert ids == [trained.tokenizer.bos_id, *trained.tokenizer.encode(text)]
    assert theirs.decode(ids) == text


def test_conversations_are_rendered_alike(transformers, trained, folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    messages = [
        {"role": "system", "content": "Be kind."}, {"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"},
        {"role": "user", "content": "who is Pim?"},
    ]
    theirs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
    assert list(theirs) == trained.tokenizer.render_for_completion({"messages": messages})


def test_safetensors_hold_every_weight_in_its_own_type(trained, tmp_path):
    export(trained, "safetensors", tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    ours = trained.model.state_dict()
    assert found.keys() == ours.keys()
    assert all(torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in ours.items())
    assert Tokenizer.load(tmp_path / "out").fingerprint == trained.tokenizer.fingerprint
    assert json.loads((tmp_path / "out" / "nanochat.json").read_text())["not_included"] == ["optimizer state", "position in the data"]


def test_a_format_that_cannot_hold_it_is_refused_by_the_parts_name(trained, tmp_path):
    with pytest.raises(BadConfig, match="'gguf' cannot hold this model: smeared embeddings"):
        export(trained, "gguf", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_vocabulary_without_pairs_is_refused_by_the_tokens_name_and_leaves_nothing(trained, tmp_path):
    odd = Tokenizer([bytes([i]) for i in range(256)] + [b"abc"])
    with pytest.raises(BadData, match=r"cannot hold token 256 \(b'abc'\)"):
        export(TrainedModel(trained.model, odd, trained.manifest), "hf", tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format_", list(FORMATS))
def test_a_folder_with_content_is_left_alone(trained, tmp_path, format_):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(BadConfig, match="not an empty folder"):
        export(trained, format_, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_command_names_the_files_and_exits_with_what_went_wrong(job, tmp_path, capsys):
    assert main(["--job-dir", str(job), "--format", "hf", "--to", str(tmp_path / "out")]) == 0
    assert {Path(line).name for line in capsys.readouterr().out.splitlines()} == {
        "config.json", "generation_config.json", "model.safetensors", "modeling_nanochat.py", "nanochat.json", "tokenizer.json", "tokenizer_config.json",
    }
    assert main(["--job-dir", str(job), "--format", "onnx", "--to", str(tmp_path / "o2")]) == ExitCode.BAD_CONFIG
    assert main(["--job-dir", str(job), "--stage", "rl", "--to", str(tmp_path / "o3")]) == ExitCode.BAD_DATA
    assert "no complete checkpoint of stage rl" in capsys.readouterr().err
