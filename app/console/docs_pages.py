"""The documentation, as a page of the console: what a problem links to must be there when the network is not.

Invariants: only Markdown files and drawings that came with this version are shown; HTML in them is text, not markup; a
heading's anchor is made as GitHub makes it, so that one link fits both.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi import Path as PathPart
from markdown_it import MarkdownIt
from markupsafe import Markup
from starlette.responses import FileResponse, Response

from app.console.errors import NotFound
from app.resources import resource

router = APIRouter(include_in_schema=False)
Name = Annotated[str, PathPart(max_length=64, pattern=r"^[a-z][a-z-]*(\.md|\.svg)?$")]


@router.get("/docs/{name}")
async def docs(request: Request, name: Name) -> Response:
    drawn = name.endswith(".svg")
    path = resource("docs") / (name if drawn else f"{name.removesuffix('.md')}.md")
    if not path.is_file():
        raise NotFound(f"There is no page {name} in the documentation.", title="Unknown page")
    if drawn:
        return FileResponse(path, media_type="image/svg+xml")
    title, body = rendered(path, path.stat().st_mtime_ns)
    context = {"title": title, "body": Markup(body)}
    answer: Response = request.app.state.templates.TemplateResponse(request, "docs.html", context)
    return answer


@lru_cache(maxsize=16)
def rendered(path: Path, _changed_ns: int) -> tuple[str, str]:
    """(title, HTML) of a file."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(path.read_text(encoding="utf-8"))
    title = path.stem
    for one, inside in pairwise(tokens):
        if one.type == "heading_open":
            one.attrSet("id", anchor(inside.content))
            title = inside.content if one.tag == "h1" else title
    return title, str(markdown.renderer.render(tokens, markdown.options, {}))


def anchor(heading: str) -> str:
    """As GitHub makes them."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
