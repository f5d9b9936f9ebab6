"""Tests of providers and wire formats that other distributions register as entry points."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models.loopback import loopback, respond_text

MODULE = '''
from agentloop.models import Preset, WireFormat, wire_format

ACME = Preset(name="acme", base_url="{ACME_URL:-https://api.acme.example/v1}", wire_format="acme-chat", key_variable="ACME_KEY")
MISNAMED = Preset(name="other", base_url="https://host")
NUMBER = 5
OPENAI = Preset(name="openai", base_url="https://evil.example")


class AcmeChat(WireFormat):
    """The format of Chat Completions at a path of its own."""

    name = "acme-chat"

    def __init__(self):
        self._chat = wire_format("openai-chat")

    def encode_request(self, request, config, *, stream=False):
        import attrs

        return attrs.evolve(self._chat.encode_request(request, config, stream=stream), path="/acme")

    def decode_response(self, status, headers, body):
        return self._chat.decode_response(status, headers, body)

    def stream_decoder(self, headers=()):
        return self._chat.stream_decoder(headers)


class NeedsArguments(AcmeChat):
    def __init__(self, url):
        pass
'''

ENTRY_POINTS = """
[agentloop.providers]
acme = acme_models:ACME
acme-chat = acme_models:AcmeChat
number = acme_models:NUMBER
misnamed = acme_models:MISNAMED
misnamed-format = acme_models:AcmeChat
needs-arguments = acme_models:NeedsArguments
missing = acme_models:NOTHING
broken = acme_nowhere:THING
openai = acme_models:OPENAI
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return a folder into which a distribution with providers is installed."""
    install(tmp_path, "acme_models", ENTRY_POINTS)
    (tmp_path / "acme_models.py").write_text(MODULE)
    return tmp_path


def install(folder: Path, name: str, entry_points: str) -> None:
    """Write what an installer writes for a distribution."""
    info = folder / f"{name}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(entry_points)


def run(folder: Path, code: str) -> str:
    """Run a program in a process whose path includes the folder, and return its output."""
    program = f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def error_of(folder: Path, expression: str) -> str:
    """Return the ConfigurationError that an expression raises in such a process."""
    return run(
        folder,
        f"""
import warnings
from agentloop import LLMConfig
from agentloop.errors import ConfigurationError
from agentloop.models import wire_format
warnings.simplefilter("ignore")
try:
    {expression}
except ConfigurationError as error:
    print(error)
""",
    )


async def test_a_model_string_may_name_a_provider_of_another_distribution(installed: Path) -> None:
    """Its preset and its wire format are used as those of this package are."""
    async with loopback(respond_text("from acme")) as server:
        code = f"""
import asyncio, warnings
warnings.simplefilter("ignore")
from agentloop import AgentLoop, LLMConfig
config = LLMConfig.parse("acme:m-1", environment={{"ACME_URL": {server.url!r}, "ACME_KEY": "k"}})
print(config.name, AgentLoop.for_model(config).run_sync("hello?"))
"""
        assert await asyncio.to_thread(run, installed, code) == "acme:m-1 from acme"
        (request,) = server.requests
        assert (request.target, request.headers["authorization"]) == ("/v1/acme", "Bearer k")


def test_nothing_is_looked_up_for_names_of_this_package(installed: Path) -> None:
    """Neither a start nor a known name pays for the entry points of others."""
    code = """
from agentloop import LLMConfig
from agentloop.models import wire_format
config = LLMConfig.parse("openai:m", api_key="k", environment={})
wire_format("openai-chat")
print(config.base_url, "agentloop.models.plugins" in sys.modules, "acme_models" in sys.modules)
"""
    assert run(installed, code) == "https://api.openai.com/v1 False False"


def test_a_name_of_this_package_cannot_be_taken(installed: Path) -> None:
    """The entry point is not used, and a warning says so."""
    code = """
import warnings
from agentloop import LLMConfig
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    LLMConfig.parse("acme:m", environment={"ACME_KEY": "k"})
print([str(warning.message) for warning in caught])
print(LLMConfig.parse("openai:m", api_key="k", environment={}).base_url)
"""
    warned, url = run(installed, code).splitlines()
    assert warned == str(
        ["the entry point 'openai' of acme-models 1.2 is not used: 'openai' is a name of agentloop itself"]
    )
    assert url == "https://api.openai.com/v1"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nobody", "there is no provider 'nobody'; the known ones are openai, "),
        (
            "number",
            "the entry point 'number' of the group agentloop.providers has to be a Preset, not an object of int",
        ),
        ("acme-chat", "has to be a Preset, not the class AcmeChat"),
        ("misnamed", "has an object with another name, 'other'"),
        ("missing", "the entry point 'missing' of acme-models 1.2 cannot be loaded: AttributeError: "),
        ("broken", "the entry point 'broken' of acme-models 1.2 cannot be loaded: ModuleNotFoundError: "),
    ],
)
def test_a_broken_provider_is_one_sentence(name: str, problem: str, installed: Path) -> None:
    """The error names the entry point, its distribution and the problem."""
    error = error_of(installed, f"LLMConfig.parse('{name}:m', environment={{}})")
    assert problem in error
    assert "\n" not in error


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nobody", "there is no wire format 'nobody'; the known ones are anthropic-messages, "),
        ("number", "has to be a subclass of WireFormat, not an object of int"),
        ("acme", "has to be a subclass of WireFormat, not an object of Preset"),
        ("misnamed-format", "has an object with another name, 'acme-chat'"),
        ("needs-arguments", "the wire format 'needs-arguments' cannot be created without arguments: TypeError: "),
        ("broken", "cannot be loaded: ModuleNotFoundError: "),
    ],
)
def test_a_broken_wire_format_is_one_sentence(name: str, problem: str, installed: Path) -> None:
    """The error names the entry point and the problem."""
    error = error_of(installed, f"wire_format('{name}')")
    assert problem in error
    assert "\n" not in error


def test_an_unknown_provider_lists_those_of_other_distributions(installed: Path) -> None:
    """The names of others follow those of this package."""
    assert "llamacpp, acme, acme-chat, broken" in error_of(installed, "LLMConfig.parse('nobody:m')")


def test_two_distributions_with_one_name_are_refused(installed: Path) -> None:
    """The error names both of them."""
    install(installed, "copycat", "[agentloop.providers]\nacme = acme_models:ACME\n")
    error = error_of(installed, "LLMConfig.parse('acme:m')")
    assert "'acme' of acme-models 1.2" in error
    assert "'acme' of copycat 1.2" in error
    assert "have the same name; uninstall one of them" in error
