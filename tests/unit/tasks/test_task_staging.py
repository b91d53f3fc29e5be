"""Tasks' files are fetched for the stages that read them, from a hub or a manifest, and never taken for complete when they are not."""

import hashlib
import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from flaky_server import Answer, FlakyServer
from task_files import run_with, write_tasks

from nanochat.contract import RunConfig
from nanochat.data.transfer import DownloadFailed, Patience
from nanochat.errors import BadData
from nanochat.tasks.files import open_rows, split_files
from nanochat.tasks.staging import missing_bundle, needed_splits, stage_tasks

ONCE = Patience(attempts=1, timeout_s=5, first_wait_s=0.01)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_arguments: object) -> None:
        """Nothing."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A hub on loopback, and the folder that it serves."""
    root = tmp_path / "hub"
    root.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", root
    server.shutdown()
    thread.join()
    server.server_close()


def publish(hub: tuple[str, Path], repository: str, split: str, files: list[Path], lost: int = 0) -> None:
    url, root = hub
    api = root / "api" / "datasets" / repository / "parquet"
    api.mkdir(parents=True, exist_ok=True)
    urls = []
    for number, path in enumerate(files):
        name = f"{repository.replace('/', '-')}-{split}-{number}.parquet"
        urls.append(f"{url}/{name}")
        if number < len(files) - lost:
            (root / name).write_bytes(path.read_bytes())
    subset = {"cais/mmlu": "all", "HuggingFaceTB/smol-smoltalk": "default"}[repository]
    (api / subset).mkdir(exist_ok=True)
    (api / subset / split).write_text(json.dumps(urls))


def test_only_what_the_stages_read_is_needed() -> None:
    run = RunConfig.model_validate({"stages": ["sft", "rl", "eval"], "eval": {"tasks": ["arc-easy", "bpb"]}})
    assert set(needed_splits(run)) == {
        ("smoltalk", "train"), ("mmlu", "auxiliary_train"), ("gsm8k", "train"), ("smoltalk", "test"), ("mmlu", "test"), ("gsm8k", "test"), ("arc-easy", "test"),
    }
    assert needed_splits(RunConfig.model_validate({"stages": ["pretrain", "sft"], "data": {"source": "toy"}})) == []
    assert ("humaneval", "test") in needed_splits(RunConfig.model_validate({"stages": ["eval"], "eval": {"tasks": ["chatcore"]}}))


def test_a_split_of_one_file_and_one_of_several_come_from_the_hub(hub, tmp_path) -> None:
    there = write_tasks(tmp_path / "there")
    publish(hub, "HuggingFaceTB/smol-smoltalk", "train", sorted((there / "smoltalk" / "train").iterdir()))
    publish(hub, "HuggingFaceTB/smol-smoltalk", "test", [there / "smoltalk" / "test.parquet"])
    run = run_with(tmp_path / "here", stages=["sft"], sft={"data": ["smoltalk"]})
    assert stage_tasks(run, {"HF_ENDPOINT": hub[0]}, ONCE) == 3
    assert len(open_rows(run, "smoltalk", "train")) == 30
    assert len(open_rows(run, "smoltalk", "test")) == 4
    assert stage_tasks(run, {"HF_ENDPOINT": "http://127.0.0.1:1"}, ONCE) == 0


def test_a_split_that_broke_off_is_not_taken_for_all_of_it_and_is_gone_on_with(hub, tmp_path) -> None:
    there = write_tasks(tmp_path / "there")
    files = sorted((there / "smoltalk" / "train").iterdir())
    publish(hub, "HuggingFaceTB/smol-smoltalk", "test", [there / "smoltalk" / "test.parquet"])
    publish(hub, "HuggingFaceTB/smol-smoltalk", "train", files, lost=1)
    run = run_with(tmp_path / "here", stages=["sft"], sft={"data": ["smoltalk"]})
    with pytest.raises(DownloadFailed, match="404"):
        stage_tasks(run, {"HF_ENDPOINT": hub[0]}, ONCE)
    assert split_files(run, "smoltalk", "train") == []
    publish(hub, "HuggingFaceTB/smol-smoltalk", "train", files)
    stage_tasks(run, {"HF_ENDPOINT": hub[0]}, ONCE)
    assert len(open_rows(run, "smoltalk", "train")) == 30


