import os

import httpx
import scenario

URL = os.environ["CAPSULE_URL"]


class Httpx:
    def __init__(self):
        self.client = httpx.Client(base_url=URL, headers={"X-API-Key": scenario.KEY}, timeout=None)

    def send(self, method, path, json=None, key=scenario.KEY):
        answer = self.client.request(method, path, json=json, headers={"X-API-Key": key})
        return answer.status_code, answer.content

    def send_text(self, path, text):
        answer = self.client.post(path, content=text, headers={"Content-Type": "text/plain"})
        return answer.status_code, answer.content

    def upload(self, url, path, file, file_first=False):
        with open(file, "rb") as content:
            if file_first:
                form = {"files": [("file", content), ("path", (None, path))]}
            else:
                form = {"data": {"path": path}, "files": {"file": content}}
            return self.client.post(url, **form).status_code

    def download(self, url, path, file):
        with self.client.stream("POST", url, json={"path": path}) as answer, open(file, "wb") as copy:
            for chunk in answer.iter_bytes():
                copy.write(chunk)
            return answer.status_code

    def abort_exec(self, url, body):
        try:
            self.client.post(url, json=body, timeout=5)
        except httpx.ReadTimeout:
            pass

    def abort_upload(self, url, path):
        def half():
            yield f'--b\r\nContent-Disposition: form-data; name="path"\r\n\r\n{path}\r\n'.encode()
            yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
            yield b"x" * (4 << 20)
            raise InterruptedError

        try:
            self.client.post(url, content=half(), headers={"Content-Type": "multipart/form-data; boundary=b"})
        except InterruptedError:
            pass

    def abort_download(self, url, path):
        with self.client.stream("POST", url, json={"path": path}) as answer:
            next(answer.iter_bytes(1))


scenario.http_scenario(Httpx())
