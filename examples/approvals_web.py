"""A page with the calls that wait for a person, from all runs of a journal; each is approved or refused with a button.

Needs starlette, python-multipart and uvicorn: `uvicorn --app-dir examples approvals_web:app`. The runs survive a restart.
"""

from __future__ import annotations

from html import escape

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from agentloop import AgentLoop, RequireApproval, ScriptedInference, SqliteJournal, ToolCall, tool
from agentloop.errors import DecisionError
from agentloop.values import ExecutionStatus, approve, deny


@tool
def pay(to: str, euros: float) -> str:
    """Pay somebody."""
    return f"{to} has {euros} euros"


MODEL = ScriptedInference(ToolCall("1", "pay", '{"to": "<Ada>", "euros": 20}'), "Ada is paid.")
journal = SqliteJournal("payments.db")
loop = AgentLoop.for_model(MODEL, tools=[pay], interceptors=[RequireApproval()], journal=journal)
# The buttons come after the whole text of the call.
STYLE = "<style>pre { white-space: break-spaces; overflow-wrap: anywhere }</style>"
FORM = '<form method="post" action="/{run}"><input type="hidden" name="digest" value="{digest}"><pre>{text}</pre>{buttons}</form>'
BUTTONS = "<button name='{key}' value='yes'>Approve</button> <button name='{key}' value='no'>Refuse</button>"


async def show(_: Request) -> HTMLResponse:
    rows = []
    for head in await journal.list(status=ExecutionStatus.SUSPENDED):
        for call in (await loop.recover(head.execution_id)).pending:
            text, buttons = escape(call.rendering), BUTTONS.format(key=call.key)
            rows.append(FORM.format(run=head.execution_id, digest=call.digest, text=text, buttons=buttons))
    return HTMLResponse(f"<!doctype html><title>Approvals</title>{STYLE}" + ("".join(rows) or "Nothing waits."))


async def decide(request: Request) -> Response:
    form = await request.form()
    # The digest binds the decision to the call that the person saw.
    digest = str(form["digest"])
    decisions = {
        k: approve(digest) if v == "yes" else deny("refused", digest) for k, v in form.items() if k != "digest"
    }
    try:
        await loop.resume(request.path_params["run"], decisions)
    except DecisionError as error:  # somebody else was faster
        return HTMLResponse(escape(str(error)), 409)
    return RedirectResponse("/", 303)


app = Starlette(routes=[Route("/", show), Route("/{run}", decide, methods=["POST"])])
