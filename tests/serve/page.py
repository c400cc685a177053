# SPDX-License-Identifier: Apache-2.0
"""The chat page in headless Chromium, through chromedriver: it loads nothing from elsewhere, talks, stops, shows errors, and fits narrow and wide windows.

    python page.py URL CHROMEDRIVER FOLDER

Writes a picture of each width to FOLDER. Exit code 1 if a check fails."""
import base64, json, os, subprocess, sys, time, urllib.error, urllib.request

url, driver, folder = sys.argv[1:4]
failed = passed = 0


def check(name, holds, what=""):
    global failed, passed
    passed += bool(holds)
    failed += not holds
    print("[       OK ]" if holds else "[  FAILED  ]", name, what if not holds else "")


def ask(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"Content-Type": "application/json"}, method=method)
    try:
        return json.load(urllib.request.urlopen(request, timeout=60))["value"]
    except urllib.error.HTTPError as error:
        sys.exit(f"{method} {path}: {error.read().decode()[:500]}")


def run(script, *arguments):
    return ask("POST", f"/session/{session}/execute/sync", {"script": script, "args": list(arguments)})


def wait_for(name, script, seconds=30):
    until = time.monotonic() + seconds
    while not run(script):
        if time.monotonic() > until:
            check(name, False, "not within %d s" % seconds)
            return
        time.sleep(0.05)
    check(name, True)


def element(selector):
    found = ask("POST", f"/session/{session}/element", {"using": "css selector", "value": selector})
    return f"/session/{session}/element/" + next(iter(found.values()))


def click(selector):
    ask("POST", element(selector) + "/click", {})


def write(selector, text):
    ask("POST", element(selector) + "/value", {"text": text})


def picture(name):
    with open(os.path.join(folder, name), "wb") as file:
        file.write(base64.b64decode(ask("GET", f"/session/{session}/screenshot")))


def set_width(width):
    ask("POST", f"/session/{session}/chromium/send_command", {
        "cmd": "Emulation.setDeviceMetricsOverride",
        "params": {"width": width, "height": 780, "deviceScaleFactor": 1, "mobile": width < 500}})


service = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, text=True)
port = None
for line in service.stdout:
    if "started successfully on port" in line:
        port = line.split("port")[-1].strip(" .\n")
        break
address = f"http://127.0.0.1:{port}"
options = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]}
if os.environ.get("CHROMIUM"):
    options["binary"] = os.environ["CHROMIUM"]
session = None
try:
    session = ask("POST", "/session", {"capabilities": {"alwaysMatch": {
        "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}})["sessionId"]
    for width in (360, 1280):
        set_width(width)
        ask("POST", f"/session/{session}/url", {"url": url + "/"})
        wait_for(f"{width}: the models are listed", "return document.querySelectorAll('#model option').length > 0")
        check(f"{width}: nothing comes from elsewhere", run(
            "return performance.getEntriesByType('resource').every(e => e.name.startsWith(location.origin))"))
        picture(f"page-{width}-empty.png")
        click("#settings summary")
        write("#seed", "7")
        picture(f"page-{width}-settings.png")
        run("document.getElementById('tokens').value = 60")
        write("#text", "What is 12+34?\ue007")  # Enter
        wait_for(f"{width}: an answer ends", "const b = [...document.querySelectorAll('#talk .assistant')].pop();"
                 "return b && b.querySelector('.note').textContent != '...' && document.getElementById('send').textContent == 'Send'")
        first = run("return [...document.querySelectorAll('#talk .assistant .said')].pop().textContent")
        picture(f"page-{width}-talk.png")
        write("#text", "Count as far as you can")
        check(f"{width}: the button stops", run("const send = document.getElementById('send'); send.click(); const told = send.textContent;"
                                                "send.click(); return told") == "Stop")
        wait_for(f"{width}: it has stopped", "return document.getElementById('send').textContent == 'Send' &&"
                 "[...document.querySelectorAll('#talk .note')].pop().textContent == 'stopped'")
        click("#fresh")
        check(f"{width}: a new chat is empty", run("return document.querySelectorAll('#talk > *').length == 0"))
        run("document.getElementById('tokens').value = 60")
        write("#text", "What is 12+34?\ue007")
        wait_for(f"{width}: it answers again", "const b = [...document.querySelectorAll('#talk .assistant')].pop();"
                 "return b && b.querySelector('.note').textContent != '...' && document.getElementById('send').textContent == 'Send'")
        check(f"{width}: the same seed gives the same answer",
              run("return [...document.querySelectorAll('#talk .assistant .said')].pop().textContent") == first)
        run("document.getElementById('temperature').value = -1")
        write("#text", "wrong\ue007")
        wait_for(f"{width}: an error is shown", "const e = document.querySelector('#talk .error');"
                 "return e && e.textContent.includes('temperature')")
        picture(f"page-{width}-error.png")
        check(f"{width}: no part is cut off", run(
            "return document.documentElement.scrollWidth <= innerWidth && [...document.querySelectorAll('body *')].every(e => {"
            "const r = e.getBoundingClientRect(); return r.width == 0 || (r.left >= -0.5 && r.right <= innerWidth + 0.5); })"))
    errors = [entry["message"] for entry in ask("POST", f"/session/{session}/se/log", {"type": "browser"})
              if entry["level"] == "SEVERE" and " 400 " not in entry["message"]]
    check("the console has no errors", not errors, errors)
finally:
    if session:
        ask("DELETE", f"/session/{session}")
    service.terminate()
print(f"[  PASSED  ] {passed} test(s).")
if failed:
    print(f"[  FAILED  ] {failed} test(s).")
sys.exit(failed > 0)
