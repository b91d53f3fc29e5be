"""Conversations as tokens: the mask token by token, truncation, and what is refused with its place."""

import pytest

from nanochat.conversation import check
from nanochat.errors import BadData
from nanochat.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["one two three"], 265)  # one token a byte: every token can be seen


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def assistant(content) -> dict:
    return {"role": "assistant", "content": content}


def shown(tokenizer: Tokenizer, messages: list) -> list[tuple[str, int]]:
    ids, mask = tokenizer.render_conversation({"messages": messages})
    return [(tokenizer.decode([token]), trained) for token, trained in zip(ids, mask, strict=True)]


def test_mask_of_two_turns_token_by_token(tokenizer: Tokenizer) -> None:
    assert shown(tokenizer, [user("a"), assistant("bc"), user("d"), assistant("e")]) == [
        ("<|bos|>", 0),
        ("<|user_start|>", 0), ("a", 0), ("<|user_end|>", 0),
        ("<|assistant_start|>", 0), ("b", 1), ("c", 1), ("<|assistant_end|>", 1),
        ("<|user_start|>", 0), ("d", 0), ("<|user_end|>", 0),
        ("<|assistant_start|>", 0), ("e", 1), ("<|assistant_end|>", 1),
    ]


def test_calls_are_learnt_and_their_results_are_not(tokenizer: Tokenizer) -> None:
    parts = [
        {"type": "text", "text": "x"}, {"type": "python", "text": "1+1"}, {"type": "python_output", "text": "2"}, {"type": "text", "text": "y"},
    ]
    assert shown(tokenizer, [user("q"), assistant(parts)])[4:] == [
        ("<|assistant_start|>", 0), ("x", 1),
        ("<|python_start|>", 1), ("1", 1), ("+", 1), ("1", 1), ("<|python_end|>", 1),
        ("<|output_start|>", 0), ("2", 0), ("<|output_end|>", 0),
        ("y", 1), ("<|assistant_end|>", 1),
    ]


def test_a_system_message_joins_the_first_user_message(tokenizer: Tokenizer) -> None:
    messages = [{"role": "system", "content": "S"}, user("u"), assistant("a")]
    assert check({"messages": messages})[0] == user("S\n\nu")
    assert messages[1] == user("u")  # the caller's conversation stays as it was


def test_truncation_cuts_ids_and_mask_alike(tokenizer: Tokenizer) -> None:
    whole, mask = tokenizer.render_conversation({"messages": [user("abc"), assistant("defg")]})
    for limit in range(1, len(whole) + 3):
        assert tokenizer.render_conversation({"messages": [user("abc"), assistant("defg")]}, limit) == (whole[:limit], mask[:limit])


def test_prompt_ends_where_the_assistant_begins(tokenizer: Tokenizer) -> None:
    expected = tokenizer.render_conversation({"messages": [user("a"), assistant("b")]})[0][:5]
    assert tokenizer.render_for_completion({"messages": [user("a"), assistant("b")]}) == expected
    assert tokenizer.render_for_completion({"messages": [user("a")]}) == expected


@pytest.mark.parametrize(("conversation", "told"), [
    ({}, "list of messages"), ({"messages": []}, "list of messages"), ("text", "list of messages"), (None, "list of messages"),
    ({"messages": [assistant("a")]}, "message 0 is from 'assistant'"),
    ({"messages": [user("a"), user("b")]}, "message 1 is from 'user'"),
    ({"messages": [user("a"), {"role": "tool", "content": "b"}]}, "message 1 is from 'tool'"),
    ({"messages": [user("a"), assistant("")]}, "message 1: the assistant says nothing"),
    ({"messages": [user("a"), assistant([])]}, "message 1: content"),
    ({"messages": [user("a"), assistant([{"type": "text", "text": ""}])]}, "message 1: the assistant says nothing"),
    ({"messages": [user("a"), assistant([{"type": "python_output", "text": "7"}])]}, "message 1: the assistant says nothing"),
    ({"messages": [user(["a"]), assistant("b")]}, "message 0: content"),
    ({"messages": [user("a"), assistant([{"type": "image", "text": "b"}])]}, "message 1: a part"),
    ({"messages": [user("a"), assistant([{"type": "text"}])]}, "message 1: a part has no text"),
    ({"messages": [user("a"), {"role": "assistant"}]}, "message 1 has no role and content"),
    ({"messages": [{"role": "system", "content": "s"}]}, "system message must be followed"),
])
def test_what_is_not_a_conversation_is_refused_with_its_turn(tokenizer: Tokenizer, conversation, told: str) -> None:
    with pytest.raises(BadData, match=told):
        tokenizer.render_conversation(conversation)
