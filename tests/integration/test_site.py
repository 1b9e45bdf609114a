"""The site of the documentation in a browser, as wide as a desk and as a phone."""

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
EVERYTHING = (
    "(function all(root) { return [...root.querySelectorAll("
    "'*')].flatMap(e => [e, ...(e.shadowRoot ? all(e.shadowRoot) : [])]) })"
    "(document)"
)
"""All elements of a page; the search is in a tree of its own."""
PAGES = (
    "index.html",
    "cli.html",
    "reference.html",
    "architecture.html",
    "results/pac.html",
    "decisions/index.html",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the site is served."""
    out = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, ROOT / "deploy/site/build.py", "--out", out],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    icon = re.search(r'<link rel="icon" href="([^"]+)"', (out / "index.html").read_text(encoding="utf-8"))
    assert icon and (out / icon[1]).is_file(), "a page without an icon makes browsers ask for /favicon.ico"

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=out))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="module", params=[(1280, 900), (390, 844)], ids=["desk", "phone"])
def browser(request: pytest.FixtureRequest) -> Iterator[webdriver.Chrome]:
    driver = shutil.which("chromedriver")
    if driver is None:
        pytest.skip("no Chromium with its driver on this machine")
    options = webdriver.ChromeOptions()
    for option in ("headless", "no-sandbox", "disable-dev-shm-usage", "hide-scrollbars"):
        options.add_argument(f"--{option}")
    width, height = request.param
    metrics = {"width": width, "height": height, "pixelRatio": 1.0}
    if width < 500:  # a window of that size is wider than a phone
        options.add_experimental_option("mobileEmulation", {"deviceMetrics": metrics})
    else:
        options.add_argument(f"--window-size={width},{height}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(driver, env={**os.environ, "NO_PROXY": "127.0.0.1"})
    browser = webdriver.Chrome(options, service)
    yield browser
    browser.quit()


@pytest.mark.timeout(300)
def test_pages_fit_and_show_all_that_they_name(site: str, browser: webdriver.Chrome) -> None:
    browser.get(site)  # leads to the newest version
    WebDriverWait(browser, 30).until(lambda b: b.current_url.endswith("/0.1.0/index.html"))
    home = browser.current_url.removesuffix("index.html")
    for page in PAGES:
        browser.get(home + page)
        WebDriverWait(browser, 30).until(
            lambda b: b.execute_script("return document.readyState") == "complete"
        )
        assert browser.find_element(By.TAG_NAME, "h1").text, page
        too_wide = browser.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        assert too_wide <= 0, f"{page} is {too_wide} pixels wider than the window"
        broken = browser.execute_script(
            "return [...document.querySelectorAll('article img')].filter(i => !i.naturalWidth).map(i => i.src)"
        )
        assert broken == [], page
    elsewhere = browser.execute_script(
        "return performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.startsWith(location.origin))"
    )
    assert elsewhere == [], "nothing is fetched from elsewhere"
    complaints = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]  # type: ignore[no-untyped-call]
    assert complaints == []


@pytest.mark.timeout(300)
def test_the_search_finds_a_page(site: str, browser: webdriver.Chrome) -> None:
    browser.get(f"{site}/0.1.0/index.html")
    WebDriverWait(browser, 30).until(lambda b: b.execute_script("return document.readyState") == "complete")
    buttons = browser.find_elements(By.CSS_SELECTOR, ".md-search__button, label[for='__search']")
    next(button for button in buttons if button.is_displayed()).click()
    WebDriverWait(browser, 30).until(
        lambda b: b.execute_script(f"return {EVERYTHING}.some(e => e.matches('input[role=combobox]'))")
    )
    ActionChains(browser).send_keys("rotate a password").perform()
    heading = "procedures.html#7-rotate-a-password"
    WebDriverWait(browser, 30).until(
        lambda b: b.execute_script(f"return {EVERYTHING}.some(e => (e.href || '').endsWith('{heading}'))")
    )
