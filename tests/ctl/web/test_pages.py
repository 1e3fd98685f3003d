"""The pages in Chromium: a thousand jobs at two widths, light and dark, hostile texts, keys, and a controller that is away."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from elasticd.protocol.messages import EventKind, EventView
from elasticd.protocol.model import JobId

from ..screens_world import NOW_S, World, running, server, thousand
from .chromium import PROGRAM, Chromium
from .test_web import HOSTILE, Serve

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")

WIDTHS = (1280, 390)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chromium]:
    found = Chromium(tmp_path / "profile")
    yield found
    found.close()


def test_a_thousand_jobs_fit_each_width_light_and_dark(browser: Chromium, serve: Serve, tmp_path: Path) -> None:
    site = serve(thousand())
    for width in WIDTHS:
        pictures = set()
        for dark in (False, True):
            browser.open(site.url, width, dark=dark)
            assert browser.run("document.querySelectorAll('tbody tr:not(.group)').length") == 1000
            assert browser.run("document.documentElement.scrollWidth") == width, "the page scrolls sideways"
            path = tmp_path / f"{width}-{dark}.png"
            browser.picture(path)
            data = path.read_bytes()
            assert struct.unpack(">II", data[16:24]) == (width, 900)
            pictures.add(data)
        assert len(pictures) == 2, "light and dark look the same"
        for page in ("/jobs/resnet50-1", "/history", "/quota", "/health"):
            browser.open(site.url + page, width)
            assert browser.run("document.documentElement.scrollWidth") == width, page
    assert browser.complaints == []


def test_the_first_page_of_a_thousand_jobs_costs_less_than_a_second_of_the_browsers_processor(
    browser: Chromium, serve: Serve
) -> None:
    site = serve(thousand())
    browser.call("Performance.enable", timeDomain="threadTicks")
    browser.open(site.url)
    measured = {each["name"]: each["value"] for each in browser.call("Performance.getMetrics")["metrics"]}
    assert measured["ThreadTime"] < 1.0, measured


def test_jobs_of_the_viewer_come_first_and_the_filter_is_part_of_the_address(browser: Chromium, serve: Serve) -> None:
    site = serve(thousand())
    browser.open(site.url)
    titles = "[...document.querySelectorAll('tr.group')].map(each => each.innerText.trim())"
    assert browser.run(titles) == ["Jobs of alice (200)", "Other jobs (800)"]
    browser.press("/")
    for key in "vit-5 ":
        browser.press(key)
    shown = "[...document.querySelectorAll('tbody tr:not(.group):not([hidden]) th a')].map(each => each.textContent)"
    assert browser.run(shown) == ["vit-5", "vit-50", "vit-55"]
    assert browser.run("location.search") == "?filter=vit-5+"
    browser.open(f"{site.url}/?filter=vit-55&user=bob")
    assert browser.run(shown) == ["vit-55"]
    assert browser.run(titles)[0] == "Jobs of bob (200)"
    browser.open(f"{site.url}/?filter=vit-55")
    browser.press("j")
    assert browser.run("document.activeElement.textContent") == "vit-55"


def test_marks_of_gpus_tell_jobs_apart_without_colours(browser: Chromium, serve: Serve) -> None:
    site = serve(thousand())
    browser.open(site.url)
    marks = browser.run("[...document.querySelectorAll('.gpus a b')].map(each => each.textContent)")
    jobs = browser.run("[...document.querySelectorAll('.gpus a span')].map(each => each.textContent)")
    assert len(set(zip(marks, jobs, strict=True))) == len(set(marks)) == len(set(jobs)) > 100
    assert browser.run("document.querySelector('.gpus .shut').getAttribute('aria-label')").startswith("GPU 7: ")


def test_no_text_of_a_job_becomes_markup(browser: Chromium, serve: Serve) -> None:
    world = World()
    texts = " ".join(HOSTILE)
    hostile = running("digits-1", reason=texts, owner=texts, odd_metrics={texts: "nan"})
    spec = msgspec.structs.replace(hostile.spec, command=("python", texts))
    world.jobs = [msgspec.structs.replace(hostile, spec=spec)]
    world.servers = [server("s1", {0: "digits-1"}, barred={1: texts}, trouble=texts)]
    world.events = [EventView(number=1, time_s=NOW_S, kind=EventKind.TOLD, job=JobId("digits-1"), text=texts)]
    world.explanation = msgspec.structs.replace(world.explanation, reasons=(texts,))
    lines = "".join(f"{NOW_S:.3f} o {text.splitlines()[0]}\n" for text in HOSTILE)
    world.logs["digits-1.0"] = (lines + f"{NOW_S:.3f} o {'y' * 10_000}\n").encode()
    site = serve(world)
    elements = "document.querySelectorAll('main script, main img, [onerror]').length"
    for path in ("/", "/jobs/digits-1", "/health", "/jobs/%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E"):
        browser.open(site.url + path, 390)
        if path == "/jobs/digits-1":
            browser.until("document.querySelectorAll('.logs div').length == 7")
            assert "<script>alert(1)</script>" in browser.run("document.querySelector('.logs').innerText")
        assert browser.run(elements) == 0, path
        assert browser.run("document.documentElement.scrollWidth") == 390, path
    stopped = [each for each in browser.complaints if "404" not in each]  # an unknown job is no fault
    assert stopped == []


def test_a_controller_that_is_away_is_told_with_the_age_of_what_is_shown(browser: Chromium, serve: Serve) -> None:
    world = thousand()
    site = serve(world)
    browser.open(site.url)
    assert browser.run("document.getElementById('banner').hidden")
    world.away = True
    told = browser.until("!document.getElementById('banner').hidden && document.getElementById('banner').innerText")
    assert "no controller answers at tcp://head:7700" in told
    assert "s old" in told
    assert browser.run("document.querySelectorAll('tbody tr:not(.group)').length") == 1000
    world.away = False
    browser.until("document.getElementById('banner').hidden")


def test_a_log_is_followed(browser: Chromium, serve: Serve) -> None:
    world = thousand()
    site = serve(world)
    browser.open(f"{site.url}/jobs/resnet50-1#log")
    browser.until("document.querySelectorAll('.logs div').length == 300")
    world.logs["resnet50-1.0"] += f"{time.time():.3f} o one more line\n".encode()
    browser.until("document.querySelector('.logs').lastChild?.innerText == 'one more line'")
    at_end = "(box => box.scrollHeight - box.scrollTop - box.clientHeight < 2)(document.querySelector('.logs'))"
    assert browser.run(at_end)
