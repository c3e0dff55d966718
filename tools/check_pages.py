"""Opens interactive pages in a real browser, without a window, and takes screenshots.

    tools/check_pages.py                    # makes one page of each sort in build/pages, and checks them
    tools/check_pages.py run.html --output shots

A page passes if it shows all frames that it holds, goes to another frame, plays, prints no error on the console, and
requests nothing from elsewhere. Needs Debian's chromium; where there is none, says so and succeeds. CHROMIUM names
another browser.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from browser import Browser, find_chromium

ROOT = Path(__file__).parents[1]
WIDTH, HEIGHT = 1440, 1040
STATE = "Object.assign({}, document.documentElement?.dataset)"
SECONDS = 60.0  # until a page is drawn, on a busy machine


def data_of(page: Path) -> dict[str, Any]:
    """The data in a page."""
    text = page.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    if found is None:
        raise ValueError(f"{str(page)!r} is not an interactive page of torchmdx")
    data: dict[str, Any] = json.loads(found[1])
    return data


def check(browser: Browser, page: Path, pictures: Path) -> list[str]:
    """Problems of a page; prints what it shows and writes screenshots."""
    data, problems = data_of(page), []
    browser.open(page.resolve().as_uri(), WIDTH, HEIGHT)
    state = browser.wait(STATE, lambda state: state.get("ready") == "yes" or bool(browser.problems()), SECONDS)
    if state.get("ready") != "yes":
        return browser.problems() or [f"not drawn within {SECONDS:.0f} s"]
    browser.screenshot(pictures / f"{page.stem}.png")
    if "rounds" in data:
        problems += check_learning(browser, state, data, pictures / f"{page.stem}-first.png")
    elif "sets" in data:
        problems += check_report(browser, state, data, pictures / f"{page.stem}-other.png")
    else:
        problems += check_movie(browser, state, data, pictures / f"{page.stem}-last.png")
    print(f"{page.name}: {page.stat().st_size / 1e6:.1f} MB, {json.dumps(state)}")
    return problems + browser.problems()


def check_learning(browser: Browser, state: dict[str, str], data: dict[str, Any], picture: Path) -> list[str]:
    """Problems of the page of active learning."""
    problems, number = [], len(data["frames"])
    expected = {"frames": number, "frame": number - 1, "rounds": len(data["rounds"])}
    for name, value in expected.items():
        if state[name] != str(value):
            problems.append(f"{name} must be {value}, got {state[name]}")
    for name, count in (("#rounds tr", len(data["rounds"]) + 1), ("#why tr", 5)):
        found = browser.evaluate(f"document.querySelectorAll('{name}').length")
        if found != count:
            problems.append(f"{name} must occur {count} times, got {found}")
    if not browser.evaluate("document.querySelectorAll('.scene canvas').length"):
        problems.append("the structure is not drawn: there is no canvas")
    move = "const slider = document.querySelector('input[type=range]'); slider.value = 0;"
    browser.evaluate(f"{{ {move} slider.dispatchEvent(new Event('input')); }}")
    browser.evaluate("const map = document.querySelector('#map-round'); map.selectedIndex = 0;")
    browser.evaluate("map.dispatchEvent(new Event('change'))")
    first = browser.wait(STATE, lambda state: state["frame"] == "0", SECONDS)
    if first["frame"] != "0":
        problems.append(f"the slider must lead to frame 0, got {first['frame']}")
    browser.screenshot(picture)
    return problems


def check_movie(browser: Browser, state: dict[str, str], data: dict[str, Any], picture: Path) -> list[str]:
    """Problems of the page of a movie."""
    problems, number = [], len(data["captions"])
    expected = {"frames": number, "frame": 0, "panels": len(data["panels"])}
    expected["residues"] = len(data["torsions"]["names"]) if data["torsions"] else 0
    for name, value in expected.items():
        if state[name] != str(value):
            problems.append(f"{name} must be {value}, got {state[name]}")
    canvases = browser.evaluate("document.querySelectorAll('.scene canvas').length")
    if not canvases:
        problems.append("the model is not drawn: there is no canvas")
    if number == 1:
        return problems
    move = "const slider = document.querySelector('input[type=range]'); slider.value = slider.max;"
    browser.evaluate(f"{{ {move} slider.dispatchEvent(new Event('input')); }}")
    last = browser.wait(STATE, lambda state: state["frame"] == str(number - 1), SECONDS)
    if last["frame"] != str(number - 1):
        problems.append(f"the slider must lead to frame {number - 1}, got {last['frame']}")
    browser.screenshot(picture)
    browser.evaluate("document.querySelector('select').value = '40'; document.querySelector('button.play').click()")
    started = time.monotonic()
    played = browser.wait(STATE, lambda state: int(state["frame"]) != number - 1, SECONDS)
    seconds = time.monotonic() - started
    if played["frame"] == str(number - 1):
        problems.append("the button must play the frames, got no other frame")
    browser.evaluate("document.querySelector('button.play').click()")
    print(f"  the next frame after {seconds:.2f} s")
    return problems


def check_report(browser: Browser, state: dict[str, str], data: dict[str, Any], picture: Path) -> list[str]:
    """Problems of the interactive page of a report."""
    problems = []
    if state["frames"] != str(len(data["captions"])):
        problems.append(f"frames must be {len(data['captions'])}, got {state['frames']}")
    if int(state["plots"]) < 1 or "0" in state["dots"].split():
        problems.append(f"parity plots must have dots, got {state['plots']} plots with {state['dots']}")
    # The first dot of the first plot that is not of the frame shown is pointed at.
    dot = f"""(() => {{
        const node = document.querySelector(".parity"), trace = node.data[1];
        const k = trace.customdata.findIndex((frame) => frame !== {state["frame"]});
        const box = node.getBoundingClientRect(), {{xaxis, yaxis, _size}} = node._fullLayout;
        return {{x: box.x + xaxis._offset + xaxis.l2p(trace.x[k]), y: box.y + yaxis._offset + yaxis.l2p(trace.y[k])}};
    }})()"""
    place = browser.evaluate(dot)
    for step in (40, 0):
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=place["x"] + step, y=place["y"])
        time.sleep(0.3)
    moved = browser.wait(STATE, lambda other: other["frame"] != state["frame"], SECONDS)
    if moved["frame"] == state["frame"]:
        problems.append("the dot under the pointer must show its frame, got none")
    named = browser.wait("document.querySelector('.parity .hoverlayer').textContent", bool, 5)
    if "frame" not in named:
        problems.append(f"the dot under the pointer must name its frame, got {named!r}")
    browser.screenshot(picture)
    return problems


def main(arguments: list[str] | None = None) -> int:
    """Checks pages; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="pages (default: makes some)")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "build" / "pages",
        metavar="DIR",
        help="screenshots (default: build/pages)",
    )
    options = parser.parse_args(arguments)
    program = find_chromium()
    if program is None:
        print("check_pages: there is no chromium here (apt install chromium), so NO PAGE IS CHECKED")
        return 0
    options.output.mkdir(parents=True, exist_ok=True)
    pages = options.pages
    if not pages:
        command = [sys.executable, ROOT / "tools/make_pages.py", options.output]
        made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        pages = [Path(line) for line in made.stdout.splitlines() if line.endswith(".html")]
    failed = False
    for page in pages:
        with Browser(program) as browser:  # a new one for each: another page's graphics memory does not count
            problems = check(browser, page, options.output)
        for problem in problems:
            print(f"check_pages: {page.name}: {problem}", file=sys.stderr)
        failed = failed or bool(problems)
    if not failed:
        print(f"all {len(pages)} pages are right; screenshots: {options.output}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
