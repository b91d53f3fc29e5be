"""``python -m nanochat chat``: talk to a trained model in the terminal, or ask one thing and leave."""

import argparse
import io
import sys
from collections.abc import Sequence

from nanochat.contract import ExitCode
from nanochat.device import Kind, pick
from nanochat.dialogue import Dialogue
from nanochat.engine import PromptTooLong, Sampling
from nanochat.errors import TrainerError
from nanochat.terminal import Terminal
from nanochat.trained import add_arguments, open_trained

__all__ = ["main"]

HELP = "/help tells what can be typed, Ctrl-C stops an answer, Ctrl-D leaves"
SIGINT_CODE = 130


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m nanochat chat", description="Talk to a trained model.")
    add_arguments(parser, "answers")
    parser.add_argument("--prompt", help="answer this and leave; - reads it from standard input")
    parser.add_argument("--temperature", type=float, default=0.6, help="0 always takes the likeliest token (default: %(default)s)")
    parser.add_argument("--top-k", type=int, default=50, help="choose among the k likeliest tokens, 0: all (default: %(default)s)")
    parser.add_argument("--top-p", type=float, default=1.0, help="choose among the likeliest tokens of this total probability")
    parser.add_argument("--max-new-tokens", type=int, default=256, help="length of an answer, at most (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=42, help="equal seeds give equal answers (default: %(default)s)")
    parser.add_argument("--device", default="auto", choices=["auto", *map(str, Kind)], help="default: %(default)s")
    return parser.parse_args(argv)


def main(argv: Sequence[str] = ()) -> int:
    """Chat; gives back the exit code."""
    arguments = _arguments(argv)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # a text in another encoding ends no chat
    try:
        sampling = Sampling(arguments.max_new_tokens, arguments.temperature, arguments.top_k, arguments.top_p, arguments.seed)
        trained = open_trained(arguments.job_dir, pick(arguments.device), stage=arguments.stage, step=arguments.step)
        dialogue = Dialogue(trained, sampling)
        if arguments.prompt is not None:
            Terminal(dialogue).say(sys.stdin.read() if arguments.prompt == "-" else arguments.prompt)
            return int(ExitCode.DONE)
        return _talk(dialogue)
    except PromptTooLong as error:
        print(f"nanochat chat: {error}", file=sys.stderr)
        return int(ExitCode.USAGE)
    except TrainerError as error:
        print(f"nanochat chat: {error}", file=sys.stderr)
        return int(error.code)
    except KeyboardInterrupt:
        return SIGINT_CODE


def _talk(dialogue: Dialogue) -> int:
    manifest = dialogue.trained.manifest
    print(f"{manifest.stage}, step {manifest.step}, context {dialogue.engine.context} tokens. {HELP}", file=sys.stderr)
    if not dialogue.trained.chats:
        print("This model was only pretrained: it continues your text and does not answer.", file=sys.stderr)
    Terminal(dialogue).run()
    return int(ExitCode.DONE)
