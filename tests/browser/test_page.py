"""A person chats in headless Chromium: type, stream, stop, reload, server gone and back, hostile output, a phone."""

import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait
from starlette.responses import JSONResponse
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
        self.refusal: tuple[int, dict[str, object]] | None = None
        self.asked: list[dict[str, Any]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = scope["type"] == "http" and scope["path"] == "/v1/chat/completions"
        if asked and self.refusal is not None:
            await JSONResponse(self.refusal[1], self.refusal[0])(scope, receive, send)
            return
        if asked and self.answer is not None:
            raw, more = b"", True
            while more:
                message = await receive()
                raw, more = raw + message.get("body", b""), message.get("more_body", False)
            self.asked.append(json.loads(raw))
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


MORE_HOSTILE = [
    "<iframe srcdoc=\"<script>parent.hacked=1</script>\"></iframe>", "<svg><script>window.hacked=1</script><animate onbegin=window.hacked=1></svg>",
    "[a](JaVaScRiPt:window.hacked=1) [b](data:text/html,<script>window.hacked=1</script>) [c]( javascript:window.hacked=1) <javascript:window.hacked=1>",
    "![x](x\" onerror=\"window.hacked=1) <img/src=x onerror=window.hacked=1> <body onload=window.hacked=1> <style>body{display:none}</style>",
    "```\"><img src=x onerror=window.hacked=1>\ncode\n```", "</script><script>window.hacked=1</script> {{constructor.constructor('window.hacked=1')()}}",
    "<a href=\"&#106;avascript:window.hacked=1\">x</a> <form action=javascript:window.hacked=1><button>x</button></form>",
]


@pytest.mark.parametrize("attack", MORE_HOSTILE)
def test_no_form_of_attack_makes_an_element_or_runs(page: Page, site: Site, attack: str) -> None:
    site.app.answer = attack
    page.say("attack")
    page.until(lambda: page.answer() and page.idle())
    assert page.all("#thread script, #thread iframe, #thread svg, #thread style, #thread form, #thread .body img, #thread object, #thread embed") == []
    for link in page.all(".turn.assistant .body a"):
        assert str(link.get_attribute("href")).startswith(("https://", "http://", "mailto:"))
    handlers = "return [...document.querySelectorAll('#thread *')].flatMap(n => n.getAttributeNames()).filter(n => n.startsWith('on'))"
    assert page.driver.execute_script(handlers) == []
    assert page.driver.execute_script("return window.hacked ?? null") is None


def test_hostile_words_of_the_person_and_of_an_error_are_text_too(page: Page, site: Site) -> None:
    site.app.answer = "fine"
    page.say("<img src=x onerror=window.hacked=1><script>window.hacked=1</script>")
    page.until(lambda: page.answer() == "fine" and page.idle())
    assert page.find(".turn.user .body").text.startswith("<img src=x")
    assert page.find("#list .entry").text.startswith("<img src=x")
    assert page.driver.execute_script("return window.hacked ?? null") is None


def test_the_policy_blocks_inline_script_and_everything_from_elsewhere(page: Page) -> None:
    policy = page.driver.execute_async_script("const done = arguments[0]; fetch('/').then(r => done(r.headers.get('content-security-policy')))")
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    page.driver.execute_script("const s = document.createElement('script'); s.textContent = 'window.hacked = 1'; document.body.append(s)")
    page.driver.execute_script("const i = document.createElement('img'); i.setAttribute('onerror', 'window.hacked = 1'); i.src = '/no-such'; document.body.append(i)")
    blocked = page.driver.execute_async_script("const done = arguments[0]; fetch('https://example.com/').then(() => done(false), () => done(true))")
    assert blocked
    assert page.driver.execute_script("return window.hacked ?? null") is None
    assert any("Content Security Policy" in entry["message"] for entry in page.driver.get_log("browser"))  # and takes the lines that the fixture would mind


def test_everything_that_is_loaded_comes_from_this_server(page: Page, site: Site) -> None:
    names = page.driver.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert names
    assert all(name.startswith(f"http://127.0.0.1:{site.port}/") for name in names)


def test_copy_puts_the_answer_and_the_code_on_the_clipboard(page: Page, site: Site) -> None:
    site.app.answer = "Take this:\n\n```python\nprint('copied')\n```"
    page.say("code please")
    page.until(lambda: page.all(".block pre") and page.idle())
    page.driver.execute_script(
        "window.clip = []; Object.defineProperty(navigator, 'clipboard', {value: {writeText: async (t) => { window.clip.push(t) }}, configurable: true})"
    )
    page.find(".block .copy-code").click()
    page.until(lambda: page.find(".block .copy-code").text == "Copied")
    page.find(".turn.assistant .tools button").click()
    page.until(lambda: page.driver.execute_script("return window.clip.length") == 2)
    assert page.driver.execute_script("return window.clip") == ["print('copied')", site.app.answer]


def test_copy_works_where_the_browser_has_no_clipboard_interface(page: Page, site: Site) -> None:
    """Over plain http on a network there is none; the older way fires an event of copying."""
    site.app.answer = "some words"
    page.say("words")
    page.until(lambda: page.answer() == "some words" and page.idle())
    page.driver.execute_script("Object.defineProperty(navigator, 'clipboard', {value: undefined, configurable: true});"
                               "document.addEventListener('copy', () => { window.copied = getSelection().toString() || document.activeElement.value })")
    page.find(".turn.assistant .tools button").click()
    page.until(lambda: page.driver.execute_script("return window.copied ?? null") == "some words")


def test_everything_can_be_done_from_the_keyboard(page: Page, site: Site) -> None:
    site.app.answer = "typed"
    box = page.find("#input")
    assert page.driver.switch_to.active_element == box  # a person types at once
    box.send_keys("one", Keys.SHIFT + Keys.ENTER + Keys.NULL, "two")
    assert box.get_attribute("value") == "one\ntwo"
    box.send_keys(Keys.ENTER)
    page.until(lambda: page.answer() == "typed" and page.idle())
    assert page.find(".turn.user .body").text == "one\ntwo"
    page.driver.switch_to.active_element.send_keys(Keys.CONTROL + "k")
    page.until(lambda: page.all(".welcome"))
    names = set()
    page.driver.execute_script("document.activeElement.blur()")
    for _press in range(30):
        page.driver.switch_to.active_element.send_keys(Keys.TAB)
        here = page.driver.switch_to.active_element
        names.add(here.get_attribute("id") or here.text or here.get_attribute("aria-label"))
    assert {"new", "theme", "lang", "settings-open", "input"} <= names
    unnamed = "return [...document.querySelectorAll('button, input, textarea')].filter(n => n.offsetParent && !n.textContent.trim() && !n.getAttribute('aria-label') && !n.labels?.length && !n.title).map(n => n.id)"
    assert page.driver.execute_script(unnamed) == []


def test_a_conversation_can_be_deleted_and_all_of_them(page: Page, site: Site) -> None:
    site.app.answer = "answer"
    for question in ("first", "second"):
        page.find("#new").click()
        page.say(question)
        page.until(lambda: page.answer() == "answer" and page.idle())
    page.all("#list .entry .drop")[0].click()
    assert [entry.text for entry in page.all("#list .entry > button:first-child")] == ["first"]
    page.until(lambda: page.find(".turn.user .body").text == "first")
    page.find("#settings-open").click()
    page.find("#erase").click()
    page.driver.switch_to.alert.accept()
    page.until(lambda: page.all(".welcome"))
    page.driver.refresh()
    assert page.all("#list .entry") == []


def test_settings_reach_the_server(page: Page, site: Site) -> None:
    site.app.answer = "yes"
    page.find("#settings-open").click()
    page.find("#system").send_keys("Answer shortly.")
    for name, value in (("temperature", 0.2), ("topk", 5), ("max", 32)):
        page.driver.execute_script(f"const t=document.getElementById('{name}'); t.value={value}; t.dispatchEvent(new Event('input',{{bubbles:true}}))")
    page.find("#settings .primary").click()
    page.say("hello")
    page.until(lambda: page.answer() == "yes" and page.idle())
    sent = site.app.asked[-1]
    assert sent["messages"] == [{"role": "system", "content": "Answer shortly."}, {"role": "user", "content": "hello"}]
    assert (sent["temperature"], sent["top_k"], sent["max_tokens"], sent["stream"]) == (0.2, 5, 32, True)


def test_dark_follows_the_system_and_the_button_and_is_really_dark(page: Page) -> None:
    light = "const c = getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number); return (c[0] + c[1] + c[2]) / 3"
    for scheme, dark in (("dark", True), ("light", False)):
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        page.until(lambda dark=dark: (page.driver.execute_script(light) < 60) == dark)
    page.find("#theme").click()
    assert page.driver.execute_script(light) < 60
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_text_stands_out_from_its_ground_in_both_themes(page: Page, site: Site) -> None:
    """WCAG 2.1 AA: 4.5 to 1 for text."""
    site.app.answer = "words and [a link](https://example.com/)"
    page.say("question")
    page.until(lambda: page.answer() and page.idle())
    ratio = """
        const rgb = (c) => c.match(/[\\d.]+/g).map(Number);
        const light = (c) => { const [r, g, b] = rgb(c).map(v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4 }); return .2126 * r + .7152 * g + .0722 * b };
        const ground = (n) => { for (; n; n = n.parentElement) { const c = getComputedStyle(n).backgroundColor; if ((rgb(c)[3] ?? 1) > .99) return c } return 'rgb(255,255,255)' };
        return ['.turn.user .body', '.turn.assistant .body p', '.turn.assistant .body a', '.turn.assistant .tools button', '#note', '#facts', '#title'].map(s => {
          const n = document.querySelector(s), a = light(getComputedStyle(n).color), b = light(ground(n));
          return [s, (Math.max(a, b) + .05) / (Math.min(a, b) + .05)] })"""
    for _theme in range(2):
        for name, value in page.driver.execute_script(ratio):
            assert value >= 4.5, f"{name}: {value:.2f}"
        page.find("#theme").click()


@pytest.mark.parametrize(
    ("status", "error", "shown"),
    [
        (429, {"message": "busy", "type": "rate_limit_error", "param": None, "code": "queue_full"}, "The server is busy"),
        (400, {"message": "long", "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}, "too long for the model"),
        (500, {"message": "<b>broken</b>", "type": "server_error", "param": None, "code": None}, "<b>broken</b>"),
        (401, {"message": "token", "type": "authentication_error", "param": None, "code": "invalid_api_key"}, "needs an access token"),
    ],
)
def test_a_refusal_is_said_in_the_thread_and_the_question_stays(page: Page, site: Site, status: int, error: dict[str, object], shown: str) -> None:
    site.app.refusal = (status, {"error": error})
    try:
        page.say("will it work?")
        page.until(lambda: page.all(".failure"))
        assert shown in page.find(".failure").text
        assert page.find(".turn.user .body").text == "will it work?"
        assert page.find("#settings").is_displayed() == (status == 401)
        if status == 401:
            page.find("#settings .primary").click()
    finally:
        site.app.refusal = None
        page.driver.get_log("browser")  # the browser itself lists failed requests


def test_chinese_is_chosen_by_the_browsers_language(site: Site) -> None:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in FLAGS:
        options.add_argument("--lang=zh-CN" if flag == "--lang=en" else flag)
    options.add_experimental_option("prefs", {"intl.accept_languages": "zh-CN"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        driver.get(f"http://127.0.0.1:{site.port}/")
        assert "对话" in driver.find_element(By.ID, "new").text
        shown = driver.execute_script("return document.body.innerText")
        assert "What shall we talk about" not in shown
        assert "聊点什么" in shown
    finally:
        driver.quit()
