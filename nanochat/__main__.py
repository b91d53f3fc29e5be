"""``python -m nanochat COMMAND``: the trainer's entry points. Light until a command is chosen."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence

from nanochat import __version__
from nanochat.streams import never_fail

COMMANDS: dict[str, tuple[str, str]] = {
    "launch": ("nanochat.launch.command", "start the ranks of this node and watch them"),
    "rank": ("nanochat.rank", "one rank of a job (started by launch, or by torchrun)"),
    "chat": ("nanochat.chat", "talk to a trained model"),
    "import-upstream": ("nanochat.import_upstream", "take over a model of upstream nanochat"),
    "serve": ("nanochat.serve.command", "serve a trained model over HTTP"),
    "export": ("nanochat.export.command", "write a trained model for other programs"),
    "selfcheck": ("nanochat.selfcheck", "test kernels, training and collectives on this machine; one file to send back"),
    "report": ("nanochat.report.command", "write the report of a job"),
    "tracking": ("nanochat.trackers.command", "upload what an offline tracker wrote"),
}
"""Command: module with ``main(argv) -> int``, and what it does."""

ENVIRONMENT = {
    # torch's own hook imports torch_npu and dies where CANN is missing; device.py imports it and says what is wrong.
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    # A peer that leaves is normal life for a store; without this each poll prints a C++ stack.
    "TORCH_CPP_LOG_LEVEL": "FATAL",
    # Threads that wait sleep. Spinning ones steal the cores that they wait for as soon as anything else runs: measured
    # 2.46 s a step against 0.46 s on two cores at load 8 (d2, 2,048 tokens).
    "OMP_WAIT_POLICY": "PASSIVE",
}
"""Set, unless set already, before torch is imported."""

USAGE_CODE = 2
UNATTENDED = ("launch", "rank")
"""Commands whose exit code decides what happens next, whether or not anybody can read what they print."""


def _help() -> str:
    lines = [f"  {name:<12}{text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(["usage: python -m nanochat [--version] COMMAND ...", "", *lines])


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; gives back its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["--version"]:
        print(f"nanochat {__version__}")
        return 0
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return 0 if arguments else USAGE_CODE
    if arguments[0] not in COMMANDS:
        print(f"nanochat: no command {arguments[0]!r}\n{_help()}", file=sys.stderr)
        return USAGE_CODE
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if arguments[0] in UNATTENDED:
        never_fail()
    return _load(arguments[0])(arguments[1:])


def _load(command: str) -> Callable[[list[str]], int]:
    try:
        run: Callable[[list[str]], int] = importlib.import_module(COMMANDS[command][0]).main
    except ModuleNotFoundError as error:
        missing = error.name or "a module"
        if missing.split(".")[0] == "nanochat":
            raise
        print(
            f"nanochat {command}: {missing} is not installed\nhint: pip install 'nanochat-npu[train]'", file=sys.stderr
        )
        raise SystemExit(USAGE_CODE) from error
    return run


if __name__ == "__main__":
    sys.exit(main())
