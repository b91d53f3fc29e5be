"""How many requests a submit takes, for every way in which its objects are made up. The server answers at once and forgets everything."""

import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripted import Answer, ScriptedServer, listing, ok, status

from nanochat_npu.backends import Submission
from nanochat_npu.backends.volcano import VolcanoBackend
from nanochat_npu.jobs import Store
from nanochat_npu.load import load_text
from nanochat_npu.plan import make_plan

SPEC: dict[str, Any] = {
    "spec_version": 1, "name": "d20", "owner": "li", "backend": "volcano", "run": {"stages": ["pretrain"], "model": {"depth": 12}, "pretrain": {"device_batch": 8}},
    "resources": {"nodes": 2, "npus_per_node": 8, "npu": "910B3"}, "image": {"ref": "registry.example.com/train/nanochat:1"},
    "cluster": {"platform": "mindcluster", "namespace": "train"}, "storage": {"output": {"claim": "output", "path": "/output"}},
}
CODE = {"image": {**SPEC["image"], "code": "configmap", "packages": "/data/packages"}}
STATIC = {"rank_table": {"mode": "static", "servers": [{"node": f"npu-{n}", "device_ips": [f"10.0.{n}.{i + 1}" for i in range(8)]} for n in range(2)]}}
MODES: dict[str, dict[str, Any]] = {
    "negotiate": {}, "static": STATIC, "operator": {"rank_table": {"mode": "operator"}}, "discover": {"rank_table": {"mode": "discover"}, "cluster": {**SPEC["cluster"], "driver_mount": "hostpath"}},
}
UNKNOWN = status(400, 'admission webhook "validatejob.volcano.sh" denied the request:  unable to find job plugin: hcclrank;')


@pytest.mark.parametrize("old", [False, True], ids=["any Volcano", "a Volcano without hcclrank"])
@pytest.mark.parametrize("code", [{}, CODE], ids=["code in the image", "code by ConfigMap"])
@pytest.mark.parametrize("mode", MODES)
def test_a_submit_takes_at_most_twelve_requests(server: ScriptedServer, tmp_path: Path, mode: str, code: dict[str, Any], old: bool) -> None:
    server.on("GET", "", ok(listing([]))).on("POST", "", Answer(uid="u1")).on("PATCH", "", ok({"metadata": {"name": "d20-run"}}))
    if old and mode == "operator":
        server.on("POST", r"/jobs\?.*dryRun", UNKNOWN, Answer(uid="u1"))
    spec = {**SPEC, **MODES[mode], **code}
    text = yaml.safe_dump(spec)
    plan = make_plan(load_text(text.encode(), "case.yaml", environ={}).spec, datetime.date(2026, 11, 30))
    VolcanoBackend(server.client(tmp_path), "train", Store(tmp_path / "home")).submit(Submission(plan, text))
    assert len(server.requests) <= 12, [(method, path) for method, path, _body in server.requests]
    assert Store(tmp_path / "home").folder("d20").receipt().submission_id == plan.submission_id
