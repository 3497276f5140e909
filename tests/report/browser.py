"""A headless Chromium with one page of `kvsim report`, for the tests and the README's picture."""

import base64
import json
import time

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

SWITCHES = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--hide-scrollbars", "--no-first-run", "--disable-background-networking",
            "--host-resolver-rules=MAP * ~NOTFOUND")
PATIENCE = 120   # seconds for a page on a busy machine


class Browser:
    def __init__(self, width=1400, height=1000, scheme="light"):
        options = Options()
        for switch in SWITCHES:
            options.add_argument(switch)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
        self.driver.set_script_timeout(PATIENCE)
        self.size(width, height)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def close(self):
        self.driver.quit()

    def size(self, width, height, scale=1):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600})

    def open(self, path, address=""):
        """Opens a page afresh and waits until it can be used."""
        self.driver.get("about:blank")
        self.logs()
        self.driver.get(f"file://{path}" + (f"#{address}" if address else ""))
        self.wait("return document.documentElement.dataset.ready || "
                  "!document.getElementById('failure').hidden")

    def wait(self, condition):
        end = time.monotonic() + PATIENCE
        while not self.driver.execute_script(condition):
            if time.monotonic() > end:
                raise TimeoutError(condition)
            time.sleep(0.03)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def settle(self):
        """When everything that was asked for has been drawn."""
        self.driver.execute_async_script(
            "const done = arguments[0]; setTimeout(() => "
            "document.dispatchEvent(new CustomEvent('kvsim-settle', {detail: done})), 0);")

    def choose(self, element, value):
        """Chooses an option of a <select> by its text, or sets an <input>, as a user does."""
        self.run("""const [id, text] = arguments, element = document.getElementById(id);
            if (element.tagName === 'SELECT') {
              const found = [...element.options].find(
                (one) => one.text === text || one.value === text);
              if (!found) throw new Error(`${id} has no ${text}`);
              element.value = found.value;
            } else { element.value = text; }
            const kind = element.type === 'search' ? 'input' : 'change';
            element.dispatchEvent(new Event(kind, {bubbles: true}));
            """, element, str(value))
        self.settle()

    def click(self, selector):
        self.run("document.querySelector(arguments[0]).dispatchEvent("
                 "new MouseEvent('click', {bubbles: true}))", selector)
        self.settle()

    def key(self, key, selector="body"):
        self.run("document.querySelector(arguments[1]).dispatchEvent("
                 "new KeyboardEvent('keydown', {key: arguments[0], bubbles: true}))", key, selector)
        self.settle()

    def drag(self, selector, begin, end):
        """A real press, move and release, from one share of an element's width to another."""
        box = self.run("const one = document.querySelector(arguments[0]); one.scrollIntoView("
                       "{block: 'center', behavior: 'instant'}); "
                       "const b = one.getBoundingClientRect();"
                       "return [b.left, b.top + b.height / 2, b.width]", selector)
        places = [(box[0] + share * box[2], box[1]) for share in (begin, end)]
        for kind, (x, y) in (("mousePressed", places[0]), ("mouseMoved", places[1]),
                             ("mouseReleased", places[1])):
            self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {
                "type": kind, "x": x, "y": y, "button": "left", "buttons": 1, "clickCount": 1})
        self.settle()

    def state(self):
        """The address as {name: value}."""
        return self.run("return Object.fromEntries(new URLSearchParams(location.hash.slice(1)))")

    def texts(self, selector):
        return self.run("return [...document.querySelectorAll(arguments[0])]"
                        ".map((one) => one.textContent)", selector)

    def logs(self):
        """(messages of the console, addresses that were asked for) since the last call."""
        console = [one["message"] for one in self.driver.get_log("browser")]
        requests = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                requests.append(message["params"]["request"]["url"])
        return console, requests

    def picture(self, path):
        data = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
        path.write_bytes(base64.b64decode(data))
