"""Rows of conversations: whole ones only, a target in every row, the same at any world size, and bad files by line."""

import json
from pathlib import Path

import pytest
import torch
from data_helpers import BYTES

from nanochat.contract import DataConfig, ModelConfig, PretrainConfig, RunConfig, RunFile, SftConfig
from nanochat.data import Place, build_sft_loader, epoch_steps, merge_states, sft_validation_batches, toy
from nanochat.data.batches import Batch
from nanochat.data.sft import left_out
from nanochat.errors import BadConfig, BadData
from nanochat.stages.sft import _tell_left_out

ROWS, LENGTH = 6, 96


def run_of(sft_data: list[str] | None = None, length: int = LENGTH, **sft: object) -> RunFile:
    return RunFile(job="t", run=RunConfig(
        data=DataConfig(source="toy"), model=ModelConfig(sequence_len=length), pretrain=PretrainConfig(tokens_per_step=ROWS * length),
        sft=SftConfig(data=sft_data or ["auto"], **sft),
    ))


def conversation(question: str, answer: str) -> dict:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def write(path: Path, records: list) -> str:
    path.write_text("".join(record if isinstance(record, str) else json.dumps(record) + "\n" for record in records))
    return str(path)


def first_batch(run: RunFile, length: int = LENGTH) -> Batch:
    loader = build_sft_loader(run, BYTES, Place(0, 1, ROWS, length), prefetch=0)
    return loader.next_batch()


