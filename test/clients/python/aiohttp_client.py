"""Requests and WebSockets, both on one event loop."""

import asyncio
import os

import aiohttp
import scenario

URL = os.environ["CAPSULE_URL"]
# By default aiohttp gives up after five minutes, whatever is still arriving.
NO_LIMIT = aiohttp.ClientTimeout(total=None)


class Socket:
    def __init__(self, socket):
        self.send, self.receive, self.close = socket.send_str, socket.receive_str, socket.close
        self.transport = socket._conn.transport  # it has no way of its own to break the connection off


class Aiohttp:
    def __init__(self, loop):
        self.run = loop.run_until_complete
        self.session = self.run(self.open())

    async def open(self):
        return aiohttp.ClientSession(headers={"X-API-Key": scenario.KEY}, timeout=NO_LIMIT)

    def send(self, method, path, json=None, key=scenario.KEY):
        async def send():
            async with self.session.request(method, URL + path, json=json, headers={"X-API-Key": key}) as answer:
                return answer.status, await answer.read()

        return self.run(send())

    def send_text(self, path, text):
        async def send():
            async with self.session.post(URL + path, data=text) as answer:  # which says text/plain
                return answer.status, await answer.read()

        return self.run(send())

    def upload(self, url, path, file, file_first=False):
        async def upload():
            with open(file, "rb") as content:
                form = aiohttp.FormData()
                fields = [("path", path), ("file", content)]
                for field in reversed(fields) if file_first else fields:
                    form.add_field(*field)
                async with self.session.post(URL + url, data=form) as answer:
                    return answer.status

        return self.run(upload())

    def download(self, url, path, file):
        async def download():
            async with self.session.post(URL + url, json={"path": path}) as answer:
                with open(file, "wb") as copy:
                    async for chunk in answer.content.iter_chunked(1 << 16):
                        copy.write(chunk)
                return answer.status

        return self.run(download())

    def abort_exec(self, url, body):
        async def abort():
            try:
                await self.session.post(URL + url, json=body, timeout=aiohttp.ClientTimeout(total=5))
            except asyncio.TimeoutError:
                pass

        self.run(abort())

    def abort_upload(self, url, path):
        async def half():
            yield f'--b\r\nContent-Disposition: form-data; name="path"\r\n\r\n{path}\r\n'.encode()
            yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
            yield b"x" * (4 << 20)
            raise InterruptedError

        async def abort():
            headers = {"Content-Type": "multipart/form-data; boundary=b"}
            try:
                await self.session.post(URL + url, data=half(), headers=headers)
            except (InterruptedError, aiohttp.ClientError):
                pass

        self.run(abort())

    def abort_download(self, url, path):
        async def abort():
            answer = await self.session.post(URL + url, json={"path": path})
            await answer.content.read(1)
            answer.close()

        self.run(abort())

    async def connect(self, path):
        return Socket(await self.session.ws_connect(URL + path))


loop = asyncio.new_event_loop()
client = Aiohttp(loop)
scenario.http_scenario(client)
scenario.socket_scenario(client.send, client.connect, loop.run_until_complete)
loop.run_until_complete(client.session.close())
