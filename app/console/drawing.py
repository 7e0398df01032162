"""What the routes of the pages answer with: a page drawn from its template, or another page to go on to."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response


def page(request: Request, name: str, context: Mapping[str, object], status: int = 200) -> Response:
    """`name`: of the template, with its folder and without `.html`."""
    answer: Response = request.app.state.templates.TemplateResponse(
        request, f"{name}.html", dict(context), status_code=status
    )
    return answer


def see(path: str) -> RedirectResponse:
    """Behind a form: a reload of what is shown then sends nothing again."""
    return RedirectResponse(path, status_code=303)
