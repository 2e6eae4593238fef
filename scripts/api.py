"""Writes docs/api.md: the public names with their signatures and what they say of themselves, as the code has them."""

import inspect
import re
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
_HEAD = """# Reference of the Python API
Written by `python scripts/api.py` from the code; [In Python](python.md) shows how the parts are used. A public name is
imported when it is first used, so `import fusebert` costs next to nothing and needs no framework. `fusebert.tensorflow`
has [a page of its own](tensorflow-op.md).
"""
# What stands on the page, in its order: a title, the module, and its names (all that it says are public, if none).
_PARTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("fusebert", "fusebert", ()),
    ("What predict gives", "fusebert.engine.answers", ("Label", "Span")),
    ("Reports", "fusebert.report", ("Report", "Table")),
    ("Settings of embed", "fusebert.verbs.embed", ("Settings", "Place")),
    ("In PyTorch", "fusebert.torch", ()),
    ("In ONNX Runtime", "fusebert.onnxruntime", ("library", "session")),
    ("On Ray Serve", "fusebert.serve.ray", ("app",)),
)


def page() -> str:
    """The whole page."""
    return _HEAD + "".join(_part(title, import_module(module), names) for title, module, names in _PARTS)


def _part(title: str, module: Any, names: tuple[str, ...]) -> str:
    listed = names or tuple(sorted(module.__all__, key=lambda name: (name[0].isupper(), name)))
    prefix = "" if names and "." in module.__name__ and title[:3] != "In " else f"{module.__name__}."
    return f"\n## {title}\n" + "".join(_described(f"{prefix}{name}", getattr(module, name)) for name in listed)


def _described(name: str, thing: Any) -> str:
    if not inspect.isclass(thing):
        return _entry(name, thing) if callable(thing) else ""
    if issubclass(thing, Exception):
        return f"\n### {name}\n{_words(thing)}"
    if is_dataclass(thing):
        return f"\n### {name}\n{_code(f'{name}{_signature(thing)}')}{_words(thing)}"
    members = sorted(member for member in vars(thing) if not member.startswith("_"))
    return f"\n### {name}\n{_words(thing)}" + "".join(_member(name, thing, member) for member in members)


def _member(owner: str, thing: Any, name: str) -> str:
    found = inspect.getattr_static(thing, name)
    short = f"{owner.rpartition('.')[2]}.{name}"
    if isinstance(found, property):
        return f"\n#### {short}\n{_words(found.fget)}"
    return _entry(short, found, "####") if callable(found) else ""


def _entry(name: str, thing: Any, level: str = "###") -> str:
    return f"\n{level} {name}\n{_code(f'{name}{_signature(thing)}')}{_words(thing)}"


def _signature(thing: Any) -> str:
    """Parameters with their types and defaults, on one line or one under the other."""
    signature = inspect.signature(thing)
    kept = [p for p in signature.parameters.values() if p.name != "self"]
    signature = signature.replace(parameters=kept)
    parts = [str(p).replace("'", "") if p.default is p.empty else _plain(p) for p in kept]
    marked = _marked(kept, parts)
    end = "" if signature.return_annotation in (signature.empty, None) else f" -> {_type(signature.return_annotation)}"
    line = f"({', '.join(marked)}){end}"
    return line if len(line) < 90 else "(\n" + "".join(f"    {part},\n" for part in marked) + f"){end}"


def _marked(kept: list[inspect.Parameter], parts: list[str]) -> list[str]:
    """With the star that stands before parameters which are given by name only."""
    first = next((i for i, p in enumerate(kept) if p.kind is p.KEYWORD_ONLY), None)
    starred = any(p.kind is p.VAR_POSITIONAL for p in kept)
    return parts if first is None or starred else [*parts[:first], "*", *parts[first:]]


def _plain(parameter: inspect.Parameter) -> str:
    kind = "" if parameter.annotation is parameter.empty else f": {_type(parameter.annotation)}"
    default = re.sub(r"<factory>|<.*>", "...", repr(parameter.default))
    return f"{parameter.name}{kind} = {default}"


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _words(thing: Any) -> str:
    """What it says of itself. A line that begins with names of parameters becomes one of a list."""
    lines: list[str] = []
    for line in inspect.cleandoc(thing.__doc__ or "").splitlines():
        listed = re.sub(r"^([a-z_]+(?:, [a-z_]+)*): ", r"- **\1**: ", line)
        inside = bool(lines) and lines[-1].startswith(("- ", "  "))
        if listed != line and lines and lines[-1] and not inside:
            lines.append("")
        lines.append(f"  {line}" if inside and line and listed == line else listed)
    return "\n".join(lines) + "\n" if lines else ""


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page())
