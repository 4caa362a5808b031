"""Headless Chromium for a page in a file, with its console and its requests."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.wait import WebDriverWait

NAMES = ("chromium", "chromium-browser", "google-chrome")


def missing() -> str | None:
    """Why there is no browser to test with; None where there is one."""
    if not any(map(shutil.which, NAMES)):
        return f"no browser: none of {', '.join(NAMES)} is installed"
    return None if shutil.which("chromedriver") else "no chromedriver is installed"


class Browser:
    """One window; `open` starts with an empty log."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, page: Path, scheme: str = "light", width: int = 1200, height: int = 900) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        sizes = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sizes)
        self.driver.get("about:blank")
        self.said()
        self.requests()
        self.driver.get(page.as_uri())
        loaded = (
            f"document.readyState === 'complete' && location.href.startsWith({json.dumps(page.as_uri())})"
        )
        self.wait_for(loaded)

    def wait_for(self, condition: str, seconds: float = 60) -> None:
        """Until a JavaScript expression is true: on a busy machine `get` may return on the page before.

        Raises selenium's `TimeoutException` when it stays false."""
        WebDriverWait(self.driver, seconds).until(lambda driver: driver.execute_script(f"return {condition}"))

    def reload(self) -> None:
        """The same address once more, in a new document."""
        self.run("window.reloadedFrom = true")
        self.driver.refresh()
        self.wait_for("!window.reloadedFrom && document.readyState === 'complete'")

    def said(self) -> list[str]:
        """The console since the page was opened, or since the last call."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def requests(self) -> list[str]:
        """Addresses requested since the page was opened, or since the last call."""
        entries = self.driver.get_log("performance")  # type: ignore[no-untyped-call]
        events = [json.loads(entry["message"])["message"] for entry in entries]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def run(self, script: str) -> object:
        """The result of a piece of JavaScript."""
        answer: object = self.driver.execute_script(script)
        return answer


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser that is closed at the end."""
    options = ChromeOptions()
    options.binary_location = next(path for path in map(shutil.which, NAMES) if path)
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
