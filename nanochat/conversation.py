"""Conversations as tokens: who says what, and which tokens the assistant is trained on.

A conversation is ``{"messages": [{"role": "user"|"assistant"|"system", "content": …}, …]}``: user and assistant take turns,
a system message may come first and is merged into the first user message. The content of an assistant may be a list of
parts ``{"type": "text"|"python"|"python_output", "text": …}``: text, calls of the calculator, and its results.
"""

from typing import TYPE_CHECKING, Any

from nanochat.errors import BadData

if TYPE_CHECKING:
    from nanochat.tokenizer import Tokenizer

__all__ = ["check", "render", "render_prompt"]

_BRACKETS = {
    "user": ("<|user_start|>", "<|user_end|>"),
    "assistant": ("<|assistant_start|>", "<|assistant_end|>"),
    "python": ("<|python_start|>", "<|python_end|>"),
    "python_output": ("<|output_start|>", "<|output_end|>"),
}


def check(conversation: Any) -> list[dict[str, Any]]:
    """The messages of a conversation that is well formed, the system message merged into the first user message.

    Raises:
        BadData: Wrong shape, wrong order of roles, or an assistant turn without content; the message names the turn.
    """
    messages = conversation.get("messages") if isinstance(conversation, dict) else conversation
    if not isinstance(messages, list) or not messages:
        raise BadData("a conversation needs a list of messages")
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or "role" not in message or "content" not in message:
            raise BadData(f"message {i} has no role and content")
    messages = _merge_system(messages)
    for i, message in enumerate(messages):
        expected = "user" if i % 2 == 0 else "assistant"
        if message["role"] != expected:
            raise BadData(f"message {i} is from {message['role']!r}, it has to be from {expected!r}")
        _check_content(i, message)
    return messages


def _merge_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if messages[0]["role"] != "system":
        return messages
    if len(messages) < 2 or messages[1]["role"] != "user":
        raise BadData("a system message must be followed by a user message")
    if not isinstance(messages[0]["content"], str) or not isinstance(messages[1]["content"], str):
        raise BadData("system and user messages are plain text")
    first = {**messages[1], "content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}
    return [first, *messages[2:]]


def _check_content(i: int, message: dict[str, Any]) -> None:
    content = message["content"]
    if isinstance(content, str):
        if message["role"] == "assistant" and not content:
            raise BadData(f"message {i}: the assistant says nothing")
        return
    if message["role"] != "assistant" or not isinstance(content, list) or not content:
        raise BadData(f"message {i}: content has to be text" + (" or a list of parts" if message["role"] == "assistant" else ""))
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in ("text", "python", "python_output"):
            raise BadData(f"message {i}: a part has to be of type text, python or python_output")
        if not isinstance(part.get("text"), str):
            raise BadData(f"message {i}: a part has no text")
    if not any(part["text"] for part in content if part["type"] != "python_output"):
        raise BadData(f"message {i}: the assistant says nothing")


class _Writer:
    """Collects token ids and, for each, whether it is trained on."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        self.mask: list[int] = []

    def special(self, name: str, trained: int) -> None:
        self.ids.append(self.tokenizer.encode_special(name))
        self.mask.append(trained)

    def text(self, text: str, trained: int) -> None:
        tokens = self.tokenizer.encode(text)
        self.ids.extend(tokens)
        self.mask.extend([trained] * len(tokens))

    def bracketed(self, kind: str, text: str, trained: int) -> None:
        start, end = _BRACKETS[kind]
        self.special(start, trained)
        self.text(text, trained)
        self.special(end, trained)

    def assistant(self, content: str | list[dict[str, str]]) -> None:
        start, end = _BRACKETS["assistant"]
        self.special(start, 0)
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if part["type"] == "text":
                self.text(part["text"], 1)
            else:  # the model writes the call; the result comes from the calculator and is never to be learnt
                self.bracketed(part["type"], part["text"], int(part["type"] == "python"))
        self.special(end, 1)


def render(tokenizer: "Tokenizer", conversation: Any, max_tokens: int | None = None) -> tuple[list[int], list[int]]:
    """Token ids and loss mask of a conversation, equally long.

    The mask is 1 on what the assistant has to produce: its text, its calls with their brackets, and the end of its turn;
    0 on everything else. What exceeds max_tokens is cut off here, so that nothing downstream meets a row that cannot be placed.

    Raises:
        BadData: The conversation is not well formed.
    """
    writer = _Writer(tokenizer)
    writer.special("<|bos|>", 0)
    for message in check(conversation):
        if message["role"] == "user":
            writer.bracketed("user", message["content"], 0)
        else:
            writer.assistant(message["content"])
        if max_tokens is not None and len(writer.ids) >= max_tokens:
            break
    return writer.ids[:max_tokens], writer.mask[:max_tokens]


def render_prompt(tokenizer: "Tokenizer", conversation: Any) -> list[int]:
    """Token ids of a conversation up to and with the start of the assistant's next turn; a last assistant message is left out."""
    messages = check(conversation)
    if messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    ids, _ = render(tokenizer, {"messages": messages})
    return [*ids, tokenizer.encode_special("<|assistant_start|>")]
