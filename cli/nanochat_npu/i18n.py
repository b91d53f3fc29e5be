"""English and Chinese texts from one gettext catalogue.

`_` looks a text up when it is called, so messages are translated at run time and modules may be imported before the
language is chosen. Source texts are English; ``locale/zh_CN/LC_MESSAGES/nanochat_npu.po`` holds the Chinese ones and is
compiled by ``dev/translations.py`` (a test holds the .mo equal to it).
"""

import gettext
import os
from pathlib import Path

__all__ = ["LANGUAGES", "_", "counted", "language", "set_language"]

LANGUAGES = ("en", "zh")

_LOCALE = Path(__file__).parent / "locale"
_state: dict[str, gettext.NullTranslations] = {}


def language(environ: dict[str, str] | None = None) -> str:
    """``zh`` if the environment's locale is Chinese, else ``en``; ``NANOCHAT_NPU_LANG`` wins."""
    env = os.environ if environ is None else environ
    for name in ("NANOCHAT_NPU_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        value = env.get(name)
        if value:
            return "zh" if value.lower().startswith("zh") else "en"
    return "en"


def set_language(lang: str) -> None:
    """Use this language (``en`` or ``zh``) from now on."""
    if lang == "zh":
        _state["t"] = gettext.translation("nanochat_npu", _LOCALE, ["zh_CN"], fallback=True)
    else:
        _state["t"] = gettext.NullTranslations()


def _(text: str) -> str:
    """The text in the chosen language; English where there is no translation."""
    if "t" not in _state:
        set_language(language())
    return _state["t"].gettext(text)


def counted(count: int, one: str, many: str) -> str:
    """The form that fits a count, with ``{n}`` filled in; both are translated texts, which in Chinese are alike."""
    return (one if count == 1 else many).format(n=count)