def test_targets_are_what_the_assistant_says_and_nothing_else(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", [conversation("ask", "yes"), conversation("ask", "yes")])
    batch = first_batch(run_of([path], length=24), 24)
    rendered, mask = BYTES.render_conversation(conversation("ask", "yes"))
    for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        learnt = [token if trained else -1 for token, trained in zip(rendered, mask, strict=True)]
        assert inputs == rendered + rendered + [BYTES.bos_id] * (24 - 2 * len(rendered))
        assert targets == [*learnt, *learnt][1:] + [-1] * (25 - 2 * len(rendered))


def test_every_row_has_a_target_and_no_conversation_is_cut() -> None:
    loader = build_sft_loader(run_of(), BYTES, Place(0, 1, ROWS, LENGTH), prefetch=0)
    known = {tuple(BYTES.render_conversation(c)[0]) for c in toy.conversations(42, 4000)}
    for _ in range(20):
        batch = loader.next_batch()
        assert (batch.targets >= 0).any(dim=1).all() and batch.inputs.min() >= 0
        for row in batch.inputs.tolist():
            text = BYTES.decode(row).split("<|bos|>")
            assert text[0] == ""
            assert all((BYTES.bos_id, *_ids(part)) in known for part in text[1:-1] if part)


def _ids(text: str) -> list[int]:
    return BYTES._encoding.encode(text, allowed_special="all")


@pytest.mark.parametrize("world_size", [2, 3, 6])
def test_rows_are_the_same_at_any_world_size(world_size: int) -> None:
    one = build_sft_loader(run_of(), BYTES, Place(0, 1, ROWS, LENGTH), prefetch=0)
    many = [build_sft_loader(run_of(), BYTES, Place(r, world_size, ROWS // world_size, LENGTH), prefetch=0) for r in range(world_size)]
    for _ in range(5):
        expected, parts = one.next_batch(), [rank.next_batch() for rank in many]
        assert torch.equal(torch.stack([p.inputs for p in parts], 1).flatten(0, 1), expected.inputs)
        assert torch.equal(torch.stack([p.targets for p in parts], 1).flatten(0, 1), expected.targets)


def test_a_saved_position_continues_bit_for_bit_at_another_world_size() -> None:
    two = [build_sft_loader(run_of(), BYTES, Place(r, 2, 3, LENGTH), prefetch=4) for r in range(2)]
    for _ in range(7):
        for rank in two:
            rank.next_batch()
    one = build_sft_loader(run_of(), BYTES, Place(0, 1, ROWS, LENGTH), prefetch=4)
    one.load_state_dict(json.loads(json.dumps(merge_states([rank.state_dict() for rank in two]))))
    for _ in range(4):
        parts = [rank.next_batch() for rank in two]
        assert torch.equal(torch.stack([p.targets for p in parts], 1).flatten(0, 1), one.next_batch().targets)
    for loader in (*two, one):
        loader.close()


def test_conversations_longer_than_a_row_are_cut_and_those_without_an_answer_left_out(tmp_path: Path) -> None:
    records = [record for i in range(9) for record in (conversation(f"{i}" + "q" * 500, "never seen"), conversation(f"{i}", "x" * 500))]
    batch = first_batch(run_of([write(tmp_path / "c.jsonl", records)], length=32), 32)
    assert (batch.targets >= 0).any(dim=1).all()
    assert "qqqq" not in "".join(BYTES.decode(row) for row in batch.inputs.tolist())


def test_questions_that_are_all_too_long_are_an_error_and_not_a_wait_or_nan(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", [conversation("q" * 500 + str(i), "a") for i in range(9)])
    with pytest.raises(BadData, match=r"no conversation has an answer within.*sequence_len"):
        first_batch(run_of([path], length=32), 32)


def test_an_epoch_has_about_as_many_steps_as_its_conversations_need() -> None:
    place = Place(0, 1, ROWS, LENGTH)
    steps = epoch_steps(run_of(), BYTES, place)
    loader = build_sft_loader(run_of(), BYTES, place, prefetch=0)
    done = 0
    while loader.next_batch().epoch == 0:
        done += 1
    assert abs(done - steps) < 0.15 * steps


def test_validation_rows_are_the_same_at_any_world_size() -> None:
    def rows(world_size: int) -> set[tuple[int, ...]]:
        return {
            tuple(row.tolist()) for rank in range(world_size)
            for batch in sft_validation_batches(run_of(), BYTES, Place(rank, world_size, 3, LENGTH), eval_tokens=10**6)
            for row in batch.targets if (row >= 0).any()
        }
    assert rows(1) == rows(3) == rows(50) and len(rows(1)) > 50


BAD_RECORDS = [
    ('{"messages": [}\n', "not JSON"), ({"messages": []}, "list of messages"), ({"text": "x"}, "list of messages"),
    (conversation("a", ""), "the assistant says nothing"), ({"messages": [{"role": "user", "content": "a"}]}, "the assistant never speaks"),
    ({"messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]}, "message 0 is from 'assistant'"),
    ("[" * 100_000 + "\n", "not JSON"),
]


@pytest.mark.parametrize(("record", "told"), BAD_RECORDS)
def test_a_bad_record_is_refused_with_its_line_or_skipped(tmp_path: Path, record, told: str) -> None:
    path = write(tmp_path / "c.jsonl", [conversation("a", "b"), "\n", record, conversation("c", "d"), conversation("e", "f")])
    with pytest.raises(BadData, match=rf"c\.jsonl:3: .*{told}.*on_bad_record"):
        first_batch(run_of([path]))
    assert (first_batch(run_of([path], on_bad_record="skip")).targets >= 0).any()


def test_a_mixed_encoding_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(json.dumps(conversation("a", "b")).encode() + b"\n" + '[{"role":"user","content":"é"}]'.encode("latin-1") + b"\n")
    with pytest.raises(BadData, match=r"c\.jsonl:2: not UTF-8: byte 0xe9"):
        first_batch(run_of([str(path)]))


def test_a_very_long_turn_is_only_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", [conversation("a", "word " * 20_000), conversation("b", "c")])
    assert first_batch(run_of([path])).inputs.shape == (ROWS, LENGTH)


def test_lists_of_messages_are_read_as_upstream_writes_them(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", [conversation("a", "b")["messages"], conversation("c", "d")["messages"]])
    assert (first_batch(run_of([path])).targets >= 0).any()


def test_files_mix_and_unknown_names_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", [conversation(str(i), "zz") for i in range(40)])
    assert first_batch(run_of(["toy", path])).inputs.shape == (ROWS, LENGTH)
    with pytest.raises(BadConfig, match="'nowhere' is not here"):
        first_batch(run_of(["nowhere"]))
    with pytest.raises(BadData, match="cannot be read"):
        first_batch(run_of([str(tmp_path / "none.jsonl")]))
    with pytest.raises(BadData, match="1 usable conversations"):
        first_batch(run_of([write(tmp_path / "one.jsonl", [conversation("a", "b")])]))


def test_a_record_of_a_published_set_that_is_no_conversation_is_named_or_skipped(tmp_path: Path) -> None:
    rows = [conversation(str(i), "zz") for i in range(12)]
    rows[7] = conversation("a", "")
    for split in ("train", "test"):
        (tmp_path / "smoltalk").mkdir(exist_ok=True)
        write(tmp_path / "smoltalk" / f"{split}.jsonl", rows)

    def run(on_bad_record: str) -> RunFile:
        made = run_of(["smoltalk"], on_bad_record=on_bad_record)
        return made.model_copy(update={"run": made.run.model_copy(update={"data": DataConfig(source="toy", tasks_dir=str(tmp_path))})})

    with pytest.raises(BadData, match=r"smoltalk train, record 7: message 1: the assistant says nothing.*on_bad_record: skip"):
        first_batch(run("refuse"))
    assert (first_batch(run("skip")).targets >= 0).any()
    mixed = run_of(["toy", "smoltalk"])
    mixed = mixed.model_copy(update={"run": mixed.run.model_copy(update={"data": DataConfig(source="toy", tasks_dir=str(tmp_path))})})
    from nanochat.data.conversations import open_conversations

    parts = open_conversations(mixed.run, "train")
    assert parts.place(4000 + 7) == "smoltalk train, record 7"
    assert parts[4000 + 7] == rows[7]
    assert parts.place(3) == "conversation 3"


def published(folder: Path, records: list, data: list[str], length: int = LENGTH, **sft: object) -> RunFile:
    """A run on a set of that many records where published ones are looked for."""
    for split in ("train", "test"):
        (folder / "smoltalk").mkdir(exist_ok=True)
        write(folder / "smoltalk" / f"{split}.jsonl", records)
    made = run_of(data, length, on_bad_record="skip", **sft)
    return made.model_copy(update={"run": made.run.model_copy(update={"data": DataConfig(source="toy", tasks_dir=str(folder))})})


@pytest.mark.parametrize("record", [{"text": "x"}, {"messages": None}, {"messages": [None]}, {"messages": "a"}, {"messages": [{"role": "user"}, {}]}])
def test_a_record_of_a_published_set_with_other_fields_is_refused_by_its_number_or_skipped(tmp_path: Path, record: dict) -> None:
    records = [conversation(str(i), "zz") for i in range(12)]
    records[3] = record
    run = published(tmp_path, records, ["smoltalk"])
    loader = build_sft_loader(run, BYTES, Place(0, 1, ROWS, LENGTH), prefetch=0)
    while loader.next_batch().epoch == 0:
        pass
    assert left_out(loader) == 1
    refusing = run.model_copy(update={"run": run.run.model_copy(update={"sft": run.run.sft.model_copy(update={"on_bad_record": "refuse"})})})
    with pytest.raises(BadData, match="smoltalk train, record 3: "):
        first_batch(refusing)


@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
@pytest.mark.parametrize("copies", [1, 3])
def test_records_left_out_of_a_published_set_are_counted_once_each(tmp_path: Path, world_size: int, copies: int) -> None:
    records = [conversation(str(i), "zz") for i in range(60)]
    records[7], records[31], records[50] = conversation("a", ""), conversation("q" * 500, "never read"), conversation("a", "")
    run = published(tmp_path, records, ["toy", *copies * ["smoltalk"]])
    counts, noted = [], {}
    for rank in range(world_size):
        loader = build_sft_loader(run, BYTES, Place(rank, world_size, 1, LENGTH), prefetch=0, noted=noted)
        while loader.next_batch().epoch < 2:
            pass
        counts.append(left_out(loader))
    assert sum(counts) == 3
    assert noted.keys() == {"smoltalk train, record 7", "smoltalk train, record 31", "smoltalk train, record 50"}
    assert "nothing within the first 97 tokens" in noted["smoltalk train, record 31"]


def test_the_count_of_records_left_out_goes_on_where_a_run_goes_on(tmp_path: Path) -> None:
    records = [conversation(str(i), "zz" if i % 4 else "") for i in range(900)]
    run = published(tmp_path, records, ["smoltalk"], 24)
    parts = [build_sft_loader(run, BYTES, Place(rank, 2, 3, 24)) for rank in range(2)]
    for loader in parts:
        for _ in range(3):
            loader.next_batch()
    before = sum(map(left_out, parts))
    assert 0 < before < 225
    again = build_sft_loader(run, BYTES, Place(0, 1, ROWS, 24))
    again.load_state_dict(merge_states([json.loads(json.dumps(loader.state_dict())) for loader in parts]))
    assert left_out(again) == before
    while again.next_batch().epoch == 0:
        pass
    assert left_out(again) == 225
    for loader in (*parts, again):
        loader.close()


def test_records_of_a_file_of_ones_own_are_not_counted_a_second_time(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", [conversation(f"{i}" + "q" * (500 if i == 4 else 1), "zz") for i in range(12)])
    loader = build_sft_loader(run_of([path], on_bad_record="skip"), BYTES, Place(0, 1, ROWS, LENGTH), prefetch=0, noted=(noted := {}))
    while loader.next_batch().epoch == 0:
        pass
    assert (left_out(loader), noted) == (0, {})


class Ranks:
    """Two ranks whose other one left out a record too; while they agree, the loader's thread reads on."""

    is_first = True

    def __init__(self, noted: dict[str, str]) -> None:
        self.noted, self.warnings, self.peers, self.events = noted, [], self, self

    def gather(self, value: object) -> list:
        for _ in value if isinstance(value, dict) else ():
            self.noted[f"smoltalk train, record {len(self.noted) + 100}"] = "read ahead"
        return [value, {"smoltalk train, record 9": "bad"} if isinstance(value, dict) and value else value]

    def warn(self, code: str, message: str) -> None:
        self.warnings.append(message)


@pytest.mark.parametrize(("count", "noted", "told"), [
    (1, {"smoltalk train, record 3": "worse"}, "2 records of published sets were left out: smoltalk train, record 3: worse; smoltalk train, record 9: bad"),
    (3, {"smoltalk train, record 3": "worse"}, "6 records of published sets were left out: smoltalk train, record 3: worse; smoltalk train, record 9: bad; and 4 more"),
    (2, {}, "4 records of published sets were left out, all of them by earlier attempts"),
    (0, {}, None),
])
def test_what_was_left_out_is_told_in_whole_sentences(count: int, noted: dict[str, str], told: str | None) -> None:
    ranks = Ranks(noted)
    assert _tell_left_out(ranks, count, noted) == 2 * count
    assert ranks.warnings == ([told] if told else [])


def test_no_more_records_are_named_than_were_left_out() -> None:
    """The loader's thread has read ahead of the last step, and notes what it meets."""
    ranks = Ranks({"a": "x", "b": "y", "c": "z"})
    ranks.gather = lambda value: [value]
    assert _tell_left_out(ranks, 1, ranks.noted) == 1
    assert ranks.warnings == ["1 records of published sets were left out: a: x"]
