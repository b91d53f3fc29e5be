"""One file per command; `main.COMMANDS` names them. A module has either a function ``command`` or a Typer ``app``."""
