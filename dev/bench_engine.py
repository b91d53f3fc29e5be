"""Sampling speed beside upstream's, paired in one run: tokens per second at batch 1 and 8, with the same weights and prompt.

    python dev/bench_engine.py CHECKOUT [--rounds 3] [--depth 4]

CHECKOUT is a checkout of karpathy/nanochat (92d63d4). A model of its own is made there, written as its checkpoint, and taken
over by ``import-upstream``; both sides then decode the same prompt greedily, and the tokens are compared.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NEW_TOKENS = 96
PROMPT = "the quick brown fox jumps over the lazy dog and runs away"
BATCHES = (1, 8)


def make_upstream(base: Path, depth: int) -> None:
    """In upstream's process: tokenizer and checkpoint."""
    import torch
    from nanochat.checkpoint_manager import save_checkpoint  # type: ignore[import-not-found]  # all of these are upstream's
    from nanochat.gpt import GPT, GPTConfig  # type: ignore[import-not-found]

    from nanochat.tokenizer import RustBPETokenizer  # type: ignore[attr-defined]

    words = PROMPT.split()
    tokenizer = RustBPETokenizer.train_from_iterator([" ".join(words[i:] + words[:i]) + f" {i * 7919}" for i in range(len(words))] * 40, 300)
    tokenizer.save(str(base / "tokenizer"))
    width = 64 * depth
    config = {
        "sequence_len": 512, "vocab_size": tokenizer.get_vocab_size(), "n_layer": depth, "n_head": width // 128, "n_kv_head": width // 128,
        "n_embd": width, "window_pattern": "L",
    }
    torch.manual_seed(0)
    model = GPT(GPTConfig(**config))
    model.init_weights()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    save_checkpoint(str(base / "base_checkpoints" / f"d{depth}"), 1, model.state_dict(), None, {"step": 1, "model_config": config})


def measure_upstream(base: Path, depth: int) -> dict[str, Any]:
    """In upstream's process: its engine."""
    import torch
    from nanochat.checkpoint_manager import build_model  # type: ignore[import-not-found]

    from nanochat.engine import Engine  # type: ignore[attr-defined]

    model, tokenizer, _ = build_model(str(base / "base_checkpoints" / f"d{depth}"), 1, torch.device("cpu"), "eval")
    engine = Engine(model, tokenizer)
    prompt = tokenizer.encode(PROMPT, prepend=tokenizer.get_bos_token_id())

    def run(batch: int) -> list[int]:
        columns = [column for column, _ in engine.generate(prompt, num_samples=batch, max_tokens=NEW_TOKENS, temperature=0.0)]
        return [column[0] for column in columns]

    return _timed(run)


def measure_ours(job: Path) -> dict[str, Any]:
    """In our process: our engine."""
    from nanochat.device import pick
    from nanochat.engine import Engine, Sampling
    from nanochat.trained import open_trained

    trained = open_trained(job, pick("cpu"))
    engine = Engine(trained.model, trained.tokenizer)
    prompt = [trained.tokenizer.bos_id, *trained.tokenizer.encode(PROMPT)]

    def run(batch: int) -> list[int]:
        steps = list(engine.stream([prompt] * batch, Sampling(NEW_TOKENS, 0.0)))
        return [step.token for step in steps if step.row == 0 and step.token is not None]

    return _timed(run)


def _timed(run: Any) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for batch in BATCHES:
        tokens = run(batch)
        started = time.process_time()
        for _ in range(2):
            run(batch)
        result[str(batch)] = 2 * batch * len(tokens) / (time.process_time() - started)
        result["tokens"] = tokens
    return result


def main() -> None:
    """Runs all rounds and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--worker", choices=["make", "upstream", "ours"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker == "make":
        make_upstream(args.folder, args.depth)
    elif args.worker == "upstream":
        print(json.dumps(measure_upstream(args.folder, args.depth)))
    elif args.worker == "ours":
        print(json.dumps(measure_ours(args.folder)))
    else:
        _compare(args)


def _compare(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base, job = Path(folder) / "upstream", Path(folder) / "job"
        base.mkdir()
        _run(args, "make", base, args.checkout)
        subprocess.run(
            [sys.executable, "-m", "nanochat", "import-upstream", str(base), "--job-dir", str(job)], env=_environ(ROOT, base), check=True,
            stdout=subprocess.DEVNULL,
        )
        rounds = [
            {"upstream": json.loads(_run(args, "upstream", base, args.checkout)), "ours": json.loads(_run(args, "ours", job, ROOT))}
            for _ in range(args.rounds)
        ]
    for batch in map(str, BATCHES):
        theirs, ours = (statistics.median(r[side][batch] for r in rounds) for side in ("upstream", "ours"))
        ratio = statistics.median(r["ours"][batch] / r["upstream"][batch] for r in rounds)
        print(f"batch {batch}: upstream {theirs:,.0f} tokens/s, ours {ours:,.0f} tokens/s, ratio {ratio:.2f}")
    same = all(r["ours"]["tokens"] == r["upstream"]["tokens"] for r in rounds)
    print(f"greedy tokens are {'the same' if same else 'NOT THE SAME'}: {len(rounds[0]['ours']['tokens'])}")


def _environ(path: Path, base: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(path), "NANOCHAT_BASE_DIR": str(base), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def _run(args: argparse.Namespace, worker: str, folder: Path, path: Path) -> str:
    command = [sys.executable, "-P", str(Path(__file__).resolve()), str(args.checkout), "--worker", worker, "--folder", str(folder), f"--depth={args.depth}"]
    done = subprocess.run(command, env=_environ(path, folder), check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout.splitlines()[-1] if done.stdout.strip() else ""


if __name__ == "__main__":
    main()
