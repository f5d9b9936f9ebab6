"""The conformance suite of the protocol, in both eras: for clients, and for servers."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentloop.mcp.sdk.names import IS_FIRST_GENERATION
from tests.loaded import loaded_agentloop, loaded_python
from tests.mcp.running import SINCE_2026, free_port, node_program, wait_for_listener

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CLIENT = ROOT / "examples" / "mcp_conformance_client.py"
CLIENT_SCENARIOS = {
    "2025-03-26": ["auth/2025-03-26-oauth-metadata-backcompat", "auth/2025-03-26-oauth-endpoint-fallback"],
    "2025-11-25": [
        "initialize",
        "tools_call",
        "elicitation-sep1034-client-defaults",
        "sse-retry",
        "json-schema-2020-12-preservation",
    ],
    "2026-07-28": [
        "tools_call",
        "request-metadata",
        "sep-2322-client-request-state",
        "http-standard-headers",
        "http-custom-headers",
        "http-invalid-tool-headers",
        "json-schema-ref-no-deref",
        "json-schema-2020-12-preservation",
        "auth/scope-step-up",
        "auth/resource-mismatch",
        "auth/offline-access-scope",
        "auth/offline-access-not-supported",
        "auth/authorization-server-migration",
        "auth/iss-supported",
        "auth/iss-not-advertised",
        "auth/iss-supported-missing",
        "auth/iss-wrong-issuer",
        "auth/iss-unexpected",
        "auth/iss-normalized",
        "auth/metadata-issuer-mismatch",
    ],
}
"""Scenarios for clients, besides the suite `auth`: all that are required."""
EXTENSIONS = ["auth/client-credentials-basic", "auth/client-credentials-jwt"]
"""Scenarios of extensions, which the suite runs only when it is forced to."""
NOT_OFFERED = {
    "2025-11-25": [
        "resources-subscribe",
        "resources-unsubscribe",
        "logging-set-level",
        "tools-call-with-logging",
        "tools-call-sampling",
        "tools-call-elicitation",
        "elicitation-sep1034-defaults",
        "elicitation-sep1330-enums",
    ],
    "2026-07-28": [
        "server-stateless:sep-2575-server-rejects-undeclared-capability",
        "server-stateless:sep-2575-missing-capability-http-400",
        "server-stateless:sep-2575-http-server-no-independent-requests-on-stream",
        "input-required-result-basic-elicitation",
        "input-required-result-basic-sampling",
        "input-required-result-basic-list-roots",
        "input-required-result-request-state",
        "input-required-result-multiple-input-requests",
        "input-required-result-multi-round",
        "input-required-result-non-tool-request",
        "input-required-result-result-type",
        "input-required-result-tampered-state",
        "input-required-result-capability-check",
        "input-required-result-missing-input-response",
        "input-required-result-ignore-extra-params",
    ],
}
"""The scenarios for servers with subscriptions, logs or requests to the client, which ours do not have."""
TASK_SCENARIOS = {
    "tasks-lifecycle": "sep-2663-tasks-get-status-failed",
    "tasks-capability-negotiation": "",
    "tasks-wire-fields": "",
    "tasks-request-state-removal": "",
    "tasks-request-headers": "",
    "tasks-dispatch-and-envelope": "tasks-result-type-complete-on-non-task-responses",
}
"""Scenarios of the extension for tasks, each with the check that needs a tool which ours cannot be: one that fails other than by
an error of its own, and one that asks the client. The other scenarios of the extension are about tools that ask, or have to be
tasks."""


IN_EVERY_RUN = {
    ("2025-03-26", "auth/2025-03-26-oauth-metadata-backcompat"),
    ("2025-11-25", "tools_call"),
    ("2026-07-28", "tools_call"),
    ("2026-07-28", "auth/scope-step-up"),
}
"""A scenario of each kind. Each takes two processes that load much; the others run in `make test-heavy`."""


ATTEMPTS = 5


def _era(revision: str) -> list[pytest.MarkDecorator]:
    return [SINCE_2026] if revision >= "2026" else []


async def run_suite(*arguments: str) -> str:
    """Run the suite; return its output.

    The suite gives a server half a second for some of its checks, which a busy machine exceeds: it gets several attempts.
    """
    for attempt in range(1, ATTEMPTS + 1):
        process = await asyncio.create_subprocess_exec(
            node_program("node"), node_program("conformance"), *arguments, cwd=ROOT, stdout=PIPE, stderr=STDOUT
        )
        output, _ = await process.communicate()
        if process.returncode == 0:
            break
        assert attempt < ATTEMPTS, output.decode()
    return output.decode()


def client_command() -> str:
    """Return the command of the client that is judged."""
    return " ".join(loaded_python(str(CLIENT)))


@pytest.mark.parametrize(
    ("revision", "scenario"),
    [
        pytest.param(
            revision,
            scenario,
            marks=[*_era(revision), *([] if (revision, scenario) in IN_EVERY_RUN else [pytest.mark.heavy])],
        )
        for revision, scenarios in CLIENT_SCENARIOS.items()
        for scenario in scenarios
    ],
)
async def test_the_client_conforms(revision: str, scenario: str) -> None:
    """Every check of the client scenario passes."""
    arguments = [
        "--command",
        client_command(),
        "--scenario",
        scenario,
        "--spec-version",
        revision,
    ]
    assert ", 0 failed, 0 warnings" in await run_suite("client", *arguments)


@pytest.mark.heavy
async def test_the_client_conforms_in_authorization(tmp_path: Path) -> None:
    """Every check of the suite about authorization passes."""
    # The suite runs all of its scenarios at once, each with a client of its own.
    arguments = ["--suite", "auth", "--spec-version", "2025-11-25", "--timeout", "300000"]
    if IS_FIRST_GENERATION:
        # It adds a slash to the address of a resource that has no path.
        expected = tmp_path / "expected.yaml"
        expected.write_text("client:\n  - auth/metadata-var2\n")
        arguments += ["--expected-failures", str(expected)]
    output = await run_suite("client", "--command", client_command(), *arguments)
    assert "Baseline check passed" in output or ", 0 failed, 0 warnings" in output
    passed = 19 if IS_FIRST_GENERATION else 20
    assert f"auth/token-endpoint-auth-basic: {passed} passed, 0 failed" in output


@SINCE_2026
@pytest.mark.heavy
@pytest.mark.parametrize("scenario", EXTENSIONS)
async def test_the_client_conforms_in_extensions(scenario: str) -> None:
    """Every check of the extension passes."""
    arguments = ["--scenario", scenario, "--spec-version", "2026-07-28", "--force"]
    assert ", 0 failed, 0 warnings" in await run_suite("client", "--command", client_command(), *arguments)


@asynccontextmanager
async def serving(*arguments: str) -> AsyncIterator[str]:
    """Run `agentloop mcp serve` with these arguments; yield its address."""
    port = free_port()
    command = ["mcp", "serve", *arguments, "--http", "--port", str(port)]
    process = await asyncio.create_subprocess_exec(*loaded_agentloop(*command), stdout=PIPE, stderr=PIPE)
    try:
        await wait_for_listener(port)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        await process.communicate()


@pytest.mark.parametrize("revision", [pytest.param(name, marks=_era(name)) for name in NOT_OFFERED])
async def test_the_server_conforms(tmp_path: Path, revision: str) -> None:
    """Every check of the revision passes, except those about features that our servers do not have."""
    expected = tmp_path / "expected.yaml"
    expected.write_text("server:\n" + "".join(f"  - {scenario}\n" for scenario in NOT_OFFERED[revision]))
    async with serving(str(HERE / "conformance_tools.py")) as url:
        arguments = ["--url", url, "--requirements", revision, "--expected-failures", str(expected)]
        output = await run_suite("server", *arguments)
    assert "Baseline check passed" in output
    assert "tools-call-with-progress: 2 passed, 0 failed" in output
    assert "prompts-get-with-args: 2 passed, 0 failed" in output


@SINCE_2026
@pytest.mark.parametrize(
    "scenario",
    [name if name == "tasks-lifecycle" else pytest.param(name, marks=pytest.mark.heavy) for name in TASK_SCENARIOS],
)
async def test_the_server_conforms_in_tasks(tmp_path: Path, scenario: str) -> None:
    """Every check of the extension for tasks passes, except the one about a tool that ours cannot be."""
    check = TASK_SCENARIOS[scenario]
    expected = tmp_path / "expected.yaml"
    expected.write_text(f"server:\n  - {scenario}:{check}\n" if check else "server: []\n")
    async with serving(str(HERE / "task_tools.py"), "--task", "*_*") as url:
        arguments = ["--scenario", scenario, "--spec-version", "2026-07-28", "--force"]
        output = await run_suite("server", "--url", url, *arguments, "--expected-failures", str(expected))
    assert f", {int(bool(check))} failed, 0 warnings" in output
