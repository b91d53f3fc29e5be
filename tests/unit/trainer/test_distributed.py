"""Joining a group, what it says when ranks are missing, and collectives over real gloo ranks."""

import pytest
import torch
from loopback import free_port
from simulated_ranks import run_ranks

from nanochat.device import pick
from nanochat.distributed import Communicator, _ranges, join
from nanochat.errors import BadConfig, NotReady


def test_collectives_sum_and_gather_in_the_order_of_ranks() -> None:
    def work(comm: Communicator):
        mine = torch.arange(6.0) + comm.rank
        into = torch.empty(6)
        return {
            "all_reduce": comm.all_reduce(mine.clone()).wait(), "reduce_scatter": comm.reduce_scatter(mine.clone()).wait(),
            "all_gather": comm.all_gather(mine[:2].clone(), into).wait(), "broadcast": comm.broadcast(mine.clone(), 2),
            "objects": comm.gather_objects({"rank": comm.rank}), "floats": comm.sum_floats([1.0, comm.rank], "cpu"),
        }

    for rank, got in enumerate(run_ranks(3, work)):
        whole = 3 * torch.arange(6.0) + 3
        assert torch.equal(got["all_reduce"], whole) and torch.equal(got["reduce_scatter"], whole[2 * rank : 2 * rank + 2])
        assert got["all_gather"].tolist() == [0, 1, 1, 2, 2, 3] and torch.equal(got["broadcast"], torch.arange(6.0) + 2)
        assert got["objects"] == [{"rank": 0}, {"rank": 1}, {"rank": 2}] and got["floats"] == [3.0, 3.0]


def test_one_rank_needs_no_group_and_copies_nothing() -> None:
    comm, x = Communicator(), torch.arange(4.0)
    assert comm.all_reduce(x).wait() is x and comm.reduce_scatter(x).wait() is x and comm.all_gather(x, torch.empty(4)).wait() is x
    assert comm.gather_objects(1) == [1] and comm.is_first
    comm.barrier()
    comm.close()


def place(monkeypatch: pytest.MonkeyPatch, **env: object) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, str(value))


def test_without_a_launcher_a_rank_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch)
    assert join(pick("cpu")).size == 1


def test_missing_ranks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, RANK=0, WORLD_SIZE=4, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
    with pytest.raises(NotReady, match="ranks 1-3 of 4 did not start within 1 s"):
        join(pick("cpu"), start_timeout_s=1)


def test_a_store_that_nobody_keeps_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, RANK=1, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
    with pytest.raises(NotReady, match="rank 1 cannot reach the store"):
        join(pick("cpu"), start_timeout_s=1)


@pytest.mark.parametrize(
    "env", [{"RANK": 2, "WORLD_SIZE": 2}, {"RANK": 0, "WORLD_SIZE": 2}, {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "h", "MASTER_PORT": "x"}]
)
def test_a_place_that_makes_no_sense_is_refused(env: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, **env)
    with pytest.raises(BadConfig):
        join(pick("cpu"))


@pytest.mark.parametrize(("ranks", "text"), [([1], "1"), ([0, 1, 2], "0-2"), ([0, 4, 5, 9], "0, 4-5, 9")])
def test_ranks_are_written_as_people_write_them(ranks: list[int], text: str) -> None:
    assert _ranges(ranks) == text
