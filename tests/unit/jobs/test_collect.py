"""collect: what is in the archive, and what must never be."""

import json
import tarfile
from pathlib import Path

import pytest

from nanochat_npu.collecting import MAX_FILE_BYTES, Archive, collect_local
from nanochat_npu.redact import MARK, redact

SECRETS = [
    "SWANLAB_API_KEY=abc123secretvalue", 'api_key: "abc123secretvalue"', "password: abc123secretvalue", "{'token': 'abc123secretvalue'}",
    "Authorization: Bearer abc123secretvalue", "https://user:abc123secretvalue@host/path", "sk-abc123secretvalueabc123", "hf_abc123secretvalueabc123",
    "- name: WANDB_API_KEY\n  value: abc123secretvalue", '{"name": "DB_PASSWORD", "value": "abc123secretvalue"}', "export AWS_SECRET_ACCESS_KEY=abc123secretvalue",
    "-----BEGIN RSA PRIVATE KEY-----\nabc123secretvalue\n-----END RSA PRIVATE KEY-----", "eyJabc123secretvalue.eyJabc123secretvalue.abc123secretvalue",
]
HARMLESS = [
    '"tokens_per_s": 1200.5', '"tokens": 647168', "tokenizer: {vocab_size: 512}", "max_new_tokens: 256", "secretKeyRef: {name: tracking, key: swanlab}",
    "eval_tokens: 16384", "secrets: {SWANLAB_API_KEY: {secret: tracking, key: swanlab}}", "run.tokenizer.vocab_size=512", "bytes_per_token  2.47", "api_key: null",
]


@pytest.mark.parametrize("text", SECRETS)
def test_secrets_are_taken_out(text: str) -> None:
    assert "abc123secretvalue" not in redact(f"before\n{text}\nafter")
    assert MARK in redact(text)
    assert redact(f"before\n{text}\nafter").endswith("after")


@pytest.mark.parametrize("text", HARMLESS)
def test_counts_and_references_stay(text: str) -> None:
    assert redact(text) == text


@pytest.mark.timeout(20)
@pytest.mark.parametrize("filler", ["x", "token", "a.b-", "key: ", '"', "name: ", "\n- ", "://"])
def test_long_lines_are_redacted_in_linear_time(filler: str) -> None:
    redact(filler * (1_000_000 // len(filler)))


def test_redacting_twice_changes_nothing_more() -> None:
    once = redact("\n".join(SECRETS + HARMLESS))
    assert redact(once) == once


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "d4"
    for name, text in {
        "spec.yaml": "env: {MY_TOKEN: abc123secretvalue}\n", "attempts/0/events.jsonl": '{"v":1}\n', "attempts/0/rank0.log": "x" * (MAX_FILE_BYTES + 10),
        "checkpoints/pretrain/step_1/model.pt": "weights", "checkpoints/pretrain/step_1/manifest.json": "{}", "tokenizer/tokenizer.json": "{}", ".hidden.json": "{}",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "link.json").symlink_to("/etc/passwd")
    return folder


def test_the_archive_holds_clues_and_no_weights_secrets_or_links(job: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.tar.gz"
    with Archive(target, "d4") as archive:
        collect_local(job, archive)
    with tarfile.open(target) as tar:
        names = {member.name for member in tar.getmembers()}
        text = {name: tar.extractfile(name).read() for name in names}  # type: ignore[union-attr]
    assert {"d4/spec.yaml", "d4/attempts/0/events.jsonl", "d4/attempts/0/rank0.log", "d4/versions.json", "d4/collect.json"} == names
    assert b"abc123secretvalue" not in b"".join(text.values())
    assert len(text["d4/attempts/0/rank0.log"]) == MAX_FILE_BYTES
    assert any("only the last" in note for note in json.loads(text["d4/collect.json"])["notes"])


def test_nothing_half_made_is_left_when_it_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), Archive(tmp_path / "out.tar.gz", "d4") as archive:
        archive.add("a.txt", "x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == [tmp_path / "home"] or list(tmp_path.glob("*out*")) == []
