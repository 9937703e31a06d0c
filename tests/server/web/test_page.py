"""The page in a real browser: what a person does, with the mouse, the keyboard and a reader's eyes."""
import os
import re
import sys
import time

import pytest
from playwright.sync_api import expect, sync_playwright

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from conftest import Server, png, wav  # noqa: E402

SHOTS = os.environ["H3AV_SHOTS"]
expect.set_options(timeout=60000)


@pytest.fixture(scope="module")
def server():
    s = Server("--queue", "64")
    yield s
    s.close()


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as p:
        b = p.chromium.launch(executable_path="/usr/bin/chromium",
                              args=["--no-sandbox", "--disable-gpu", "--autoplay-policy=no-user-gesture-required"])
        yield b
        b.close()


def open_page(browser, server, **options):
    context = browser.new_context(**options)
    page = context.new_page()
    page.problems = []
    page.hosts = set()
    page.on("console", lambda m: page.problems.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: page.problems.append(str(e)))
    page.on("request", lambda r: page.hosts.add(re.sub(r"^(\w+://[^/]*).*", r"\1", r.url)))
    page.goto(server.url)
    expect(page.locator("#server")).to_have_text("h3-nano")
    return page


@pytest.fixture
def page(browser, server):
    p = open_page(browser, server, viewport={"width": 1280, "height": 900})
    yield p
    # nothing was blocked by the policy, nothing failed, nothing was fetched from elsewhere
    assert not [t for t in p.problems if "status of 4" not in t], p.problems
    assert {h for h in p.hosts if h.startswith("http")} == {server.url}
    p.context.close()


def fill(page, prompt, size="32x32", seconds="0.9", steps="2", seed=""):
    page.fill("#prompt", prompt)
    for name, value in (("size", size), ("seconds", seconds), ("steps", steps), ("seed", seed)):
        page.fill("#" + name, value)


def card(page, prompt):
    return page.locator(".card").filter(has=page.locator("h3", has_text=re.compile(f"^{re.escape(prompt)}$")))


# The longest job the page can ask for (minutes on two cores), so it still runs when a test looks
# at it or does something to it. A short one may have ended before the browser draws its first step.
LONGEST = {"size": "384x384", "seconds": "5", "steps": "200"}


def test_progress_is_shown(page):
    fill(page, "a long fox", **LONGEST)
    page.click("#start")
    c = card(page, "a long fox")
    expect(c.locator("progress")).to_be_visible()
    expect(c.locator(".phase")).to_contain_text(re.compile(r"step \d+ of 199.* a step.* left"))
    page.screenshot(path=f"{SHOTS}/running.png", full_page=True)
    c.locator("[data-do=cancel]").click()
    expect(c).to_have_attribute("data-status", "cancelled")
    c.locator("[data-do=delete]").click()
    expect(c).to_have_count(0)


def test_from_prompt_to_playing_video(page, server):
    fill(page, "a fox in snow", size="64x64", steps="30", seed="7")
    page.click("#start")
    c = card(page, "a fox in snow")
    expect(c).to_have_count(1)
    expect(c).to_have_attribute("data-status", "completed")
    expect(c.locator("img[alt='First frame']")).to_be_visible()
    expect(c.locator(".facts")).to_contain_text("seed 7")
    c.locator("[data-do=play]").click()
    video = c.locator("video")
    expect(video).to_be_visible()
    page.wait_for_function("() => { const v = document.querySelector('.card video'); return v.currentTime > 0.1 && v.videoWidth === 64; }")
    assert video.evaluate("v => v.webkitAudioDecodedByteCount === undefined || v.webkitAudioDecodedByteCount > 0")
    assert abs(video.evaluate("v => v.duration") - 22 / 24) < 0.1
    page.screenshot(path=f"{SHOTS}/done.png", full_page=True)
    with page.expect_download() as d:
        c.locator("[data-do=download]").click()
    assert d.value.suggested_filename.endswith(".mp4")
    assert open(d.value.path(), "rb").read()[4:8] == b"ftyp"
    page.reload()  # history
    expect(card(page, "a fox in snow")).to_have_attribute("data-status", "completed")
    card(page, "a fox in snow").locator("[data-do=delete]").click()
    expect(card(page, "a fox in snow")).to_have_count(0)
    assert server.get("/v1/videos").json["data"] == []


