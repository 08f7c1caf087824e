"""`potentia annotate`: what it keeps, whom it answers, and its page in headless Chromium."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

import potentia as pt
from browser import CHROMIUM, Page
from potentia.app.annotate.server import Server
from potentia.app.annotate.session import VOID, Session
from potentia.app.cli import main
from potentia.app.image_files import read_mask

SIZE = (48, 64)


def write_images(folder, n=2):
    """A bright disc on a dark ground, in other places each."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[: SIZE[0], : SIZE[1]]
    for k in range(n):
        disc = (rows - 22) ** 2 + (columns - 24 - 12 * k) ** 2 < 14**2
        values = 60 + 90 * disc + rng.normal(0, 20, SIZE)
        Image.fromarray(np.clip(values, 0, 255).astype(np.uint8)).save(folder / f"i{k}.png")
    return folder


def disc(k=0):
    rows, columns = np.mgrid[: SIZE[0], : SIZE[1]]
    return (rows - 22) ** 2 + (columns - 24 - 12 * k) ** 2 < 14**2


@pytest.fixture
def session(tmp_path):
    made = Session(write_images(tmp_path / "photos"), tmp_path / "out")
    yield made
    made.close()


#: Strokes on the first image: (value, points).
INSIDE, OUTSIDE = (1, [[18.0, 22.0], [30.0, 22.0]]), (0, [[4.0, 4.0], [4.0, 44.0], [60.0, 44.0]])


def draw(session, number, *strokes):
    for place, (value, points) in enumerate(strokes):
        version = session.draw(number, f"{number}.{place}.{value}", value, 1.5, np.array(points))
    return version


def wait(session, number, version):
    while True:
        found = session.result(number, version - 1, 60.0)
        if found and found["version"] >= version:
            return found


# -- session -------------------------------------------------------------------------------------------------------


def test_strokes_become_labels_a_mask_and_a_model_that_predicts(session, tmp_path, capsys):
    session.open(0)
    assert wait(session, 0, 0)["message"] == "Draw strokes of at least two classes."
    assert wait(session, 0, draw(session, 0, INSIDE))["message"] == "Draw strokes of at least two classes."
    found = wait(session, 0, draw(session, 0, OUTSIDE))
    assert found["message"] == ""
    assert len(found["place"]) == 3
    assert session.accept(0, 60.0) == {"next": 1}
    mask = read_mask(tmp_path / "out" / "masks" / "i0.png")
    assert np.mean(mask.codes == disc()) > 0.95
    # the next image is labelled before any stroke, and strokes of both are learned from
    session.open(1)
    assert wait(session, 1, 0)["message"] == ""
    wait(session, 1, draw(session, 1, (1, [[30.0, 22.0], [42.0, 22.0]])))
    assert session.accept(1, 60.0) == {"next": None}
    assert np.mean(read_mask(tmp_path / "out" / "masks" / "i1.png").codes == disc(1)) > 0.95
    assert pt.load(tmp_path / "out" / "model").classes.names == ["background", "object"]
    where = f"--images {tmp_path / 'photos'}"
    assert main(f"predict {tmp_path / 'out' / 'model'} {where} --out {tmp_path / 'p'} --quiet".split()) == 0
    assert np.mean(read_mask(tmp_path / "p" / "labels" / "i0.png").codes == disc()) > 0.9
    # strokes and masks are what `potentia train` reads
    for masks in ("masks", "strokes"):
        folders = f"{where} --masks {tmp_path / 'out' / masks} --palette {tmp_path / 'out' / 'classes.csv'}"
        options = "--node linear --iterations 1 --position no --quiet"
        assert main(f"train {folders} {options} --out {tmp_path / 'm'}".split()) == 0, capsys.readouterr().err


