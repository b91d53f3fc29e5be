"""A small model with random weights behind a real server on loopback."""

import contextlib
import threading
from collections.abc import Iterator

import torch
import uvicorn

from nanochat.contract import ModelConfig, ModelShape
from nanochat.engine import Engine
from nanochat.model import GPT
from nanochat.serve.app import Served, build_app
from nanochat.serve.batcher import Batcher
from nanochat.tokenizer import Tokenizer

TEXT = ["the cat sat on the mat and the dog ran after the cat, 1 + 2 = 3. Größe naïve 你好世界 " * 3]


def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXT, 290)


def model(vocab: int, length: int = 96, seed: int = 3) -> GPT:
    shape = ModelShape.of(ModelConfig(depth=3, aspect_ratio=16, head_dim=16, sequence_len=length, window_pattern="SL"), vocab)
    made = GPT(shape)
    made.init_weights(seed)
    with torch.no_grad():
        for parameter in made.parameters():  # at the start several parts are switched off, and all logits are alike
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    return made.eval()


def engine(length: int = 96, *, endless: bool = False) -> Engine:
    """An engine; `endless` takes the stop tokens away, as random weights say them at random."""
    words = tokenizer()
    made = Engine(model(words.vocab_size, length), words)
    if endless:
        made._stops = frozenset()
    return made


@contextlib.contextmanager
def server(batcher: Batcher, *, token: str | None = None, loopback: bool = True, tokens: int = 40) -> Iterator[str]:
    """Address of a running server; stopped at the end."""
    served = Served("small", batcher, 1_700_000_000, token, loopback, tokens, facts={"stage": "sft", "step": 1, "parameters": 1000, "chats": True})
    running = uvicorn.Server(uvicorn.Config(build_app(served), port=0, log_level="warning", server_header=False))
    batcher.start()
    thread = threading.Thread(target=running.run)
    thread.start()
    try:
        while not running.started:
            thread.join(0.02)
        yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    finally:
        running.should_exit = True
        thread.join()
        batcher.stop()
