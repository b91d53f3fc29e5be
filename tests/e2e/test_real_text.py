"""Text that is not ours: the Python standard library's own sources, which every machine has, and shards fetched over HTTP."""

import hashlib
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flaky_server import Answer, FlakyServer
from launchers import Nodes

from nanochat.contract import ExitCode, RunConfig

STDLIB = Path(sysconfig.get_paths()["stdlib"])
STEPS = 40


def config(data: dict[str, Any], **more: Any) -> RunConfig:
    """A small model: width 64, rows of 128 tokens, 40 steps of 1,024 tokens."""
    pretrain = {
        "device_batch": 4, "tokens_per_step": 1024, "steps": STEPS, "warmup_steps": 4, "eval_every": 0, "eval_tokens": 8192,
        "batch_lr_scale": 0.3, "weight_decay_scaled": 0.1, **more.pop("pretrain", {}),
    }
    return RunConfig.model_validate({
        "stages": ["data", "tokenizer", "pretrain"], "data": data, "tokenizer": {"vocab_size": 1024, "max_chars": 2_000_000},
        "model": {"depth": 2, "aspect_ratio": 32, "head_dim": 32, "sequence_len": 128, "window_pattern": "L"}, "pretrain": pretrain,
        "checkpoint": {"every_steps": 20, "every_minutes": None}, **more,
    })


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Any]:
    started: list[Nodes] = []

    def _run(job: str, config: RunConfig, per_node: int = 1, **fields: Any) -> Nodes:
        started.append(Nodes(tmp_path / job, config, 1, per_node, **fields))
        return started[-1]

    yield _run
    for nodes in started:
        nodes.end()


def bpb(nodes: Nodes, attempt: int = 0) -> list[float]:
    return [event["value"] for event in nodes.events(attempt) if event["event"] == "eval" and event["name"] == "bpb"]


def test_the_standard_librarys_sources_are_learnt_and_a_stopped_run_goes_on(run: Any, tmp_path: Path) -> None:
    """asyncio, email and json: about 1.3 MB in 60 files, many of them longer than a row of 128 tokens by far."""
    folder = tmp_path / "text"
    folder.mkdir()
    for package in ("asyncio", "email", "json"):
        (folder / package).symlink_to(STDLIB / package)
    whole = config({"source": "folder", "dir": str(folder)})
    nodes = run("whole", whole)
    assert nodes.wait() == [0], nodes.output()
    losses = nodes.losses()
    first, last = (sum(losses[step] for step in steps) / 5 for steps in (range(1, 6), range(STEPS - 4, STEPS + 1)))
    assert last < 0.75 * first, losses
    before, after = bpb(nodes)
    assert after < 0.8 * before and 1.0 < after < 6.0

    stopped = whole.model_copy(update={"pretrain": whole.pretrain.model_copy(update={"stop_at_step": 20})})
    part = run("parts", stopped)
    assert part.wait() == [0], part.output()
    rest = run("parts", whole, attempt=1)
    assert rest.wait() == [0], rest.output()
    assert {**part.losses(), **rest.losses(1)} == losses
    assert bpb(rest, 1)[-1] == after


@pytest.mark.parametrize("content", [{}, {"only.txt": b"one document"}, {"a.txt": b"fine", "b.txt": b"\xff\xfe\x00"}], ids=["empty", "one", "binary"])
def test_text_that_cannot_be_used_ends_the_job_with_65_and_the_place(run: Any, tmp_path: Path, content: dict[str, bytes]) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    for name, raw in content.items():
        (folder / name).write_bytes(raw)
    nodes = run("bad", config({"source": "folder", "dir": str(folder)}), per_node=2)
    assert nodes.wait() == [ExitCode.BAD_DATA], nodes.output()
    assert str(folder) in nodes.verdict()["where"]


