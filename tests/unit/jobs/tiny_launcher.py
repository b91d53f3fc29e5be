"""A stand-in for ``python -m nanochat launch``: a real process that behaves as its one argument (JSON) says.

Keys: ``codes`` exit code of each attempt (the last one for all further) · ``wait`` stay until SIGTERM, then leave with 82 ·
``deaf`` ignore SIGTERM · ``child`` leave a process in a session of its own behind · ``events`` events to write ·
``verdict`` code to write as the verdict · ``only_node`` behave so on this node; others stay until SIGTERM.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    play = json.loads(sys.argv[1])
    job, attempt, node = Path(os.environ["NANOCHAT_JOB_DIR"]), int(os.environ["NANOCHAT_ATTEMPT"]), int(os.environ["NANOCHAT_NODE_RANK"])
    folder = job / "attempts" / str(attempt)
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, signal.SIG_IGN if play.get("deaf") else lambda number, frame: stopped.append(number))
    if play.get("child"):
        subprocess.Popen(["sleep", "600"], start_new_session=True)
    print(f"node {node} of attempt {attempt} started", flush=True)
    (folder / "logger").write_text(os.environ.get("NANOCHAT_LOGGER", "not set"))
    if node == 0:
        with (folder / "events.jsonl").open("a") as file:
            for event in play.get("events", []):
                line = {"v": 1, "stage": "pretrain", "t": time.time(), "rank": 0, "attempt": attempt, **event}
                file.write(json.dumps(line) + "\n")
    (folder / f"ready{node}").touch()
    other = "only_node" in play and play["only_node"] != node
    if play.get("wait") or other:
        while not stopped:
            time.sleep(0.02)
        (job / f"saved{node}").touch()
        return 82
    if play.get("verdict"):
        (folder / "verdict.json").write_text(json.dumps({"code": play["verdict"], "rank": 3, "message": "the disk is full of bees"}))
    codes = play.get("codes", [0])
    code = codes[min(attempt, len(codes) - 1)]
    if code > 128:
        os.kill(os.getpid(), code - 128)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
