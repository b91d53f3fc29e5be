"""``ranktable`` as a person uses it: good tables, broken tables, junk."""

import json
from pathlib import Path

import pytest

from nanochat_npu.main import main

INVENTORY = """\
servers:
  - {node: npu-0, device_ips: [10.0.0.1, 10.0.0.2]}
  - {node: npu-1, device_ips: [10.0.1.1, 10.0.1.2]}
"""


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["ranktable", *args])
    out = capsys.readouterr()
    return int(str(left.value.code)), out.out, out.err


def test_a_table_is_generated_validated_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inventory, table = tmp_path / "inventory.yaml", tmp_path / "hccl.json"
    inventory.write_text(INVENTORY)
    assert run(capsys, "generate", str(inventory), "--to", str(table))[0] == 0
    code, out, _err = run(capsys, "validate", str(table), "--world-size", "4", "-o", "json")
    assert (code, json.loads(out)["world_size"]) == (0, 4)
    code, out, _err = run(capsys, "show", str(table))
    assert code == 0
    assert "10.0.1.2" in out


def test_all_faults_are_listed_with_their_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "hccl.json"
    table.write_text(json.dumps({"status": "initializing", "version": "9", "server_count": "3", "server_list": [
        {"server_id": "a", "device": [{"device_id": "0", "device_ip": "-.-.-.-", "rank_id": "1"}]}]}))
    code, out, _err = run(capsys, "validate", str(table), "-o", "json")
    assert code == 3
    messages = " ".join(error["message"] for error in json.loads(out)["errors"])
    for rule in ("R02", "R03", "R05", "R26", "R18"):
        assert rule in messages


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"{", b"[]", b"\x00" * 100])
def test_junk_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    table = tmp_path / "hccl.json"
    table.write_bytes(content)
    code, _out, err = run(capsys, "validate", str(table))
    assert code == 3
    assert "Traceback" not in err


def test_a_missing_file_and_a_wrong_schema_are_usage_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "validate", str(tmp_path / "none.json"))[0] == 2
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(INVENTORY)
    assert run(capsys, "generate", str(inventory), "--schema", "7")[0] == 2


@pytest.mark.parametrize(
    "text",
    ["servers: []\n", "servers: 3\n", "other: 1\n", "servers: [{node: a}]\n", "servers: [{node: a, device_ips: [1]}]\n", "servers: [a]\n",
     "servers: [{node: a, device_ips: [10.0.0.1]}, {node: b, device_ips: [10.0.0.1]}]\n",
     "servers: [{node: a, device_ips: ['127.0.0.1']}, {node: b, device_ips: [10.0.0.1]}]\n"],
)
def test_a_wrong_inventory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(text)
    code, out, _err = run(capsys, "generate", str(inventory), "--to", str(tmp_path / "out.json"))
    assert code == 3
    assert not (tmp_path / "out.json").exists()
    assert out == ""
