"""Collects the texts that the command line shows to people, and compiles the Chinese catalogue: ``python dev/translations.py``.

Texts are literals in ``_("...")``, and a few that are data: lines of ``COMMANDS``, docstrings of commands (their help), the
first line of each preset, and descriptions of the spec's fields (hints).
"""

import ast
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["collect", "compile_mo", "main", "read_po", "write_po"]

_ROOT = Path(__file__).parents[1] / "cli" / "nanochat_npu"
PO = _ROOT / "locale" / "zh_CN" / "LC_MESSAGES" / "nanochat_npu.po"
_HEADER = (
    "Project-Id-Version: nanochat-npu\nLanguage: zh_CN\nMIME-Version: 1.0\nContent-Type: text/plain; charset=UTF-8\nContent-Transfer-Encoding: 8bit\n"
)


def collect() -> dict[str, str]:
    """Every text that is shown, and the module it stands in first."""
    texts: dict[str, str] = {}
    for path in sorted(_ROOT.rglob("*.py")):
        if path.name == "i18n.py":
            continue
        module = path.relative_to(_ROOT).as_posix()
        for text in _literals(ast.parse(path.read_text(encoding="utf-8")), is_command=path.parent.name == "commands"):
            texts.setdefault(text, module)
    for text in _data_texts():
        texts.setdefault(text, "data")
    return texts


def _literals(tree: ast.Module, *, is_command: bool) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_" and node.args:
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.value
        elif is_command and isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
            documented = ast.get_docstring(node)
            if documented and (node.name in ("command", "_config") or node.decorator_list):
                yield " ".join(documented.split())


def _data_texts() -> Iterator[str]:
    from nanochat_npu.main import COMMANDS
    from nanochat_npu.meanings import TEXTS
    from nanochat_npu.origins import Origin
    from nanochat_npu.presets import preset_names, preset_summary
    from nanochat_npu.spec.findings import SHAPES, known_paths, model_at

    for entry in COMMANDS.values():
        yield from (entry.panel, entry.help)
    yield from map(str, Origin)
    yield from map(preset_summary, preset_names())
    yield from SHAPES.values()
    yield from TEXTS
    for path in known_paths():
        *parents, last = path.split(".")
        model = model_at(tuple(parents))
        description = model.model_fields[last].description if model else None
        if description:
            yield description


def read_po(path: Path = PO) -> dict[str, str]:
    """Texts and translations of a catalogue, without its header; untranslated ones are ""."""
    entries: dict[str, str] = {}
    fields = {"msgid": "", "msgstr": ""}
    current = ""
    for line in [*path.read_text(encoding="utf-8").splitlines(), 'msgid ""']:
        keyword, _space, rest = line.partition(" ")
        if keyword == "msgid":
            if fields["msgid"]:
                entries[fields["msgid"]] = fields["msgstr"]
            fields = {"msgid": "", "msgstr": ""}
        if keyword in fields:
            current = keyword
            fields[current] += _unquote(rest)
        elif line.startswith('"'):
            fields[current] += _unquote(line)
    return entries


def _unquote(text: str) -> str:
    return str(ast.literal_eval(text))


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def write_po(entries: dict[str, str], modules: dict[str, str], path: Path = PO) -> None:
    """Write a catalogue, sorted by module so that a diff shows what a change of code did."""
    lines = ['msgid ""', 'msgstr ""', *(_quote(line) for line in _HEADER.splitlines(keepends=True)), ""]
    for text, module in sorted(modules.items(), key=lambda item: (item[1], item[0])):
        lines += [f"#: {module}", f"msgid {_quote(text)}", f"msgstr {_quote(entries.get(text, ''))}", ""]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines), encoding="utf-8")


def compile_mo(entries: dict[str, str]) -> bytes:
    """The catalogue in the binary form that gettext reads (GNU gettext manual, "The Format of GNU MO Files")."""
    pairs = sorted({"": _HEADER, **{text: translated for text, translated in entries.items() if translated}}.items(), key=lambda pair: pair[0].encode())
    ids = [text.encode() for text, _translated in pairs]
    strings = [translated.encode() for _text, translated in pairs]
    start = 28 + 16 * len(pairs)
    tables: list[tuple[int, int]] = []
    blob = b""
    for encoded in [*ids, *strings]:
        tables.append((len(encoded), start + len(blob)))
        blob += encoded + b"\0"
    header = struct.pack("<7I", 0x950412DE, 0, len(pairs), 28, 28 + 8 * len(pairs), 0, start)
    return header + b"".join(struct.pack("<2I", *entry) for entry in tables) + blob


def main() -> int:
    """Bring the catalogue up to date with the code, compile it, and list what has no translation; 1 if anything has none."""
    from nanochat_npu import console

    modules = collect()
    old = read_po() if PO.exists() else {}
    entries = {text: old.get(text, "") for text in modules}
    write_po(entries, modules)
    PO.with_suffix(".mo").write_bytes(compile_mo(entries))
    missing = [text for text, translated in entries.items() if not translated]
    for text in missing:
        console.data(f"{modules[text]}: {text}")
    console.say(f"{len(entries)} texts, {len(missing)} without a translation")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
