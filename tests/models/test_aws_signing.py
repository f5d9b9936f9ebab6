"""Tests of signatures of AWS: what a server receives is verified with botocore, which also makes the credentials."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials

from agentloop.errors import AuthenticationError, ConfigurationError
from agentloop.models import AwsSigner, CanSignRequests, HttpInference, LLMConfig
from agentloop.values import Secret
from tests.models.loopback import Loopback, ReceivedRequest, Reply, loopback, respond_json
from tests.models.loopback_inference import NO_WAIT, QUESTION

ARN = "arn:aws:bedrock:eu-west-1:123456789012:application-inference-profile/abc"
SECRET_KEY, TOKEN = "wJalrXUtnFEMI/K7MDENG", "IQoJb3JpZ2luX2VjEXAMPLE"
STATIC = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "eu-west-1"}
ANSWER = {"output": {"message": {"role": "assistant", "content": [{"text": "hi"}]}}, "stopReason": "end_turn"}


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the credentials of this machine."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def inference_at(
    server: Loopback, variables: Mapping[str, str] = STATIC, model: str = ARN, **settings: Any
) -> HttpInference:
    """Return an inference for a server in place of Bedrock."""
    environment = {**variables, "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": f"http://127.0.0.1:{server.port}"}
    config = LLMConfig.parse(f"bedrock:{model}", environment=environment, retry=NO_WAIT, **settings)
    return HttpInference(config, jitter=lambda: 0.0)


def expected_authorization(
    request: ReceivedRequest, server: Loopback, credentials: Credentials, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Return the header that botocore makes for a received request at the time in the request."""
    moment = datetime.strptime(request.headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    headers = {name: request.headers[name] for name in signed_headers(request) if name != "x-amz-date"}
    signed = AWSRequest("POST", f"http://127.0.0.1:{server.port}{request.target}", headers=headers, data=request.body)
    with monkeypatch.context() as patch:
        patch.setattr("botocore.auth.get_current_datetime", lambda: moment)
        SigV4Auth(credentials, "bedrock", "eu-west-1").add_auth(signed)
    return str(signed.headers["Authorization"])


def signed_headers(request: ReceivedRequest) -> list[str]:
    """Return the names of the headers that a signature covers."""
    match = re.search("SignedHeaders=([^,]+)", request.headers["authorization"])
    assert match
    return match[1].split(";")


@pytest.mark.parametrize("token", [None, TOKEN])
async def test_a_received_request_has_the_signature_that_botocore_computes(
    token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signature covers host, date, body and the path of the model as they arrive, and the token of temporary credentials."""
    variables = {**STATIC, **({"AWS_SESSION_TOKEN": token} if token else {})}
    async with loopback(respond_json(200, ANSWER)) as server:
        assert (await inference_at(server, variables).infer(QUESTION)).text == "hi"
        (request,) = server.requests
        covered = ["content-type", "host", "x-amz-date", *(["x-amz-security-token"] if token else [])]
        assert signed_headers(request) == covered
        assert request.headers.get("x-amz-security-token") == token
        credentials = Credentials("AKIDEXAMPLE", SECRET_KEY, token)
        assert request.headers["authorization"] == expected_authorization(request, server, credentials, monkeypatch)


@pytest.mark.parametrize("model", [ARN, "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "amazon.nova-lite-v1:0"])
async def test_a_request_arrives_at_the_path_of_the_client_of_aws(model: str) -> None:
    """boto3 sends a request to the same path, and signs the same headers of it at least."""
    async with loopback(respond_json(200, ANSWER), respond_json(200, ANSWER)) as server:
        await inference_at(server, model=model).infer(QUESTION)
        client = boto3.client(
            "bedrock-runtime",
            region_name="eu-west-1",
            endpoint_url=f"http://127.0.0.1:{server.port}",
            aws_access_key_id="AKIDEXAMPLE",
            aws_secret_access_key=SECRET_KEY,
            config=Config(retries={"max_attempts": 0}),
        )
        messages = [{"role": "user", "content": [{"text": "How are you?"}]}]
        await asyncio.to_thread(client.converse, modelId=model, messages=messages)
        client.close()
        ours, theirs = server.requests
        assert (ours.line, ours.json) == (theirs.line, theirs.json)
        assert set(signed_headers(ours)) <= set(signed_headers(theirs))


async def test_a_bearer_token_needs_no_signature() -> None:
    """With `AWS_BEARER_TOKEN_BEDROCK`, or a key in the program, nothing is signed."""
    async with loopback(respond_json(200, ANSWER), respond_json(200, ANSWER)) as server:
        await inference_at(server, {**STATIC, "AWS_BEARER_TOKEN_BEDROCK": "bedrock-api-key-1"}).infer(QUESTION)
        await inference_at(server, api_key="bedrock-api-key-2").infer(QUESTION)
        headers = [request.headers for request in server.requests]
        assert [header["authorization"] for header in headers] == [f"Bearer bedrock-api-key-{n}" for n in (1, 2)]
        assert all("x-amz-date" not in header for header in headers)


async def test_an_authorization_of_a_gateway_is_not_replaced_by_a_signature() -> None:
    """A configured `authorization` is sent as it is; `signer=None` turns signatures off."""
    async with loopback(respond_json(200, ANSWER), respond_json(200, ANSWER)) as server:
        await inference_at(server, headers={"authorization": "Basic dXNlcjpwYXNz"}).infer(QUESTION)
        await inference_at(server, signer=None).infer(QUESTION)
        assert [request.headers.get("authorization") for request in server.requests] == ["Basic dXNlcjpwYXNz", None]


async def test_credentials_of_a_profile_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Key, secret and region may be in the files of the profile that `AWS_PROFILE` names."""
    (tmp_path / "credentials").write_text(f"[work]\naws_access_key_id=AKIDWORK\naws_secret_access_key={SECRET_KEY}\n")
    (tmp_path / "config").write_text("[profile work]\nregion=eu-west-1\n")
    async with loopback(respond_json(200, ANSWER)) as server:
        await inference_at(server, {"AWS_PROFILE": "work"}).infer(QUESTION)
        (request,) = server.requests
        assert "Credential=AKIDWORK/" in request.headers["authorization"]
        assert request.headers["authorization"] == expected_authorization(
            request, server, Credentials("AKIDWORK", SECRET_KEY), monkeypatch
        )
    url = LLMConfig.parse("bedrock:m", environment={"AWS_PROFILE": "work"}).base_url
    assert url == "https://bedrock-runtime.eu-west-1.amazonaws.com"


def issue(number: int, lifetime: timedelta) -> Reply:
    """Return the reply of a container's server that issues temporary credentials."""
    expiration = (datetime.now(UTC) + lifetime).strftime("%Y-%m-%dT%H:%M:%SZ")
    entries = {
        "AccessKeyId": f"AKID{number}",
        "SecretAccessKey": f"secret-{number}-xyz",
        "Token": f"token-{number}-xyz",
    }
    return respond_json(200, {**entries, "Expiration": expiration})


async def test_credentials_that_expire_are_fetched_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request is signed with credentials that are valid, which a refusal by the service never shows."""
    refusal = {"message": "wrong: x-amz-security-token:token-2-xyz made with secret-2-xyz"}
    # botocore fetches credentials that are about to expire once more when it finds them.
    short = [issue(1, timedelta(minutes=1))] * 2
    replies = [*short, respond_json(200, ANSWER), issue(2, timedelta(hours=6)), respond_json(403, refusal)]
    async with loopback(*replies) as server:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{server.port}/credentials")
        inference = inference_at(server, {"AWS_REGION": "eu-west-1"})
        await inference.infer(QUESTION)
        with pytest.raises(AuthenticationError) as refused:
            await inference.infer(QUESTION)
        calls = [request for request in server.requests if request.target.startswith("/model/")]
        assert [call.headers["x-amz-security-token"] for call in calls] == ["token-1-xyz", "token-2-xyz"]
        assert "xyz" not in str(refused.value)
        assert refused.value.status == 403


async def test_missing_credentials_are_an_authentication_error() -> None:
    """The error says what to set; nothing is sent."""
    async with loopback() as server:
        with pytest.raises(AuthenticationError, match=r"no credentials of AWS: set AWS_ACCESS_KEY_ID"):
            await inference_at(server, {"AWS_REGION": "eu-west-1"}).infer(QUESTION)
        with pytest.raises(AuthenticationError, match=r"ProfileNotFound: .*nobody"):
            await inference_at(server, {"AWS_REGION": "eu-west-1", "AWS_PROFILE": "nobody"}).infer(QUESTION)
        assert not server.requests


@pytest.mark.parametrize(
    ("variables", "url"),
    [
        ({"AWS_REGION": "eu-west-1"}, "https://bedrock-runtime.eu-west-1.amazonaws.com"),
        ({"AWS_DEFAULT_REGION": "us-east-2"}, "https://bedrock-runtime.us-east-2.amazonaws.com"),
        ({"AWS_REGION": "cn-north-1"}, "https://bedrock-runtime.cn-north-1.amazonaws.com.cn"),
        ({"AWS_REGION": "a", "AWS_ENDPOINT_URL": "https://proxy/"}, "https://proxy"),
    ],
)
def test_the_region_determines_the_url(variables: Mapping[str, str], url: str) -> None:
    """The variables are those of the tools of AWS."""
    assert LLMConfig.parse("bedrock:m", environment=variables).base_url == url


def test_a_missing_region_is_refused() -> None:
    """Also for a URL of one's own, because the region is part of a signature."""
    for url in (None, "https://proxy"):
        with pytest.raises(ConfigurationError, match=r"bedrock needs a region of AWS: set .* AWS_REGION"):
            LLMConfig.parse("bedrock:m", environment={}, base_url=url)
    assert LLMConfig.parse("bedrock:m", environment={}, base_url="https://proxy", signer=None).signer is None


class FixedSigner(CanSignRequests):
    """A signer of another service, which adds one header."""

    def sign(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Mapping[str, str]:
        """Return a header that shows what was signed."""
        return {"x-signature": f"{method} {url.rpartition('/')[2]} {headers['content-type']} {len(body) > 0}"}

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """None."""
        return ()


async def test_any_signer_sees_method_url_headers_and_body() -> None:
    """A signer of one's own adds headers to each request of any wire format."""
    answer = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}
    async with loopback(respond_json(200, answer)) as server:
        config = LLMConfig(model="m", base_url=server.url, signer=FixedSigner())
        await HttpInference(config).infer(QUESTION)
        assert server.requests[0].headers["x-signature"] == "POST completions application/json True"


def test_a_signer_shows_no_secret() -> None:
    """The repr of a configuration has the region only."""
    signer = AwsSigner("eu-west-1", variables=lambda name: STATIC.get(name, ""))
    signer.sign("POST", "https://host/", {}, b"")
    assert [secret.reveal() for secret in signer.secrets] == [SECRET_KEY]
    assert SECRET_KEY not in repr(LLMConfig(model="m", base_url="https://host", signer=signer))


def test_without_botocore_the_error_says_what_to_install() -> None:
    """A bearer token needs no botocore; a signature does, and botocore is not loaded before the first one."""
    code = """
import sys
from agentloop import LLMConfig
from agentloop.errors import ConfigurationError
print(LLMConfig.parse("bedrock:m", environment={"AWS_REGION": "r"}).signer, "botocore" in sys.modules)
sys.modules["botocore"] = None
try:
    LLMConfig.parse("bedrock:m", environment={"AWS_REGION": "r"})
except ConfigurationError as error:
    print(error)
print(LLMConfig.parse("bedrock:m", environment={"AWS_REGION": "r", "AWS_BEARER_TOKEN_BEDROCK": "t"}).auth)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    first, second, third = done.stdout.splitlines()
    assert first == "AwsSigner('r', service='bedrock') False"
    assert "pip install 'agentloop-kernel[bedrock]'" in second
    assert third == "bearer"
