"""Sampling speed beside upstream's, paired in one run: tokens per second at batch 1 and 8, with the same weights and prompt.

    python dev/bench_engine.py CHECKOUT [--rounds 8] [--depth 4] [--dtype float32] [--threads 2]

CHECKOUT is a checkout of karpathy/nanochat (92d63d4). A model of its own is made there, written as its checkpoint, and taken
over by ``import-upstream``; both sides then decode the same prompt greedily, and the tokens are compared. The two processes live side
by side and take turns, answer by answer, so that what else the machine does falls on both. The ratio of each pair of turns is
taken in CPU time and in wall clock, and the median of the ratios is told.
"""

import argparse
import json
import os
import random
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NEW_TOKENS = 96
PROMPT = "the quick brown fox jumps over the lazy dog and runs away"
BATCHES = (1, 8)

Answer = Callable[[int], list[int]]
"""Decodes the prompt greedily for a batch of so many rows; gives back the first row's tokens."""


def make_upstream(base: Path, depth: int, vocab: int) -> None:
    """In upstream's process: tokenizer and checkpoint."""
    import torch
    from nanochat.checkpoint_manager import save_checkpoint  # type: ignore[import-not-found]  # all of these are upstream's
    from nanochat.gpt import GPT, GPTConfig  # type: ignore[import-not-found]

    from nanochat.tokenizer import RustBPETokenizer  # type: ignore[attr-defined]

    rng = random.Random(0)
    texts = [PROMPT, *("".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 12))) for _ in range(2 * vocab))]
    tokenizer = RustBPETokenizer.train_from_iterator(texts, vocab)
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


def upstream(base: Path, depth: int) -> Answer:
    """In upstream's process: its engine."""
    import torch
    from nanochat.checkpoint_manager import build_model  # type: ignore[import-not-found]

    from nanochat.engine import Engine  # type: ignore[attr-defined]

    model, tokenizer, _ = build_model(str(base / "base_checkpoints" / f"d{depth}"), 1, torch.device("cpu"), "eval")
    engine = Engine(model, tokenizer)
    prompt = tokenizer.encode(PROMPT, prepend=tokenizer.get_bos_token_id())
    return lambda batch: [column[0] for column, _ in engine.generate(prompt, num_samples=batch, max_tokens=NEW_TOKENS, temperature=0.0)]


def ours(job: Path, dtype: str) -> Answer:
    """In our process: our engine."""
    import torch

    from nanochat.device import pick
    from nanochat.engine import Engine, Sampling
    from nanochat.model import build
    from nanochat.trained import open_trained

    trained = open_trained(job, pick("cpu"))
    model = build(trained.model.shape, getattr(torch, dtype), "cpu")
    model.load_state_dict(trained.model.state_dict())
    engine = Engine(model.eval(), trained.tokenizer, fixed=True)
    prompt = [trained.tokenizer.bos_id, *trained.tokenizer.encode(PROMPT)]

    def answer(batch: int) -> list[int]:
        steps = list(engine.stream([prompt] * batch, Sampling(NEW_TOKENS, 0.0)))
        return [step.token for step in steps if step.row == 0 and step.token is not None]

    return answer


def serve(answer: Answer) -> None:
    """Answers one line, the size of a batch, with one: seconds of CPU and of the clock, and the tokens."""
    for line in sys.stdin:
        cpu, clock = time.process_time(), time.perf_counter()
        tokens = answer(int(line))
        print(json.dumps({"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - clock, "tokens": tokens}), flush=True)


class Side:
    """A process that answers.

    Args:
        args: Of the command line.
        worker: "upstream" or "ours".
        folder: Its files.
        path: Where its package is.
    """

    def __init__(self, args: argparse.Namespace, worker: str, folder: Path, path: Path) -> None:
        self._process = subprocess.Popen(
            _command(args, worker, folder), env=_environ(args, path, folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )

    def answer(self, batch: int) -> dict[str, Any]:
        """What `serve` says."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(batch, file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("{"):  # upstream writes its own lines in between
                result: dict[str, Any] = json.loads(line)
                return result
        raise SystemExit("a worker ended")

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()


def main() -> None:
    """Runs all rounds and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--worker", choices=["make", "upstream", "ours"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker == "make":
        make_upstream(args.folder, args.depth, args.vocab)
    elif args.worker is not None:
        serve(upstream(args.folder, args.depth) if args.worker == "upstream" else ours(args.folder, args.dtype))
    else:
        _compare(args)


def _compare(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base, job = Path(folder) / "upstream", Path(folder) / "job"
        base.mkdir()
        subprocess.run(_command(args, "make", base), env=_environ(args, args.checkout, base), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        subprocess.run(
            [sys.executable, "-m", "nanochat", "import-upstream", str(base), "--job-dir", str(job)], env=_environ(args, ROOT, base), check=True,
            stdout=subprocess.DEVNULL,
        )
        sides = {"upstream": Side(args, "upstream", base, args.checkout), "ours": Side(args, "ours", job, ROOT)}
        try:
            _measure(args, sides)
        finally:
            for side in sides.values():
                side.close()


def _measure(args: argparse.Namespace, sides: dict[str, Side]) -> None:
    print(f"d{args.depth}, vocabulary {args.vocab}, {args.dtype}, {args.threads} threads, {NEW_TOKENS} tokens an answer, load {os.getloadavg()[0]:.1f}\n")
    print("| batch | upstream tokens/s | ours tokens/s | ratio, wall | ratio, CPU |\n|---|---|---|---|---|")
    same = NEW_TOKENS
    for batch in BATCHES:
        pairs = []
        for turn in range(args.rounds + 1):
            pair = {name: side.answer(batch) for name, side in sides.items()}
            same = min(same, _agreeing(*(side["tokens"] for side in pair.values())))
            if turn:  # the first warms up
                pairs.append(pair)
        made = batch * len(pairs[0]["ours"]["tokens"])
        speed = {name: made / statistics.median(pair[name]["wall_s"] for pair in pairs) for name in sides}
        wall, cpu = (statistics.median(pair["upstream"][key] / pair["ours"][key] for pair in pairs) for key in ("wall_s", "cpu_s"))
        print(f"| {batch} | {speed['upstream']:,.0f} | {speed['ours']:,.0f} | {wall:.2f} | {cpu:.2f} |", flush=True)
    print(f"\nthe first {same} of {NEW_TOKENS} greedy tokens are the same; load {os.getloadavg()[0]:.1f}")


def _agreeing(first: list[int], second: list[int]) -> int:
    """Tokens until the two part; rounding in bf16 decides between near equals otherwise, in fp32 they stay together."""
    return next((i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b), len(first))


def _environ(args: argparse.Namespace, path: Path, base: Path) -> dict[str, str]:
    return {
        **os.environ, "PYTHONPATH": str(path), "NANOCHAT_BASE_DIR": str(base), "NANOCHAT_DTYPE": args.dtype, "OMP_NUM_THREADS": str(args.threads),
        "OMP_WAIT_POLICY": "PASSIVE", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }


def _command(args: argparse.Namespace, worker: str, folder: Path) -> list[str]:
    return [
        sys.executable, "-P", str(Path(__file__).resolve()), str(args.checkout), "--worker", worker, "--folder", str(folder), f"--depth={args.depth}",
        f"--vocab={args.vocab}", f"--dtype={args.dtype}",
    ]


if __name__ == "__main__":
    main()