def test_files_by_choice_and_by_drop(page):
    fill(page, "with frames", size="")
    page.set_input_files("#first", {"name": "first.png", "mimeType": "image/png", "buffer": png(160, 96)})
    expect(page.locator("#drop-first .files li")).to_have_count(1)
    import base64
    page.evaluate("""(b64) => {
        const bytes = Uint8Array.from(atob(b64), c => c.charCodeAt(0));
        const data = new DataTransfer();
        data.items.add(new File([bytes], "dropped.png", {type: "image/png"}));
        for (const type of ["dragover", "drop"])
            document.querySelector("#drop-last").dispatchEvent(new DragEvent(type, {dataTransfer: data, bubbles: true, cancelable: true}));
    }""", base64.b64encode(png(160, 96, 1)).decode())
    expect(page.locator("#drop-last .files li")).to_contain_text("dropped.png")
    page.locator("#drop-last .files button").click()  # and out again
    expect(page.locator("#drop-last .files li")).to_have_count(0)
    page.fill("#size", "64x32")
    page.click("#start")
    c = card(page, "with frames")
    expect(c.locator(".facts")).to_contain_text("1 input")
    expect(c).to_have_attribute("data-status", "completed")
    c.locator("[data-do=delete]").click()
    expect(c).to_have_count(0)


def test_what_is_wrong_is_said(page):
    fill(page, "too large", size="8192x8192")
    page.click("#start")
    expect(page.locator("#problem")).to_contain_text("pixels this server accepts")
    page.set_input_files("#refs", {"name": "only.wav", "mimeType": "audio/wav", "buffer": wav()})
    page.fill("#size", "32x32")
    page.click("#start")
    expect(page.locator("#problem")).to_contain_text("audio references need a picture")
    page.fill("#seconds", "999")
    page.click("#start")  # the browser's own check
    assert page.locator("#seconds:invalid").count() == 1
    page.problems.clear()


def test_queue_cancel_remix_settings(page):
    fill(page, "long one", seed="3", **LONGEST)
    page.click("#start")
    fill(page, "short one")
    page.click("#start")
    c, d = card(page, "long one"), card(page, "short one")
    expect(d.locator(".facts")).to_contain_text("number 1 in the queue")
    expect(page.locator("#queue")).to_have_text("1 in progress, 1 waiting")
    page.screenshot(path=f"{SHOTS}/queue.png", full_page=True)
    c.locator("[data-do=cancel]").click()
    expect(c).to_have_attribute("data-status", "cancelled")
    expect(d).to_have_attribute("data-status", "completed")
    d.locator(".buttons [data-do=remix]").first.click()
    d.locator("form.remix textarea").fill("short one again")
    d.locator("form.remix button[type=submit]").click()
    r = card(page, "short one again")
    expect(r.locator(".facts")).to_contain_text("a remix")
    expect(r).to_have_attribute("data-status", "completed")
    c.locator("[data-do=again]").click()
    expect(page.locator("#prompt")).to_have_value("long one")
    expect(page.locator("#seed")).to_have_value("3")
    for x in (c, d, r):
        x.locator("[data-do=delete]").click()
        expect(x).to_have_count(0)


def test_survives_a_restart_of_the_server(browser, server):
    page = open_page(browser, server)
    fill(page, "before a restart", **LONGEST)
    page.click("#start")
    fill(page, "through a restart")
    page.click("#start")
    first, c = card(page, "before a restart"), card(page, "through a restart")
    expect(first.locator(".phase")).to_contain_text("step")
    expect(c.locator(".facts")).to_contain_text("number 1 in the queue")
    server.kill()
    server.start()
    # the one that ran is taken up again, the one that waited still waits; the page finds both by itself
    expect(first.locator(".phase")).to_contain_text("step")
    first.locator("[data-do=cancel]").click()
    expect(first).to_have_attribute("data-status", "cancelled")
    expect(c).to_have_attribute("data-status", "completed")
    first.locator("[data-do=delete]").click()
    expect(first).to_have_count(0)
    c.locator("[data-do=delete]").click()
    expect(c).to_have_count(0)
    page.context.close()


