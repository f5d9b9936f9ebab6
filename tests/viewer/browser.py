"""A headless Chromium, driven over its debugging pipe."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import platform
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tests.limits import LONGEST

FOLDER = Path(__file__).parents[2] / "viewer" / ".browser"
DEADLINE = LONGEST
"""Seconds after which the browser is taken to hang."""

_FLAGS = (
    "--headless",
    "--no-sandbox",  # containers have no user namespaces; the pages are our own
    "--disable-gpu",
    "--lang=en-US",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--no-first-run",
    "--force-device-scale-factor=1",
    "--font-render-hinting=none",
    "--remote-debugging-pipe",
)
_KEYS = {"Enter": ("\r", 13), "Escape": ("", 27), "ArrowLeft": ("", 37), "ArrowRight": ("", 39), "Tab": ("", 9)}
_SHIFT = 8
_NAVIGATED = "Inspected target navigated or closed"


class BrowserFailed(Exception):
    """The browser has ended, has refused a command, or a script of the test has raised an error in it."""


def browser_path() -> Path | None:
    """Return the executable that `make test` unpacks, or one of the machine; None without any."""
    unpacked = FOLDER / "chromium"
    if unpacked.exists() and (sys.platform, platform.machine()) == ("linux", "x86_64"):
        return unpacked
    names = (
        "chromium",
        "chromium-browser",
        "google-chrome",
        "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    )
    return next((Path(found) for name in names if (found := shutil.which(name))), None)


class Browser:
    """A browser process; commands and answers are JSON, each ended by a zero byte.

    Args:
        path: the executable.
        profile: an empty folder for what it stores.
    """

    def __init__(self, path: Path, profile: Path) -> None:
        commands, self._out = _pipe()
        self._answers, to_us = _pipe()
        # The pipe is at the descriptors 3 and 4 of the browser; not every sh takes numbers of two digits.
        script = f'exec 3<&{commands} 4>&{to_us}; exec "$@"'
        arguments = [str(path), *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._log = (profile / "browser.log").open("w", encoding="utf-8")
        self._process = subprocess.Popen(
            ["bash", "-c", script, "browser", *arguments],
            pass_fds=(commands, to_us),
            stdout=self._log,
            stderr=self._log,
            env=_environment(path, profile),
        )
        os.close(commands)
        os.close(to_us)
        self._number = 0
        self._waiting: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._events: dict[str, queue.Queue[dict[str, Any]]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """Send a command, and return its result.

        Raises:
            BrowserFailed: the browser has refused it, has ended, or does not answer.
        """
        self._number += 1
        number, answer = self._number, queue.Queue[dict[str, Any]]()
        self._waiting[number] = answer
        command = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self._out, json.dumps(command).encode() + b"\0")
        try:
            message = answer.get(timeout=DEADLINE)
        except queue.Empty:
            raise BrowserFailed(f"the browser does not answer {method}") from None
        if "error" in message:
            raise BrowserFailed(f"{method}: {message['error']}")
        result: dict[str, Any] = message["result"]
        return result

    def events(self, session: str) -> queue.Queue[dict[str, Any]]:
        """Return the events of a session that have come and will come."""
        return self._events.setdefault(session, queue.Queue())

    def close(self) -> None:
        """End the browser."""
        with contextlib.suppress(BrowserFailed, OSError):
            self.send("Browser.close")
        try:
            self._process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(DEADLINE)
        self._reader.join(DEADLINE)
        os.close(self._out)
        self._log.close()

    def _read(self) -> None:
        rest = bytearray()
        while chunk := os.read(self._answers, 1 << 20):
            rest += chunk
            if b"\0" in chunk:
                *messages, last = bytes(rest).split(b"\0")
                for text in messages:
                    self._receive(json.loads(text))
                rest = bytearray(last)
        os.close(self._answers)
        for answer in self._waiting.values():
            answer.put({"error": "the browser has ended"})

    def _receive(self, message: dict[str, Any]) -> None:
        answer = self._waiting.pop(message.get("id", 0), None)
        if answer is not None:
            answer.put(message)
        elif "method" in message:
            self.events(message.get("sessionId", "")).put(message)

    @contextlib.contextmanager
    def page(self, width: int = 1280, height: int = 800) -> Iterator[Page]:
        """Open a page of a size in pixels, with storage of its own, and close it afterwards."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        page.resize(width, height)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        try:
            yield page
        finally:
            self.send("Target.disposeBrowserContext", browserContextId=context)


