"""Curves and tables of characters: what is drawn is where it belongs."""

import math

import pytest

from nanochat_npu import curves, tables, units
from nanochat_npu.errors import UsageError
from nanochat_npu.periods import parse_seconds
from nanochat_npu.tables import Section


def test_a_sparkline_rises_with_its_values() -> None:
    assert curves.sparkline([1, 2, 3, 4, 5, 6, 7, 8], 8) == "▁▂▃▄▅▆▇█"


def test_a_sparkline_of_many_values_has_the_asked_width() -> None:
    assert len(curves.sparkline([math.sin(i) for i in range(1000)], 30)) == 30


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf]])
def test_a_sparkline_of_nothing_is_empty(values: list[float]) -> None:
    assert curves.sparkline(values, 10) == ""


def test_a_chart_falls_from_upper_left_to_lower_right() -> None:
    lines = curves.chart([0, 1, 2, 3], [3.0, 2.0, 1.0, 0.0], width=30, height=4)
    plots = [line.partition("┤")[2] for line in lines[:-1]]
    assert lines[0].lstrip().startswith("3 ┤")
    assert lines[3].lstrip().startswith("0 ┤")
    starts = [next(i for i, char in enumerate(plot) if char != chr(curves.BRAILLE)) for plot in plots]
    assert starts == sorted(starts)
    assert starts[0] == 0


def test_a_chart_leaves_room_up_to_the_horizon() -> None:
    lines = curves.chart([0, 5], [1.0, 2.0], width=44, height=3, x_end=10)
    assert lines[-1].split() == ["0", "10"]
    assert max(len(line) for line in lines[:-1]) < 30


@pytest.mark.parametrize("ys", [[1.0, 1.0], [math.nan, math.nan], [math.nan, 2.0]])
def test_flat_and_missing_values_can_be_drawn(ys: list[float]) -> None:
    curves.chart([0, 1], ys, width=20, height=3)


def test_columns_line_up_under_chinese_headings() -> None:
    lines = tables.to_text([Section("t", header=("作业", "x"), table=(("a", "b"), ("ccccc", "d")))]).splitlines()
    assert [tables.cells(line) for line in lines] == [8, 8, 8]


def test_numbers_stand_flush_right_and_words_flush_left() -> None:
    text = tables.to_text([Section("t", header=("job", "steps"), table=(("a", "1,000"), ("b", "7")))])
    assert text == "job  steps\na    1,000\nb        7\n"


def test_what_a_job_prints_cannot_move_the_cursor_or_break_a_table() -> None:
    text = tables.to_text([Section("t", rows=(("a", "x\x1b[2Jy\nz"),))])
    assert text == "a  x[2Jy z\n"
    assert "\\|" in tables.to_markdown([Section("t", header=("a",), table=(("x|y",),))])


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (59.6, "1 min 00 s"), (3599.7, "1 h 00 min"), (90_000, "25 h 00 min"), (200_000, "2 d 7 h")])
def test_durations(seconds: float, text: str) -> None:
    assert units.duration(seconds) == text


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("1d", 86_400)])
def test_lengths_of_time_as_people_type_them(text: str, seconds: float) -> None:
    assert parse_seconds(text, "--since") == seconds


@pytest.mark.parametrize("text", ["", "x", "-5", "5 weeks", "1e9"])
def test_what_is_no_length_of_time_is_refused_by_the_options_name(text: str) -> None:
    with pytest.raises(UsageError, match="--since"):
        parse_seconds(text, "--since")
