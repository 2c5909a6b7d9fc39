"""
Sends requests as they are told on standard input, METHOD PATH MILLISECONDS [JSON], with a time-out of so long. Writes the status
of an answer that came before that, or 0.
"""

import os
import sys

import requests

for line in sys.stdin:
    method, path, milliseconds, *json = line.rstrip("\n").split(" ", 3)
    headers = {"X-API-Key": os.environ["CAPSULE_API_KEY"], "Content-Type": "application/json"}
    try:
        timeout = int(milliseconds) / 1000
        url = os.environ["CAPSULE_URL"] + path
        print(requests.request(method, url, data="".join(json), headers=headers, timeout=timeout).status_code, flush=True)
    except requests.exceptions.RequestException:
        print(0, flush=True)
