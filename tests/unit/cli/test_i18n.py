"""The catalogue: compiled from what is in the repository, complete, and with the same placeholders."""

import string

from dev.translations import PO, collect, compile_mo, read_po
from nanochat.contract import describe
from nanochat_npu.explain.ended import explain_code
from nanochat_npu.i18n import language, set_language


def test_the_mo_file_is_the_po_file() -> None:
    assert PO.with_suffix(".mo").read_bytes() == compile_mo(read_po()), "run: python dev/translations.py"


CORE = ("spec/", "main.py", "options.py", "yaml_source.py", "load.py", "origins.py", "site.py", "commands/init.py", "commands/validate.py", "commands/config.py")


def test_the_texts_that_everybody_meets_are_translated() -> None:
    """Specs, their mistakes, help: complete. The tool lists what is missing elsewhere."""
    entries = read_po()
    missing = [text for text, module in collect().items() if module.startswith(CORE) and not entries.get(text)]
    assert missing == [], "run: python dev/translations.py"


def _fields(text: str) -> list[str]:
    try:
        return sorted(name for _literal, name, _spec, _conversion in string.Formatter().parse(text) if name is not None)
    except ValueError:  # a text with braces that is never formatted
        return []


def test_translations_keep_the_placeholders() -> None:
    wrong = {text: translated for text, translated in read_po().items() if translated and _fields(text) != _fields(translated)}
    assert wrong == {}


def test_the_language_follows_the_locale() -> None:
    assert language({"LANG": "zh_CN.UTF-8"}) == "zh"
    assert language({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}) == "en"
    assert language({"LANG": "de_DE", "NANOCHAT_NPU_LANG": "zh"}) == "zh"
    assert language({}) == "en"


def test_what_an_exit_code_means_is_said_in_the_chosen_language() -> None:
    try:
        set_language("zh")
        told = [explain_code(code, "x")[0] for code in range(256)]
        set_language("en")
        assert [explain_code(code, "x")[0] for code in range(256)] == [describe(code) for code in range(256)]
    finally:
        set_language("en")
    assert [text for text in told if text.isascii()] == []
    assert (told[65], told[137], told[1]) == ("数据缺失、无法读取或太少", "被信号 9 终止", "退出码 1")
