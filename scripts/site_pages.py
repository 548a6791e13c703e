"""Pages of the documentation site that are generated from the code: the methods, the commands, the settings.

MkDocs calls the functions whose names start with `on_` (`hooks` in mkdocs.yml). There are no lists to maintain: every
page in `docs/methods` is in the menu, every method in the list, every setting in its table.

As a program (`make tables`), it fills the table in docs/choosing.md, which people also read as plain text.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tacit.cli import app
from tacit.method import Needs, Variant
from tacit.objectives import OBJECTIVES
from tacit.runs import registry
from tacit.runs.config import Config
from tacit.runs.settings import settings as fields_of

CHOOSING = Path(__file__).parent.parent / "docs/choosing.md"
NEEDS = re.compile(r"(?<=^<!-- what each method needs -->\n).*?(?=^<!-- end of needs -->$)", re.MULTILINE | re.DOTALL)
WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text", Path: "path", NoneType: ""}
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace each folder in the menu by its pages."""
    made = [Path(name) for name in PAGES]
    config.nav = [expanded(entry, Path(config.docs_dir), made) for entry in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for name, make in PAGES.items():
        files.append(File.generated(config, name, content=make()))
    return files


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Remove the backslash before a | in a table's code: GitHub needs it, Python's Markdown would show it."""
    return re.sub(r"<td.*?</td>", lambda cell: cell[0].replace("\\|", "|"), html, flags=re.DOTALL)


def expanded(entry: Any, docs: Path, made: Iterable[Path] = ()) -> Any:
    """A menu entry; if it names a folder, such as `Methods: methods/`, with the pages of the folder, index first."""
    (title, target), *_ = entry.items()
    if not isinstance(target, str) or not target.endswith("/"):
        return entry
    pages = {path.relative_to(docs) for path in docs.glob(f"{target}*.md")}
    pages |= {path for path in made if path.parent == Path(target)}
    order = sorted(pages, key=lambda path: (path.stem not in ("README", "index"), path.stem))
    return {title: [path.as_posix() for path in order]}


def methods_page() -> str:
    """Every method in the package with its description, linked to its page."""
    rows = [(page_link(name, variant), registry.sentence(variant)) for name, variant in registry.methods().items()]
    about = "The methods that `tacit ls methods` lists. Write `fedavg+fixmatch` to combine a method with an objective."
    return f"# Methods\n\n{about}\n\n{table(('method', 'what it is'), rows)}\n"


def page_link(name: str, variant: Variant, folder: str = "") -> str:
    """The name of a method, linked to the page named after its source file."""
    page = variant.kind.__module__.rpartition(".")[2].replace("_", "-")
    return f"[`{name}`]({folder}{page}.md)"


def with_needs(markdown: str) -> str:
    """The page, with the table of needs between its two markers."""
    return NEEDS.sub(lambda _: f"\n{needs_table()}\n\n", markdown)


def needs_table() -> str:
    """What each method requires."""
    rows = [(page_link(name, variant, "methods/"), needs(name)) for name, variant in registry.methods().items()]
    return table(("method", "requires"), rows)


def needs(name: str) -> str:
    """What a method needs, and what else if its objective learns only from labels."""
    _, objective = registry.method_kinds(name)
    if objective is None:
        return "; ".join(_needed(name)) or "labels anywhere"
    always, with_labels = _needed(f"{name}+fixmatch"), _needed(f"{name}+supervised")
    more = [need for need in with_labels if need not in always]
    also = f"with `+supervised` also: {'; '.join(more)}" if more else ""
    return "; ".join(filter(None, [*(always or ["labels anywhere"]), also]))


def _needed(name: str) -> list[str]:
    wanted = registry.build_method(name, {}, {}).needs
    return [item.comment for item in fields_of(Needs) if getattr(wanted, item.name)]


def settings_page() -> str:
    """Every section of a config, then the settings of every method and objective."""
    about = "For a config file, `--set section.name=value`, and `tacit.run`. At the top of the file:"
    return "\n".join([f"# Settings\n\n{about}\n", *_sections(), *_kinds(), ""])


def _sections() -> Iterator[str]:
    sections = {
        item.name: item.type for item in fields(Config) if isinstance(item.type, type) and is_dataclass(item.type)
    }
    yield settings_table(Config, "", hidden=[*sections, "method", "objective", "server"])
    for name, kind in sections.items():
        yield f"\n## [{name}]\n\n{registry.sentence(kind)}\n\n{settings_table(kind, f'{name}.')}"
    yield "\n## [server]\n\nSettings of `[train]` that differ at the server: " + _assigned(Config().server) + "."


def _kinds() -> Iterator[str]:
    kinds: dict[str, Mapping[str, type | Variant]] = {"method": registry.methods(), "objective": OBJECTIVES}
    for section, named in kinds.items():
        yield f"\n## [{section}]\n\nThe settings of each, as `tacit show` lists them."
        for name, kind in named.items():
            yield f"\n### {name}\n\n{settings_table(kind, f'{section}.', hidden=['objective'])}"


def settings_table(kind: type | Variant, prefix: str, hidden: Sequence[str] = ()) -> str:
    """The fields of a dataclass: name, possible values, default, and the comment behind each in the source."""
    variant = Variant.of(kind)
    hints = get_type_hints(variant.kind, include_extras=True)
    rows = [
        (f"`{prefix}{item.name}`", values(hints[item.name]), shown(item.default), item.comment)
        for item in registry.settings_of(kind)
        if item.name not in hidden
    ]
    if variant.presets:
        named = ", ".join(f"`{name}`" for name in variant.presets)
        rows.append((f"`{prefix}preset`", named, "", "several of these at once"))
    return table(("setting", "values", "default", "meaning"), rows) if rows else "It has no settings."


def _assigned(tree: Mapping[str, object]) -> str:
    return ", ".join(f"`{name} = {value}`" for name, value in tree.items())


def values(hint: Any) -> str:
    """What a setting of this type may be, in words."""
    match get_origin(hint):
        case _ if hint in WORDS:
            return WORDS[hint]
        case origin if origin is Literal:
            return ", ".join(f"`{choice}`" for choice in get_args(hint))
        case origin if origin is Annotated:
            base, *rules = get_args(hint)
            return f"{values(base)} {' '.join(map(_bounds, rules))}".strip()
        case origin if origin in (Union, UnionType):
            return " or ".join(filter(None, map(values, get_args(hint))))
        case _:
            return f"`{str(hint).replace('typing.', '')}`"


def _bounds(rule: Any) -> str:
    known = [(limit, name) for limit in getattr(rule, "metadata", ()) for name in BOUNDS if hasattr(limit, name)]
    return ", ".join(f"{BOUNDS[name]} {getattr(limit, name)}" for limit, name in known)


def shown(value: object) -> str:
    """A default as a config file has it; empty if there is none."""
    match value:
        case None:
            return ""
        case bool():
            return f"`{str(value).lower()}`"
        case _:
            return f"`{value}`"


def commands_page() -> str:
    """Every command of the program with its arguments and options."""
    about = "A mistake ends with one sentence on standard error and exit code 2. `-h` prints these texts."
    return "\n".join([f"# Command line\n\n{about}", *_commands(typer.main.get_command(app.app), "tacit"), ""])


def _commands(command: Any, path: str) -> Iterator[str]:
    inner = getattr(command, "commands", {})
    yield f"\n## {path}\n\n```\n{usage(command, path)}\n```\n\n{command.help}\n"
    rows = [(_spelled(item), _default(item), item.help or "") for item in command.params if not item.hidden]
    yield table(("option", "default", "meaning"), rows) if rows else ""
    for name, each in inner.items():
        yield from _commands(each, f"{path} {name}")


def usage(command: Any, path: str) -> str:
    """How a command is called: `tacit run [OPTIONS] [CONFIG]`."""
    arguments = [item for item in command.params if not _is_option(item)]
    names = [f"{item.name.upper()}{'…' if item.nargs < 0 else ''}" for item in arguments]
    words = [name if item.required else f"[{name}]" for name, item in zip(names, arguments, strict=True)]
    if getattr(command, "commands", {}):
        words.append("COMMAND …")
    return " ".join([path, "[OPTIONS]", *words])


def _is_option(item: Any) -> bool:
    return bool(item.opts[0].startswith("-"))


def _spelled(item: Any) -> str:
    """An option as it is typed, such as `--quiet`, `-q`, with the name of its value if that has one."""
    if not _is_option(item):
        return f"`{item.name.upper()}`"
    rest = f" {item.metavar}" if item.metavar else ""
    return ", ".join(f"`{name}{rest}`" for name in item.opts)


def _default(item: Any) -> str:
    return "required" if item.required else shown(item.default or None)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


# The generated pages, by their path in docs/.
PAGES = {
    "methods/index.md": methods_page,
    "reference/commands.md": commands_page,
    "reference/settings.md": settings_page,
}

if __name__ == "__main__":
    CHOOSING.write_text(with_needs(CHOOSING.read_text(encoding="utf-8")), encoding="utf-8")