class Page:
    """A page of a browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self._problems: list[str] = []
        self._requests: list[str] = []

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command about this page; see `Browser.send`."""
        return self._browser.send(method, self._session, **params)

    def resize(self, width: int, height: int) -> None:
        """Give the page a size in pixels."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def use_theme(self, theme: str) -> None:
        """Have the system prefer `light` or `dark`."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def open(self, address: str) -> None:
        """Go to an address, and wait until the page is loaded."""
        self.send("Page.navigate", url=address)
        events = self._browser.events(self._session)
        while True:
            try:
                event = events.get(timeout=DEADLINE)
            except queue.Empty:
                raise BrowserFailed(f"{address} is not loaded in time") from None
            self._note(event)
            if event["method"] == "Page.loadEventFired":
                return

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression, as JSON; a promise is awaited.

        Raises:
            BrowserFailed: it raised an error.
        """
        answer = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise BrowserFailed(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> Any:
        """Wait until an expression is true, which is looked at before each frame, and return its value."""
        script = f"""new Promise((resolve, reject) => {{
            const until = performance.now() + {DEADLINE * 500};
            const look = () => {{
                const value = ({condition});
                if (value) resolve(value);
                else if (performance.now() > until) reject(new Error("never true; the page says: " + document.body.innerText.slice(0, 2000)));
                else requestAnimationFrame(look);
            }};
            look();
        }})"""
        while True:
            try:
                return self.evaluate(script)
            except BrowserFailed as error:
                if _NAVIGATED not in str(error):
                    raise

    def text(self, selector: str = "body") -> str:
        """Return the text that a reader sees in an element."""
        text: str = self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")
        return text

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements of a kind."""
        texts: list[str] = self.evaluate(
            f"[...document.querySelectorAll({json.dumps(selector)})].map(element => element.innerText)"
        )
        return texts

    def press(self, *keys: str) -> None:
        """Press keys, one after another."""
        for key in keys:
            text, code = _KEYS.get(key, (key if len(key) == 1 else "", ord(key.upper()) if len(key) == 1 else 0))
            shift = _SHIFT if len(key) == 1 and (key.isupper() or key == "?") else 0
            common: Mapping[str, Any] = {"key": key, "windowsVirtualKeyCode": code, "modifiers": shift}
            self.send("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **common)
            self.send("Input.dispatchKeyEvent", type="keyUp", **common)
        self.settle()

    def type(self, text: str) -> None:
        """Write a text into the element that has the focus."""
        self.send("Input.insertText", text=text)
        self.settle()

    def click(self, selector: str, containing: str = "", *, is_whole: bool = False) -> None:
        """Click the first element of a kind that contains a text, or whose whole text it is, with the mouse.

        Raises:
            BrowserFailed: there is none.
        """
        test = "text === wanted" if is_whole else "text.includes(wanted)"
        place = self.evaluate(
            f"""(() => {{
                const wanted = {json.dumps(containing)};
                const matches = text => {test};
                const found = [...document.querySelectorAll({json.dumps(selector)})].find(element => matches(element.innerText));
                if (!found) throw new Error("no element " + {json.dumps(f"{selector} {containing}")} + " in: " + document.body.innerText.slice(0, 2000));
                found.scrollIntoView({{block: "nearest"}});
                const box = found.getBoundingClientRect();
                return [box.left + box.width / 2, box.top + box.height / 2];
            }})()"""
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)
        self.settle()

    def settle(self) -> None:
        """Wait until what the page has to draw is drawn."""
        try:
            self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
        except BrowserFailed as error:
            if _NAVIGATED not in str(error):
                raise

    def screenshot(self, path: Path) -> None:
        """Store a picture of what is in view."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    @property
    def requests(self) -> list[str]:
        """The addresses that the page has asked for, without those of data."""
        self._note_all()
        return self._requests

    @property
    def problems(self) -> list[str]:
        """The errors that the page has raised, and what its policy has refused, but not connections that failed."""
        self._note_all()
        return self._problems

    def _note_all(self) -> None:
        events = self._browser.events(self._session)
        while not events.empty():
            self._note(events.get_nowait())

    def _note(self, event: dict[str, Any]) -> None:
        params = event["params"]
        if event["method"] == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self._problems.append(details.get("exception", {}).get("description", details["text"]))
        elif (
            event["method"] == "Log.entryAdded"
            and params["entry"]["level"] == "error"
            and "net::ERR" not in params["entry"]["text"]
        ):
            self._problems.append(params["entry"]["text"])
        elif event["method"] == "Network.requestWillBeSent" and not params["request"]["url"].startswith("data:"):
            self._requests.append(params["request"]["url"])


def _pipe() -> tuple[int, int]:
    """Return the ends of a pipe, at descriptors above those that the browser has its own pipe at."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


_FONTS = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{fonts}</dir><cachedir>{cache}</cachedir></fontconfig>
"""


def _environment(path: Path, profile: Path) -> dict[str, str]:
    """Return an environment in which the unpacked browser finds its fonts, and its libraries where the machine has none."""
    environment = {**os.environ, "LANG": "en_US.UTF-8", "LC_ALL": "en_US.UTF-8", "LANGUAGE": "en_US"}
    if path.parent == FOLDER:
        # The file that is unpacked with the fonts names the folders of a cloud; without any font the browser ends.
        fonts = profile / "fonts.conf"
        fonts.write_text(
            _FONTS.format(fonts=escape(str(FOLDER / "fonts")), cache=escape(str(profile / "fonts"))), "utf-8"
        )
        environment["FONTCONFIG_FILE"] = str(fonts)
        if "not found" in subprocess.run(["ldd", path], check=False, capture_output=True, text=True).stdout:
            environment["LD_LIBRARY_PATH"] = str(FOLDER / "al2023" / "lib")
    return environment
