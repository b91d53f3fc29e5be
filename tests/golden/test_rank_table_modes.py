"""Rank tables that we make ourselves: pinned, valid, small enough, or refused with numbers."""

import base64
import gzip
from typing import Any

import pytest
import yaml
from golden_support import plan_of

from nanochat.contract import ranktable
from nanochat.launch.rank_table import _read
from nanochat_npu.bundle import CONFIGMAPS, JOB
from nanochat_npu.errors import RenderError
from nanochat_npu.manifest.table import CONFIGMAP_MAX_BYTES, table_content
from nanochat_npu.plan import Plan
from nanochat_npu.render import render
from nanochat_npu.spec.platforms import RankTableMap

TABLE = RankTableMap("ranktable-", "ranktable.json", "/x")


def documents(name: str, file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(render(plan_of(name)).files[file]))


def static_with(servers: int) -> Plan:
    """The plan of a static job with so many servers, without the spec's own check of their number."""
    plan = plan_of("static-table")
    one = plan.spec.rank_table.servers[0]
    many = [
        one.model_copy(update={"node": f"npu-{n}", "device_ips": [f"10.{n // 250 % 250}.{n % 250}.{8 * (n // 62_500) + i + 1}" for i in range(8)]})
        for n in range(servers)
    ]
    spec = plan.spec.model_copy(update={"rank_table": plan.spec.rank_table.model_copy(update={"servers": many})})
    object.__setattr__(plan, "spec", spec)
    return plan


def test_a_static_table_is_complete_and_the_workers_are_pinned_to_its_nodes() -> None:
    config = next(d for d in documents("static-table", CONFIGMAPS) if d["metadata"]["name"].startswith("ranktable-"))
    table = ranktable.parse(config["data"]["ranktable.json"], world_size=16)
    assert [server.server_id for server in table.servers] == ["npu-1", "npu-2"]
    pod = documents("static-table", JOB)[0]["spec"]["tasks"][0]["template"]["spec"]
    term = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]["matchExpressions"][0]
    assert term == {"key": "kubernetes.io/hostname", "operator": "In", "values": ["npu-1", "npu-2"]}
    env = {entry["name"]: entry for entry in pod["containers"][0]["env"]}
    assert env["NANOCHAT_RANK_TABLE_MODE"]["value"] == "static"
    assert env["NANOCHAT_NODE_NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"


def test_discover_needs_no_configmap_but_the_hosts_addresses() -> None:
    assert len(documents("discover-table", CONFIGMAPS)) == 1
    pod = documents("discover-table", JOB)[0]["spec"]["tasks"][0]["template"]["spec"]
    assert "/etc/hccn.conf" in [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
    assert "NANOCHAT_RANK_TABLE" not in {entry["name"] for entry in pod["containers"][0]["env"]}


def test_ten_thousand_ranks_fit_as_text_more_are_compressed_and_far_more_refused(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = table_content(static_with(1250), TABLE)
    assert plain.field == "data"
    assert len(plain.text) <= CONFIGMAP_MAX_BYTES
    packed = table_content(static_with(2100), TABLE)
    assert packed.field == "binaryData"
    assert len(packed.text) <= CONFIGMAP_MAX_BYTES
    file = tmp_path / "ranktable.json.gz"
    file.write_bytes(base64.b64decode(packed.text))
    assert ranktable.parse(_read(file)).world_size == 16_800
    monkeypatch.setattr("nanochat_npu.manifest.table.CONFIGMAP_MAX_BYTES", 10_000)  # 100,000 ranks and more take a minute
    with pytest.raises(RenderError, match=r"takes \d+ bytes, \d+ compressed; a ConfigMap holds 10000"):
        table_content(static_with(400), TABLE)


def test_a_compressed_table_that_is_cut_short_is_no_crash(tmp_path: Any) -> None:
    file = tmp_path / "t.json.gz"
    file.write_bytes(gzip.compress(b"{}" * 1000)[:20])
    with pytest.raises(OSError, match="cut short"):
        _read(file)


def test_the_same_inventory_gives_the_same_bytes() -> None:
    assert table_content(static_with(300), TABLE) == table_content(static_with(300), TABLE)
