"""A headless Chromium, and the pictures it takes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

SIZE = {"width": 1400, "height": 900}
# Quiet: it asks nobody for updates, and everything beside loopback is refused.
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip
PATIENCE_MILLISECONDS = 180_000.0


def chromium() -> str:
    """The path of Chromium, or "": it is no Python package."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""


@contextmanager
def page_of(url: str, *, dark: bool = False) -> Iterator[Page]:
    """A page at that address. The browser is gone afterwards."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=list(FLAGS), timeout=PATIENCE_MILLISECONDS
        )
        try:
            context = browser.new_context(
                viewport=SIZE, color_scheme="dark" if dark else "light", device_scale_factor=1
            )
            page = context.new_page()
            page.set_default_timeout(PATIENCE_MILLISECONDS)
            page.goto(url)
            yield page
        finally:
            browser.close()


def picture(page: Page, folder: Path, name: str) -> Path:
    """Save the page as a picture; the path is printed for the reader of a failed test."""
    path = folder / f"{name}.png"
    page.screenshot(path=path)
    print(f"picture: {path}")
    return path
