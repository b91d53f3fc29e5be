"""The rank table on its way to the ranks: late, never finished, stale, a symlink, different on two nodes."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nanochat.contract.ranktable import RankTable
from nanochat.errors import BadConfig, NotReady
from nanochat.launch.control import ControlStore, listen
from nanochat.launch.rank_table import ENV_HCCN, ENV_MODE, ENV_SOURCE, Placement, place, read_addresses
from nanochat.launch.settings import LaunchSettings


def table(*names: str) -> RankTable:
    return RankTable.build([(name, [(i, f"10.{n}.0.{i + 1}") for i in range(8)]) for n, name in enumerate(names)])


def settings(tmp_path: Path, *, node: int = 0, nodes: int = 2) -> LaunchSettings:
    return LaunchSettings(
        job_dir=tmp_path / "job", run_file=tmp_path / "run.json", nodes=nodes, node_rank=node, ranks_per_node=8, master_addr="127.0.0.1",
        master_port=0, attempt=0,
    )


def operator_env(source: Path, name: str = "b") -> dict[str, str]:
    return {ENV_MODE: "operator", ENV_SOURCE: str(source), "NANOCHAT_HOST_IP": name, ENV_HCCN: str(source.with_name("absent"))}


@pytest.fixture(autouse=True)
def _own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_without_a_mode_hccl_negotiates(tmp_path: Path) -> None:
    assert place(settings(tmp_path), None, timeout_s=1, attempt=0, env={}) is None


def test_the_copy_is_a_regular_file_although_the_configmap_mounts_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "hccl.json").write_text(table("a", "b").to_json())
    link = tmp_path / "hccl.json"
    link.symlink_to(tmp_path / "data" / "hccl.json")
    placed = place(settings(tmp_path, node=1), None, timeout_s=1, attempt=3, env=operator_env(link))
    assert isinstance(placed, Placement)
    assert placed.file.suffix == ".json"
    assert not placed.file.is_symlink()
    assert json.loads(placed.file.read_text())["status"] == "completed"
    assert placed.first_rank == 8


def test_ranks_follow_the_table_not_the_index_of_the_pod(tmp_path: Path) -> None:
    source = tmp_path / "hccl.json"
    source.write_text(table("b", "a").to_json())
    placed = place(settings(tmp_path, node=1), None, timeout_s=1, attempt=0, env=operator_env(source, "b"))
    assert placed is not None
    assert placed.first_rank == 0


def test_a_late_table_is_waited_for(tmp_path: Path) -> None:
    source = tmp_path / "hccl.json"
    source.write_text('{"status":"initializing"}')
    looks: list[float] = []

    def finish_on_third_look(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            source.write_text(table("a", "b").to_json())

    placed = place(settings(tmp_path), None, timeout_s=30, attempt=0, env=operator_env(source), sleep=finish_on_third_look)
    assert placed is not None
    assert len(looks) == 3


def stale(source: Path) -> None:
    source.write_text(table("x", "y").to_json())


def lacks_a_server(source: Path) -> None:
    source.write_text(table("b").to_json())


def never_completed(source: Path) -> None:
    source.write_text(json.dumps({**table("a", "b").to_dict(), "status": "initializing"}))


@pytest.mark.parametrize(
    ("write", "says"),
    [(stale, "R25"), (lacks_a_server, "R20"), (never_completed, "R03"), (lambda s: s.write_bytes(b"\xff\xfe"), "not text"), (lambda s: None, "cannot be read")],
)
def test_what_never_becomes_usable_ends_with_the_reason_and_the_known_causes(tmp_path: Path, write: Callable[[Path], object], says: str) -> None:
    source = tmp_path / "hccl.json"
    write(source)
    with pytest.raises(NotReady, match=says) as caught:
        place(settings(tmp_path), None, timeout_s=0, attempt=0, env=operator_env(source))
    assert "operator" in str(caught.value.hint)
    assert "volcanoType" in str(caught.value.hint)


def test_own_addresses_decide_where_they_can_be_read(tmp_path: Path) -> None:
    source, hccn = tmp_path / "hccl.json", tmp_path / "hccn.conf"
    source.write_text(table("a", "b").to_json())
    hccn.write_text("".join(f"address_{i}=10.1.0.{i + 1}\nnetmask_{i}=255.255.0.0\n" for i in range(8)))
    env = {**operator_env(source, "a"), ENV_HCCN: str(hccn)}  # the name says a, the NICs say b
    placed = place(settings(tmp_path), None, timeout_s=1, attempt=0, env=env)
    assert placed is not None
    assert placed.first_rank == 8


def test_ranks_that_do_not_rise_with_device_ids_are_refused(tmp_path: Path) -> None:
    source, data = tmp_path / "hccl.json", table("a", "b").to_dict()
    devices = data["server_list"][1]["device"]
    devices[0]["rank_id"], devices[1]["rank_id"] = devices[1]["rank_id"], devices[0]["rank_id"]
    source.write_text(json.dumps(data))
    with pytest.raises(BadConfig, match="wrong NPU"):
        place(settings(tmp_path), None, timeout_s=1, attempt=0, env=operator_env(source))


def test_hccn_conf_is_read_leniently(tmp_path: Path) -> None:
    file = tmp_path / "hccn.conf"
    file.write_text("# x\naddress_0=1.2.3.4\n address_10 = 5.6.7.8 \naddress_=9\naddress_2=\ngateway_0=1.1.1.1\n")
    assert read_addresses(file) == {0: "1.2.3.4", 10: "5.6.7.8"}
    assert read_addresses(tmp_path / "none") == {}


def two_nodes(tmp_path: Path, envs: list[dict[str, str]], timeout_s: float = 20) -> list[Placement | Exception | None]:
    """`place` on two nodes at once, through a real store."""
    listener = listen(0, everywhere=False)
    port = listener.getsockname()[1]
    host = ControlStore.host(listener)
    guest = ControlStore.connect("127.0.0.1", port, timeout_s=20)

    def one(node: int) -> Placement | Exception | None:
        try:
            return place(settings(tmp_path, node=node), (host, guest)[node], timeout_s=timeout_s, attempt=node, env=envs[node])
        except (NotReady, BadConfig) as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(len(envs))))


def test_two_nodes_agree_on_one_table(tmp_path: Path) -> None:
    source = tmp_path / "hccl.json"
    source.write_text(table("a", "b").to_json())
    first, second = two_nodes(tmp_path, [operator_env(source, "a"), operator_env(source, "b")])
    assert isinstance(first, Placement)
    assert isinstance(second, Placement)
    assert first.fingerprint == second.fingerprint
    assert first.file.read_bytes() == second.file.read_bytes()
    assert (first.first_rank, second.first_rank) == (0, 8)


def test_two_nodes_with_different_tables_stop_both(tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.write_text(table("a", "b").to_json())
    two.write_text(table("b", "a").to_json())
    answers = two_nodes(tmp_path, [operator_env(one, "a"), operator_env(two, "b")])
    assert [type(answer) for answer in answers] == [NotReady, NotReady]
    assert "different rank tables" in str(answers[0])


def test_a_node_without_a_table_is_named(tmp_path: Path) -> None:
    source = tmp_path / "hccl.json"
    source.write_text(table("a", "b").to_json())
    host = ControlStore.host(listen(0, everywhere=False))
    with pytest.raises(NotReady, match=r"nodes \[1\]"):
        place(settings(tmp_path), host, timeout_s=0.3, attempt=0, env=operator_env(source, "a"))


def hccn(tmp_path: Path, node: int, *, devices: int = 8, net: int | None = None) -> dict[str, str]:
    file = tmp_path / f"hccn{node}.conf"
    file.write_text("".join(f"address_{i}=10.{node if net is None else net}.0.{i + 1}\n" for i in range(devices)))
    return {ENV_MODE: "discover", ENV_HCCN: str(file)}


def test_discover_builds_the_same_bytes_on_all_nodes(tmp_path: Path) -> None:
    first, second = two_nodes(tmp_path, [hccn(tmp_path, 0), hccn(tmp_path, 1)])
    assert isinstance(first, Placement)
    assert isinstance(second, Placement)
    assert first.file.read_bytes() == second.file.read_bytes()
    assert (first.first_rank, second.first_rank) == (0, 8)
    assert json.loads(first.file.read_text())["server_count"] == "2"


def test_discover_refuses_hosts_with_the_same_addresses(tmp_path: Path) -> None:
    answers = two_nodes(tmp_path, [hccn(tmp_path, 0), hccn(tmp_path, 1, net=0)])
    assert all(isinstance(answer, BadConfig) and "R14" in str(answer) for answer in answers)


def test_discover_without_host_files_says_what_is_needed(tmp_path: Path) -> None:
    env = {ENV_MODE: "discover", ENV_HCCN: str(tmp_path / "none")}
    with pytest.raises(BadConfig, match="driver_mount: hostpath"):
        place(settings(tmp_path, nodes=1), None, timeout_s=1, attempt=0, env=env)


def test_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="none of operator"):
        place(settings(tmp_path), None, timeout_s=1, attempt=0, env={ENV_MODE: "magic"})


def test_no_thread_or_file_is_left_behind_by_a_refusal(tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(NotReady):
        place(settings(tmp_path), None, timeout_s=0, attempt=0, env=operator_env(tmp_path / "none.json"))
    assert threading.active_count() == before
    assert not list(tmp_path.glob("nanochat-rank-table*"))
