"""The chat server under load: tokens per second with 1, 8 and 32 clients, time to the first token, memory, and size of the page.

    python dev/bench_serve.py [--depth 6] [--rounds 4] [--tokens 64] [--clients 1 8 32] [--threads 1] [--dtype float32]

The server is a process of its own on loopback: the real application with a model of random weights that never says its stop
token, so each answer has the same length. Clients are coroutines of this process that read streams; the numbers of clients
take turns, round by round, so that what else the machine does falls on all of them. Load of the machine is told beside it.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[1]
PROMPT = "the cat sat on the mat and the dog ran after the cat, " * 4


def serve(depth: int, dtype: str, threads: int, slots: int) -> None:
    """The server: prints its port, serves until it is killed."""
    import torch
    import uvicorn

    from nanochat.contract import ModelConfig, ModelShape
    from nanochat.engine import Engine
    from nanochat.model import GPT
    from nanochat.serve.app import Served, build_app
    from nanochat.serve.batcher import Batcher
    from nanochat.tokenizer import Tokenizer

    torch.set_num_threads(threads)
    words = Tokenizer.train([PROMPT * 3], 290)
    model = GPT(ModelShape.of(ModelConfig(depth=depth, sequence_len=1024), words.vocab_size), dtype=getattr(torch, dtype))
    model.init_weights(3)
    engine = Engine(model.eval(), words)
    engine._stops = frozenset()
    batcher = Batcher(engine, slots=slots, queue=4 * slots)
    batcher.start()
    server = uvicorn.Server(uvicorn.Config(build_app(Served("bench", batcher, 0)), port=0, log_level="error", timeout_graceful_shutdown=1))

    async def run() -> None:
        task = asyncio.ensure_future(server.serve())
        while not server.started:
            await asyncio.sleep(0.02)
        print(json.dumps({"port": server.servers[0].sockets[0].getsockname()[1], "parameters": sum(p.numel() for p in model.parameters())}), flush=True)
        await task

    asyncio.run(run())


async def ask(client: httpx.AsyncClient, tokens: int, seed: int) -> tuple[float, int]:
    """(seconds to the first piece of text, tokens) of one streamed answer."""
    body = {
        "messages": [{"role": "user", "content": PROMPT}], "max_tokens": tokens, "stream": True, "stream_options": {"include_usage": True}, "seed": seed,
        "temperature": 1.0,
    }
    begun, first, counted = time.perf_counter(), 0.0, 0
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if not first and event["choices"] and event["choices"][0]["delta"].get("content"):
                first = time.perf_counter() - begun
            counted = (event.get("usage") or {}).get("completion_tokens", counted)
    return first, counted


async def crowd(url: str, clients: int, tokens: int, answers: int) -> tuple[float, list[float]]:
    """(tokens per second of all, times to the first token) while so many clients ask one thing after the other."""
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        async def person(number: int) -> list[tuple[float, int]]:
            return [await ask(client, tokens, number * 1000 + turn) for turn in range(answers)]

        begun = time.perf_counter()
        found = [pair for pairs in await asyncio.gather(*map(person, range(clients))) for pair in pairs]
        return sum(count for _first, count in found) / (time.perf_counter() - begun), [first for first, _count in found]


def rss_mib(pid: int) -> float:
    """Resident memory of a process, MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def page_sizes(url: str) -> dict[str, int]:
    """Bytes of everything that the page loads."""
    names = ["", "style.css", "app.js", "markdown.js", "texts.js", "icon.svg"]
    return {name or "index.html": len(httpx.get(f"{url}/{name}").raise_for_status().content) for name in names}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--answers", type=int, default=2, help="of each client in a round")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    slots = max(arguments.clients)
    if arguments.serve:
        serve(arguments.depth, arguments.dtype, arguments.threads, slots)
        return
    command = [sys.executable, __file__, "--serve", *sys.argv[1:]]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        assert child.stdout is not None
        facts = json.loads(child.stdout.readline())
        url = f"http://127.0.0.1:{facts['port']}"
        asyncio.run(crowd(url, 1, 8, 1))  # warm
        empty = rss_mib(child.pid)
        speeds: dict[int, list[float]] = {clients: [] for clients in arguments.clients}
        firsts: dict[int, list[float]] = {clients: [] for clients in arguments.clients}
        for _round in range(arguments.rounds):
            for clients in arguments.clients:
                speed, first = asyncio.run(crowd(url, clients, arguments.tokens, arguments.answers))
                speeds[clients].append(speed)
                firsts[clients] += first
        print(f"depth {arguments.depth}, {facts['parameters'] / 1e6:.1f} M parameters, {arguments.dtype}, {arguments.threads} threads, {slots} slots, "
              f"answers of {arguments.tokens} tokens, {arguments.rounds} rounds, load average {os.getloadavg()[0]:.1f}")
        base = statistics.median(speeds[arguments.clients[0]])
        print("clients  tokens/s  ×  first token: median, p95 (s)")
        for clients in arguments.clients:
            waits = sorted(firsts[clients])
            print(f"{clients:>7}  {statistics.median(speeds[clients]):>8.1f}  {statistics.median(speeds[clients]) / base:>4.2f}  "
                  f"{statistics.median(waits):.3f}  {waits[min(len(waits) - 1, int(0.95 * len(waits)))]:.3f}")
        print(f"memory {empty:.0f} MiB after one answer, {rss_mib(child.pid):.0f} MiB after all")
        sizes = page_sizes(url)
        print(f"page {sum(sizes.values()):,} bytes in {len(sizes)} files: {sizes}")
    finally:
        child.terminate()
        child.wait(timeout=30)


if __name__ == "__main__":
    main()
