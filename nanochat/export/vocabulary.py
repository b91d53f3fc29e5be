"""The tokenizer as ``tokenizer.json`` of the `tokenizers` library: the same ids for the same text.

That library wants merges, pairs of tokens in order; ours keeps the tokens alone, in the order in which they were merged. The pair of a
token is found by merging its bytes with the tokens before it. A vocabulary in which some token cannot be found so cannot be
held by that file, and is refused by the token's name.
"""

import json
from collections.abc import Mapping
from typing import Any

from nanochat.errors import BadData
from nanochat.tokenizer import Tokenizer

__all__ = ["CHAT_TEMPLATE", "tokenizer_config", "tokenizer_json"]

CHAT_TEMPLATE = (
    "{{- '<|bos|>' -}}{%- set shift = namespace(system='') -%}{%- for message in messages -%}"
    "{%- if message.content is not string -%}{{ raise_exception('content has to be text') }}{%- endif -%}"
    "{%- if message.role == 'system' -%}{%- set shift.system = message.content + '\\n\\n' -%}"
    "{%- elif message.role == 'user' -%}{{- '<|user_start|>' + shift.system + message.content + '<|user_end|>' -}}{%- set shift.system = '' -%}"
    "{%- elif message.role == 'assistant' -%}{{- '<|assistant_start|>' + message.content + '<|assistant_end|>' -}}"
    "{%- else -%}{{ raise_exception('there is no role ' + message.role) }}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant_start|>' -}}{%- endif -%}"
)
"""Conversations as `nanochat.conversation.render` writes them, calls of the calculator left aside."""


def _byte_names() -> dict[int, str]:
    """A printable character for every byte, as GPT-2's ``encoder.py`` and the library's ByteLevel map them."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


NAMES = _byte_names()


def _named(token: bytes) -> str:
    return "".join(NAMES[byte] for byte in token)


def _pair(token: bytes, ranks: Mapping[bytes, int]) -> tuple[bytes, bytes]:
    """The two tokens that were merged into this one.

    Raises:
        BadData: The tokens before it do not lead to a pair.
    """
    parts, limit = [token[i : i + 1] for i in range(len(token))], ranks[token]
    while len(parts) > 2:
        found = [(ranks.get(parts[i] + parts[i + 1], limit), i) for i in range(len(parts) - 1)]
        rank, at = min(found)
        if rank >= limit:
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    if len(parts) != 2:
        raise BadData(
            f"tokenizer.json cannot hold token {limit} ({token!r}): no two earlier tokens merge into it", where="tokenizer",
            hint="export with --format safetensors, which keeps the tokenizer in our own format",
        )
    return parts[0], parts[1]


def tokenizer_json(tokenizer: Tokenizer) -> str:
    """Content of ``tokenizer.json``.

    Raises:
        BadData: It cannot hold this vocabulary; the token is named.
    """
    ranks = {token: rank for rank, token in enumerate(tokenizer.vocabulary)}
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise BadData(f"tokenizer.json cannot hold a vocabulary without byte {missing[0]:#04x}", where="tokenizer")
    merges = [list(map(_named, _pair(token, ranks))) for token in tokenizer.vocabulary if len(token) > 1]
    bos = tokenizer.bos_id
    special = {"normalized": False, "special": True, "single_word": False, "lstrip": False, "rstrip": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    record: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [{"id": number, "content": name, **special} for name, number in tokenizer.special_tokens.items()],
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Split", "pattern": {"Regex": tokenizer.pattern}, "behavior": "Isolated", "invert": False}, byte_level],
        },
        "post_processor": {
            "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|bos|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": "<|bos|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [bos], "tokens": ["<|bos|>"]}},
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
            "byte_fallback": False, "ignore_merges": True, "vocab": {_named(token): rank for token, rank in ranks.items()}, "merges": merges,
        },
    }
    return json.dumps(record, ensure_ascii=False)


def tokenizer_config(tokenizer: Tokenizer, context: int) -> dict[str, Any]:
    """Content of ``tokenizer_config.json``."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>", "eos_token": "<|assistant_end|>", "pad_token": "<|bos|>",
        "padding_side": "right", "model_max_length": context, "clean_up_tokenization_spaces": False, "chat_template": CHAT_TEMPLATE,
        "additional_special_tokens": [name for name in tokenizer.special_tokens if name not in ("<|bos|>", "<|assistant_end|>")],
    }
