"""Tests of tokens of Google Cloud, with the credentials of a service account and a server that issues tokens."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from agentloop.errors import AuthenticationError
from agentloop.models import HttpInference, LLMConfig
from agentloop.models.keys import GoogleTokens, fetch_key
from tests.models.loopback import Loopback, Reply, loopback, respond_json
from tests.models.loopback_inference import QUESTION

PROJECT = {"GOOGLE_CLOUD_PROJECT": "mine", "GOOGLE_CLOUD_LOCATION": "europe-west4"}


def issue(token: str, seconds: int = 3600) -> Reply:
    """Return the reply of a server that issues a token."""
    return respond_json(200, {"access_token": token, "expires_in": seconds, "token_type": "Bearer"})


def use_service_account(folder: Path, server: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a service account, whose tokens the server issues, the credentials of the environment."""
    key = rsa.generate_private_key(65537, 2048)
    account = {
        "type": "service_account",
        "project_id": "mine",
        "client_email": "robot@mine.example",
        "private_key": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
        "token_uri": f"http://127.0.0.1:{server.port}/token",
    }
    (folder / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(folder / "account.json"))


async def test_vertex_gets_its_token_from_the_credentials_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token is sent as a bearer token in the format of Gemini, at the path of the model."""
    answer = {"candidates": [{"content": {"role": "model", "parts": [{"text": "hi"}]}, "finishReason": "STOP"}]}
    async with loopback(issue("token-1"), respond_json(200, answer), respond_json(200, answer)) as server:
        use_service_account(tmp_path, server, monkeypatch)
        monkeypatch.setattr("agentloop.models.keys._TOKENS", GoogleTokens())
        monkeypatch.setenv("GOOGLE_VERTEX_BASE_URL", f"http://127.0.0.1:{server.port}")
        for name, value in PROJECT.items():
            monkeypatch.setenv(name, value)
        inference = HttpInference(LLMConfig.parse("vertex:gemini-3-pro"))
        assert [(await inference.infer(QUESTION)).text for _ in range(2)] == ["hi", "hi"]
        grant, *calls = server.requests
        assert parse_qs(grant.body.decode())["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
        path = "/v1beta1/projects/mine/locations/europe-west4/publishers/google/models/gemini-3-pro:generateContent"
        assert [(call.target, call.headers["authorization"]) for call in calls] == [(path, "Bearer token-1")] * 2


async def test_an_expired_token_is_renewed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Concurrent inferences wait for one new token, and use it as long as it is valid."""
    async with loopback(issue("short", 1), issue("token-2")) as server:
        use_service_account(tmp_path, server, monkeypatch)
        tokens = GoogleTokens()
        assert (await fetch_key(tokens, "m")).reveal() == "short"
        keys = await asyncio.gather(*[fetch_key(tokens, "m") for _ in range(5)])
        assert ({key.reveal() for key in keys}, len(server.requests)) == ({"token-2"}, 2)


async def test_missing_credentials_are_an_authentication_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what google-auth says about them."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere.json")
    with pytest.raises(AuthenticationError, match=r"no key for vertex:m.* DefaultCredentialsError: .*nowhere.json"):
        await fetch_key(GoogleTokens(), "vertex:m")


def test_without_google_auth_the_error_says_what_to_install() -> None:
    """Whether google-auth is there is found out without importing it."""
    code = """
import sys
sys.modules["google.auth"] = None
from agentloop import LLMConfig
from agentloop.errors import ConfigurationError
try:
    LLMConfig.parse("vertex:m", environment={"GOOGLE_CLOUD_PROJECT": "mine"})
except ConfigurationError as error:
    print(error)
print(LLMConfig.parse("vertex:m", environment={"GOOGLE_CLOUD_PROJECT": "mine"}, api_key="token").auth)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    first, second = done.stdout.splitlines()
    assert "install google-auth with pip install 'agentloop" in first
    assert "pass api_key" in first
    assert second == "bearer"
