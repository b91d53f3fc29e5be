"""Fine-tuning and reinforcement learning beside upstream's, taking turns in one run: tokens per second.

    python dev/bench_stages.py CHECKOUT [--rounds 3] [--stage sft --stage rl]

CHECKOUT is a checkout of karpathy/nanochat (92d63d4). Its own ``scripts/chat_sft.py`` and ``scripts/chat_rl.py`` run as they are, on a CPU and
without torch.compile; ours run through ``python -m nanochat launch``. Both start from the same weights and tokenizer (upstream's
checkpoint, taken over by ``import-upstream``) and read the same examples, which are made here and lie where upstream would have
downloaded them. Runs of the two take turns; a run's figure is the median over its steps without the first two, and the median of
the runs' figures is told.

sft   tokens of a step (rows x length, padding included on both sides) by the time that each side itself gives for its step.
rl    tokens that were sampled in a step, by the time from one step's line to the next: sampling, rewards and update.

For rl the reward is the parity of an answer's length on both sides, upstream's ``GSM8K.reward`` being replaced before its script starts: a model with
random weights earns nothing otherwise, and a step in which all rewards are equal teaches nothing (ours leaves such rows out, so it would
be measured at half of the work).

What cannot be compared: upstream samples one example's answers at a time in batches of the device batch, we all answers to an example
at once; upstream lets rows that are done ride along; answers differ, since random numbers do. With random weights hardly any answer
ends before the limit, so both make about the same number of tokens; the mean length is told. Losses are not compared here.
"""

import argparse
import itertools
import json
import os
import random
import re
import shutil
import statistics
import string
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DEPTH, LENGTH, VOCAB, DEVICE_BATCH = 4, 512, 4096, 4
SFT_STEPS, RL_STEPS = 14, 6
EXAMPLES, SAMPLES, NEW_TOKENS = 2, 8, 64
WORDS = ["".join(random.Random(i).choices(string.ascii_lowercase, k=3 + i % 7)) for i in range(3000)]

REWARD = """
from nanochat.contract import RunConfig
from nanochat.tasks.gsm8k import Gsm8k

class Parity(Gsm8k):
    def reward(self, example, answer):
        return float(len(answer) % 2)

def task(split):
    return Parity(RunConfig.model_validate({"data": {"source": "toy", "tasks_dir": TASKS}}), split)
"""
THEIR_REWARD = """
import runpy, sys
from tasks.gsm8k import GSM8K
GSM8K.reward = lambda self, conversation, answer: float(len(answer) % 2)
sys.argv[0] = "chat_rl"
runpy.run_module("scripts.chat_rl", run_name="__main__")
"""

SLUGS = {"smoltalk": "HuggingFaceTB--smol-smoltalk/default", "mmlu": "cais--mmlu/all", "gsm8k": "openai--gsm8k/main"}
"""Where upstream keeps a task's files: below ``task_data``."""


def write_tasks(base: Path, ours: Path) -> None:
    """The same self-made examples for both sides."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = random.Random(7)

    def say(low: int, high: int) -> str:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(low, high)))

    def talk() -> dict[str, Any]:
        turns = [{"role": role, "content": say(8, 60)} for _ in range(rng.randint(1, 3)) for role in ("user", "assistant")]
        return {"messages": turns}

    def question() -> dict[str, Any]:
        return {"question": say(10, 30), "choices": [say(2, 6) for _ in range(4)], "answer": rng.randrange(4), "subject": "words"}

    def problem() -> dict[str, Any]:
        a, b = rng.randrange(90), rng.randrange(90)
        return {"question": f"{say(10, 16)} {a} and {b}", "answer": f"{say(5, 20)} {a} + {b} = <<{a}+{b}={a + b}>>{a + b}\n#### {a + b}"}

    for task, split, count, make in (  # of the tests upstream wants at least so many
        ("smoltalk", "train", 1500, talk), ("smoltalk", "test", 60, talk), ("mmlu", "auxiliary_train", 300, question), ("mmlu", "test", 5200, question),
        ("gsm8k", "train", EXAMPLES * RL_STEPS, problem), ("gsm8k", "test", 420, problem),
    ):
        folder = base / "task_data" / SLUGS[task] / split
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist([make() for _ in range(count)]), folder / "00000.parquet")
        (folder / "manifest.json").write_text(json.dumps(["00000.parquet"]))
        (ours / task).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / "00000.parquet", ours / task / f"{split}.parquet")


def make(base: Path) -> None:
    """In upstream's process: a tokenizer, and checkpoints of both of its stages with the same random weights."""
    import torch
    from nanochat.checkpoint_manager import save_checkpoint  # type: ignore[import-not-found]  # all of these are upstream's
    from nanochat.gpt import GPT, GPTConfig  # type: ignore[import-not-found]

    from nanochat.tokenizer import RustBPETokenizer  # type: ignore[attr-defined]

    tokenizer = RustBPETokenizer.train_from_iterator([" ".join(WORDS), *map(str, range(1000))], VOCAB)
    tokenizer.save(str(base / "tokenizer"))
    sizes = [len(tokenizer.enc.decode_single_token_bytes(i)) if i < VOCAB - 9 else 0 for i in range(tokenizer.get_vocab_size())]
    torch.save(torch.tensor(sizes, dtype=torch.int32), base / "tokenizer" / "token_bytes.pt")
    heads = DEPTH * 64 // 128
    config = {
        "sequence_len": LENGTH, "vocab_size": tokenizer.get_vocab_size(), "n_layer": DEPTH, "n_head": heads, "n_kv_head": heads, "n_embd": heads * 128,
        "window_pattern": "L",
    }
    torch.manual_seed(0)
    model = GPT(GPTConfig(**config))
    model.init_weights()
    meta = {
        "step": 1, "model_config": config, "user_config": {}, "max_seq_len": LENGTH, "device_batch_size": DEVICE_BATCH,
        "total_batch_size": DEVICE_BATCH * LENGTH,
    }
    for folder in ("base_checkpoints", "chatsft_checkpoints"):
        save_checkpoint(str(base / folder / f"d{DEPTH}"), 1, model.state_dict(), None, meta)