def write_one_long_document(folder: Path) -> None:
    """200,000 words of five in a single line, where a row has 32 tokens, and one short document for validation."""
    (folder / "long.txt").write_text(" ".join(("tree", "river", "stone", "house", "wind")[n * n % 5] for n in range(200_000)))
    (folder / "short.txt").write_text("a house")


def write_one_parquet_file(folder: Path) -> None:
    """One file with one row group: upstream waits for ever for it, and with it every rank but the first."""
    texts = [f"tree {n} river {n * n} stone" for n in range(60)]
    pq.write_table(pa.table({"text": texts}), folder / "only.parquet", row_group_size=60)


@pytest.mark.parametrize("write", [write_one_long_document, write_one_parquet_file])
@pytest.mark.parametrize("per_node", [1, 4])
def test_odd_folders_are_trained_on_to_the_end(run: Any, tmp_path: Path, write: Any, per_node: int) -> None:
    """Rows are short and the vocabulary is small here, so a prompt for samples does not fit: that must not end the job either."""
    folder = tmp_path / "text"
    folder.mkdir()
    write(folder)
    small = config(
        {"source": "folder", "dir": str(folder)}, tokenizer={"vocab_size": 270},
        model={"depth": 2, "aspect_ratio": 16, "head_dim": 16, "sequence_len": 32, "window_pattern": "L"},
        pretrain={"steps": 6, "tokens_per_step": 128, "device_batch": 1, "eval_tokens": 256},
    )
    nodes = run("odd", small, per_node)
    assert nodes.wait() == [0], nodes.output()
    assert len(nodes.losses()) == 6
    prompts = [event["prompt"] for event in nodes.events() if event["event"] == "sample"]
    assert "" in prompts and not any(prompt.startswith("If yesterday was Friday") for prompt in prompts)


def shards(folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    texts = [path.read_text(encoding="utf-8") for path in sorted((STDLIB / "asyncio").glob("*.py"))]
    for number in range(3):
        pq.write_table(pa.table({"text": texts[number::3]}), folder / f"s{number}.parquet", row_group_size=5)
    return {path.name: path.read_bytes() for path in folder.glob("*.parquet")}


def test_shards_are_fetched_over_a_bad_line_and_trained_on_by_two_ranks(run: Any, tmp_path: Path) -> None:
    files = shards(tmp_path / "source")
    with FlakyServer(files, lambda name, n: Answer(drop_after=9000) if n < 2 else Answer()).running() as server:
        entries = [{"url": f"{server.url}/{name}", "sha256": hashlib.sha256(raw).hexdigest()} for name, raw in sorted(files.items())]
        (tmp_path / "manifest.json").write_text(json.dumps({"shards": entries}))
        nodes = run("fetched", config({"source": "manifest", "manifest": str(tmp_path / "manifest.json")}, pretrain={"steps": 3}), per_node=2)
        assert nodes.wait() == [0], nodes.output()
    assert {path.name: path.read_bytes() for path in (tmp_path / "fetched" / "data" / "manifest").glob("*.parquet")} == files
    assert len(nodes.losses()) == 3
    [seen] = [event["value"] for event in nodes.events() if event.get("name") == "documents_val"]
    assert seen == pq.read_metadata(tmp_path / "source" / "s2.parquet").num_rows


@pytest.mark.parametrize(("status", "code"), [(404, ExitCode.BAD_DATA)])
def test_a_download_that_fails_is_no_success(run: Any, tmp_path: Path, status: int, code: ExitCode) -> None:
    files = shards(tmp_path / "source")
    with FlakyServer(files, lambda name, n: Answer(status, {"Retry-After": "0"})).running() as server:
        (tmp_path / "manifest.json").write_text(json.dumps([f"{server.url}/{name}" for name in sorted(files)]))
        nodes = run("failed", config({"source": "manifest", "manifest": str(tmp_path / "manifest.json")}))
        assert nodes.wait() == [code], nodes.output()
    assert "3 of 3 shards are missing (s0.parquet … s2.parquet)" in nodes.output()