def test_what_is_drawn_is_in_the_file_at_once_and_undone_by_stroke(session, tmp_path):
    session.open(0)
    path = tmp_path / "out" / "strokes" / "i0.png"
    draw(session, 0, INSIDE)
    drawn = read_mask(path).codes
    assert set(np.unique(drawn)) == {1, VOID}
    assert np.all(drawn[21:24, 18:30] == 1)
    session.draw(0, "long", 0, 1.0, np.array([[20.0, 10.0], [20.0, 30.0]]))
    session.draw(0, "long", 0, 1.0, np.array([[20.0, 30.0], [40.0, 30.0]]))
    session.draw(0, "eraser", VOID, 5.0, np.array([[20.0, 22.0]]))
    assert read_mask(path).codes[22, 20] == VOID
    session.undo(0)
    assert read_mask(path).codes[22, 20] == 0
    session.undo(0)
    assert np.array_equal(read_mask(path).codes, drawn)
    session.undo(0)
    assert np.all(read_mask(path).codes == VOID)
    with pytest.raises(pt.PotentiaError, match="nothing to undo"):
        session.undo(0)
    # a stroke beyond the border is no error
    session.draw(0, "far", 1, 3.0, np.array([[-500.0, 22.0], [2.0, 22.0]]))
    assert read_mask(path).codes[22, 0] == 1
    session.draw(0, "off", 1, 3.0, np.array([[-500.0, -22.0]]))


def test_the_newest_strokes_win(session):
    session.open(0)
    version = draw(session, 0, INSIDE, OUTSIDE, *[OUTSIDE] * 12)
    found = wait(session, 0, version)
    assert found["newest"]
    assert found["version"] == version == 14


def test_erasing_everything_forgets_it(session):
    session.open(0)
    wait(session, 0, draw(session, 0, INSIDE, OUTSIDE))
    everything = np.array([[0.0, 24.0], [64.0, 24.0]])
    found = wait(session, 0, session.draw(0, "all", VOID, 60.0, everything))
    assert found["message"] == "Draw strokes of at least two classes."


def test_another_session_goes_on_with_the_strokes_and_classes(tmp_path):
    photos = write_images(tmp_path / "photos")
    first = Session(photos, tmp_path / "out", names=["dark, flat", "bright"])
    first.open(0)
    wait(first, 0, draw(first, 0, INSIDE, OUTSIDE))
    first.add_class("edge")
    with pytest.raises(pt.PotentiaError, match="that no other class has"):
        first.add_class("Edge")
    first.close()
    assert (tmp_path / "out" / "model").is_file()
    second = Session(photos, tmp_path / "out")
    assert [each["name"] for each in second.state()["classes"]] == ["dark, flat", "bright", "edge"]
    second.open(1)
    assert wait(second, 1, 0)["message"] == ""  # labelled by what was drawn on the first image
    second.close()
    with pytest.raises(pt.PotentiaError, match="has the classes already"):
        Session(photos, tmp_path / "out", names=["a", "b"])
    Image.fromarray(np.zeros((3, 3), np.uint8)).save(tmp_path / "out" / "strokes" / "i1.png")
    third = Session(photos, tmp_path / "out")
    with pytest.raises(pt.PotentiaError, match="does not fit its image"):
        third.open(1)
    third.close()


