"""Every rule of the rank table has a planted fault that it alone must name."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from nanochat.contract.ranktable import RankTable, RankTableError, Rule, check_member, parse, validate

Table = dict[str, Any]


def two_by_eight() -> Table:
    """A valid table of two A2 servers."""
    return RankTable.build(
        [(f"node_{n}", [(i, f"192.168.10{n}.{i + 1}") for i in range(8)]) for n in range(2)]
    ).to_dict()


def device(table: Table, server: int, index: int) -> dict[str, str]:
    return table["server_list"][server]["device"][index]


def swap_ranks(table: Table) -> None:
    device(table, 0, 7)["rank_id"], device(table, 1, 0)["rank_id"] = "8", "7"


def super_pod(table: Table, *ids: str) -> None:
    table["version"] = "1.2"
    for s, server in enumerate(table["server_list"]):
        for k, item in enumerate(server["device"]):
            item["super_device_id"] = str(100 * s + k)
    table["super_pod_list"] = [{"super_pod_id": "0", "server_list": [{"server_id": name} for name in ids]}]


FAULTS: list[tuple[Rule, Callable[[Table], Any]]] = [
    (Rule.VERSION, lambda t: t.update(version="3.0")),
    (Rule.VERSION, lambda t: t.pop("version")),
    (Rule.STATUS, lambda t: t.update(status="initializing")),
    (Rule.NOT_STRING, lambda t: t.update(server_count=2)),
    (Rule.NOT_STRING, lambda t: device(t, 1, 3).update(rank_id=11)),
    (Rule.NOT_STRING, lambda t: device(t, 1, 3).update(device_ip=None)),
    (Rule.SERVER_COUNT, lambda t: t.update(server_count="3")),
    (Rule.NO_SERVERS, lambda t: t.update(server_list=[])),
    (Rule.NO_SERVERS, lambda t: t.update(server_list={"a": 1})),
    (Rule.SERVER_ID, lambda t: t["server_list"][0].update(server_id="x" * 65)),
    (Rule.SERVER_ID, lambda t: t["server_list"][0].update(server_id="")),
    (Rule.DUPLICATE_SERVER, lambda t: t["server_list"][1].update(server_id="node_0")),
    (Rule.NO_DEVICES, lambda t: t["server_list"][1].update(device=[])),
    (Rule.FIELD_MISSING, lambda t: device(t, 0, 0).pop("device_id")),
    (Rule.DEVICE_ID, lambda t: device(t, 0, 7).update(device_id="16")),
    (Rule.DEVICE_ID, lambda t: device(t, 0, 7).update(device_id="-1")),
    (Rule.DUPLICATE_DEVICE, lambda t: device(t, 0, 7).update(device_id="6")),
    (Rule.DEVICE_IP_MISSING, lambda t: device(t, 0, 7).pop("device_ip")),
    (Rule.DEVICE_IP, lambda t: device(t, 0, 7).update(device_ip="192.168.1")),
    (Rule.PLACEHOLDER, lambda t: device(t, 0, 7).update(device_ip="-.-.-.-")),
    (Rule.PLACEHOLDER, lambda t: device(t, 0, 7).update(device_ip="127.0.0.1")),
    (Rule.PLACEHOLDER, lambda t: device(t, 0, 7).update(device_ip="0.0.0.0")),
    (Rule.DUPLICATE_IP, lambda t: device(t, 0, 7).update(device_ip="192.168.101.1")),
    (Rule.MIXED_FAMILIES, lambda t: device(t, 0, 7).update(device_ip="fd00::1")),
    (Rule.IP_COUNT, lambda t: device(t, 0, 7).update(device_ip="192.168.7.7,192.168.7.8")),
    (Rule.RANK_ID, lambda t: device(t, 0, 7).update(rank_id="seven")),
    (Rule.RANK_ORDER, lambda t: device(t, 1, 7).update(rank_id="16")),
    (Rule.RANK_ORDER, lambda t: device(t, 1, 7).update(rank_id="0")),
    (Rule.INTERLEAVED, swap_ranks),
    (Rule.DEVICE_PORT, lambda t: device(t, 0, 0).update(device_port="70000")),
    (Rule.SUPER_POD, lambda t: t.update(super_pod_list=[])),
    (Rule.SUPER_POD, lambda t: super_pod(t, "node_0")),
    (Rule.SUPER_DEVICE, lambda t: (super_pod(t, "node_0", "node_1"), device(t, 1, 0).update(super_device_id="3"))),
    (Rule.SUPER_DEVICE, lambda t: (super_pod(t, "node_0", "node_1"), device(t, 1, 0).pop("super_device_id"))),
]


@pytest.mark.parametrize(("rule", "plant"), FAULTS, ids=lambda value: value.name if isinstance(value, Rule) else "")
def test_each_planted_fault_is_named_by_its_rule(rule: Rule, plant: Callable[[Table], Any]) -> None:
    table = copy.deepcopy(two_by_eight())
    plant(table)
    assert rule in {finding.rule for finding in validate(table)}
    with pytest.raises(RankTableError, match=rule.value):
        parse(json.dumps(table))


def test_the_unharmed_table_passes_and_survives_a_round_trip() -> None:
    table = parse(json.dumps(two_by_eight(), indent=2), world_size=16)
    assert table.world_size == 16
    assert parse(table.to_json()) == table
    assert [d.rank_id for s in table.servers for d in s.devices] == list(range(16))


def test_unequal_servers_and_wrong_world_size() -> None:
    table = two_by_eight()
    table["server_list"][1]["device"].pop()
    assert {f.rule for f in validate(table, world_size=16)} == {Rule.UNEQUAL_SERVERS, Rule.WORLD_SIZE}


@pytest.mark.parametrize("junk", ["", "null", "[]", "{", "3", '{"server_list": 7}', '{"server_list": [3]}', '{"server_list": [{"server_id": "a", "device": [1]}]}'])
def test_junk_is_refused_without_a_crash(junk: str) -> None:
    with pytest.raises(RankTableError):
        parse(junk)


def test_extra_keys_of_the_operator_do_not_change_the_fingerprint() -> None:
    plain = two_by_eight()
    with_extras = two_by_eight()
    with_extras["server_list"][0]["host_ip"] = "10.0.0.1"
    assert parse(json.dumps(plain)).fingerprint() == parse(json.dumps(with_extras, indent=4)).fingerprint()


def test_one_server_needs_no_addresses() -> None:
    assert RankTable.build([("only", [(i, "") for i in range(8)])]).world_size == 8


def test_a_super_pod_table_keeps_its_pods() -> None:
    table = two_by_eight()
    super_pod(table, "node_0", "node_1")
    parsed = parse(json.dumps(table))
    assert {server.super_pod_id for server in parsed.servers} == {"0"}
    assert parse(parsed.to_json()) == parsed


def test_servers_of_a_super_pod_must_stand_together() -> None:
    table = RankTable.build([(f"n{n}", [(0, f"10.0.0.{n + 1}")]) for n in range(3)]).to_dict()
    table["version"] = "1.2"
    for n in range(3):
        device(table, n, 0)["super_device_id"] = str(n)
    table["super_pod_list"] = [
        {"super_pod_id": "0", "server_list": [{"server_id": "n0"}, {"server_id": "n2"}]},
        {"super_pod_id": "1", "server_list": [{"server_id": "n1"}]},
    ]
    assert [f.rule for f in validate(table)] == [Rule.SUPER_POD]


def test_a_pod_finds_itself_by_its_own_addresses_not_by_a_name() -> None:
    table = parse(json.dumps(two_by_eight()))
    own = {i: f"192.168.101.{i + 1}" for i in range(8)}
    assert check_member(table, addresses=own, server_ids=["node_0"]).server_id == "node_1"
    assert check_member(table, addresses={}, server_ids=["", "node_0"]).server_id == "node_0"
    assert table.node_rank("node_1") == 1


@pytest.mark.parametrize(("addresses", "names"), [({0: "10.9.9.9"}, ["node_0"]), ({}, ["node_7"]), ({}, [])])
def test_a_stale_table_is_refused(addresses: dict[int, str], names: list[str]) -> None:
    with pytest.raises(RankTableError, match="R25"):
        check_member(parse(json.dumps(two_by_eight())), addresses=addresses, server_ids=names)


def test_ten_thousand_ranks_stay_below_the_configmap_limit() -> None:
    nodes = [(f"10.{n // 250}.{n % 250}.1", [(i, f"172.{16 + i}.{n // 250}.{n % 250 + 1}") for i in range(8)]) for n in range(1250)]
    text = RankTable.build(nodes).to_json()
    assert len(text) < 1_048_576
    assert parse(text, world_size=10_000).world_size == 10_000
