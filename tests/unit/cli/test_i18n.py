"""The catalogue: compiled from what is in the repository, complete, and with the same placeholders."""

import string

from dev.translations import PO, collect, compile_mo, read_po
from nanochat_npu.i18n import language


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
