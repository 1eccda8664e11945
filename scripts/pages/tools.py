"""Tables of flags in docs/tools, and man pages made of these pages, which the wheel installs."""

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from pyqd.primitives.goflags import Flag, declared_flags

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "tools"
MAN = ROOT / "man"
BEGIN, END = "<!-- flags -->\n", "<!-- end of flags -->\n"
FLAG_COLUMNS = "| flag | value | default | meaning |\n| --- | --- | --- | --- |\n"

REPEATED = ", may be repeated"
# Sections that are only on the web.
LEFT_OUT = ("Speed", "Tests")


def pages() -> list[Path]:
    """Return the pages of tools."""
    return sorted(path for path in PAGES.glob("*.md") if path.stem != "README")


# Tables of flags.


def flags_of(tool: str) -> tuple[Flag, ...]:
    """Return the flags of a tool by name."""
    found = vars(importlib.import_module(f"pyqd.tools.{tool}")).items()
    options = next(value for name, value in found if name.endswith("Options") and name != "ToolOptions")
    return tuple(sorted(declared_flags(options), key=lambda flag: flag.name))


def flag_row(flag: Flag) -> str:
    """Return a flag's line of the table."""
    kind = "" if flag.type.is_boolean else flag.type.usage_word
    default = flag.default_shown()
    dashes = "--" if len(flag.name) > 1 else "-"
    cells = [f"`{dashes}{flag.name}`", f"{kind}{REPEATED}" if flag.repeatable else kind]
    cells += [f"`{default}`" if default else "", flag.help.replace(" (may be given multiple times)", "")]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("<", "\\<") for cell in cells) + " |\n"


def with_flags(page: str, tool: str) -> str:
    """Return a page with the table of the tool's flags, if the page has a place for it."""
    if BEGIN not in page:
        return page
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return before + BEGIN + FLAG_COLUMNS + "".join(map(flag_row, flags_of(tool))) + END + after


# Man pages. Source: groff_man(7).


def escaped(text: str) -> str:
    """Return text for roff: no character of it is a request or an escape."""
    text = "".join(char if char.isascii() else f"\\[u{ord(char):04X}]" for char in text.replace("\\", "\\e"))
    text = text.replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return "\n".join(f"\\&{line}" if line.startswith(".") else line for line in text.split("\n"))


def inline(token: Token) -> str:
    """Return the text of a paragraph: code is bold, links are their words."""
    parts = []
    for child in token.children or ():
        if child.type == "code_inline":
            parts.append(f"\\fB{escaped(child.content)}\\fR")
        elif child.type == "softbreak":
            parts.append("\n")
        elif child.type == "text":
            parts.append(escaped(child.content))
    return "".join(parts)


def table_items(tokens: Iterator[Token]) -> str:
    """Return a table as a list of tagged paragraphs: the first cell is the tag."""
    rows: list[list[str]] = [[]]
    for token in tokens:
        if token.type == "table_close":
            break
        if token.type == "tr_close":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append(inline(token))
    header, *entries = [row for row in rows if row]
    lines = []
    for row in entries:
        if header == ["flag", "value", "default", "meaning"]:
            flag, kind, default, meaning = row
            word = f" \\fI{kind.removesuffix(REPEATED)}\\fR" if kind else ""
            repeated = " May be repeated." if kind.endswith(REPEATED) else ""
            lines.append(f".TP\n{flag}{word}\n{meaning}.{repeated}" + (f" Default: {default}." if default else ""))
        elif len(row) == 2:
            lines.append(f".TP\n{row[0]}\n{row[1]}")
        else:
            more = "\n.br\n".join(f"{name}: {cell}" for name, cell in zip(header[1:], row[1:], strict=True) if cell)
            lines.append(f".TP\n{row[0]}\n{more}")
    return "\n".join(lines)


def body(tokens: Sequence[Token]) -> list[str]:
    """Return the requests for the sections of a page."""
    lines: list[str] = []
    is_left_out = in_list = False
    remaining = iter(tokens)
    for token in remaining:
        if token.type == "heading_open":
            title = next(remaining).content
            is_left_out = title in LEFT_OUT
            if not is_left_out and token.tag != "h1":
                lines.append(f".SH {title.upper()}" if token.tag == "h2" else f".SS {title}")
        elif token.type == "table_open":
            items = table_items(remaining)
            lines += [] if is_left_out else [items]
        elif is_left_out:
            continue
        elif token.type == "list_item_open":
            in_list = True
            lines.append(".IP \\(bu 2")
        elif token.type == "list_item_close":
            in_list = False
        elif token.type == "inline":
            # A picture has no text.
            if text := inline(token):
                lines += [text] if in_list else [".PP", text]
        elif token.type == "fence":
            lines += [".PP", ".in +4n", ".EX", escaped(token.content.rstrip("\n")), ".EE", ".in"]
    return lines


def man_page(tool: str, page: str) -> str:
    """Return the man page of a tool for its page of the documentation."""
    tokens = MarkdownIt().enable("table").parse(page)
    module = importlib.import_module(f"pyqd.tools.{tool}")
    text: str = getattr(module, "SYNOPSIS", module.__doc__ or tool)
    summary = text.partition("\n")[0].partition(". ")[0].rstrip(".")
    # Tools without a table of flags on their pages have commands with flags of their own.
    command = " \\fIcommand\\fR" if hasattr(module, "COMMANDS") or BEGIN not in page else ""
    others = [path.stem for path in pages() if path.stem != tool]
    lines = [
        f'.\\" Made by `make pages` from docs/tools/{tool}.md.',
        f'.TH {tool.upper()} 1 "" pyqd "pyqd\\(aqs tools"',
        ".SH NAME",
        f"{tool} \\- {escaped(summary[0].lower() + summary[1:])}",
        ".SH SYNOPSIS",
        f"\\fB{tool}\\fR{command} [\\fIflags\\fR]",
        ".SH DESCRIPTION",
        *body(tokens),
        ".SH SEE ALSO",
        ",\n".join(f".BR {name} (1)" for name in others).replace(",\n", " ,\n"),
    ]
    return "\n".join(lines) + "\n"


def files() -> Iterator[tuple[Path, str]]:
    """Yield each file with the text that it is to have."""
    for path in pages():
        page = with_flags(path.read_text(), path.stem)
        yield path, page
        yield MAN / f"{path.stem}.1", man_page(path.stem, page)
