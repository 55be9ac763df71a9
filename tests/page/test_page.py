"""The live page of a controller, in headless Chromium. `make test-page` runs it."""

import json
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "security"))
os.environ["WEIGHTCAST_TOKEN"] = "the-token-of-this-test"

from harness import Job  # noqa: E402

WIDTHS = (390, 820, 1280)
THEMES = ("light", "dark")
# Where screenshots go: docs/images, when those of the docs are to be renewed.
SCREENSHOTS = os.environ.get("SCREENSHOTS")
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Its own sandbox does not run as root, and the page is ours.
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


class Served:
    """A job and where its page is."""

    def __init__(self, job: Job, where: str = "127.0.0.1:0") -> None:
        self.job = job
        line = job.start_controller("--http", where, "--min-engines", 1).line()
        assert line.startswith("page at http://"), line
        self.port = int(line.rstrip("/").rsplit(":", 1)[1])
        self.url = f"http://127.0.0.1:{self.port}/"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Two trainers, four engines and some updates; engine d was killed."""
    with Job(trainers=2) as job:
        one = Served(job)
        for rank in range(2):
            job.start_trainer(rank)
        for engine in "abcd":
            job.start_engine(engine)
        for _ in range(6):
            job.publish()
        job.processes["engine-d-0"].kill()
        del job.engines["d"]
        job.publish()
        yield one


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    context.close()
    assert not errors


def newest(page: Page):
    return page.locator("summary .what").first


def wait_live(page: Page, served: Served) -> None:
    expect(page.locator("#link")).to_have_text("live")
    expect(newest(page)).to_have_text(f"version {served.job.version}", timeout=10_000)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_and_can_be_read_by_all(browser: Browser, served: Served, width: int, theme: str, tmp_path):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    page = context.new_page()
    page.goto(served.url)
    wait_live(page, served)
    newest(page).click()
    page.mouse.move(0, 0)
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide == 0, f"{wide} pixels beyond the right edge"
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(json.loads(dark.replace("rgb(", "[").replace(")", "]"))) < 300) == (theme == "dark")
    folder = ROOT / SCREENSHOTS if SCREENSHOTS else tmp_path
    page.screenshot(path=folder / f"page-{width}-{theme}.png")
    result = Axe().run(page)
    found = [
        f"{one['impact']}: {one['help']} {one['nodes'][0]['html']}" for one in result.response["violations"]
    ]
    print(f"axe at {width}, {theme}: {found or 'nothing'}")
    assert not [one for one in found if one.startswith(("serious", "critical"))]
    context.close()


def test_it_shows_what_is_there(page: Page, served: Served):
    page.goto(served.url)
    wait_live(page, served)
    version = served.job.version
    for engine in "abc":
        card = page.locator("[data-part=engines] > li", has_text=engine).filter(
            has=page.get_by_text("SERVING")
        )
        expect(card.locator(".name").get_by_text(engine, exact=True)).to_be_visible()
    assert page.locator("[data-part=trainers] > li").count() == 2
    expect(page.locator("[data-part=trainers] .version").first).to_have_text(str(version))
    row = page.locator("[data-part=connections] > tr", has_text="trainer 0 → engine a rank 0")
    expect(row).to_contain_text("B/s")
    expect(row).to_contain_text("shm")
    assert page.locator("[data-part=updates] > li").count() == version
    assert page.locator("[data-part=updates] .bar i.write").count() == version
    assert page.title() == f"policy {version} · weightcast"


def test_an_update_appears_at_once(page: Page, served: Served):
    page.goto(served.url)
    wait_live(page, served)
    # The page's own clock and the controller's are one: both are on this host.
    page.evaluate("""() => {
      window.seen = {};
      const list = document.querySelector("[data-part=updates]");
      new MutationObserver(() => {
        const key = list.firstElementChild.dataset.key;
        window.seen[key] ??= Date.now() - updates.get(Number(key)).ended;
      }).observe(list, { childList: true });
    }""")
    for _ in range(5):
        served.job.publish()
        wait_live(page, served)
    late = sorted(page.evaluate("Object.values(window.seen)"))
    print(f"shown {late} ms after the update's end")
    assert len(late) >= 5
    assert statistics.median(late) < 200


def test_the_keyboard_is_enough(page: Page, served: Served):
    page.goto(served.url)
    wait_live(page, served)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("summary").nth(1)).to_be_focused()
    page.keyboard.press("k")
    expect(page.locator("summary").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("[data-part=routes]").first).to_contain_text("trainer 0")
    served.job.publish()
    wait_live(page, served)
    expect(page.locator("summary").nth(1)).to_be_focused()  # What was first is second now, open and focused.
    expect(page.locator("details").nth(1)).to_have_attribute("open", "")
    page.keyboard.press("t")
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_it_asks_nobody_else(page: Page, served: Served):
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(served.url)
    wait_live(page, served)
    others = [url for url in asked if not url.startswith((served.url, "data:"))]
    assert asked and not others


def test_what_a_job_says_is_text(page: Page, served: Served):
    bad = "<img src=x onerror=\"document.title='run'\">"
    engine = {"name": bad, "state": bad, "version": None, "ranks": 1, "control": bad, "last_error": bad}
    model = {
        "model": bad,
        "phase": bad,
        "epoch": 1,
        "version": {"run": 1, "number": 1, "label": bad, "text": "1"},
        "update": 1,
        "last_error": bad,
        "engines": [engine],
        "trainers": [],
        "ranks": [],
        "connections": [{"from": bad, "to": bad, "path": bad, "last": None}],
    }
    state = json.dumps({"job": bad, "term": 1, "models": [model]})
    stream = f"event: state\ndata: {state}\n\n"
    page.route("**/api/events", lambda route: route.fulfill(body=stream, content_type="text/event-stream"))
    page.goto(served.url)
    expect(page.locator("[data-part=engines] .name")).to_have_text(bad)
    assert page.locator("img").count() == 0


def test_it_comes_back_with_the_controller(page: Page):
    with Job() as job:
        served = Served(job)
        job.start_trainer()
        job.start_engine("a")
        job.publish()
        page.goto(served.url)
        wait_live(page, served)
        job.processes["controller"].kill()
        expect(page.locator("#link")).not_to_have_text("live")
        Served.__init__(served, job, f"127.0.0.1:{served.port}")
        expect(page.locator("#link")).to_have_text("live", timeout=30_000)
        job.publish()
        wait_live(page, served)


def test_it_asks_for_a_token_and_hides_it(page: Page):
    made = subprocess.run(
        [os.environ["WC_TEST_BINARY"], "token", "--role", "observer"],
        capture_output=True,
        text=True,
        check=True,
    )
    token = made.stdout.strip()
    with Job() as job:
        served = Served(job, "0.0.0.0:0")
        page.goto(served.url)
        expect(page.get_by_role("heading", name="This page needs a token")).to_be_visible()
        axe = Axe().run(page).response["violations"]
        assert not [one for one in axe if one["impact"] in ("serious", "critical")]
        page.get_by_label("Observer's token").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("This token was refused.")
        page.get_by_label("Observer's token").fill(token)
        page.keyboard.press("Enter")
        expect(page.locator("#link")).to_have_text("live")
        expect(page.locator("#empty")).to_be_visible()
        page.evaluate("sessionStorage.clear()")
        page.goto(f"{served.url}?token={token}")
        expect(page.locator("#link")).to_have_text("live")
        assert page.url == served.url
