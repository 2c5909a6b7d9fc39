"""What each Python client does with the service, one JSON line a step; suite.test.ts starts it and judges what it says."""

import asyncio
import base64
import hashlib
import json
import os
import socket
import struct

KEY = os.environ["CAPSULE_API_KEY"]
WORK = os.environ["CLIENT_FOLDER"]
BIG = os.environ["CLIENT_FILE"]
REFUSED = os.environ["CLIENT_REFUSED"]
TRIES = int(os.environ["CLIENT_TRIES"])
NAME = os.environ["CLIENT_NAME"]


def say(step, **values):
    print(json.dumps({"step": step, **values}), flush=True)


def say_aborted(of, at):
    """The suite looks at what is left behind, and says when it has."""
    say("aborted", of=of, id=at.split("/")[-1])
    input()


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def reset(transport):
    """Ends the connection by a reset, in the place of a close frame and a FIN."""
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
    while connection.fileno() != -1:  # the loop closes it
        await asyncio.sleep(0)


def http_scenario(client):
    """`client` has send, send_text, upload, download, abort_exec, abort_upload and abort_download, each as its library is used."""

    def call(method, path, **more):
        status, body = client.send(method, path, **more)
        return status, json.loads(body) if body else None

    def code(method, path, **more):
        status, answer = call(method, path, **more)
        return [status, answer["error"]["code"] if answer and "error" in answer else None]

    status, capsule = call("POST", "/v1/capsules", json={"memory_mb": 256})
    say("create", status=status)
    at = f"/v1/capsules/{capsule['id']}"
    status, capsule = call("GET", f"{at}?wait=running&timeout=120")
    say("wait", status=status, state=capsule["status"])

    def exec(cmd, *args, **more):
        return call("POST", f"{at}/exec", json={"cmd": cmd, "args": args, **more})

    _, result = exec("sh", "-c", "echo out; echo err >&2; exit 3")
    say("exec", exit_code=result["exit_code"], stdout=result["stdout"], stderr=result["stderr"])
    _, result = exec("printf", r"\377\000\376")
    say("binary", encoding=result["encoding"], bytes=base64.b64decode(result["stdout"]).hex())
    status, result = exec("sleep", "300", timeout=1)
    say("time-out", status=status, code=result["error"]["code"])

    status, process = exec("sleep", "301", background=True)
    say("background", status=status)
    _, listed = call("GET", f"{at}/processes")
    say("processes", listed=process["tag"] in [each["tag"] for each in listed["processes"]])
    say("kill", status=call("DELETE", f"{at}/processes/{process['tag']}?signal=SIGTERM")[0])

    small = os.path.join(WORK, 'small "ü".txt')
    with open(small, "wb") as file:
        file.write(b"\r\n--b\x00\xff")
    say("upload", status=client.upload(f"{at}/files/write", "/root/ü ñ.txt", small))
    status, body = client.send("POST", f"{at}/files/read", json={"path": "/root/ü ñ.txt"})
    say("read", status=status, bytes=body.hex())
    _, listing = call("POST", f"{at}/files/list", json={"path": "/root"})
    say("list", listed="ü ñ.txt" in [entry["name"] for entry in listing["entries"]])
    status = client.upload(f"{at}/files/write", "/root/second", small, file_first=True)
    say("file first", status=status, bytes=client.send("POST", f"{at}/files/read", json={"path": "/root/second"})[1].hex())

    status = client.upload(f"{at}/files/stream/write", "/root/big", BIG)
    _, result = exec("sha256sum", "/root/big", timeout=0)
    say("big up", status=status, whole=result["stdout"].split()[0] == sha256(BIG))
    copy = os.path.join(WORK, "copy")
    status = client.download(f"{at}/files/stream/read", "/root/big", copy)
    say("big down", status=status, whole=sha256(copy) == sha256(BIG))

    # Each is under way when it is broken off, after 5 s where the library has a time-out.
    client.abort_exec(f"{at}/exec", {"cmd": "sleep", "args": ["302"], "timeout": 0})
    client.abort_upload(f"{at}/files/stream/write", "/root/big")
    client.abort_download(f"{at}/files/stream/read", "/root/big")
    say_aborted("requests", at)

    wrong = {"key": "capk_wrong"}
    say("401", answer=code("GET", at, **wrong))
    say("404", answer=code("GET", "/v1/capsules/cl-none"))
    say("405", answer=code("PUT", at))
    say("400", answer=code("POST", f"{at}/exec", json={"cmd": 7}))
    say("409", answer=code("POST", f"{at}/resume"))
    huge = "x" * (20 << 20)
    say("413", answer=code("POST", f"{at}/exec", json={"cmd": huge}))
    status, body = client.send_text(f"{at}/exec", '{"cmd":"true"}')
    say("415", answer=[status, json.loads(body)["error"]["code"]])
    say("429", answer=code("POST", "/v1/capsules", json={"vcpus": 200}))
    lost = []
    for _ in range(TRIES):
        lost.append(code("POST", f"{at}/exec", json={"cmd": huge}) != [413, "too_large"])
        lost.append(code("POST", f"{at}/exec", json={"cmd": huge}, **wrong) != [401, "unauthorized"])
        lost.append(code("POST", "/v1/nothing", json={"cmd": huge}) != [404, "not_found"])
        lost.append(client.upload("/v1/capsules/cl-none/files/write", "/root/f", REFUSED) != 404)
        lost.append(client.upload("/v1/capsules/cl-none/files/stream/write", "/root/f", REFUSED) != 404)
    say("refused", lost=sum(lost))

    status, capsule = call("POST", f"{at}/pause")
    say("pause", status=status, state=capsule["status"])
    say("paused", answer=code("POST", f"{at}/exec", json={"cmd": "true"}))
    say("refused upload", status=client.upload(f"{at}/files/write", "/root/f", REFUSED))
    status, capsule = call("POST", f"{at}/resume")
    say("resume", status=status, state=capsule["status"])
    template = f"client-{NAME}"
    status, _ = call("POST", "/v1/snapshots", json={"sandbox_id": capsule["id"], "name": template})
    say("snapshot", status=status)
    say("delete snapshot", status=call("DELETE", f"/v1/snapshots/{template}")[0])
    say("gone", answer=code("GET", at))


