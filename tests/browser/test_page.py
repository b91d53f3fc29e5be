"""A person chats in headless Chromium: type, stream, stop, reload, server gone and back, hostile output, a phone."""

import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvicorn
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait
from starlette.types import ASGIApp, Receive, Scope, Send

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "serve"))
from serving import engine

from nanochat.serve.app import Served, build_app
from nanochat.serve.batcher import Batcher

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(shutil.which("chromium") is None or shutil.which("chromedriver") is None, reason="needs Debian's chromium and chromium-driver"),
]

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--lang=en", "--window-size=1100,800",
)
HOSTILE = (
    "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'> [x](javascript:window.hacked=1) "
    "<svg/onload=window.hacked=1> `<b>` **<i>bold</i>** [ok](https://example.com/a\"onmouseover=\"window.hacked=1)\n\n```html\n"
    "<script>window.hacked=1</script>\n```\n\n| <script>window.hacked=1</script> | b |\n|---|---|\n| 1 | 2 |\n"
)


class Scripted:
    """The real application, except that `answer` speaks instead of the model while it is set."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.answer: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/v1/chat/completions" and self.answer is not None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
            for piece in (self.answer[: len(self.answer) // 2], self.answer[len(self.answer) // 2 :]):
                event = {"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]}
                await send({"type": "http.response.body", "body": f"data: {json.dumps(event)}\n\n".encode(), "more_body": True})
            end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
            await send({"type": "http.response.body", "body": f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n".encode()})
            return
        await self.app(scope, receive, send)


class Site:
    """A server that can be stopped and started again on the same port."""

    def __init__(self) -> None:
        self.batcher = Batcher(engine(length=3000, endless=True), slots=2)
        self.batcher.start()
        facts = {"stage": "sft", "step": 7, "parameters": 12_000_000, "chats": True}
        self.app = Scripted(build_app(Served("small", self.batcher, 0, default_tokens=2900, facts=facts)))
        self.port = 0
        self.up()

    def up(self) -> None:
        self.server = uvicorn.Server(uvicorn.Config(self.app, port=self.port, log_level="error", timeout_graceful_shutdown=1))
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        while not self.server.started:
            self.thread.join(0.02)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]

    def down(self) -> None:
        self.server.should_exit = True
        self.thread.join()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.down()
    made.batcher.stop()


@pytest.fixture(scope="module")
def chromium() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


class Page:
    """What a person sees and does."""

    def __init__(self, driver: webdriver.Chrome, site: Site) -> None:
        self.driver, self.site = driver, site
        driver.get(f"http://127.0.0.1:{site.port}/")
        driver.execute_script("localStorage.clear()")
        driver.refresh()
        driver.get_log("browser")

    def find(self, css: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def until(self, what: Callable[[], object], seconds: float = 30) -> None:
        def holds(_driver: object) -> bool:
            try:
                return bool(what())
            except StaleElementReferenceException:
                return False

        WebDriverWait(self.driver, seconds, 0.05).until(holds)

    def say(self, text: str) -> None:
        self.find("#input").send_keys(text + Keys.ENTER)

    def answer(self) -> str:
        found = self.all(".turn.assistant .body")
        return found[-1].text if found else ""

    def idle(self) -> bool:
        return not self.all(".turn.live")


@pytest.fixture
def page(chromium: webdriver.Chrome, site: Site) -> Iterator[Page]:
    site.app.answer = None
    made = Page(chromium, site)
    yield made
    severe = [entry for entry in chromium.get_log("browser") if entry["level"] == "SEVERE" and "ERR_CONNECTION_REFUSED" not in entry["message"]]
    assert severe == []


def test_typing_streams_an_answer_and_stop_ends_it_in_mid_stream(page: Page, site: Site) -> None:
    page.say("the cat")
    page.until(lambda: len(page.answer()) > 20)
    before = page.answer()
    assert not page.idle()
    page.until(lambda: len(page.answer()) > len(before) + 10)  # it grows while we watch
    page.find("#stop").click()
    page.until(page.idle)
    page.until(lambda: site.batcher.active == 0)  # and the server stopped generating
    assert "stopped" in page.find(".turn.last .tools").text


def test_escape_stops_too_and_the_next_question_works(page: Page, site: Site) -> None:
    page.say("the cat")
    page.until(lambda: page.answer())
    page.find("#input").send_keys(Keys.ESCAPE)
    page.until(page.idle)
    site.app.answer = "second answer"
    page.say("and now?")
    page.until(lambda: page.answer() == "second answer")


def test_conversations_survive_a_reload_and_can_be_switched(page: Page, site: Site) -> None:
    site.app.answer = "first answer"
    page.say("first question")
    page.until(lambda: page.answer() == "first answer" and page.idle())
    page.find("#new").click()
    site.app.answer = "other answer"
    page.say("other question")
    page.until(lambda: page.answer() == "other answer" and page.idle())
    page.driver.refresh()
    page.until(lambda: page.answer() == "other answer")
    entries = page.all("#list .entry > button:first-child")
    assert [entry.text for entry in entries] == ["other question", "first question"]
    entries[1].click()
    page.until(lambda: page.answer() == "first answer")


def test_hostile_output_is_shown_and_never_run(page: Page, site: Site) -> None:
    site.app.answer = HOSTILE
    page.say("attack")
    page.until(lambda: "<script>" in page.answer() and page.idle())
    assert page.driver.execute_script("return window.hacked") is None
    assert page.all("#thread script, #thread img[src=x], #thread svg, #thread [onerror], #thread [onmouseover]") == []
    links = [link.get_attribute("href") for link in page.all(".turn.assistant a")]
    assert all(str(link).startswith("https://") for link in links)
    page.driver.refresh()
    page.until(lambda: "<script>" in page.answer())
    assert page.driver.execute_script("return window.hacked") is None


def test_a_server_that_is_gone_is_said_and_noticed_when_it_is_back(page: Page, site: Site) -> None:
    site.down()
    try:
        page.say("anyone there?")
        page.until(lambda: "not reachable" in page.find("#state").text)
        assert page.all(".failure")
    finally:
        site.up()
    page.until(lambda: "not reachable" not in page.find("#state").text)
    site.app.answer = "here I am"
    page.all(".turn.last .tools button")[-1].click()  # again
    page.until(lambda: page.answer() == "here I am")


def test_a_question_can_be_edited_and_an_answer_made_again(page: Page, site: Site) -> None:
    site.app.answer = "one"
    page.say("first wording")
    page.until(lambda: page.answer() == "one" and page.idle())
    site.app.answer = "two"
    page.driver.execute_script("document.querySelectorAll('.turn.assistant .tools button')[1].click()")
    page.until(lambda: page.answer() == "two" and page.idle())
    site.app.answer = "three"
    page.driver.execute_script("document.querySelectorAll('.turn.user .tools button')[1].click()")
    area = page.find(".edit textarea")
    area.clear()
    area.send_keys("second wording" + Keys.ENTER)
    page.until(lambda: page.answer() == "three" and page.idle())
    assert [turn.text.splitlines()[0] for turn in page.all(".turn.user .body")] == ["second wording"]


def test_markdown_code_and_settings(page: Page, site: Site) -> None:
    site.app.answer = "# Head\n\n- a\n- b\n\n```python\nprint(1)\n```\n\n1 < 2 & **bold**"
    page.say("show")
    page.until(lambda: page.all(".block pre") and page.idle())
    assert page.find(".block pre").text == "print(1)"
    assert [item.text for item in page.all(".turn.assistant li")] == ["a", "b"]
    assert page.find(".turn.assistant strong").text == "bold"
    page.find("#settings-open").click()
    page.driver.execute_script("const t=document.getElementById('temperature'); t.value=1.5; t.dispatchEvent(new Event('input',{bubbles:true}))")
    page.find("#settings .primary").click()
    assert page.driver.execute_script("return JSON.parse(localStorage.nanochat).settings.temperature") == 1.5


def test_chinese_and_dark(page: Page) -> None:
    page.find("#lang").click()
    assert page.find("html").get_attribute("lang") == "zh-CN"
    assert "对话" in page.find("#new").text
    page.find("#theme").click()
    dark = page.find("html").get_attribute("data-theme")
    page.driver.refresh()
    assert page.find("html").get_attribute("data-theme") == dark
    assert "对话" in page.find("#new").text


def test_a_phone_has_no_sideways_scrolling_and_a_drawer(page: Page, site: Site) -> None:
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": 375, "height": 700, "deviceScaleFactor": 2, "mobile": True})
    try:
        site.app.answer = "a" * 400 + "\n\n```\n" + "x" * 300 + "\n```"
        page.say("long words")
        page.until(lambda: "aaa" in page.answer() and page.idle())
        assert page.driver.execute_script("return document.documentElement.scrollWidth") <= 375
        box = page.find("#composer").rect
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 375
        assert not page.find("#new").is_displayed()
        page.find("#side-open").click()
        page.until(lambda: page.find("#new").is_displayed())
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
