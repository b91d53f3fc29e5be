"""The command line as a person runs it, with the real trainer, in a folder of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from nanochat.contract import events, layout

CLI = [sys.executable, "-m", "nanochat_npu.main"]
LIMIT_S = 850
SPEC = """\
spec_version: 1
name: {name}
backend: local
run:
  stages: [tokenizer, pretrain]
  data: {{source: toy, toy_documents: 200}}
  tokenizer: {{vocab_size: 300}}
  model: {{depth: 2, aspect_ratio: 16, head_dim: 16, sequence_len: 32, window_pattern: L}}
  pretrain:
    {{device_batch: 1, tokens_per_step: 128, steps: 12, warmup_steps: 2, eval_every: 0, eval_tokens: 256, batch_lr_scale: 0.1, weight_decay_scaled: 0.1}}
  checkpoint: {{every_steps: 4, every_minutes: null}}
lifecycle: {{grace_period_s: 60}}
resources: {{nodes: 2, npus_per_node: 2}}
"""
"""50 k parameters, 12 steps of 4 rows of 32 tokens on two simulated nodes with two ranks each."""


class CliShell:
    """Runs commands with their state below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "NANOCHAT_NPU_HOME": str(folder / "home"), "NO_COLOR": "1", "COLUMNS": "120"}

    def spec(self, name: str) -> str:
        path = self.folder / f"{name}.yaml"
        path.write_text(SPEC.format(name=name))
        return str(path)

    def run(self, *arguments: str, check: bool = False) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run([*CLI, *arguments], env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen([*CLI, *arguments], env=self.env, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def json(self, *arguments: str) -> dict[str, Any]:
        value = json.loads(self.run(*arguments, "-o", "json").stdout)
        assert isinstance(value, dict)
        return value

    def job(self, name: str) -> Path:
        return self.folder / "home" / "jobs" / name

    def steps(self, name: str, attempt: int = 0) -> list[int]:
        """Steps of an attempt, as far as they are written."""
        try:
            lines = layout.events_file(self.job(name), attempt).read_text().splitlines()
        except FileNotFoundError:
            return []
        return [event["step"] for event in events.parse_lines(lines) if event["event"] == "step"]