@pytest.mark.parametrize("right", [True, False])
def test_a_manifest_comes_before_the_hub_and_its_checksum_counts(hub, tmp_path, right) -> None:
    url, root = hub
    content = b'{"question": "q", "answer": "#### 1"}\n'
    (root / "mine.jsonl").write_bytes(content)
    (tmp_path / "here").mkdir()
    digest = hashlib.sha256(content if right else b"other").hexdigest()
    entries = [{"name": f"gsm8k/{split}.jsonl", "url": f"{url}/mine.jsonl", "sha256": digest} for split in ("train", "test")]
    (tmp_path / "here" / "manifest.json").write_text(json.dumps({"files": entries}))
    run = run_with(tmp_path / "here", stages=["rl"])
    if right:
        assert stage_tasks(run, {}, ONCE) == 2
        assert open_rows(run, "gsm8k", "test") == [{"question": "q", "answer": "#### 1"}]
    else:
        with pytest.raises(DownloadFailed):
            stage_tasks(run, {}, ONCE)
        assert split_files(run, "gsm8k", "train") == []


def test_a_server_that_drops_limits_and_corrupts_is_asked_until_the_file_is_whole(tmp_path) -> None:
    train, test = (json.dumps({"question": "q" * 4000, "answer": f"#### {n}"}).encode() for n in (1, 2))
    answers = {
        "train.jsonl": [Answer(drop_after=1000), Answer(status=429, headers={"Retry-After": "0"}, body=b""), Answer()],
        "test.jsonl": [Answer(corrupt=True), Answer(status=503, body=b""), Answer()],
    }
    server = FlakyServer({"train.jsonl": train, "test.jsonl": test}, lambda name, n: answers[name][min(n, 2)])
    (tmp_path / "here").mkdir()
    with server.running():
        entries = [
            {"name": f"gsm8k/{split}.jsonl", "url": f"{server.url}/{split}.jsonl", "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
            for split, content in (("train", train), ("test", test))
        ]
        (tmp_path / "here" / "manifest.json").write_text(json.dumps({"files": entries}))
        run = run_with(tmp_path / "here", stages=["rl"])
        assert stage_tasks(run, {}, Patience(attempts=5, timeout_s=5, first_wait_s=0.01)) == 2
    assert server.counts == {"train.jsonl": 3, "test.jsonl": 3}
    assert any(asked for path, asked, _ in server.requests if "train" in path), "what was there already was asked for again"
    assert [open_rows(run, "gsm8k", split)[0]["answer"] for split in ("train", "test")] == ["#### 1", "#### 2"]
    assert sorted(path.name for path in (tmp_path / "here" / "gsm8k").iterdir()) == ["test.jsonl", "train.jsonl"]


def test_offline_lists_all_that_is_missing_and_asks_nobody(tmp_path) -> None:
    run = run_with(tmp_path, stages=["rl"])
    with pytest.raises(BadData, match=r"gsm8k/train\.parquet, gsm8k/test\.parquet"):
        stage_tasks(run, {"HF_HUB_OFFLINE": "1"}, ONCE)


@pytest.mark.parametrize("text", ["{", '{"files": [{"name": "x"}]}', '{"files": [{"name": "../x.parquet", "url": "u"}]}'])
def test_a_wrong_manifest_is_named(tmp_path, text) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(BadData, match=r"manifest\.json"):
        stage_tasks(run_with(tmp_path, stages=["rl"]), {}, ONCE)


def test_the_evaluation_bundle_comes_by_the_manifest_or_is_asked_for(hub, tmp_path) -> None:
    url, root = hub
    (root / "bundle.zip").write_bytes(b"PK a bundle")
    here = tmp_path / "here"
    here.mkdir()
    run = run_with(here, stages=["eval"], eval={"tasks": ["core"], "bundle": str(here / "core" / "bundle.zip")})
    assert missing_bundle(run) == "core/bundle.zip"
    with pytest.raises(BadData, match="no manifest says where it is"):
        stage_tasks(run, {}, ONCE)
    with pytest.raises(BadData, match=r"offline, and examples are missing: core/bundle\.zip"):
        stage_tasks(run, {"HF_HUB_OFFLINE": "1"}, ONCE)
    entry = {"name": "core/bundle.zip", "url": f"{url}/bundle.zip", "sha256": hashlib.sha256(b"PK a bundle").hexdigest()}
    (here / "manifest.json").write_text(json.dumps({"files": [entry]}))
    assert stage_tasks(run, {}, ONCE) == 1
    assert (here / "core" / "bundle.zip").read_bytes() == b"PK a bundle"
    assert missing_bundle(run) is None
    elsewhere = run_with(here, stages=["eval"], eval={"tasks": ["core"], "bundle": str(tmp_path / "other.zip")})
    assert missing_bundle(elsewhere) is None
