"""Reading a pod's log through connections that break: every line once, also lines of one moment."""

from pathlib import Path

from scripted import Answer, ScriptedServer, status

from nanochat_npu.cluster.follow import LogReader

LOG = "/pods/p/log"


def line(second: int, text: str, fraction: int = 0) -> str:
    """A line with the kubelet's time stamp."""
    return f"2026-11-30T00:00:{second:02d}.{fraction:09d}Z {text}\n"


def log(*lines: str) -> Answer:
    """A log that ends after these lines."""
    return Answer(lines=lines, content_type="text/plain")


def read(server: ScriptedServer, folder: Path) -> list[str]:
    """Everything that a reader brings until it ends."""
    reader = LogReader(server.client(folder), "train", "p", wait=lambda _seconds: False).start()
    assert reader.join(20)
    return reader.take()


def test_what_is_repeated_after_a_break_is_taken_once(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", LOG, log(line(1, "a"), line(2, "b", 5)), log(line(2, "b", 5), line(3, "c")), log())
    assert read(server, tmp_path) == ["a", "b", "c"]
    assert "sinceTime=2026-11-30T00%3A00%3A02.000000005Z" in server.asked("GET", LOG)[1]


def test_several_lines_of_one_moment_are_told_apart_by_their_number(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", LOG, log(line(1, "a"), line(1, "b")), log(line(1, "a"), line(1, "b"), line(1, "c"), line(2, "d")), log())
    assert read(server, tmp_path) == ["a", "b", "c", "d"]


def test_a_clock_that_steps_back_loses_nothing(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", LOG, log(line(5, "a"), line(3, "b"), line(4, "c")), log())
    assert read(server, tmp_path) == ["a", "b", "c"]


def test_a_reset_in_the_middle_is_gone_on_from(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", LOG, log(line(1, "a")), Answer(reset=True), log(line(1, "a"), line(2, "b")), log())
    assert read(server, tmp_path) == ["a", "b"]


def test_a_pod_that_is_gone_ends_the_reading_with_its_reason(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", LOG, log(line(1, "a")), status(404, 'pods "p" not found', "NotFound", name="p", kind="pods"))
    reader = LogReader(server.client(tmp_path), "train", "p", wait=lambda _seconds: False).start()
    assert reader.join(20)
    assert reader.take() == ["a"]
    assert reader.error is not None
    assert reader.error.kind == "not_found"


def test_lines_without_a_time_do_no_harm(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", LOG, log("\n", "odd\n", line(1, "a")), log())
    assert read(server, tmp_path)[-1] == "a"


def test_a_line_of_a_megabyte_arrives_whole(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", LOG, log(line(1, "x" * 1_000_000)), log())
    assert read(server, tmp_path) == ["x" * 1_000_000]
