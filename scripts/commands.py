"""Writes docs/commands.md: every command with its arguments and options, as the code declares them."""

from pathlib import Path
from typing import Any

from typer.main import get_command

from fusebert.cli.call import app

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
_HEAD = """# Commands
Written by `python scripts/commands.py`; `fusebert COMMAND --help` tells the same. Exit codes: 0 done, 1 the answers
differ, 2 something that can be mended, 70 a defect, 130 interrupted.
"""


def page() -> str:
    """The whole page."""
    group: Any = get_command(app)
    return _HEAD + "".join(_command(name, group.commands[name]) for name in sorted(group.commands))


def _command(name: str, command: Any) -> str:
    arguments = " ".join(_argument(one) for one in command.params if one.param_type_name == "argument")
    lines = [f"\n## {name}\n", f"    fusebert {name} {arguments}\n\n", f"{_sentence(command.help)}\n"]
    if command.epilog:
        lines.append(f"\n    {command.epilog.removeprefix('Example: ')}\n")
    rows = [(_flags(one), one.help or "") for one in command.params if one.param_type_name == "option"]
    rows = [
        (f"`{_argument(one)}`", one.help) for one in command.params if one.param_type_name == "argument" and one.help
    ] + rows
    lines.append("\n| | |\n|---|---|\n")
    lines += [f"| {flags} | {_sentence(text)} |\n" for flags, text in rows]
    return "".join(lines)


def _argument(one: Any) -> str:
    many = "..." if one.nargs == -1 else ""
    return f"{one.name.upper()}{many}" if one.required else f"[{one.name.upper()}{many}]"


def _flags(one: Any) -> str:
    return ", ".join(f"`{flag}`" for flag in (*one.opts, *one.secondary_opts))


def _sentence(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    PAGE.write_text(page())
