"""Training through the launcher: world sizes agree, what is resumed is exact, and no failure loses what was saved."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from launchers import Nodes

from nanochat.contract import ExitCode, RunConfig, layout

STEPS = 12


def config(**pretrain: Any) -> RunConfig:
    """A model of 50 k parameters that is trained for 12 steps of 4 rows of 32 tokens."""
    checkpoint = pretrain.pop("checkpoint", {"every_steps": 4, "every_minutes": None})
    top = {key: pretrain.pop(key) for key in ("stages", "resume", "sft", "data") if key in pretrain}
    horizon = {
        "device_batch": 1, "tokens_per_step": 128, "steps": STEPS, "warmup_steps": 2, "eval_every": 0, "eval_tokens": 256,
        "batch_lr_scale": 0.1, "weight_decay_scaled": 0.1, **pretrain,
    }
    return RunConfig.model_validate({
        "stages": ["tokenizer", "pretrain"], "data": {"source": "toy", "toy_documents": 200}, "tokenizer": {"vocab_size": 300},
        "model": {"depth": 2, "aspect_ratio": 16, "head_dim": 16, "sequence_len": 32, "window_pattern": "L"},
        "pretrain": horizon, "checkpoint": checkpoint, **top,
    })


Start = Callable[..., Nodes]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Nodes] = []

    def _start(
        job: str, run: RunConfig, nodes: int = 1, per_node: int = 1, fault: str = "", step: int = 0, env: dict[str, str] | None = None,
        **fields: Any,
    ) -> Nodes:
        more = {"FAULT": fault, "FAULT_STEP": str(step)} if fault else {}
        started.append(Nodes(tmp_path / job, run, nodes, per_node, {**more, **(env or {})}, **fields))
        return started[-1]

    yield _start
    for nodes in started:
        nodes.end()


@pytest.fixture
def reference(start: Start) -> dict[int, float]:
    """Losses of an undisturbed run on one rank."""
    nodes = start("reference", config())
    assert nodes.wait() == [0], nodes.output()
    losses = nodes.losses()
    assert len(losses) == STEPS
    return losses


def close(losses: dict[int, float], reference: dict[int, float]) -> bool:
    return all(loss == pytest.approx(reference[step], abs=2e-4) for step, loss in losses.items())


def test_two_nodes_with_two_ranks_train_like_one_process(start, reference):
    nodes = start("four", config(), 2, 2)
    assert nodes.wait() == [0, 0], nodes.output()
    assert len(nodes.losses()) == STEPS
    assert close(nodes.losses(), reference)


def test_each_step_says_where_its_time_went(start):
    """Tokens per second are those of the whole step (upstream once counted one micro batch); waits are parts of its time."""
    nodes = start("job", config(steps=4), 1, 2)
    assert nodes.wait() == [0], nodes.output()
    steps = [event for event in nodes.events() if event["event"] == "step"]
    assert [event["tokens"] for event in steps] == [128, 256, 384, 512]
    for event in steps:
        assert event["tokens_per_s"] == pytest.approx(128 / event["dt_s"], rel=0.01), "two micro batches on each of two ranks"
        assert 0 < event["comm_s"] < event["dt_s"] and 0 <= event["data_wait_s"] < event["dt_s"]
        assert event["memory_bytes"] > 2**20 and event["mfu_frac"] is None, "the peak of a CPU is unknown: not 0 %, not infinity"
        assert event["step"] + round(event["eta_s"] > 0) <= event["steps"]


@pytest.mark.parametrize("per_node", [1, 2])
def test_a_rank_killed_in_mid_step_is_resumed_to_the_same_losses(start, per_node):
    undisturbed = start("undisturbed", config(), 1, per_node)
    assert undisturbed.wait() == [0]
    killed = start("killed", config(), 1, per_node, fault="killed_in_mid_step", step=7)
    assert killed.wait() == [128 + signal.SIGKILL], killed.output()
    resumed = start("killed", config(), 1, per_node)
    assert resumed.wait() == [0], resumed.output()
    expected = undisturbed.losses()
    assert resumed.losses(1) == {step: expected[step] for step in range(5, STEPS + 1)}


@pytest.mark.parametrize(("before", "after"), [((1, 2), (1, 1)), ((1, 1), (2, 2)), ((1, 4), (1, 2))])
def test_another_world_size_goes_on_with_the_same_data(start, reference, before, after):
    stopped = start("job", config(stop_at_step=4), *before)
    assert set(stopped.wait()) == {0}, stopped.output()
    resumed = start("job", config(), *after)
    assert set(resumed.wait()) == {0}, resumed.output()
    assert min(resumed.losses(1)) == 5
    assert close(resumed.losses(1), reference)


@pytest.mark.parametrize("per_node", [1, 4])
def test_a_stop_saves_and_the_next_attempt_goes_on_exactly(start, per_node):
    run = config(steps=400, checkpoint={"every_steps": None, "every_minutes": None})
    nodes = start("job", run, 1, per_node)
    nodes.wait_for_event("step", step=3)
    nodes.send(signal.SIGTERM)
    assert nodes.wait() == [ExitCode.INTERRUPTED], nodes.output()
    done = nodes.events()[-1]
    assert (done["event"], done["reason"], done["resumable"]) == ("done", "interrupted", True)
    assert layout.checkpoint_dir(nodes.job, "pretrain", done["step"]).is_dir()
    last = max(nodes.losses())
    again = start("job", run.model_copy(update={"pretrain": run.pretrain.model_copy(update={"stop_at_step": last + 2})}), 1, per_node)
    assert again.wait() == [0], again.output()
    straight = start("straight", run.model_copy(update={"pretrain": run.pretrain.model_copy(update={"stop_at_step": last + 2})}), 1, per_node)
    assert straight.wait() == [0]
    assert {**nodes.losses(0), **again.losses(1)} == straight.losses()


@pytest.mark.parametrize(("fields", "code"), [({"steps": 2}, ExitCode.DONE), ({"matrix_lr": 1e30, "embedding_lr": 1e30}, ExitCode.DIVERGED)])
def test_a_stop_while_the_ranks_are_leaving_changes_nothing(start, fields, code):
    """A tracker may take seconds to send the rest: a preemption just then is no bug of ours, and no reason to train again."""
    nodes = start("job", config(**fields), 1, 2, fault="slow_to_leave")
    nodes.wait_for("leaving0", "leaving1")
    nodes.send(signal.SIGTERM)
    assert nodes.wait() == [code], nodes.output()


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 2), (2, 2)])
def test_one_rank_that_is_stopped_in_an_evaluation_stops_all(start, nodes, per_node):
    job = start("job", config(), nodes, per_node, fault="slow_evaluation")
    ranks = [int(text) for text in job.wait_for(*(f"evaluating{rank}" for rank in range(nodes * per_node)))]
    os.kill(ranks[-1], signal.SIGTERM)
    assert set(job.wait()) == {ExitCode.INTERRUPTED}, job.output()
    for rank in range(len(ranks)):
        log = layout.rank_log(job.job, 0, rank).read_text()
        assert f"rank {rank}: stopped on request" in log, "the others are asked to stop too, and not killed once they are in the way"
    assert job.ledger()["failures"] == 0


def test_a_session_limit_ends_with_0_and_says_that_it_can_be_resumed(start):
    nodes = start("job", config(stop_at_step=3))
    assert nodes.wait() == [0]
    done = nodes.events()[-1]
    assert (done["event"], done["reason"], done["resumable"], done["step"]) == ("done", "session_limit", True, 3)
    assert "1" not in json.loads(layout.stages_file(nodes.job).read_text())["stages"]


def test_the_wall_clock_limit_of_a_session_saves_first(start):
    nodes = start("job", config(steps=100_000, max_session_s=2))
    assert nodes.wait() == [0]
    assert nodes.events()[-1]["reason"] == "session_limit"
    assert layout.checkpoint_dir(nodes.job, "pretrain", nodes.events()[-1]["step"]).is_dir()


def test_a_deadline_ends_with_81_and_a_checkpoint(start):
    nodes = start("job", config(steps=100_000), 1, 2, fault="deadline_too_near_after", step=3, budget={"deadline_s": time.time() + 3600})
    assert nodes.wait() == [ExitCode.BUDGET], nodes.output()
    assert "deadline" in nodes.verdict()["message"]
    assert nodes.verdict()["step"] == 3
    assert layout.checkpoint_dir(nodes.job, "pretrain", nodes.verdict()["step"]).is_dir()


def test_a_loss_that_is_no_number_stops_the_job_with_80_and_the_step(start):
    nodes = start("job", config(matrix_lr=1e30, embedding_lr=1e30), 1, 2)
    assert nodes.wait() == [ExitCode.DIVERGED], nodes.output()
    verdict = nodes.verdict()
    assert verdict["step"] >= 1
    assert f"at step {verdict['step']}" in verdict["message"]


def test_a_torn_checkpoint_is_named_and_the_one_before_is_taken(start, reference):
    nodes = start("job", config(stop_at_step=8))
    assert nodes.wait() == [0]
    model = layout.checkpoint_dir(nodes.job, "pretrain", 8) / "model.pt"
    content = bytearray(model.read_bytes())
    content[len(content) // 2] ^= 0xFF
    model.write_bytes(content)
    resumed = start("job", config())
    assert resumed.wait() == [0], resumed.output()
    warning = next(event for event in resumed.events(1) if event["event"] == "warning")
    assert "step_000008" in warning["message"]
    assert "checksum" in warning["message"]
    assert resumed.losses(1) == {step: reference[step] for step in range(5, STEPS + 1)}


def test_a_kill_while_saving_leaves_the_checkpoint_before(start, reference):
    nodes = start("job", config(), fault="killed_while_saving", step=8)
    assert nodes.wait() == [128 + signal.SIGKILL]
    assert not layout.checkpoint_dir(nodes.job, "pretrain", 8).exists()
    resumed = start("job", config())
    assert resumed.wait() == [0]
    assert resumed.losses(1) == {step: reference[step] for step in range(5, STEPS + 1)}


def test_a_full_disk_keeps_the_old_checkpoint_and_is_a_warning_until_the_end(start):
    nodes = start("job", config(), fault="disk_full", step=8)
    assert nodes.wait() == [ExitCode.BAD_CONFIG], nodes.output()
    assert [event["code"] for event in nodes.events() if event["event"] == "warning"] == ["checkpoint_failed"]
    assert "step 12 not written" in nodes.verdict()["message"]
    assert "free space" in nodes.verdict()["hint"]
    names = sorted(path.name for path in layout.checkpoints_dir(nodes.job, "pretrain").iterdir())
    assert names == ["step_000004"]
    resumed = start("job", config())
    assert resumed.wait() == [0]
    assert min(resumed.losses(1)) == 5


@pytest.mark.parametrize("per_node", [1, 2])
def test_a_disk_that_takes_nothing_more_still_ends_with_78(start, per_node):
    """Neither log nor verdict can be written then: the exit code is all that is left to say that another attempt is of no use."""
    nodes = start("job", config(), 1, per_node, fault="nothing_can_be_written", step=8)
    assert nodes.wait() == [ExitCode.BAD_CONFIG], nodes.output()
    assert not layout.verdict_file(nodes.job, 0).exists()
    assert [path.name for path in layout.checkpoints_dir(nodes.job, "pretrain").glob("step_*")] == ["step_000004"]
    resumed = start("job", config(), 1, per_node)
    assert resumed.wait() == [0], resumed.output()
    assert min(resumed.losses(1)) == 5


def test_a_failing_evaluation_on_one_rank_is_a_warning_and_loses_nothing(start):
    nodes = start("job", config(eval_every=4), 1, 2, fault="evaluation_fails_on_rank_1")
    assert nodes.wait() == [0], nodes.output()
    warnings = [event for event in nodes.events() if event["event"] == "warning"]
    assert {event["code"] for event in warnings} == {"evaluation_failed"}
    assert "rank 1" in warnings[0]["message"]
    assert len(nodes.losses()) == STEPS


def test_a_checkpoint_is_written_before_each_evaluation(start):
    nodes = start("job", config(eval_every=4, checkpoint={"every_minutes": None}))
    assert nodes.wait() == [0]
    order = [(e["event"], e["step"]) for e in nodes.events() if e["event"] in ("checkpoint", "eval") and e["stage"] == "pretrain"]
    assert order == [("eval", 0), ("checkpoint", 4), ("eval", 4), ("checkpoint", 8), ("eval", 8), ("checkpoint", 12), ("eval", 12)]


def test_the_last_checkpoints_and_the_best_are_kept(start):
    nodes = start("job", config(eval_every=2, checkpoint={"every_minutes": None, "keep_last": 1, "keep_best": True}))
    assert nodes.wait() == [0]
    folder = layout.checkpoints_dir(nodes.job, "pretrain")
    values = {e["step"]: e["value"] for e in nodes.events() if e["event"] == "eval" and e["name"] == "bpb" and e["step"]}
    best = min(values, key=lambda step: values[step])
    assert json.loads((folder / "best.json").read_text())["step"] == best
    assert {path.name for path in folder.glob("step_*")} == {f"step_{step:06d}" for step in (best, STEPS)}


def test_another_jobs_checkpoint_is_resumed_with_its_horizon(start, reference):
    first = start("first", config(stop_at_step=8))
    assert first.wait() == [0]
    second = start("second", config(resume="first@4", steps=30, stages=["pretrain"]))
    assert second.wait() == [0], second.output()
    assert second.losses() == {step: reference[step] for step in range(5, STEPS + 1)}
    assert any(event.get("code") == "horizon_kept" for event in second.events())


def test_a_checkpoint_that_is_not_there_is_78(start):
    first = start("first", config(stop_at_step=4))
    assert first.wait() == [0]
    second = start("second", config(resume="first@7", stages=["pretrain"]))
    assert second.wait() == [ExitCode.BAD_CONFIG]
    assert "first@7" in second.verdict()["message"]


@pytest.mark.parametrize("stages", [["pretrain"], ["tokenizer", "pretrain"]])
def test_a_checkpoint_of_another_model_is_78_and_says_in_what_it_differs(start, stages):
    first = start("first", config(stop_at_step=4))
    assert first.wait() == [0]
    run = config(resume="first@4", stages=stages)
    second = start("second", run.model_copy(update={"model": run.model.model_copy(update={"depth": 4})}), 1, 2)
    assert second.wait() == [ExitCode.BAD_CONFIG]
    assert "has depth 2, run.model says 4" in second.verdict()["message"]
    assert not [event for event in second.events() if event["event"] == "step"]


def test_when_no_checkpoint_can_be_used_the_job_ends_with_65_and_names_them(start):
    nodes = start("job", config(stop_at_step=8))
    assert nodes.wait() == [0]
    for step in (4, 8):
        (layout.checkpoint_dir(nodes.job, "pretrain", step) / "rank00000.pt").unlink()
    again = start("job", config(), 1, 2)
    assert again.wait() == [ExitCode.BAD_DATA], again.output()
    verdict = again.verdict(1)
    assert "step_000008: rank00000.pt has no bytes" in verdict["message"] and "step_000004" in verdict["message"]
    assert "run.resume: never" in verdict["hint"]
    anew = start("job", config(resume="never"))
    assert anew.wait() == [0], anew.output()
    assert min(anew.losses(2)) == 1


def test_finetuning_begins_with_the_step_that_was_asked_for(start, tmp_path):
    """`first@4` is a model of 4 steps, also for stage sft, although the other job went on to 12."""
    run = config(checkpoint={"every_steps": 4, "every_minutes": None, "keep_last": 3})
    assert start("first", run).wait() == [0]
    sft = {"steps": 1, "eval_tokens": 256}
    early, late = (start(f"from{step}", config(stages=["sft"], sft=sft, resume=f"first@{step}")) for step in (4, 12))
    assert early.wait() == [0], early.output()
    assert late.wait() == [0], late.output()
    shutil.copytree(tmp_path / "first", tmp_path / "cut")
    for step in (8, 12):
        shutil.rmtree(layout.checkpoint_dir(tmp_path / "cut", "pretrain", step))
    cut = start("fromcut", config(stages=["sft"], sft=sft, resume="cut@4"))
    assert cut.wait() == [0], cut.output()
    assert early.losses(0, "sft") == cut.losses(0, "sft") != late.losses(0, "sft")


def test_a_step_whose_weights_are_no_numbers_ends_with_80_and_keeps_the_checkpoint_before(start):
    """The loss of that step still was a number; the next one, or a chat with the saved model, would have shown it."""
    nodes = start("job", config(steps=8), 1, 2, fault="weights_not_finite", step=8)
    assert nodes.wait() == [ExitCode.DIVERGED], nodes.output()
    assert len(nodes.losses()) == 8
    assert "not finite after step 8" in nodes.verdict()["message"]
    assert [path.name for path in layout.checkpoints_dir(nodes.job, "pretrain").iterdir()] == ["step_000004"]


def test_finetuning_needs_a_pretrained_model(start):
    nodes = start("job", config(stages=["tokenizer", "sft"]))
    assert nodes.wait() == [ExitCode.BAD_DATA]
    assert "no complete checkpoint of pretrain" in nodes.verdict()["message"]
    assert "run.stages" in nodes.verdict()["hint"]


def test_missing_data_is_65_on_every_rank_and_nobody_hangs(start, tmp_path):
    (tmp_path / "empty").mkdir()
    nodes = start("job", config(data={"source": "folder", "dir": str(tmp_path / "empty")}), 1, 2)
    assert nodes.wait() == [ExitCode.BAD_DATA]
    assert nodes.verdict()["rank"] == 0


def test_finetuning_resumes_exactly_and_agrees_with_two_ranks(start, tmp_path):
    run = config(stages=["tokenizer", "pretrain", "sft"], sft={"steps": 6, "eval_tokens": 256}, checkpoint={"every_steps": 2, "every_minutes": None})
    straight = start("straight", run)
    assert straight.wait() == [0], straight.output()
    shutil.copytree(tmp_path / "straight", tmp_path / "again")
    shutil.rmtree(layout.checkpoint_dir(tmp_path / "again", "sft", 6))
    stages = json.loads(layout.stages_file(tmp_path / "again").read_text())
    del stages["stages"]["2"]
    layout.stages_file(tmp_path / "again").write_text(json.dumps(stages))
    again = start("again", run)
    assert again.wait() == [0], again.output()
    expected = straight.losses(0, "sft")
    assert again.losses(1, "sft") == {step: expected[step] for step in (5, 6)}
    two = start("two", run, 1, 2)
    assert two.wait() == [0], two.output()
    assert close(two.losses(0, "sft"), expected)


def test_ranks_in_interpreters_of_their_own_train_the_same(start):
    run = config(stop_at_step=4)
    forked, fresh = start("forked", run, 1, 2), start("fresh", run, 1, 2, fault="fresh_interpreters")
    assert forked.wait() == [0]
    assert fresh.wait() == [0], fresh.output()
    assert fresh.losses() == forked.losses()


def test_compiling_without_a_compiler_is_78_and_says_how_to_go_on(start):
    nodes = start("job", config().model_copy(update={"compile": True}), env={"CXX": "no-such-compiler"})
    assert nodes.wait() == [ExitCode.BAD_CONFIG]
    assert "no C++ compiler 'no-such-compiler'" in nodes.verdict()["message"]
    assert nodes.verdict()["where"] == "run.compile"
