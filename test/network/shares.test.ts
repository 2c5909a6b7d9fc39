/** Places of a guest's gateway for several users of the guest: none takes all of them. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { waitFor } from "../wait-for.ts";
import type { NetworkGuest } from "./network-vm.ts";
import { playRelay, printed } from "./played-relay.ts";
import type { PeerStream, RelayPeer } from "./relay-peer.ts";

const [greedy, other, root] = ["1000", "1001", "0"];

let guest: NetworkGuest;
let relay: RelayPeer;
playRelay((...began) => {
  [guest, relay] = began;
});

const asUser = `
import errno, os, resource, select, socket, struct, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
os.setuid(int(sys.argv[1]))
def question(name):
  return struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + bytes([len(name)]) + name + b"\\0" + struct.pack(">HH", 1, 1)
`;

/** Begins so many connections, and prints how many are denied once the last are; then it holds the others. */
const connectMany = `${asUser}
poll, held = select.poll(), {}
for index in range(int(sys.argv[2])):
  s = socket.socket()
  s.setblocking(False)
  s.connect_ex(("203.0.113.9", 1000 + index))
  held[s.fileno()] = s
  poll.register(s, select.POLLOUT)
denied = 0
while True:
  for fd, _ in poll.poll():
    poll.unregister(fd)
    assert held.pop(fd).getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.EHOSTUNREACH
    denied += 1
  print(denied, flush=True)`;

/** Has so many connections begun at any time: one that ends is begun again. */
const keepConnecting = `${asUser}
import time
poll, held = select.poll(), {}
while True:
  while len(held) < int(sys.argv[2]):
    s = socket.socket()
    s.setblocking(False)
    s.connect_ex(("203.0.113.9", 1000))
    held[s.fileno()] = s
    poll.register(s, select.POLLOUT)
  for fd, _ in poll.poll():
    poll.unregister(fd)
    held.pop(fd).close()
  time.sleep(0.05)`;

const connect = `${asUser}
socket.create_connection(("203.0.113.10", 80))
print("connected")`;

/** Asks so many questions from as many sockets, and prints how many are answered "server failure"; then it waits for the others. */
const askMany = `${asUser}
poll, held, failed = select.poll(), {}, 0
for index in range(int(sys.argv[2])):
  s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
  s.connect(("192.0.0.1", 53))
  s.send(question(b"g%d" % index))
  held[s.fileno()] = s
  poll.register(s, select.POLLIN)
while True:
  for fd, _ in poll.poll():
    assert held[fd].recv(512)[3] & 15 == 2
    failed += 1
  print(failed, flush=True)`;

const ask = `${asUser}
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("192.0.0.1", 53))
s.send(question(b"wanted"))
print(s.recv(512)[3] & 15)`;

const requested = (kind: PeerStream["request"]["kind"]) =>
  [...relay.streams.values()].filter(({ request }) => request.kind === kind).length;

test("a user who connects without end leaves places to others and to root", async () => {
  relay.onRequest = ({ request }) => void request;
  const program = guest.python(connectMany, greedy, "800");
  await program.until((it) => it.text("stdout").includes("32\n"));
  await waitFor("the others are asked for", () => requested("connect") === 768);
  relay.onRequest = (stream) => void stream.open();
  for (const user of [other, root]) assert.equal(await printed(guest, connect, user), "connected", user);
  await relay.hello();
  for (const stream of relay.streams.values()) stream.fail("denied");
});

/** Connects from this port, in two steps of which each prints a line. */
const connectFrom = `${asUser}
s = socket.socket()
s.bind(("", int(sys.argv[2])))
s.setblocking(False)
s.connect_ex(("203.0.113.11", 80))
print("begun", flush=True)
poll = select.poll()
poll.register(s, select.POLLOUT)
poll.poll()
print(errno.errorcode.get(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), "connected"))`;

/** Sends what may pass for packets from this port, until it is killed: datagrams, parts of some, and beginnings of connections. */
const pretend = `${asUser}
import time
port = int(sys.argv[2])
def bound(kind, port):
  s = socket.socket(socket.AF_INET, kind)
  s.bind(("", port))
  s.setblocking(False)
  return s
datagrams = [bound(socket.SOCK_DGRAM, port), bound(socket.SOCK_DGRAM, port + 1024)]
for s in datagrams: s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
while True:
  connection = bound(socket.SOCK_STREAM, port + 1024)
  connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
  connection.connect_ex(("203.0.113.12", 80))
  for s in datagrams:
    for message in (b"x", struct.pack(">H", port) * 32750):
      try: s.sendto(message, ("192.0.0.1", 9))
      except OSError: pass
  connection.close()
  print("sent", flush=True)
  time.sleep(0.1)`;

test("packets of a user who has no place left do not pass for those of another one", async () => {
  relay.onRequest = ({ request }) => void request;
  guest.python(keepConnecting, greedy, "768");
  await waitFor("no place is left", () => requested("connect") === 768); // those of before end meanwhile
  relay.onRequest = (stream) => void stream.open();
  const gateway = await guest.sh("pgrep -f '^capsule-agent --gateway'");
  await guest.sh(`kill -STOP ${gateway}`); // so that all packets come before it looks whose the first one is
  const connecting = guest.python(connectFrom, other, "40001");
  await connecting.until((it) => it.text("stdout").includes("begun"));
  const pretending = guest.python(pretend, greedy, "40001");
  await pretending.until((it) => it.text("stdout").includes("sent\nsent"));
  await guest.sh(`kill -CONT ${gateway}`);
  await connecting.exit();
  assert.equal(connecting.text("stdout") + connecting.text("stderr"), "begun\nconnected\n");
  assert.equal(pretending.text("stderr"), "");
  await guest.sh("pkill -u 1000");
  await relay.hello();
});

test("a user who asks without end leaves places to others and to root", async () => {
  relay.onRequest = () => {};
  const program = guest.python(askMany, greedy, "64");
  await program.until((it) => it.text("stdout").includes("16\n"));
  await waitFor("the others are asked", () => requested("resolve") === 48);
  relay.onRequest = (stream) => stream.answer(0, []);
  for (const user of [other, root]) assert.equal(await printed(guest, ask, user), "0", user);
});

test("a connection to the resolver that asks nothing is reset, and not while its question is on its way", async () => {
  relay.onRequest = () => {};
  const asking = guest.python(
    `${asUser}
s = socket.create_connection(("192.0.0.1", 53))
message = question(b"late")
s.sendall(struct.pack(">H", len(message)) + message)
print(s.recv(512)[5] & 15)`,
    root,
  );
  const late = await relay.next((request) => request.kind === "resolve" && request.name === "late");
  const idle = `${asUser}
s = socket.create_connection(("192.0.0.1", 53))
s.sendall(b"\\0")
try: print(s.recv(1))
except ConnectionResetError: print("reset")`;
  assert.equal(await printed(guest, idle, root), "reset");
  late.answer(0, []);
  await asking.exit();
  assert.equal(asking.text("stdout").trim(), "0", asking.text("stderr"));
});
