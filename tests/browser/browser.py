"""Headless Chromium over the pages that the program makes, and run folders for them to show.

Chromium is not among what the project needs: tests skip (77) with the reason where it is not installed.
"""
import base64
import itertools
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIDEPOOL = os.path.join(os.environ.get("TIDEPOOL_BIN", str(ROOT / "build/bin")), "tidepool")
CHROMIUM = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)


def need_chromium():
    if CHROMIUM is None:
        print("skipped: there is no chromium here; apt-get install chromium")
        sys.exit(77)


class Browser:
    """One Chromium, spoken to over a pair of pipes (DevTools protocol, a message ends with a zero byte)."""

    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="tidepool-chromium-")
        to_read, self.out = os.pipe()
        self.into, to_write = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--disable-background-networking",
                   "--disable-component-update", "--no-first-run", f"--user-data-dir={self.profile}", "--remote-debugging-pipe", "about:blank"]
        self.process = subprocess.Popen(["sh", "-c", f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}', CHROMIUM, *options], pass_fds=(to_read, to_write),
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.numbers, self.buffer, self.tabs = itertools.count(1), b"", {}

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        os.close(self.into)
        shutil.rmtree(self.profile, ignore_errors=True)

    def message(self, timeout):
        """The next one from Chromium."""
        end = time.monotonic() + timeout
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.into], [], [], max(0, end - time.monotonic()))
            part = os.read(self.into, 1 << 20) if ready else b""
            if not part:
                raise AssertionError(f"Chromium said nothing for {timeout} s" if not ready else "Chromium ended")
            self.buffer += part
        text, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(text)

    def call(self, method, session=None, timeout=60, **params):
        number = next(self.numbers)
        request = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        data = json.dumps(request).encode() + b"\0"
        while data:
            data = data[os.write(self.out, data):]
        while True:
            said = self.message(timeout)
            if said.get("id") == number:
                if "error" in said:
                    raise AssertionError(f"{method}: {said['error']}")
                return said["result"]
            tab = self.tabs.get(said.get("sessionId"))
            if tab:
                tab.hear(said)

    def open(self, url, width=1400, dark=False, height=1000, beside=None):
        """In a browser of its own, or in that of the tab `beside`."""
        tab = Tab(self, width, dark, height, beside)
        tab.go(url)
        return tab


class Tab:
    """A page: `console` has what it complained of."""

    def __init__(self, browser, width, dark, height, beside=None):
        self.browser, self.width, self.console = browser, width, []
        # A context has cookies, storage and channels of its own.
        self.context = beside.context if beside else browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=self.context)["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        browser.tabs[self.session] = self
        for domain in ["Page", "Runtime", "Log", "Network"]:
            self.call(domain + ".enable")
        self.resize(width, height)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def call(self, method, **params):
        return self.browser.call(method, session=self.session, **params)

    def hear(self, said):
        method, params = said.get("method"), said.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.console.append(str(params["exceptionDetails"].get("exception", params["exceptionDetails"])))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.console.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.console.append(str(params["args"]))

    def resize(self, width, height=1000):
        self.width = width
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def go(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'", what=f"the page {url}")

    def evaluate(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, condition, timeout=60, what=None):
        end = time.monotonic() + timeout
        while True:
            try:
                value = self.evaluate(f"(v => v instanceof Node || v)({condition})")
            except AssertionError:  # between two pages
                value = None
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"waited {timeout} s for {what or condition}; the page says: {self.text()[:2000]}")
            time.sleep(.02)

    def text(self):
        return self.evaluate("document.body.innerText")

    def dom(self):
        return self.evaluate("document.documentElement.outerHTML")

    def titles(self):
        """What the cards are called."""
        return self.evaluate("[...document.querySelectorAll('h3')].map(h => h.textContent)")

    def too_wide(self):
        """Elements that stick out at the right of the page, which then scrolls sideways, or of their tile; none is right."""
        tiles = self.evaluate("[...document.querySelectorAll('.tile > *')].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.outerHTML.slice(0, 120))")
        return tiles + self.evaluate("""document.documentElement.scrollWidth <= innerWidth ? [] :
            [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1).slice(0, 5).map(e => e.outerHTML.slice(0, 120))""")

    def picture(self, path, height=None, section=None):
        """Of the whole page, of so much of it, or of the section with this id: its title and what is below it."""
        whole = min(int(self.evaluate("document.documentElement.scrollHeight")), 12000)
        self.resize(self.width, height or whole)
        clip = {}
        if section:
            top, bottom = self.evaluate(f"""(title => [title, title.nextElementSibling].map(e => e.getBoundingClientRect()))(document.getElementById('{section}'))
                .map((box, i) => scrollY + (i ? box.bottom + 16 : box.top - 16))""")
            clip = {"clip": {"x": 0, "y": top, "width": self.width, "height": bottom - top, "scale": 1}}
        data = self.call("Page.captureScreenshot", format="png", **clip)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))


def write_run(folder, job, rows, config="", summary=None, status=None):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(f"name: {folder.name}   # x.yaml:1\njob: {job}   # x.yaml:2\nseed: 1   # default\n{config}")
    add_rows(folder, rows)
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    if status is not None:
        (folder / "status.json").write_text(json.dumps(status))
    return folder


def add_rows(folder, rows):
    with open(pathlib.Path(folder) / "metrics.jsonl", "a", encoding="utf-8") as file:
        for step, metrics in rows:
            file.write(json.dumps({"step": step, "version": step, "lineage": 0, "wall_s": 2.0 * step, "metrics": metrics}) + "\n")
