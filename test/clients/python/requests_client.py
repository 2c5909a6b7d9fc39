import os
import shutil

import requests
import scenario

URL = os.environ["CAPSULE_URL"]


class Requests:
    def __init__(self):
        self.session = requests.Session()
        self.session.headers["X-API-Key"] = scenario.KEY

    def send(self, method, path, json=None, key=scenario.KEY):
        answer = self.session.request(method, URL + path, json=json, headers={"X-API-Key": key})
        return answer.status_code, answer.content

    def send_text(self, path, text):
        answer = self.session.post(URL + path, data=text, headers={"Content-Type": "text/plain"})
        return answer.status_code, answer.content

    def upload(self, url, path, file, file_first=False):
        with open(file, "rb") as content:
            if file_first:
                form = {"files": [("file", content), ("path", (None, path))]}
            else:
                form = {"data": {"path": path}, "files": {"file": content}}
            return self.session.post(URL + url, **form).status_code

    def download(self, url, path, file):
        with self.session.post(URL + url, json={"path": path}, stream=True) as answer, open(file, "wb") as copy:
            shutil.copyfileobj(answer.raw, copy)
            return answer.status_code

    def abort_exec(self, url, body):
        try:
            self.session.post(URL + url, json=body, timeout=5)
        except requests.exceptions.ReadTimeout:
            pass

    def abort_upload(self, url, path):
        def half():
            yield f'--b\r\nContent-Disposition: form-data; name="path"\r\n\r\n{path}\r\n'.encode()
            yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
            yield b"x" * (4 << 20)
            raise InterruptedError

        try:
            self.session.post(URL + url, data=half(), headers={"Content-Type": "multipart/form-data; boundary=b"})
        except requests.exceptions.ConnectionError:
            pass

    def abort_download(self, url, path):
        with self.session.post(URL + url, json={"path": path}, stream=True) as answer:
            next(answer.iter_content(1))


scenario.http_scenario(Requests())
