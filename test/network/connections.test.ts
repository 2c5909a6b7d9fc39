/** Connections of a guest's programs, through its gateway, to a relay that the test plays. */
import assert from "node:assert/strict";
import { createHash, randomBytes, randomInt } from "node:crypto";
import { test } from "node:test";
import { waitFor } from "../wait-for.ts";
import type { NetworkGuest } from "./network-vm.ts";
import { playRelay, printed, to } from "./played-relay.ts";
import type { PeerStream, RelayPeer } from "./relay-peer.ts";

let guest: NetworkGuest;
let relay: RelayPeer;
playRelay((...began) => {
  [guest, relay] = began;
});

/** Connects, and prints the name of the error or "connected". */
const attempt = `
import errno, socket, sys
try:
  socket.create_connection((sys.argv[1], int(sys.argv[2])))
  print("connected")
except OSError as error:
  print(errno.errorcode[error.errno])`;

const attempted = (address: string, port: number) => printed(guest, attempt, address, String(port));

/** Sends back what comes, and ends when the other side ends. */
function echo(stream: PeerStream): void {
  let [at, done] = [0, Promise.resolve()];
  let hasEnded = false;
  stream.open();
  stream.on("change", () => {
    const bytes = stream.received().subarray(at);
    at += bytes.length;
    if (bytes.length > 0) done = done.then(() => stream.write(bytes));
    if (stream.total === undefined || hasEnded) return;
    hasEnded = true;
    void done.then(() => stream.end());
  });
}

test("a program learns what became of its connection", async () => {
  const codes = ["refused", "denied", "unreachable", "timeout"];
  relay.onRequest = (stream) => {
    assert.ok(stream.request.kind === "connect");
    const code = codes[stream.request.port - 1_000];
    if (code === undefined) stream.open();
    else stream.fail(code);
  };
  const outcomes = ["ECONNREFUSED", "EHOSTUNREACH", "EHOSTUNREACH", "EHOSTUNREACH", "connected"];
  for (const [index, outcome] of outcomes.entries()) {
    assert.equal(await attempted("203.0.113.7", 1_000 + index), outcome, codes[index]);
  }
  assert.deepEqual((await relay.next(to(1_000))).request, { kind: "connect", address: "203.0.113.7", port: 1_000 });
});

test("a connection is not there before the relay says so, and its packet is asked for once", async () => {
  let asked = 0;
  relay.onRequest = () => void asked++;
  const program = guest.python(attempt, "203.0.113.8", "80");
  const stream = await relay.next((it) => it.kind === "connect" && it.address === "203.0.113.8");
  // The kernel repeats its packet each second.
  await guest.sh("sleep 2.2");
  assert.deepEqual([asked, program.text("stdout")], [1, ""]);
  stream.open();
  await program.exit();
  assert.equal(program.text("stdout").trim(), "connected");
});

const talk = `
import hashlib, os, socket, sys, threading
sizes = [int(size) for size in sys.argv[2:]]
s = socket.create_connection(("203.0.113.9", int(sys.argv[1])))
sent, seen = hashlib.sha256(), hashlib.sha256()
def send():
  for size in sizes:
    part = os.urandom(size)
    sent.update(part)
    s.sendall(part)
  s.shutdown(socket.SHUT_WR)
sender = threading.Thread(target=send)
sender.start()
count = 0
while part := s.recv(65536):
  seen.update(part)
  count += len(part)
sender.join()
print(count, sent.hexdigest() == seen.hexdigest())`;

test("bytes of any sizes come back as they were", async (t) => {
  relay.onRequest = echo;
  const sizes = Array.from({ length: 40 }, () => randomInt(1, 2 ** randomInt(1, 18)));
  t.diagnostic(`sizes ${sizes.join(" ")}`);
  const total = sizes.reduce((sum, size) => sum + size, 0);
  const program = guest.python(talk, "2000", ...sizes.map(String));
  await program.exit();
  assert.equal(program.text("stdout").trim(), `${total} True`, program.text("stderr"));
});

test("a program that reads fast gets a wide window, and one that does not read stops the relay", async () => {
  const bytes = randomBytes(4 << 20);
  relay.onRequest = (stream) => stream.open();
  const reader = guest.python(`
import hashlib, socket
s = socket.create_connection(("203.0.113.9", 2001))
seen = hashlib.sha256()
while part := s.recv(262144): seen.update(part)
print(seen.hexdigest())`);
  const fast = await relay.next(to(2_001));
  await fast.write(bytes);
  fast.end();
  await reader.exit();
  assert.equal(reader.text("stdout").trim(), createHash("sha256").update(bytes).digest("hex"));
  assert.ok(fast.widest > 65_536 && fast.widest <= 1 << 20, `${fast.widest}`);

  const idle = guest.run("/bin/bash", "-c", "exec 3<>/dev/tcp/203.0.113.9/2002; echo ready; exec sleep 1000");
  const slow = await relay.next(to(2_002));
  await idle.until((it) => it.text("stdout") === "ready\n");
  const writing = assert.rejects(slow.write(randomBytes(32 << 20)), /the stream is reset/);
  let before = -1;
  await waitFor("the writer stands still", async () => {
    const isStill = slow.credit === 0 && slow.sentBytes === before;
    before = slow.sentBytes;
    await guest.sh("sleep 0.3");
    return isStill;
  });
  slow.reset();
  slow.isReset = true;
  await writing;
});