def upstream(stage: str, checkout: Path, base: Path, env: dict[str, str]) -> dict[str, float]:
    """Runs upstream's script; tokens per second and, for rl, the mean length of a sequence with its prompt."""
    options = {
        "sft": [
            f"--num-iterations={SFT_STEPS + 1}", "--chatcore-every=-1", "--eval-every=-1", f"--eval-tokens={DEVICE_BATCH * LENGTH}", "--load-optimizer=0",
        ],
        "rl": [
            f"--examples-per-step={EXAMPLES}", f"--num-samples={SAMPLES}", f"--device-batch-size={SAMPLES}", f"--max-new-tokens={NEW_TOKENS}",
            "--eval-examples=1", "--eval-every=1000", "--save-every=1000",
        ],
    }[stage]
    program = ["-c", THEIR_REWARD] if stage == "rl" else ["-m", f"scripts.chat_{stage}"]
    command = [sys.executable, *program, "--device-type=cpu", *options]
    env = {**env, "PYTHONPATH": str(checkout), "NANOCHAT_BASE_DIR": str(base), "TORCHDYNAMO_DISABLE": "1"}
    process = subprocess.Popen(command, cwd=checkout, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    speeds, lengths, times, said = [], [], [], []
    for line in process.stdout or ():
        said.append(line)
        if match := re.search(r"tok/sec: ([\d,]+)", line):
            speeds.append(float(match[1].replace(",", "")))
        if match := re.search(r"Average sequence length: ([\d.]+)", line):
            times.append(time.perf_counter())
            lengths.append(float(match[1]))
    if process.wait():
        raise SystemExit(f"upstream's chat_{stage} ended with {process.returncode}\n{''.join(said[-30:])}")
    if stage == "sft":
        return {"tokens_per_s": statistics.median(speeds[2:])}
    seconds = [b - a for a, b in itertools.pairwise(times)][1:]
    return {"step_s": statistics.median(seconds), "length": statistics.mean(lengths)}


def ours(stage: str, job: Path, tasks: Path, env: dict[str, str]) -> dict[str, float]:
    """Runs our launcher; as `upstream`, from the events."""
    (job / "parity.py").write_text(f"TASKS = {str(tasks)!r}\n{REWARD}")
    run = {
        "stages": [stage], "data": {"source": "folder", "dir": str(tasks.parent), "tasks_dir": str(tasks), "offline": True},
        "model": {"depth": DEPTH, "sequence_len": LENGTH, "window_pattern": "L"}, "tokenizer": {"vocab_size": VOCAB},
        "pretrain": {"device_batch": DEVICE_BATCH, "tokens_per_step": DEVICE_BATCH * LENGTH, "batch_lr_scale": 1.0, "weight_decay_scaled": 0.0, "steps": 1},
        "sft": {"data": ["smoltalk", *3 * ["mmlu"], *4 * ["gsm8k"]], "steps": SFT_STEPS, "eval_every": 0, "eval_tokens": DEVICE_BATCH * LENGTH},
        "rl": {
            "task": f"{job / 'parity.py'}:task", "steps": RL_STEPS, "examples_per_step": EXAMPLES, "samples": SAMPLES, "device_batch": SAMPLES, "max_new_tokens": NEW_TOKENS,
            "eval_every": 0, "eval_examples": 1,
        },
        "checkpoint": {"every_minutes": None},
    }
    (job / "run.json").write_text(json.dumps({"v": 1, "job": "bench", "run": run, "world": {"device": "cpu"}}))
    env = {**env, "PYTHONPATH": str(ROOT), "NANOCHAT_JOB_DIR": str(job)}
    done = subprocess.run([sys.executable, "-m", "nanochat", "launch"], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"ours ended with {done.returncode}\n{done.stdout[-3000:]}")
    events = [json.loads(line) for path in sorted(job.rglob("events*.jsonl")) for line in path.read_text().splitlines()]
    steps = [event for event in events if event["event"] == "step" and event["stage"] == stage]
    if stage == "sft":
        return {"tokens_per_s": statistics.median(DEVICE_BATCH * LENGTH / event["dt_s"] for event in steps[2:])}
    stamps = [event["t"] for event in steps]
    seconds = [b - a for a, b in itertools.pairwise(stamps)][1:]
    return {"step_s": statistics.median(seconds), "answer": statistics.mean(event["answer_tokens"] for event in steps)}


def prompt_length(job: Path, tasks: Path) -> float:
    """Mean tokens of a prompt of gsm8k's training split: upstream's mean length counts them."""
    import pyarrow.parquet as pq

    from nanochat.contract import layout
    from nanochat.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(layout.tokenizer_dir(job))
    questions = pq.read_table(tasks / "gsm8k" / "train.parquet")["question"].to_pylist()
    return statistics.mean(len(tokenizer.render_for_completion([{"role": "user", "content": question}])) for question in questions)


def compare(stage: str, args: argparse.Namespace, base: Path, imported: Path, tasks: Path, env: dict[str, str]) -> str:
    """A row of the table."""
    pairs: list[tuple[float, float]] = []
    lengths = ""
    for number in range(args.rounds):
        job = imported.with_name(f"{stage}{number}")
        shutil.copytree(imported, job)
        theirs, mine = upstream(stage, args.checkout, base, env), ours(stage, job, tasks, env)
        if stage == "sft":
            pairs.append((theirs["tokens_per_s"], mine["tokens_per_s"]))
        else:
            answer = theirs["length"] - prompt_length(imported, tasks)
            pairs.append((EXAMPLES * SAMPLES * answer / theirs["step_s"], EXAMPLES * SAMPLES * mine["answer"] / mine["step_s"]))
            lengths = f"; mean answer {answer:.0f} and {mine['answer']:.0f} tokens"
        print(f"{stage} round {number}: upstream {pairs[-1][0]:,.0f}, ours {pairs[-1][1]:,.0f} tokens/s", file=sys.stderr, flush=True)
        shutil.rmtree(job)
    ratio = statistics.median(b / a for a, b in pairs)
    shape = f"{DEVICE_BATCH} x {LENGTH}" if stage == "sft" else f"{EXAMPLES} examples x {SAMPLES} answers x {NEW_TOKENS}{lengths}"
    return f"| {stage} | {shape} | {statistics.median(a for a, _ in pairs):,.0f} | {statistics.median(b for _, b in pairs):,.0f} | {ratio:.2f} |"


def main() -> None:
    """Makes the models and data, lets both sides take turns, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stage", action="append", choices=["sft", "rl"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=["float32"], default="float32", help=argparse.SUPPRESS)
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.make:
        make(args.make)
        return
    args.checkout = args.checkout.resolve()
    with tempfile.TemporaryDirectory() as folder:
        base, tasks, imported = Path(folder) / "upstream", Path(folder) / "data" / "tasks", Path(folder) / "imported"
        base.mkdir()
        write_tasks(base, tasks)
        env = {
            **os.environ, "OMP_NUM_THREADS": str(args.threads), "OMP_WAIT_POLICY": "PASSIVE", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "WANDB_MODE": "disabled",
            "PYTHONUNBUFFERED": "1", "NANOCHAT_LOGGER": "",
        }
        subprocess.run(
            [sys.executable, "-P", str(Path(__file__).resolve()), str(args.checkout), "--make", str(base)], check=True, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env={**env, "PYTHONPATH": str(args.checkout), "NANOCHAT_BASE_DIR": str(base)},
        )
        for stage in ("pretrain", "sft"):
            subprocess.run(
                [sys.executable, "-m", "nanochat", "import-upstream", str(base), "--stage", stage, "--job-dir", str(imported)], cwd=ROOT, check=True,
                env={**env, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL,
            )
        started = os.getloadavg()[0]
        rows = [compare(stage, args, base, imported, tasks, env) for stage in args.stage or ["sft", "rl"]]
        print(f"d{DEPTH}, T {LENGTH}, vocabulary {VOCAB}, float32, eager, {args.threads} threads, {args.rounds} rounds, load {started:.1f} to {os.getloadavg()[0]:.1f}\n")
        print("| stage | a step | upstream tokens/s | ours tokens/s | ours/upstream |\n|---|---|---|---|---|")
        print("\n".join(rows))


if __name__ == "__main__":
    main()