def test_by_keyboard_alone(page):
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    seen = []
    for _ in range(14):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    order = [i for i in seen if i in ("prompt", "first", "last", "refs", "size", "seconds", "steps", "seed", "start")][:9]
    assert order == ["prompt", "first", "last", "refs", "size", "seconds", "steps", "seed", "start"], seen
    page.focus("#prompt")
    page.keyboard.type("by keys")
    for name, value in (("size", "32x32"), ("seconds", "0.9"), ("steps", "2")):
        page.focus("#" + name)
        page.keyboard.type(value)
    page.focus("#prompt")
    page.keyboard.press("Control+Enter")
    c = card(page, "by keys")
    expect(c).to_have_attribute("data-status", "completed")
    c.locator("[data-do=delete]").focus()
    page.keyboard.press("Enter")
    expect(c).to_have_count(0)
    assert page.evaluate("document.activeElement.tagName") != "BODY"  # the focus is not lost


def test_for_screen_readers(page):
    """Everything that can be used has a name; changes are announced; headings are in order."""
    fill(page, "named")
    page.click("#start")
    c = card(page, "named")
    expect(page.locator("#announce")).to_contain_text("named")
    expect(c).to_have_attribute("data-status", "completed")
    expect(page.locator("#announce")).to_have_text("Done: named")
    nameless = page.evaluate("""() => [...document.querySelectorAll("button, input, textarea, a, video, progress, img")]
        .filter(e => e.checkVisibility() && !(e.textContent.trim() || e.getAttribute("aria-label") || e.getAttribute("alt") !== null
            || (e.labels && e.labels.length)))
        .map(e => e.outerHTML)""")
    assert nameless == []
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map(h => +h.tagName[1])")
    assert levels[0] == 1 and all(b - a <= 1 for a, b in zip(levels, levels[1:]))
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.get_by_role("button", name="Delete: named").count() == 1
    assert page.get_by_role("textbox", name="What to show and to hear").count() == 1
    c.locator("[data-do=delete]").click()
    expect(c).to_have_count(0)


def contrast(page):
    """The least contrast of visible text against its ground."""
    return page.evaluate("""() => {
        const lum = (c) => { const v = c.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255)
            .map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4); return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
        const ground = (e) => { for (; e; e = e.parentElement) { const b = getComputedStyle(e).backgroundColor;
            if (!/, 0\\)$|transparent/.test(b)) return b; } return "rgb(255,255,255)"; };
        let least = 99;
        for (const e of document.querySelectorAll("p, h1, h2, h3, label, legend, button, input, textarea, summary")) {
            if (!e.checkVisibility() || e.disabled) continue;
            const a = lum(getComputedStyle(e).color), b = lum(ground(e));
            least = Math.min(least, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
        }
        return least;
    }""")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_narrow_and_wide_light_and_dark(browser, server, scheme, width):
    id = server.create(prompt="a prompt with averyveryveryveryveryveryveryveryveryveryveryverylongwordinit")
    server.wait(id)
    page = open_page(browser, server, viewport={"width": width, "height": 700}, color_scheme=scheme)
    expect(page.locator("img[alt='First frame']").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # nothing sticks out
    assert contrast(page) >= 4.5
    assert not page.problems
    page.screenshot(path=f"{SHOTS}/{scheme}-{width}.png", full_page=True)
    page.context.close()
    server.delete(f"/v1/videos/{id}")


def test_with_a_key(browser):
    s = Server("--api-key", "secret-of-the-page")
    try:
        page = browser.new_context().new_page()
        page.goto(s.url)
        expect(page.locator("#server")).to_have_text("a key is needed")
        page.fill("#key", "secret-of-the-page")
        page.keyboard.press("Enter")
        expect(page.locator("#server")).to_have_text("h3-nano")
        fill(page, "secret fox")
        page.click("#start")
        c = card(page, "secret fox")
        expect(c).to_have_attribute("data-status", "completed")
        c.locator("[data-do=play]").click()
        page.wait_for_function("() => { const v = document.querySelector('.card video'); return v && v.currentTime > 0.05; }")
        page.context.close()
    finally:
        s.close()


def test_old_videos_come_in_pages(browser, start_many):
    s = start_many
    page = open_page(browser, s)
    expect(page.locator(".card")).to_have_count(20)
    page.click("#more")
    expect(page.locator(".card")).to_have_count(23)
    expect(page.locator("#more")).to_be_hidden()
    page.context.close()


@pytest.fixture
def start_many():
    s = Server("--queue", "64")
    s.create(prompt="busy", size="256x256", num_frames=124, steps=200)
    for i in range(22):
        s.create(prompt=f"number {i}")
    yield s
    s.close()