test("each way ends on its own", async () => {
  relay.onRequest = (stream) => stream.open();
  const program = guest.python(`
import socket
s = socket.create_connection(("203.0.113.9", 2003))
print(s.recv(100))
print(s.recv(100))
s.sendall(b"after your end")
s.shutdown(socket.SHUT_WR)
print("done")`);
  const first = await relay.next(to(2_003));
  await first.write(Buffer.from("server first"));
  first.end();
  await program.exit();
  assert.equal(program.text("stdout"), "b'server first'\nb''\ndone\n", program.text("stderr"));
  await waitFor("the gateway's END", () => first.total === 14);
  assert.deepEqual([first.received().toString(), first.isReset], ["after your end", false]);
});

test("a reset goes either way", async () => {
  relay.onRequest = (stream) => stream.open();
  const waiting = guest.python(`
import socket
s = socket.create_connection(("203.0.113.9", 2004))
s.sendall(b"x")
try: print(s.recv(1))
except ConnectionResetError: print("reset")`);
  const theirs = await relay.next(to(2_004));
  await waitFor("its byte", () => theirs.receivedBytes === 1);
  theirs.reset();
  await waiting.exit();
  assert.equal(waiting.text("stdout").trim(), "reset");

  const leaving = guest.python(`
import socket, struct
s = socket.create_connection(("203.0.113.9", 2005))
s.sendall(b"x")
s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
s.close()`);
  const ours = await relay.next(to(2_005));
  await leaving.exit();
  await waitFor("the gateway's RESET", () => ours.isReset);
});

test("a program that gives up while it is opened for is told to the relay as a reset", async () => {
  relay.onRequest = () => {};
  const program = guest.python(`
import socket
s = socket.socket()
s.settimeout(0.2)
try: s.connect(("203.0.113.9", 2006))
except TimeoutError: print("gave up")`);
  const stream = await relay.next(to(2_006));
  await program.exit();
  assert.equal(program.text("stdout").trim(), "gave up");
  stream.open();
  await waitFor("the gateway's RESET", () => stream.isReset);
});

test("200 connections at once are 200 streams", async () => {
  relay.onRequest = echo;
  const program = guest.python(`
import socket
sockets = []
for index in range(200):
  s = socket.socket()
  s.setblocking(False)
  s.connect_ex(("203.0.113.10", 3000 + index))
  sockets.append(s)
for index, s in enumerate(sockets):
  s.setblocking(True)
  s.sendall(b"%d" % index)
  s.shutdown(socket.SHUT_WR)
def rest(s):
  text = b""
  while part := s.recv(100): text += part
  return text
print(sum(rest(s) == b"%d" % index for index, s in enumerate(sockets)))`);
  await program.exit();
  assert.equal(program.text("stdout").trim(), "200", program.text("stderr"));
});

/** Has 1100 connections begun at any time: one that is denied is begun again. Prints how many were denied so far. */
const beginMany = `
import errno, resource, select, socket, time
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
poll, begun, denied = select.poll(), {}, 0
while True:
  while len(begun) < 1100:
    s = socket.socket()
    s.setblocking(False)
    s.connect_ex(("203.0.113.11", 4000))
    begun[s.fileno()] = s
    poll.register(s, select.POLLOUT)
  for fd, _ in poll.poll():
    poll.unregister(fd)
    s = begun.pop(fd)
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.EHOSTUNREACH
    s.close()
    denied += 1
  print(denied, flush=True)
  time.sleep(0.05)`;

test("more connections than the gateway holds are denied", async () => {
  relay.onRequest = () => {};
  await relay.hello(); // what earlier tests have left open is reset, and ends meanwhile
  const program = guest.python(beginMany);
  const asked = () => [...relay.streams.values()].filter(({ request }) => to(4_000)(request)).length;
  const denied = () => Number(program.text("stdout").trimEnd().split("\n").at(-1));
  await waitFor(
    () => `no place is left: ${asked()} are asked for, ${denied()} denied ${program.text("stderr")}`,
    () => asked() === 1_024,
  );
  const before = denied();
  await program.until(() => denied() >= before + 76);
  assert.deepEqual([asked(), program.text("stderr")], [1_024, ""]);
  await guest.sh("pkill -f '203.0.113.1[1]'");
  // Connections that nobody waits for any more are let go with the relay.
  await relay.hello();
  relay.onRequest = (stream) => stream.fail("refused");
  for (const stream of relay.streams.values()) stream.fail("refused");
  await waitFor("a new connection is asked for", async () => (await attempted("203.0.113.12", 80)) === "ECONNREFUSED");
});

test("what is no TCP is answered at once, and so is a port of the gateway itself", async () => {
  relay.onRequest = () => assert.fail("nothing is asked for");
  const program = guest.python(`
import errno, socket
def name(call):
  try: return call()
  except OSError as error: return errno.errorcode[error.errno]
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.connect(("203.0.113.13", 443))
udp.send(b"x")
print(name(lambda: udp.recv(1)))
icmp = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
icmp.sendto(b"\\x08\\x00\\xf7\\xff\\x00\\x00\\x00\\x00", ("203.0.113.13", 0))
icmp.settimeout(60)
print(icmp.recv(100)[20:22])
six = socket.socket(socket.AF_INET6)
print(name(lambda: six.connect(("2001:db8::1", 80))))
own = socket.create_connection(("192.0.0.1", 9))
print(own.recv(1))`);
  await program.exit();
  assert.equal(program.text("stdout"), "EHOSTUNREACH\nb'\\x03\\r'\nENETUNREACH\nb''\n", program.text("stderr"));
});
