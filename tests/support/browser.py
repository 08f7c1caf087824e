"""Headless Chromium through its DevTools protocol."""

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from itertools import count

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_PATIENCE = 120.0


class Page:
    """One tab: goes to addresses, evaluates JavaScript, presses keys, takes screenshots, and notes every complaint."""

    def __init__(self, profile):
        import websocket

        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        where = [f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([CHROMIUM, *options, *where], **quiet)
        try:
            port = _wait(lambda: (profile / "DevToolsActivePort").read_text().split()[0])
            tabs = _wait(lambda: _json(f"http://127.0.0.1:{port}/json"))
            address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
            self._socket = websocket.create_connection(address, timeout=_PATIENCE, suppress_origin=True)
        except BaseException:
            self._process.kill()
            raise
        self._numbers = count(1)
        self.complaints = []
        self.requests = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        self._socket.close()
        self._process.terminate()
        self._process.wait(timeout=_PATIENCE)

    def call(self, method, **params):
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message):
        method, params = message.get("method"), message.get("params", {})
        shown = method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning")
        if shown or method in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(params)
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def goto(self, address):
        self.call("Page.navigate", url=address)
        _wait(lambda: self.evaluate(f"document.readyState === 'complete' && location.href === {address!r}"))

    def evaluate(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key):
        text = {"Enter": "\r", " ": " "}.get(key)
        codes = {"Enter": 13, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9}
        known = {"key": key, "code": key if key != " " else "Space", "windowsVirtualKeyCode": codes[key]}
        down = known | ({"text": text} if text else {})
        self.call("Input.dispatchKeyEvent", type="keyDown", **down)
        self.call("Input.dispatchKeyEvent", type="keyUp", **known)

    def click(self, selector):
        """A real mouse click in the middle of an element."""
        find = f"const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
        middle = "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2];"
        box = self.evaluate(f"(() => {{ {find} {middle} }})()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def look(self, width, height, dark=False, phone=False):
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path, whole=True):
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))


def _json(address):
    with urllib.request.urlopen(address, timeout=10) as answer:
        return json.load(answer)


def _wait(ready):
    """The first value that is true; patience because other work may share the machine."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            value = ready()
            if value:
                return value
        except (OSError, IndexError):
            pass
        assert time.monotonic() < end, "the browser does not answer"
        time.sleep(0.05)
