"""Specs that are built from the stand-in, and a look at what was pushed."""

import datetime
import sys
from typing import Any

from nanochat_npu.image.context import BuildInput
from nanochat_npu.image.registry import Registry
from nanochat_npu.plan import Plan, make_plan
from nanochat_npu.spec import JobSpec

TODAY = datetime.date(2026, 11, 30)


def plan_of(registry: str, base: str, **image: Any) -> Plan:
    """A small CPU job on an image made from the stand-in; torch is in the base, so its index is never asked."""
    spec = {
        "spec_version": 1, "name": "image-job", "owner": "li", "backend": "volcano",
        "run": {
            "stages": ["tokenizer", "pretrain"], "data": {"source": "toy", "toy_documents": 300}, "tokenizer": {"vocab_size": 512},
            "model": {"depth": 2, "aspect_ratio": 16, "head_dim": 16, "sequence_len": 64},
            "pretrain": {"device_batch": 4, "steps": 5, "tokens_per_step": 256, "eval_tokens": 1024},
        },
        "resources": {"nodes": 1, "npus_per_node": 0},
        "image": {
            "cann": "9.0.1", "python": f"3.{sys.version_info.minor}", "arch": "amd64", "base": base, "registry": f"{registry}/train", "plain_http": True,
            "mirrors": {"pip_torch": "http://127.0.0.1:1/not-asked"}, **image,
        },
        "storage": {"output": {"host_path": "/srv/output", "path": "/output"}},
    }
    return make_plan(JobSpec.model_validate(spec), TODAY)


def say(line: str) -> None:
    print(line)


def layers_of(source: BuildInput, digest: str) -> list[dict[str, Any]]:
    manifest = Registry(source.reference, plain_http=True).manifest(digest)
    assert manifest is not None
    return manifest.parsed()["layers"]