def test_folders_that_cannot_be_annotated_are_one_sentence(tmp_path, capsys):
    photos = write_images(tmp_path / "photos")
    (tmp_path / "long.csv").write_text(f"0,{'a' * 200_000}\n1,b\n")
    (tmp_path / "digits.csv").write_text(f"{'9' * 5000},a\n1,b\n")
    for line, words in (
        (f"{tmp_path / 'none'}", "there is no such folder"),
        (f"{photos} --classes one", "there must be 2 to 20 classes"),
        (f"{photos} --classes cat,cell,Cat", "that no other class has, not 'Cat'"),
        (f"{photos} --classes cell,void", "that no other class has, not 'void'"),
        (f"{photos} --classes a,b --palette p.csv", "give one of them"),
        (f"{photos} --palette {tmp_path / 'p.csv'}", "the palette file cannot be read"),
        (f"{photos} --palette {tmp_path / 'long.csv'}", "the palette file cannot be read"),
        (f"{photos} --palette {tmp_path / 'digits.csv'}", "is not a whole number"),
    ):
        assert main(["annotate", *line.split(), "--out", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1


# -- HTTP ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(session):
    with Server(session) as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def request(server, path="", body=None, method=None, token=None, **headers):
    """Status, headers and content of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None:
        headers = {"Content-Type": "application/json"} | headers
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
    method = method or ("GET" if body is None else "POST")
    connection.request(method, f"/{token or server.token}/{path}", body, headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, answer.headers, content


def test_the_page_is_whole_and_other_addresses_are_not_there(server):
    status, headers, page = request(server)
    assert status == 200
    assert b"http://" not in page.replace(b"http://www.w3.org", b"")
    assert b"https://" not in page
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"
    assert server.address.startswith("http://127.0.0.1:")
    assert server.server_address[0] == "127.0.0.1"
    for path, token in (("", "x"), ("", "x" * 32), ("nowhere", None), ("../../etc/passwd", None), ("image/-1", None)):
        assert request(server, path, token=token)[0] == 404
    assert request(server, "image/1")[0] == 400  # not open
    assert request(server, "", method="DELETE")[0] == 501


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"}, {"Host": "127.0.0.1"}, {"Host": "evil.example:{port}"},
        {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "https://127.0.0.1:{port}"},
        {"Sec_Fetch_Site": "cross-site"},
    ],
)  # fmt: skip
def test_requests_of_other_pages_and_names_are_refused(headers, server):
    headers = {name: value.format(port=server.server_port) for name, value in headers.items()}
    assert request(server, **headers)[0] == 403
    assert request(server, "open", {"image": 0}, **headers)[0] == 403
    assert server.session.state()["current"] == -1


def test_requests_of_the_page_itself_are_answered(server):
    for host in sorted(server.hosts):
        headers = {"Host": host, "Origin": f"http://{host}", "Sec_Fetch_Site": "same-origin"}
        assert request(server, "open", {"image": 0}, **headers)[0] == 200
    status, headers, content = request(server, "image/0")
    assert (status, headers["Content-Type"], content[:4]) == (200, "image/png", b"\x89PNG")


STROKE = {"image": 0, "stroke": "a", "value": 1, "radius": 2, "points": [[1, 1]]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image": -1}, "number of an image"), ({"image": 9}, "number of an image"), ({"image": True}, "number of an"),
        ({"image": 1}, "reload the page"), ({"stroke": "a" * 41}, "up to 40"), ({"stroke": 3}, "up to 40"),
        ({"value": 7}, "no class 7"), ({"value": -1}, "from 0 to 255"), ({"value": 1.0}, "from 0 to 255"),
        ({"radius": 0}, "radius must"), ({"radius": 1e9}, "radius must"), ({"radius": None}, "radius must"),
        ({"points": []}, "1 to 4096 points"), ({"points": [[0, 0]] * 4097}, "1 to 4096 points"),
        ({"points": [[1, 2], [3]]}, "pairs of numbers"), ({"points": [[1, 2, 3]]}, "pairs of numbers"),
        ({"points": [["x", 1]]}, "pairs of numbers"), ({"points": [[1e9, 1]]}, "pairs of numbers"),
        ({"points": [[10**400, 1]]}, "pairs of numbers"), ({"points": "11"}, "1 to 4096 points"),
    ],
)  # fmt: skip
def test_bad_strokes_are_one_sentence_and_change_nothing(change, words, server, tmp_path):
    request(server, "open", {"image": 0})
    status, _, content = request(server, "stroke", STROKE | change)
    assert status == 400
    assert words in json.loads(content)["error"]
    assert not (tmp_path / "out" / "strokes").exists()


def test_requests_are_bounded_and_hold_json(server):
    for body, status in ((b"[1]", 400), (b"{", 400), (b"[" * 100_000, 400), (b" " * (1 << 18) + b" ", 413)):
        assert request(server, "stroke", body)[0] == status
    assert request(server, "stroke", STROKE, Content_Type="text/plain")[0] == 415
    assert request(server, "stroke", STROKE, Transfer_Encoding="chunked")[0] in (400, 411)
    assert request(server, "stroke", method="POST", Content_Type="application/json", Content_Length="-5")[0] == 411
    assert request(server, "class", {"name": "\n"})[0] == 400


def test_a_killed_process_loses_no_stroke(tmp_path):
    photos = write_images(tmp_path / "photos")
    command = [sys.executable, "-m", "potentia", "annotate", str(photos), "--out", str(tmp_path / "out"), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    try:
        address = urlsplit(json.loads(process.stdout.readline())["address"])
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)

        def post(path, body):
            connection.request("POST", address.path + path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return json.loads(answer.read())

        post("open", {"image": 0})
        for k in range(5):
            points = [[5 + 10 * k, 5], [5 + 10 * k, 40]]
            answer = post("stroke", STROKE | {"stroke": f"s{k}", "value": k % 2, "points": points})
            assert answer == {"version": k + 1}
        process.send_signal(signal.SIGKILL)
        process.wait()
        connection.close()
        kept = read_mask(tmp_path / "out" / "strokes" / "i0.png").codes
        assert kept[20, 5:46:10].tolist() == [0, 1, 0, 1, 0]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    again = Session(photos, tmp_path / "out")
    again.open(0)
    assert wait(again, 0, 0)["message"] == ""
    again.close()


def test_ctrl_c_saves_the_model_and_a_second_process_is_refused(tmp_path):
    photos = write_images(tmp_path / "photos")
    made = Session(photos, tmp_path / "out")
    made.open(0)
    draw(made, 0, INSIDE, OUTSIDE)
    made.close()
    command = [sys.executable, "-m", "potentia", "annotate", str(photos), "--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    try:
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        assert main(["annotate", str(photos), "--out", str(tmp_path / "out")]) == 2
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
        assert (process.returncode, error) == (0, "")
        assert "strokes so far" in out or "potentia predict" in out
    finally:
        process.kill()
        process.communicate()


# -- in a browser --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    pytest.importorskip("websocket")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: make browser")
    page = Page(tmp_path_factory.mktemp("profile"))
    yield page
    page.close()


@pytest.fixture
def page(chromium, server):
    chromium.look(1300, 900)
    chromium.complaints.clear()
    chromium.requests.clear()
    chromium.goto(server.address)
    until(chromium, "at('accept') && seen.number === 0")
    yield chromium
    assert chromium.complaints == []
    assert all(url.startswith((server.address, "data:")) for url in chromium.requests)
    chromium.goto("about:blank")


def until(page, script, patience=120.0):
    end = time.monotonic() + patience
    while not page.evaluate(f"Boolean({script})"):
        assert time.monotonic() < end, page.evaluate("at('status').textContent")
        time.sleep(0.05)


def on_screen(page, point):
    x, y = page.evaluate(
        "(() => { const box = canvas.getBoundingClientRect(); return ["
        f"box.left + {point[0] + 0.5} / seen.width * box.width, "
        f"box.top + {point[1] + 0.5} / seen.height * box.height]; }})()"
    )
    return {"x": x, "y": y}


def drag(page, points):
    for place, point in enumerate(points):
        kind = "mousePressed" if place == 0 else "mouseMoved"
        page.call(
            "Input.dispatchMouseEvent", type=kind, button="left", buttons=1, clickCount=1, **on_screen(page, point)
        )
    page.call("Input.dispatchMouseEvent", type="mouseReleased", button="left", clickCount=1, **on_screen(page, point))


def touch(page, points):
    for place, point in enumerate(points):
        kind = "touchStart" if place == 0 else "touchMove"
        page.call("Input.dispatchTouchEvent", type=kind, touchPoints=[on_screen(page, point)])
    page.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])


def key(page, name, code, text=None):
    down = {"key": name, "windowsVirtualKeyCode": code} | ({"text": text} if text else {})
    page.call("Input.dispatchKeyEvent", type="keyDown", **down)
    page.call("Input.dispatchKeyEvent", type="keyUp", key=name, windowsVirtualKeyCode=code)


def settle(page):
    """Wait until the server has every stroke: slow ones are sent in several parts."""
    until(page, "stroke === null && finger === null")
    page.evaluate("sending.then(() => true)")


def saved(tmp_path, number=0):
    return read_mask(tmp_path / "out" / "strokes" / f"i{number}.png").codes


def test_drawing_accepting_and_the_next_image(page, tmp_path):
    drag(page, OUTSIDE[1])
    page.click("#classes label:nth-of-type(2)")
    drag(page, INSIDE[1])
    until(page, "seen.shown === seen.version && seen.overlay && !at('accept').disabled")
    assert set(np.unique(saved(tmp_path))) == {0, 1, VOID}
    assert "Labels after" in page.evaluate("at('status').textContent")
    page.screenshot(tmp_path / "drawn.png")
    page.click("#accept")
    until(page, "seen.number === 1 && seen.overlay")  # labelled by the model so far
    assert (tmp_path / "out" / "masks" / "i0.png").is_file()
    assert (tmp_path / "out" / "model").is_file()
    assert page.evaluate("at('counter').textContent + at('done').textContent") == "2 of 21 accepted"
    page.click("#accept")
    until(page, "at('status').textContent.includes('All images are accepted')")
    page.click("#previous")
    until(page, "seen.number === 0 && seen.overlay")


def test_erasing_undoing_and_reloading(page, server, tmp_path):
    drag(page, OUTSIDE[1])
    key(page, "2", 50, "2")
    drag(page, INSIDE[1])
    settle(page)
    before = saved(tmp_path)
    page.click("#erase")
    drag(page, [(22, 16), (22, 28)])
    settle(page)
    assert saved(tmp_path)[22, 22] == VOID
    key(page, "z", 90, "z")
    settle(page)
    assert np.array_equal(saved(tmp_path), before)
    until(page, "seen.undone === 1")
    assert page.evaluate("ink.getImageData(22, 22, 1, 1).data[3]") == 255
    page.goto("about:blank")
    page.goto(server.address)
    until(page, "seen.number === 0 && seen.overlay")
    assert page.evaluate("[...ink.getImageData(22, 22, 1, 1).data]") == [0xE6, 0x9F, 0x00, 255]
    assert np.array_equal(saved(tmp_path), before)


def test_strokes_by_touch_and_by_keyboard(page, tmp_path):
    touch(page, [(10, 10), (14, 10), (20, 10)])
    settle(page)
    assert np.all(saved(tmp_path)[10, 10:20] == 0)
    page.evaluate("canvas.focus()")
    key(page, "2", 50, "2")
    page.call("Input.dispatchKeyEvent", type="keyDown", key=" ", windowsVirtualKeyCode=32, text=" ")
    for _ in range(6):
        key(page, "ArrowRight", 39)
    page.call("Input.dispatchKeyEvent", type="keyUp", key=" ", windowsVirtualKeyCode=32)
    settle(page)
    until(page, "seen.overlay && seen.place")
    assert np.all(saved(tmp_path)[24, 32:38] == 1)
    key(page, "g", 71, "g")
    assert page.evaluate("seen.cursor.join() === seen.place.slice(0, 2).join()")
    for name, code, box in (("l", 76, "labels"), ("u", 85, "unsure"), ("s", 83, "marks")):
        shown = page.evaluate(f"at('{box}').checked")
        key(page, name, code, name)
        assert page.evaluate(f"at('{box}').checked") is not shown


def test_a_part_of_a_long_stroke_is_saved_while_it_is_drawn(page, tmp_path):
    page.call("Input.dispatchMouseEvent", type="mousePressed", button="left", buttons=1, **on_screen(page, (5, 5)))
    page.call("Input.dispatchMouseEvent", type="mouseMoved", button="left", buttons=1, **on_screen(page, (5, 30)))
    until(page, "seen.version >= 1 && stroke.points.length === 0")
    page.evaluate("sending.then(() => true)")
    assert np.all(saved(tmp_path)[6:29, 5] == 0)
    page.call("Input.dispatchMouseEvent", type="mouseReleased", button="left", **on_screen(page, (5, 40)))


def test_new_classes_and_their_names_are_shown_as_text(page, tmp_path):
    page.evaluate("at('new').value = '<b>x</b>, \"y\"'")
    page.click("#more button")
    until(page, "seen.classes.length === 3")
    assert page.evaluate("seen.value") == 2
    assert page.evaluate("document.querySelectorAll('#classes b').length") == 0
    drag(page, OUTSIDE[1])
    settle(page)
    assert (saved(tmp_path) == 2).any()
    text = (tmp_path / "out" / "classes.csv").read_text().splitlines()
    assert text[2].startswith('2,"<b>x</b>, ""y""",#')


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1300, 390], ids=["desk", "phone"])
def test_it_fits_phones_and_follows_the_colour_scheme(page, width, dark, tmp_path):
    page.look(width, 844, dark=dark, phone=width < 500)
    page.evaluate("fit()")
    drag(page, OUTSIDE[1])
    page.evaluate("choose(1)")
    drag(page, INSIDE[1])
    until(page, "seen.overlay")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    bright = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert bright is not dark
    touched = "button, select, summary, #classes label"
    small = page.evaluate(f"[...document.querySelectorAll('{touched}')].filter((e) => e.offsetHeight < 32).length")
    assert small == 0
    page.screenshot(tmp_path / "annotate.png")
