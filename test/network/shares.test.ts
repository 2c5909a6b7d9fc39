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
