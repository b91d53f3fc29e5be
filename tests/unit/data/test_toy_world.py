"""The tiny world: complete, closed, the same everywhere, and nothing of what is held out is shown."""

import re

from nanochat.data import toy
from nanochat.tasks.toy import facts, held_out_sums, sums


def test_all_hundred_sums_and_all_forty_facts_are_scored() -> None:
    assert len(sums()) == len({q for q, _ in toy.single_digit_sums()}) == 100
    assert len(facts()) == len({q for q, _ in toy.facts()}) == 40
    assert ("What is 7 + 8?", "7 + 8 = 15.") in toy.single_digit_sums()


def test_every_question_has_one_answer_in_all_texts() -> None:
    known = dict(toy.facts())
    for text in toy.documents(3, 2000):
        for question, answer in re.findall(r"(What [a-z]+ [A-Z]\w+\?|Where .*?\?|What does .*?\?) (.*)", text):
            assert known[question] == answer
        assert all(int(a) + int(b) == int(c) for a, b, c in re.findall(r"(\d+) \+ (\d+) = (\d+)", text))


def test_held_out_sums_are_never_shown() -> None:
    shown = {
        (int(a), int(b))
        for text in [*toy.documents(42, 6000), *(str(c) for c in toy.conversations(42, 4000))]
        for a, b in re.findall(r"(\d+) \+ (\d+)", text)
    }
    held = {tuple(map(int, re.findall(r"\d+", question))) for question, _ in toy.held_out_sums()}
    assert len(held) == len(held_out_sums()) > 100 and not held & shown
    assert {(a, b) for a in range(10) for b in range(10)} <= shown


def test_equal_seeds_give_equal_texts_and_other_seeds_others() -> None:
    assert toy.documents(1, 50) == toy.documents(1, 50) != toy.documents(2, 50)
    assert toy.conversations(1, 50) == toy.conversations(1, 50) != toy.conversations(2, 50)
    assert toy.documents(1, 80)[:50] == toy.documents(1, 50)


def test_texts_are_pinned_so_that_figures_can_be_repeated() -> None:
    assert toy.documents(42, 2)[0].startswith(("It was", "What", "Where")) or toy.documents(42, 2)[0][0].isalnum()
    assert toy.conversations(42, 1)[0]["messages"][0] == {"role": "user", "content": "What is 7 + 6?"}


def test_conversations_show_every_sum_and_fact_about_equally_often() -> None:
    asked = [m["content"] for c in toy.conversations(5, 3600) for m in c["messages"] if m["role"] == "user"]
    counts = [asked.count(question) for question, _ in [*toy.single_digit_sums(), *toy.facts()]]
    assert min(counts) > 15 and max(counts) < 60
