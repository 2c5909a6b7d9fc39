"""The standard library alone. It has no multipart, so the form is built by hand, and its length is known."""

import json as encoder
import os
import shutil
import socket
import urllib.error
import urllib.request
import uuid

import scenario

URL = os.environ["CAPSULE_URL"]


class Urllib:
    def request(self, method, path, data=None, headers={}, key=scenario.KEY, timeout=None):
        request = urllib.request.Request(URL + path, data, {"X-API-Key": key, **headers}, method=method)
        try:
            return urllib.request.urlopen(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            return error

    def send(self, method, path, json=None, timeout=None, **more):
        data = None if json is None else encoder.dumps(json).encode()
        with self.request(method, path, data, {"Content-Type": "application/json"}, timeout=timeout, **more) as answer:
            return answer.status, answer.read()

    def send_text(self, path, text):
        with self.request("POST", path, text.encode(), {"Content-Type": "text/plain"}) as answer:
            return answer.status, answer.read()

    def form(self, path, content, file_first=False):
        boundary = uuid.uuid4().hex
        begin = f"--{boundary}\r\nContent-Disposition: form-data; name=".encode()
        fields = [
            begin + f'"path"\r\n\r\n{path}\r\n'.encode(),
            begin + b'"file"; filename="f"\r\n\r\n' + content + b"\r\n",
        ]
        body = b"".join(reversed(fields) if file_first else fields) + f"--{boundary}--\r\n".encode()
        return body, {"Content-Type": f"multipart/form-data; boundary={boundary}"}

    def upload(self, url, path, file, file_first=False):
        with open(file, "rb") as content:
            body, headers = self.form(path, content.read(), file_first)
        with self.request("POST", url, body, headers) as answer:
            return answer.status

    def download(self, url, path, file):
        body = encoder.dumps({"path": path}).encode()
        with self.request("POST", url, body, {"Content-Type": "application/json"}) as answer, open(file, "wb") as copy:
            shutil.copyfileobj(answer, copy)
            return answer.status

    def abort_exec(self, url, body):
        try:
            self.send("POST", url, json=body, timeout=5)
        except (socket.timeout, urllib.error.URLError):
            pass

    def abort_upload(self, url, path):
        body, headers = self.form(path, b"x" * (8 << 20))

        def half():
            yield body[: len(body) // 2]
            raise InterruptedError

        try:
            self.request("POST", url, half(), {**headers, "Content-Length": str(len(body))})
        except urllib.error.URLError:
            pass

    def abort_download(self, url, path):
        body = encoder.dumps({"path": path}).encode()
        with self.request("POST", url, body, {"Content-Type": "application/json"}) as answer:
            answer.read(1)


if __name__ == "__main__":
    scenario.http_scenario(Urllib())
