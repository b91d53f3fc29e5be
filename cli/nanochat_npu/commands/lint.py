"""``lint``: anyone's Volcano and Ascend YAML."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from nanochat_npu import console
from nanochat_npu.errors import SpecSyntaxError, UsageError
from nanochat_npu.i18n import _, counted
from nanochat_npu.lint import Finding, Severity, apply_fixes, lint_text, to_sarif
from nanochat_npu.writing import write_result

__all__ = ["command"]


class LintFormat(StrEnum):
    """Forms of the findings."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"


_SUFFIXES = (".yaml", ".yml")
FilesArgument = Annotated[list[Path], typer.Argument(metavar="FILE…", help=_("YAML files, or folders of them; - reads from a pipe."), show_default=False)]
FixOption = Annotated[bool, typer.Option("--fix", help=_("Mend in place what can be mended for certain."))]
StrictOption = Annotated[bool, typer.Option("--strict", help=_("End with 3 on warnings too."))]
FormatOption = Annotated[LintFormat, typer.Option("--output", "-o", help=_("Form of the findings."))]


def command(files: FilesArgument, fix: FixOption = False, strict: StrictOption = False, output: FormatOption = LintFormat.TEXT) -> None:
    """Check Volcano jobs for Ascend: what hangs, what is silently ignored, what fails after an hour."""
    found: dict[str, list[Finding]] = {}
    jobs = mended = 0
    for file in _yaml_files(files):
        name, text = str(file), _read(file)
        if fix and name != "-":
            changed, done = apply_fixes(text, name)
            mended += len(done)
            if changed != text:
                write_result(file, changed, where="--fix")
                text = changed
        found[name], count = lint_text(text, name)
        jobs += count
    _show(found, jobs, mended, output)
    bad = [f for listed in found.values() for f in listed if strict or f.severity is Severity.ERROR]
    if bad:
        raise typer.Exit(3)


def _yaml_files(given: list[Path]) -> list[Path]:
    """The files to look at: of a folder those that are YAML by name, and of what was named beside others (``out/*``) the same."""
    chosen: list[Path] = []
    for path in given:
        if str(path) != "-" and path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES and file.is_file())
            if not inside and len(given) == 1:
                raise UsageError(_("no YAML file is in this folder"), where=str(path))
            chosen += inside
        elif len(given) > 1 and str(path) != "-" and path.is_file() and path.suffix not in _SUFFIXES:
            console.say(_("{file} is left out: it is not YAML by its name").format(file=path))
        else:
            chosen.append(path)
    return list(dict.fromkeys(chosen))


def _read(file: Path) -> str:
    try:
        return typer.get_text_stream("stdin").read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecSyntaxError(_("is not text"), where=str(file)) from error
    except OSError as error:
        raise UsageError(_("cannot be read: {reason}").format(reason=error.strerror), where=str(file)) from error


def _show(found: dict[str, list[Finding]], jobs: int, mended: int, output: LintFormat) -> None:
    listed = [(name, finding) for name, findings in found.items() for finding in findings]
    if output is LintFormat.SARIF:
        console.data(json.dumps(to_sarif(found), ensure_ascii=False, indent=2))
        return
    if output is LintFormat.JSON:
        console.json_data({"jobs": jobs, "fixed": mended, "findings": [{"file": name, **finding.as_json()} for name, finding in listed]})
        return
    for name, finding in listed:
        console.data(f"{name}:{finding.line}:{finding.column}: {_level(finding)} {finding.rule}: {finding.message}")
        if finding.hint:
            console.data("  " + _("hint: {text}").format(text=finding.hint))
    errors = sum(finding.severity is Severity.ERROR for _name, finding in listed)
    fixable = sum(finding.fix is not None for _name, finding in listed)
    if jobs == 0:
        console.say(_("no Volcano job was found"))
    warnings = len(listed) - errors
    console.say(_("{jobs}, {errors}, {warnings}, {fixed} mended").format(
        jobs=counted(jobs, _("{n} job"), _("{n} jobs")), errors=counted(errors, _("{n} error"), _("{n} errors")),
        warnings=counted(warnings, _("{n} warning"), _("{n} warnings")), fixed=mended,
    ))
    if fixable:
        console.say(_("next: nanochat-npu lint --fix mends {n} of them").format(n=fixable))


def _level(finding: Finding) -> str:
    return _("error") if finding.severity is Severity.ERROR else _("warning")
