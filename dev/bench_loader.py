"""Loader speed beside upstream's, paired in one run: tokens per second, first batch, and the longest wait for a batch.

    python dev/bench_loader.py CHECKOUT [--rounds 3] [--batch 4 --length 512] [--realtime]

CHECKOUT is a checkout of karpathy/nanochat (92d63d4); its loader runs unmodified in a process of its own, on the same corpus,
which is generated. Rounds alternate, so that other load on the machine falls on all alike; look at the ratios. Where upstream's
packing is measured, the rows are compared token for token as well.
"""

import argparse
import contextlib
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
VOCAB = 4096
WARM_BATCHES = 3
PACE_S = 0.004
"""A consumer that works so long on each batch of 2,048 tokens takes 0.5 Mtok/s: more than an H100 rank at d12."""


def measure(next_rows: Callable[[], Any], batches: int, tokens: int) -> dict[str, Any]:
    """Figures of one loader: drained as fast as it goes, then at a trainer's pace."""
    digest = hashlib.sha256()
    started = time.perf_counter()
    digest.update(next_rows().contiguous().numpy().tobytes())
    first_s = time.perf_counter() - started
    for _ in range(WARM_BATCHES):
        digest.update(next_rows().contiguous().numpy().tobytes())
    waits = []
    begun = time.perf_counter()
    for _ in range(batches):
        before = time.perf_counter()
        rows = next_rows()
        waits.append(time.perf_counter() - before)
        digest.update(memoryview(rows.contiguous().numpy()).cast("B"))
    took = time.perf_counter() - begun
    paced = []
    for _ in range(batches // 4):
        time.sleep(PACE_S)
        before = time.perf_counter()
        next_rows()
        paced.append(time.perf_counter() - before)
    return {
        "tokens_per_s": batches * tokens / took, "first_s": first_s, "median_ms": 1e3 * statistics.median(waits), "max_ms": 1e3 * max(waits),
        "paced_max_ms": 1e3 * max(paced), "sha256": digest.hexdigest(),
    }


def worker(kind: str, data: Path, batch: int, length: int, batches: int) -> dict[str, Any]:
    """Measures one loader in this process."""
    if kind == "upstream":
        return measure(*_upstream(batch, length), batches, batch * length)  # type: ignore[arg-type]
    return measure(_ours(data, "upstream" if kind == "ours, upstream's packing" else "bestfit", batch, length), batches, batch * length)


def _upstream(batch: int, length: int) -> tuple[Callable[[], Any]]:
    from nanochat.dataloader import tokenizing_distributed_data_loader_bos_bestfit as loader  # type: ignore[import-not-found]  # upstream's

    from nanochat.tokenizer import get_tokenizer  # type: ignore[attr-defined]

    rows: Iterator[Any] = loader(get_tokenizer(), batch, length, "train", device="cpu")
    return (lambda: next(rows)[0],)


def _ours(data: Path, packing: str, batch: int, length: int) -> Callable[[], Any]:
    from nanochat.contract import DataConfig, ModelConfig, PretrainConfig, RunConfig, RunFile
    from nanochat.data import Place, build_loader
    from nanochat.tokenizer import Tokenizer

    run = RunFile(job="bench", run=RunConfig(
        data=DataConfig.model_validate({"source": "folder", "dir": str(data / "base_data_climbmix"), "packing": packing}),
        model=ModelConfig(sequence_len=length), pretrain=PretrainConfig(tokens_per_step=batch * length, device_batch=batch),
    ))
    loader = build_loader(run, Tokenizer.load(data / "ours"), Place(0, 1, batch, length), data)
    return lambda: loader.next_batch().inputs


def prepare(checkout: Path, data: Path) -> None:
    """Corpus and both tokenizers."""
    sys.path.insert(0, str(ROOT / "tests"))
    import data_synth

    from nanochat.data.shards import ShardCorpus, shard_files
    from nanochat.tokenizer import Tokenizer, training_texts

    data_synth.write_corpus(data / "base_data_climbmix")
    corpus = ShardCorpus("train", shard_files(data / "base_data_climbmix")[:-1])
    texts = (text for block in range(len(corpus.block_sizes)) for text in corpus.read_block(block))
    Tokenizer.train(training_texts(texts, max_chars=2_000_000_000, doc_cap=10_000), VOCAB).save(data / "ours")
    subprocess.run(
        [sys.executable, "-m", "scripts.tok_train", f"--vocab-size={VOCAB}"], cwd=checkout, env=_environ(checkout, data), check=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )


def _environ(checkout: Path | None, data: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(checkout or ROOT), "NANOCHAT_BASE_DIR": str(data), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def main() -> None:
    """Runs all rounds and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument(
        "--realtime", action="store_true", help="ask the kernel to run the loaders before all else (needs root), so that gaps are theirs and not other work's"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        if args.realtime:
            with contextlib.suppress(OSError):
                os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        print(json.dumps(worker(args.worker, args.data, args.batch, args.length, args.batches)))
        return
    _report(measured(args.checkout, rounds=args.rounds, batch=args.batch, length=args.length, batches=args.batches, realtime=args.realtime))


def measured(checkout: Path, *, rounds: int, batch: int, length: int, batches: int, realtime: bool = False) -> list[dict[str, dict[str, Any]]]:
    """Figures of all loaders, round by round."""
    flags = [f"--batch={batch}", f"--length={length}", f"--batches={batches}", *(["--realtime"] if realtime else [])]
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        prepare(checkout, data)
        return [_round(checkout, data, flags) for _ in range(rounds)]


KINDS = ("upstream", "ours", "ours, upstream's packing")


def _round(checkout: Path, data: Path, flags: list[str]) -> dict[str, dict[str, Any]]:
    found = {}
    for kind in KINDS:
        command = [
            sys.executable, "-P", str(Path(__file__).resolve()), str(checkout), "--worker", kind, "--data", str(data), *flags]
        done = subprocess.run(command, env=_environ(checkout if kind == "upstream" else None, data), check=True, capture_output=True, text=True)
        found[kind] = json.loads(done.stdout.splitlines()[-1])
    return found


def _report(rounds: list[dict[str, dict[str, Any]]]) -> None:
    print(f"{'':<26}{'tokens/s':>12}{'ratio':>8}{'first s':>9}{'median ms':>11}{'max ms':>8}{'paced max ms':>14}")
    for kind in KINDS:
        def middle(key: str, kind: str = kind) -> float:
            return statistics.median(r[kind][key] for r in rounds)

        ratio = statistics.median(r[kind]["tokens_per_s"] / r["upstream"]["tokens_per_s"] for r in rounds)
        print(
            f"{kind:<26}{middle('tokens_per_s'):>12,.0f}{ratio:>8.2f}{middle('first_s'):>9.3f}{middle('median_ms'):>11.2f}{middle('max_ms'):>8.1f}"
            f"{middle('paced_max_ms'):>14.1f}"
        )
    same = all(r["upstream"]["sha256"] == r["ours, upstream's packing"]["sha256"] for r in rounds)
    print(f"rows of upstream's packing are {'the same' if same else 'NOT THE SAME'} token for token")


if __name__ == "__main__":
    main()
