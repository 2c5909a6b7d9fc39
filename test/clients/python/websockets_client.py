"""WebSockets alone; the requests beside them are urllib's."""

import asyncio
import os

import scenario
import websockets
from urllib_client import Urllib

URL = os.environ["CAPSULE_URL"]


class Socket:
    def __init__(self, socket):
        self.send, self.receive, self.close = socket.send, socket.recv, socket.close
        self.transport = socket.transport


async def connect(path):
    url = URL.replace("http", "ws", 1) + path
    return Socket(await websockets.connect(url, extra_headers={"X-API-Key": scenario.KEY}))


scenario.socket_scenario(Urllib().send, connect, asyncio.run)
