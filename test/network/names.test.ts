/** Questions of a guest's programs to DNS, through its gateway, to a relay that the test plays. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { NetworkGuest } from "./network-vm.ts";
import { playRelay } from "./played-relay.ts";
import type { Answer, RelayPeer } from "./relay-peer.ts";

let guest: NetworkGuest;
let relay: RelayPeer;
playRelay((...began) => {
  [guest, relay] = began;
});

const address = (last: number): Answer => ({ type: 1, ttl: 30, data: Uint8Array.of(203, 0, 113, last) });

/** A question as a program sends it; prints flags, counts and the end of the answer. */
const asking = `
import socket, struct, sys
def question(name, kind, size=None, kclass=1, count=1):
  labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".") if label)
  opt = b"" if size is None else struct.pack("!BHHIH", 0, 41, size, 0, 0)
  head = struct.pack("!HHHHHH", 7, 0x0100, count, 0, 0, 1 if opt else 0)
  return head + labels + b"\\0" + struct.pack("!HH", kind, kclass) + opt
def told(answer):
  id, flags, questions, answers, _, additional = struct.unpack("!HHHHHH", answer[:12])
  assert id == 7 and flags & 0x8000
  return "%x %d %d" % (flags & 0x020f, answers, additional)
def udp(message, server="192.0.0.1"):
  s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
  s.settimeout(100)
  s.connect((server, 53))
  s.send(message)
  return s.recv(65535)
def tcp(*messages):
  s = socket.create_connection(("198.51.100.1", 53))
  for message in messages: s.sendall(struct.pack("!H", len(message)) + message)
  s.shutdown(socket.SHUT_WR)
  data = b""
  while part := s.recv(65536): data += part
  answers = []
  while data:
    length, = struct.unpack("!H", data[:2])
    answers.append(data[2:2 + length])
    data = data[2 + length:]
  return answers
`;

async function asked(script: string): Promise<string[]> {
  const program = guest.python(asking + script);
  await program.exit();
  assert.equal(program.text("stderr"), "");
  return program.text("stdout").trim().split("\n");
}

test("the C library finds a name, and asks for it in lower case", async () => {
  const names = new Set<string>(); // the library repeats a question that is not answered in 5 s
  relay.onRequest = (stream) => {
    assert.ok(stream.request.kind === "resolve");
    names.add(`${stream.request.name} ${stream.request.type}`);
    stream.answer(0, stream.request.type === 1 ? [address(1), address(2)] : []);
  };
  const found = await guest.sh("getent ahosts WWW.Example.com | awk '{print $1}' | sort -u");
  assert.equal(found, "203.0.113.1\n203.0.113.2");
  assert.deepEqual([...names], ["www.example.com 1"], "no IPv6: the guest has no such address");
});

test("any type, any server's address, and what the relay says of it", async () => {
  const mx = { type: 15, ttl: 0, data: Buffer.concat([Uint8Array.of(0, 10, 2), Buffer.from("mx"), Uint8Array.of(0)]) };
  relay.onRequest = (stream) => {
    assert.ok(stream.request.kind === "resolve");
    if (stream.request.name === "mail.example") stream.answer(0, [mx]);
    else if (stream.request.name === "") stream.answer(5, []);
    else if (stream.request.name === "broken.example") stream.fail("internal");
    else stream.answer(3, []);
  };
  const lines = await asked(`
answer = udp(question("mail.example", 15), "203.0.113.53")
print(told(answer), answer[-10:])
print(told(udp(question("", 2))))
print(told(udp(question("none.example", 257, 1232))))
print(told(udp(question("broken.example", 1))))`);
  assert.deepEqual(lines.slice(1), ["5 0 0", "3 0 1", "2 0 0"]);
  assert.match(lines[0]!, /^0 1 0 .*mx/);
});

test("an answer that is too long for UDP is marked, and comes whole over TCP", async () => {
  const many = Array.from({ length: 100 }, (_, index) => address(index));
  relay.onRequest = (stream) => stream.answer(0, many);
  const lines = await asked(`
print(told(udp(question("many.example", 1))))
print(told(udp(question("many.example", 1, 1232))))
print(told(udp(question("many.example", 1, 4096))))
for answer in tcp(question("many.example", 1), question("again.example", 1)): print(told(answer))`);
  assert.deepEqual(lines, ["200 0 0", "200 0 1", "0 100 1", "0 100 0", "0 100 0"]);
  const found = await guest.sh("getent ahostsv4 many.example | grep -c STREAM");
  assert.equal(found, "100", "the C library asks again over TCP");
});

test("odd questions are refused by the gateway, and more than 64 at once fail", async () => {
  relay.onRequest = () => assert.fail("nothing is asked for");
  const odd = await asked(`
print(told(udp(question("a b.example", 1))))
print(told(udp(question("chaos.example", 16, kclass=3))))
print(told(udp(question("two.example", 1, count=2))))
print(told(tcp(question("a b.example", 1))[0]))`);
  assert.deepEqual(odd, ["5 0 0", "5 0 0", "5 0 0", "5 0 0"]);

  relay.onRequest = () => {};
  const program = guest.python(`${asking}
sockets = []
for index in range(70):
  s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
  s.settimeout(100)
  s.connect(("192.0.0.1", 53))
  s.send(question("name-%d.example" % index, 1))
  sockets.append(s)
print([told(s.recv(600)) for s in sockets[64:]].count("2 0 0"), flush=True)
print([told(s.recv(600)) for s in sockets[:64]].count("0 1 0"))`);
  await program.until((it) => it.text("stdout") === "6\n");
  const waiting = [...relay.streams.values()].filter(
    ({ request }) => request.kind === "resolve" && request.name.startsWith("name-"),
  );
  assert.equal(waiting.length, 64);
  for (const stream of waiting) stream.answer(0, [address(7)]);
  await program.exit();
  assert.equal(program.text("stdout"), "6\n64\n", program.text("stderr"));
});
