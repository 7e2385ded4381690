"""The report in a browser: it opens from disk, shows every figure, and fits a telephone."""

import re
import shutil
import subprocess

import matplotlib.image
import numpy as np
import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--hide-scrollbars",
]
WIDE, NARROW = 1280, 390

# The browser makes no window narrower than 500 pixels, but a frame of any width. The report has no
# script itself; this one looks at what the browser made of it.
FRAME = """<!DOCTYPE html><iframe src="{src}" style="width: {width}px; height: 2000px; border: 0">
</iframe><script>addEventListener("load", () => {{
  const page = document.querySelector("iframe").contentDocument, root = page.documentElement;
  const say = (name, value) => document.documentElement.setAttribute("data-" + name, value);
  const images = [...page.images], parts = [...page.querySelectorAll("body *")];
  const right = (e) => e.getBoundingClientRect().right;
  say("images", images.filter((i) => i.complete && i.naturalWidth > 300).length);
  say("smallest", Math.min(...images.map((i) => i.getBoundingClientRect().width)));
  say("outside", parts.filter((e) => !e.closest("thead") && right(e) > {width} + 1).length);
  say("scroll", root.scrollWidth);
  say("head", page.defaultView.getComputedStyle(page.querySelector("thead")).position);
  say("sections", [...page.querySelectorAll("section")].map((e) => e.id).join(" "));
  say("text", page.body.innerText);
}});</script>"""


def chromium(tmp_path, page, width, *flags):
    """Run the browser on a page and return what it prints."""
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}"]
    command += [f"--window-size={width},2000", *flags, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def facts(tmp_path, report, width):
    """Return what the browser made of a page in a frame of a width."""
    page = tmp_path / "frame.html"
    page.write_text(FRAME.format(src=report.as_uri(), width=width))
    flags = ("--allow-file-access-from-files", "--dump-dom")
    start = chromium(tmp_path, page, WIDE, *flags).partition("<head>")[0]
    return dict(re.findall(r'data-(\w+)="([^"]*)"', start))


def picture(tmp_path, report, width, *flags):
    path = tmp_path / f"{width}.png"
    chromium(tmp_path, report, width, f"--screenshot={path}", *flags)
    return matplotlib.image.imread(path)[:, :, :3]


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_every_figure_is_shown_and_nothing_leaves_the_screen(report, tmp_path, width):
    found = facts(tmp_path, report, width)
    assert int(found["images"]) == report.read_text().count("<img") >= 15
    assert int(found["scroll"]) == width
    assert int(found["outside"]) == 0
    assert float(found["smallest"]) > (340 if width == NARROW else 500)
    assert found["head"] == ("absolute" if width == NARROW else "static")  # cards, or a table
    assert found["sections"].split() == [
        *("summary", "accuracy", "pairs", "learning", "stability", "clipping", "training", "time"),
        *("caveats", "first_rollouts", "setup", "runs"),
    ]
    assert "no difference shown" in found["text"]


def test_what_does_not_fit_would_be_noticed(report, tmp_path):
    page = tmp_path / "wide.html"
    page.write_text(report.read_text().replace("<main>", '<main><p style="width: 700px">x</p>'))
    found = facts(tmp_path, page, NARROW)
    assert int(found["outside"]) > 0
    assert int(found["scroll"]) > NARROW


def test_the_page_is_not_blank_and_is_dark_where_the_reader_wants_it(report, tmp_path):
    light = picture(tmp_path, report, NARROW)
    dark = picture(tmp_path, report, NARROW, "--blink-settings=preferredColorScheme=0")
    assert light.shape == dark.shape == (2000, NARROW, 3)
    assert light[5, 5].min() > 0.95
    assert dark[5, 5].max() < 0.15
    for seen in (light, dark):
        rows = np.abs(seen - seen[5, 5]).max(axis=(1, 2)) > 0.3
        assert rows.mean() > 0.4  # text or a figure in most lines of pixels
