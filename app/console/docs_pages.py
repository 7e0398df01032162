"""The documentation, as a page of the console: what a problem links to must be there when the network is not.

Invariants: only Markdown files and drawings that came with this version are shown; HTML in them is text, not markup; a
heading's anchor is made as GitHub makes it, and a link from file to file leads to that file's page, so that one link
fits both.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final

from fastapi import APIRouter, Request
from fastapi import Path as PathPart
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup
from starlette.responses import FileResponse, Response

from app.console.drawing import page
from app.console.errors import NotFound
from app.resources import resource

router = APIRouter(include_in_schema=False)
Name = Annotated[str, PathPart(max_length=64, pattern=r"^[A-Za-z][a-zA-Z-]*(\.md|\.svg)?$")]
# What an operator looks for first; the rest follows by its title.
FIRST: Final = ("problems", "operations", "notifications", "people", "audits")
AT_THE_TOP: Final = ("ARCHITECTURE.md",)  # in a checkout it lies beside the folder, in a wheel in it


@router.get("/docs")
async def contents(request: Request) -> Response:
    """Every page by its title."""
    found = {path.stem: rendered(path, path.stat().st_mtime_ns)[0] for path in resource("docs").glob("*.md")}
    found |= {path.stem: rendered(path, path.stat().st_mtime_ns)[0] for path in map(file_of, AT_THE_TOP)}
    rest = sorted(found.keys() - set(FIRST), key=lambda name: found[name].lower())
    context = {"pages": [(name, found[name]) for name in (*FIRST, *rest) if name in found]}
    return page(request, "docs_contents", context)


@router.get("/docs/{name}")
async def docs(request: Request, name: Name) -> Response:
    drawn = name.endswith(".svg")
    path = file_of(name if drawn else f"{name.removesuffix('.md')}.md")
    if not path.is_file():
        raise NotFound(f"There is no page {name} in the documentation.", title="Unknown page")
    if drawn:
        return FileResponse(path, media_type="image/svg+xml")
    title, body = rendered(path, path.stat().st_mtime_ns)
    context = {"title": title, "body": Markup(body)}
    return page(request, "docs", context)


def file_of(name: str) -> Path:
    folder = resource("docs")
    beside = folder.parent / name
    return beside if name in AT_THE_TOP and beside.is_file() else folder / name


@lru_cache(maxsize=64)
def rendered(path: Path, _changed_ns: int) -> tuple[str, str]:
    """(title, HTML) of a file."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(path.read_text(encoding="utf-8"))
    title = path.stem
    for one, inside in pairwise(tokens):
        if one.type == "heading_open":
            one.attrSet("id", anchor(inside.content))
            title = inside.content if one.tag == "h1" else title
    for one in tokens:
        for part in one.children or ():
            lead_to_page(part)
    return title, str(markdown.renderer.render(tokens, markdown.options, {}))


def lead_to_page(part: Token) -> None:
    """A link to another file, or a drawing, by its place in the repository: all pages lie side by side here."""
    name = {"link_open": "href", "image": "src"}.get(part.type)
    target = str(part.attrGet(name) or "") if name is not None else ""
    if name is None or not target or target.startswith("#") or ":" in target:
        return
    path, hash_sign, where = target.partition("#")
    part.attrSet(name, f"/docs/{path.rpartition('/')[2].removesuffix('.md')}{hash_sign}{where}")


def anchor(heading: str) -> str:
    """As GitHub makes them."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
