"""Drives headless Chromium through its debugging pipe, with Python's standard library alone.

    with Browser("/usr/bin/chromium") as browser:
        page = browser.open("file:///tmp/report.html", width=360, height=800, dark=True)
        page.problems         # what the browser complained about, and addresses that it was asked to fetch
        page.evaluate("document.title")
        page.screenshot("report.png")
"""
import base64
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

START_SECONDS = 60


class Browser:
    def __init__(self, program):
        self.profile = tempfile.mkdtemp(prefix="anymesh-browser-")
        near_end, self.write_to = os.pipe()
        self.read_from, far_end = os.pipe()
        from_us, to_us = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (near_end, far_end))
        # The browser reads commands from descriptor 3 and answers on 4.
        command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                   "--disable-background-networking", "--disable-component-update", "--no-first-run",
                   "--allow-file-access-from-files", f"--user-data-dir={self.profile}", "--remote-debugging-pipe"]
        wiring = f'exec "$@" 3<&{from_us} 4>&{to_us} {from_us}<&- {to_us}>&-'
        self.process = subprocess.Popen(["bash", "-c", wiring, "browser", *command], pass_fds=(from_us, to_us),
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for end in (near_end, far_end, from_us, to_us):
            os.close(end)
        self.buffer = b""
        self.commands = 0
        self.events = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.write_to)
        os.close(self.read_from)
        shutil.rmtree(self.profile, ignore_errors=True)

    def _receive(self):
        while b"\0" not in self.buffer:
            data = os.read(self.read_from, 1 << 20)
            if not data:
                raise RuntimeError(f"the browser ended with exit status {self.process.wait()}")
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, **params):
        self.commands += 1
        command = {"id": self.commands, "method": method, "params": params}
        if session:
            command["sessionId"] = session
        os.write(self.write_to, json.dumps(command).encode() + b"\0")
        while (answer := self._receive()).get("id") != self.commands:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def wait_for(self, method, session):
        deadline = time.monotonic() + START_SECONDS
        while True:
            for event in self.events:
                if event.get("method") == method and event.get("sessionId") == session:
                    return
            if time.monotonic() > deadline:
                raise RuntimeError(f"no {method} within {START_SECONDS} s")
            self.events.append(self._receive())

    def open(self, address, width, height, dark=False):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Page(self, target, session, address, width, height, dark)


class Page:
    def __init__(self, browser, target, session, address, width, height, dark):
        self.browser, self.target, self.session, self.address = browser, target, session, address
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, screenWidth=width, screenHeight=height,
                  deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        browser.events.clear()
        self.call("Page.navigate", url=address)
        browser.wait_for("Page.loadEventFired", session)
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    @property
    def problems(self):
        found = []
        for event in self.browser.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Log.entryAdded":
                found.append(f"log: {params['entry']['text']}")
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(f"console: {[a.get('value') for a in params['args']]}")
            elif method == "Runtime.exceptionThrown":
                found.append(f"exception: {params['exceptionDetails']['text']}")
            elif method == "Network.loadingFailed":
                found.append(f"failed to load: {params['errorText']}")
        return found

    @property
    def requests(self):
        """The addresses that the page asked for, apart from its own and from data within it."""
        addresses = (event["params"]["request"]["url"] for event in self.browser.events
                     if event.get("method") == "Network.requestWillBeSent")
        return [a for a in addresses if not a.startswith("data:") and a.split("#")[0] != self.address]

    def screenshot(self, path, whole=True):
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)
