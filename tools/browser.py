"""Chromium without a window, driven through a pipe with the DevTools protocol; needs nothing but Python."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Software rendering of WebGL: a server has no GPU. The sandbox needs rights that containers lack, and only local files
# are opened.
FLAGS = (
    "--headless=new", "--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader",
    "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe",
)  # fmt: skip


def find_chromium() -> str | None:
    """The path of a browser: $CHROMIUM, or the first of NAMES; None without."""
    given = os.environ.get("CHROMIUM")
    names = (given,) if given is not None else NAMES
    return next((found for name in names if (found := shutil.which(name))), None)


class Browser:
    """One browser, a context manager. events: what the page reported, in order."""

    def __init__(self, program: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="check-pages-", ignore_cleanup_errors=True)
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()

        def connect() -> None:  # the browser reads commands from 3 and writes answers to 4
            first, second = os.dup(to_read), os.dup(to_write)
            os.dup2(first, 3)
            os.dup2(second, 4)

        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={self._folder.name}"], preexec_fn=connect, close_fds=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._rest, self._count, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._folder.cleanup()

    def open(self, url: str, width: int, height: int) -> None:
        """Opens a page of a size in pixels, in a new tab."""
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.events.clear()
        for domain in ("Runtime", "Log", "Page", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=url)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer. Raises RuntimeError for an error, TimeoutError after a minute."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        deadline = time.monotonic() + 60
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def evaluate(self, expression: str) -> Any:
        """The value of JavaScript. Raises RuntimeError if it throws."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']['text']}")
        return found["result"].get("value")

    def wait(self, expression: str, right: Callable[[Any], bool], seconds: float) -> Any:
        """The first value of an expression that is right; its last value if none is in time."""
        deadline = time.monotonic() + seconds
        while True:
            value = self.evaluate(expression)
            if right(value) or time.monotonic() > deadline:
                return value
            time.sleep(0.1)

    def screenshot(self, path: Path) -> None:
        """Writes a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def problems(self) -> list[str]:
        """Errors and warnings on the console, exceptions, and requests for anything that is not in the page."""
        found = []
        for event in self.events:
            method, parameters = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                found.append(details.get("exception", {}).get("description") or details["text"])
            elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert"):
                found.append(" ".join(str(word.get("value", word.get("description"))) for word in parameters["args"]))
            elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
                found.append(parameters["entry"]["text"])
            elif method == "Network.requestWillBeSent":
                url = parameters["request"]["url"]
                if not url.startswith(("file:", "data:", "blob:", "about:")):
                    found.append(f"requests {url[:200]}")
        return found

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser did not answer within a minute")
            more = os.read(self._from, 1 << 20)
            if not more:
                raise RuntimeError("the browser ended")
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer
