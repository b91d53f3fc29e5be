"""``python -m nanochat export``: a job's model in a format that other programs read."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nanochat.contract import ExitCode
from nanochat.device import pick
from nanochat.errors import TrainerError
from nanochat.export.formats import FORMATS, export
from nanochat.trained import add_arguments, open_trained

__all__ = ["main"]


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m nanochat export", description="Write a trained model in a format that other programs read.")
    add_arguments(parser, "is written")
    parser.add_argument("--format", default="hf", help=f"one of {', '.join(FORMATS)} (default: %(default)s)")
    parser.add_argument("--to", type=Path, required=True, help="folder to write; it must not exist, or be empty")
    return parser.parse_args(argv)


def main(argv: Sequence[str] = ()) -> int:
    """Write the files, tell their names; gives back the exit code."""
    arguments = _arguments(argv)
    try:
        trained = open_trained(arguments.job_dir, pick("cpu"), stage=arguments.stage, step=arguments.step)
        files = export(trained, arguments.format, arguments.to)
    except TrainerError as error:
        print(f"export: {error}", file=sys.stderr)
        return int(error.code)
    except OSError as error:
        print(f"export: {arguments.to}: {error.strerror or error}", file=sys.stderr)
        return int(ExitCode.BAD_CONFIG)
    for path in files:
        print(path)
    return int(ExitCode.DONE)
