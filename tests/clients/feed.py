"""Follows a project's feed with nothing but the standard library, by pages or by stream, and appends the id of each event
to a file. Killed at any moment and started again, it goes on after the last whole line of that file.

    python3 feed.py pages|stream URL KEY FILE
"""

import http.client
import json
import os
import sys
import time
import urllib.request

how, url, key, path = sys.argv[1:]


def last_id():
    """The last whole line; a line cut short by a kill is removed."""
    if not os.path.exists(path):
        return 0
    with open(path, "rb+") as file:
        text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        file.truncate(len(whole))
    return int(whole.split()[-1]) if whole else 0


def ask(address, **headers):
    return urllib.request.urlopen(urllib.request.Request(address, headers={"authorization": f"Bearer {key}", **headers}), timeout=20)


def pages(after, seen):
    while True:
        with ask(f"{url}/v1/events?page_size=200&page_token={after}") as answer:
            items = json.load(answer)["items"]
        for event in items:
            seen(event["id"])
            after = event["id"]
        if not items:
            time.sleep(0.02)


def stream(after, seen):
    """As a browser does: reconnects when the stream ends, with the id of the last event."""
    while True:
        with ask(f"{url}/v1/events", accept="text/event-stream", **{"last-event-id": str(after)}) as answer:
            event = {}
            for line in answer:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name in ("id", "data"):
                    event[name] = value
                elif not name and event:
                    assert json.loads(event["data"])["id"] == int(event["id"])
                    after = int(event["id"])
                    seen(after)
                    event = {}


with open(path, "ab", buffering=0) as file:
    follow = {"pages": pages, "stream": stream}[how]
    start = last_id()
    while True:
        try:
            follow(start, lambda id: file.write(b"%d\n" % id))
        except (OSError, ValueError, http.client.HTTPException):
            time.sleep(0.1)
            start = last_id()