def socket_scenario(send, connect, run):
    """`connect` gives an object with send, receive and close, for messages as text, and its transport; `run` runs a coroutine."""
    _, body = send("POST", "/v1/capsules", json={"memory_mb": 256})
    at = f"/v1/capsules/{json.loads(body)['id']}"
    send("GET", f"{at}?wait=running&timeout=120")
    run(talk(at, connect))


async def talk(at, connect):
    async def until(socket, done):
        messages = []
        while not messages or not done(messages):
            messages.append(json.loads(await socket.receive()))
        return messages

    def joined(messages, kind):
        return "".join(each["data"] for each in messages if each["type"] == kind)

    socket = await connect(f"{at}/exec/stream")
    await socket.send(json.dumps({"type": "start", "cmd": "sh", "args": ["-c", "echo out; echo err >&2; sleep 303"]}))
    messages = await until(socket, lambda all: joined(all, "stdout") == "out\n" and joined(all, "stderr") == "err\n")
    await socket.send(json.dumps({"type": "stop"}))
    messages += await until(socket, lambda all: all[-1]["type"] == "exit")
    say("stream", first=messages[0]["type"], exit_code=messages[-1]["exit_code"])
    await socket.close()

    def typed(messages):
        return b"".join(base64.b64decode(each["data"]) for each in messages if each["type"] == "output")

    async def enter(socket, line):
        await socket.send(json.dumps({"type": "input", "data": base64.b64encode(line.encode()).decode()}))

    socket = await connect(f"{at}/pty")
    await socket.send(json.dumps({"type": "start", "cmd": "/bin/bash", "cols": 80, "rows": 24}))
    started = (await until(socket, lambda all: all[-1]["type"] == "started"))[-1]
    await socket.send(json.dumps({"type": "resize", "cols": 120, "rows": 40}))
    await enter(socket, "stty size; word=again\n")
    await until(socket, lambda all: b"40 120" in typed(all))
    await socket.close()
    socket = await connect(f"{at}/pty")
    await socket.send(json.dumps({"type": "connect", "tag": started["tag"]}))
    back = (await until(socket, lambda all: all[-1]["type"] == "started"))[-1]
    await enter(socket, "echo $word-and-$word\n")
    await until(socket, lambda all: b"again-and-again" in typed(all))
    await socket.send(json.dumps({"type": "kill"}))
    last = (await until(socket, lambda all: all[-1]["type"] == "exit"))[-1]
    say("terminal", same=back["pid"] == started["pid"], last=last["type"])
    await socket.close()

    socket = await connect(f"{at}/exec/stream")
    await socket.send(json.dumps({"type": "start", "cmd": "sleep", "args": ["304"]}))
    await until(socket, lambda all: all[-1]["type"] == "start")
    await reset(socket.transport)
    say_aborted("socket", at)

    socket = await connect(f"{at}/pty")
    await socket.send(json.dumps({"type": "start", "cmd": "sleep", "args": ["305"]}))
    await until(socket, lambda all: all[-1]["type"] == "started")
    await reset(socket.transport)
    say_aborted("terminal", at)
