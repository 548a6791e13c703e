"""Write the table of command-line options from the fields of the config (`make tables`).

`tacit run --help` needs the type and the help text of every option, but importing the config would import torch. So
the table is a generated module, and a test compares it with the fields.
"""

from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from tacit.runs import config as configs
from tacit.runs.config import Config
from tacit.runs.settings import settings

TABLE = Path(__file__).parent.parent / "src/tacit/cli/option_table.py"
# The method is a table of settings that depend on its name, so no field documents the name alone.
METHOD = "Method, or method+objective; see `tacit ls methods`."
HEAD = '''"""Type and help text of every option that stands for a setting.

Generated from the fields of the config by `make tables`: edit the fields, not this file.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """An option of `tacit run`."""

    path: str  # the setting it stands for, by its dotted name
    kind: type[str] | type[int] | type[float]
    help: str


TABLE = {
'''


def rendered() -> str:
    """The module as it should be."""
    return HEAD + "".join(f"    {_entry(name, path)}\n" for name, path in configs.OPTIONS.items()) + "}\n"


def _entry(name: str, path: str) -> str:
    kind, text = (str, METHOD) if path == "method.name" else described(path)
    entry = f'"{name}": Option("{path}", {kind.__name__}, {_quoted(text)}),'
    if len(entry) <= 116:
        return entry
    return f'"{name}": Option(\n        "{path}",\n        {kind.__name__},\n        {_quoted(text)},\n    ),'


def described(path: str) -> tuple[type, str]:
    """The plain type of a setting, and its comment as a sentence, with the words it may be."""
    section, _, name = path.rpartition(".")
    kind = configs.SECTION_TYPES[section] if section else Config
    (setting,) = (item for item in settings(kind) if item.name == name)
    words = f": {', '.join(setting.words)}" if setting.words and setting.words[0] not in setting.comment else ""
    text = f"{setting.comment}{words}"
    return plain_type(get_type_hints(kind, include_extras=True)[name]), _sentence(text)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + ("" if text.endswith("…") else ".")


def plain_type(hint: Any) -> type:
    """The type a word of the command line is converted to: int, float or str."""
    if get_origin(hint) is Annotated:
        return plain_type(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        (inner,) = {plain_type(part) for part in get_args(hint) if part is not NoneType}
        return inner
    if get_origin(hint) is Literal:
        return str
    if hint in (str, int, float):
        return cast(type, hint)
    raise TypeError(f"no option can be of type {hint}")


def _quoted(text: str) -> str:
    return "'" + text + "'" if '"' in text else f'"{text}"'


if __name__ == "__main__":
    TABLE.write_text(rendered(), encoding="utf-8")
