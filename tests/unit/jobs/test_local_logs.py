"""Log lines of a local job: each line once, with who wrote it, while files grow and attempts follow one another."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from nanochat_npu.backends import LogLine, LogQuery
from nanochat_npu.jobs import JobFolder
from nanochat_npu.local_logs import FileEvents, read, recent_events


def never() -> bool:
    return False


def event(**fields: Any) -> str:
    return json.dumps({"v": 1, "event": "step", "stage": "pretrain", "t": time.time(), **fields}) + "\n"


@pytest.fixture
def job(tmp_path: Path) -> JobFolder:
    for attempt in (0, 1):
        (tmp_path / "attempts" / str(attempt)).mkdir(parents=True)
    return JobFolder(tmp_path)


def write(job: JobFolder, attempt: int, name: str, text: str) -> Path:
    path = job.path / "attempts" / str(attempt) / name
    with path.open("a") as file:
        file.write(text)
    return path


def lines(job: JobFolder, **query: Any) -> list[tuple[str, str]]:
    return [(line.source, line.text) for line in read(job, LogQuery(**query), still_running=never)]


def test_a_launchers_echo_of_its_ranks_is_left_out(job: JobFolder) -> None:
    write(job, 1, "rank0.log", "hello\nhello\n")
    write(job, 1, "rank1.log", "world\n")
    write(job, 1, "launcher0.log", "checking\nhello\n[rank 1] world\nhello\nhello\nrank 1 was killed\n")
    assert lines(job) == [
        ("rank 0", "hello"), ("rank 0", "hello"), ("rank 1", "world"), ("launcher 0", "checking"), ("launcher 0", "hello"), ("launcher 0", "rank 1 was killed"),
    ]


def test_ranks_come_in_the_order_of_their_numbers(job: JobFolder) -> None:
    for rank in (10, 2, 0):
        write(job, 1, f"rank{rank}.log", "x\n")
    assert [source for source, _text in lines(job)] == ["rank 0", "rank 2", "rank 10"]


def test_the_newest_attempt_is_shown_unless_another_is_asked_for(job: JobFolder) -> None:
    write(job, 0, "rank0.log", "old\n")
    write(job, 1, "rank0.log", "new\n")
    assert lines(job) == [("rank 0", "new")]
    assert lines(job, attempt=0) == [("rank 0", "old")]
    assert lines(job, attempt=7) == []


def test_one_rank_alone(job: JobFolder) -> None:
    for name in ("rank0.log", "rank1.log", "launcher0.log"):
        write(job, 1, name, f"{name}\n")
    assert lines(job, rank=1) == [("rank 1", "rank1.log")]


def test_the_last_lines_of_each_rank(job: JobFolder) -> None:
    write(job, 1, "rank0.log", "a\nb\nc\n")
    write(job, 1, "rank1.log", "d\ne\n")
    assert lines(job, tail=1) == [("rank 0", "c"), ("rank 1", "e")]


def test_a_line_without_its_newline_is_shown_at_the_end(job: JobFolder) -> None:
    write(job, 1, "rank0.log", "a\nhalf")
    assert lines(job) == [("rank 0", "a"), ("rank 0", "half")]


def test_bytes_that_are_no_text_are_shown_as_such(job: JobFolder) -> None:
    write(job, 1, "rank0.log", "").write_bytes(b"\xff\xfe ok\r\n")
    assert lines(job) == [("rank 0", "\ufffd\ufffd ok")]


def test_lines_since_a_time_follow_the_events_between_them(job: JobFolder) -> None:
    write(job, 1, "rank0.log", event(t=time.time() - 500) + "old\n" + event(t=time.time() - 5) + "new\n")
    assert [text for _source, text in lines(job, since_s=60)][-1] == "new"
    assert "old" not in [text for _source, text in lines(job, since_s=60)]


def test_plain_lines_of_a_file_untouched_for_long_are_old(job: JobFolder) -> None:
    path = write(job, 1, "rank1.log", "old\n")
    os.utime(path, (1, 1))
    assert lines(job, since_s=60) == []


def test_following_reads_what_is_written_meanwhile_and_ends_with_the_job(job: JobFolder) -> None:
    write(job, 0, "rank0.log", "first\n")
    (job.path / "attempts" / "1").rmdir()
    script = iter([
        lambda: write(job, 0, "rank0.log", "second\n"),
        lambda: ((job.path / "attempts" / "1").mkdir(), write(job, 1, "rank0.log", "third\n")),
        lambda: write(job, 1, "launcher0.log", "third\nbye\n"),
    ])

    def running() -> bool:
        act = next(script, None)
        if act is not None:
            act()
        return act is not None

    found = read(job, LogQuery(follow=True), still_running=running)
    assert list(found) == [LogLine("rank 0", "first"), LogLine("rank 0", "second"), LogLine("rank 0", "third"), LogLine("launcher 0", "bye")]


def test_events_are_read_once_each_over_all_attempts(job: JobFolder) -> None:
    write(job, 0, "events.jsonl", event(step=1) + event(step=2))
    source = FileEvents(job)
    assert [found["step"] for found in source.poll()] == [1, 2]
    write(job, 0, "events.jsonl", event(step=3) + '{"v": 1, "event": "st')
    write(job, 1, "events.jsonl", event(step=2))
    assert [found["step"] for found in source.poll()] == [3, 2]
    assert source.poll() == []


def test_an_event_that_is_written_in_two_parts_is_read_once_it_is_whole(job: JobFolder) -> None:
    line = event(step=1)
    write(job, 1, "events.jsonl", line[:20])
    source = FileEvents(job)
    assert source.poll() == []
    write(job, 1, "events.jsonl", line[20:])
    assert [found["step"] for found in source.poll()] == [1]


def test_recent_events_are_those_at_the_end_of_a_long_file(job: JobFolder) -> None:
    write(job, 1, "events.jsonl", "".join(event(step=step) for step in range(3000)))
    found = recent_events(job)
    assert found[-1]["step"] == 2999
    assert len(found) < 1000
