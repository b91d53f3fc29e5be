"""Takes secrets out of texts before they leave the computer: by name, and by what secrets look like. Pure."""

import re

__all__ = ["MARK", "redact"]

MARK = "[redacted]"
# Names begin at a word's start and are short: without both bounds a megabyte of letters takes hours.
_NAME = r"(?<![A-Za-z0-9_.-])[A-Za-z0-9_.-]{0,64}?(?:token|secret|passw(?:or)?d|api[_-]?key|access[_-]?key|credential|authorization|private[_-]?key)[A-Za-z0-9_.-]{0,64}"
_ASSIGNED = re.compile(rf"""(?P<head>["']?{_NAME}["']?\s*[:=]\s*)(?P<value>"[^"\n]*"|'[^'\n]*'|[^\s,;}}\]]+(?:[ ]+[^\s,;}}\]]+)?)""", re.IGNORECASE)
_ENV_PAIR = re.compile(rf"""(?P<head>["']?name["']?\s*:\s*["']?{_NAME}["']?\s*,?\s*\n?\s*-?\s*["']?value["']?\s*:\s*)(?P<value>"[^"\n]*"|'[^'\n]*'|\S+)""", re.IGNORECASE)
_LOOKS = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16}|xox[abp]-[A-Za-z0-9-]{10,}|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,})"
)
_BEARER = re.compile(r"(?P<head>\bBearer\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_IN_URL = re.compile(r"(?P<head>://[^\s/:@]{1,256}:)[^\s/@]{1,512}(?=@)", re.IGNORECASE)
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)
_HARMLESS = re.compile(r"""^["']?(?:|null|none|true|false|\[redacted\]|\{.*|\[.*|\d{1,6})["']?$""", re.IGNORECASE)
_NOT_SECRET = re.compile(r"(?:tokens?_per|max_(?:new_)?tokens|_tokens\b|\btokens\b|tokenizer|token_bytes|secretKeyRef|secretName|eval_tokens|bytes_per_token|secret\b\s*:\s*[a-z])", re.IGNORECASE)


def redact(text: str) -> str:
    """The text without secrets; counts of tokens, names of secrets and references to them stay."""
    text = _PEM.sub(MARK, text)
    text = _LOOKS.sub(MARK, text)
    text = _BEARER.sub(rf"\g<head>{MARK}", text)
    text = _IN_URL.sub(rf"\g<head>{MARK}", text)
    text = _ENV_PAIR.sub(_hide, text)
    return _ASSIGNED.sub(_hide, text)


def _hide(match: re.Match[str]) -> str:
    head, value = match["head"], match["value"]
    if _HARMLESS.match(value) or _NOT_SECRET.search(head):
        return match[0]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{head}{quote}{MARK}{quote}"
