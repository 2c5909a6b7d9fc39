/**
 * Connections of a guest over pauses, clones, relays that come and go, and the deaths of its gateway. Each program here only waits
 * to read, which is what would hang for ever.
 */
import assert from "node:assert/strict";
import { randomInt } from "node:crypto";
import { statSync } from "node:fs";
import { after, before, test } from "node:test";
import { FrameType } from "../../src/agent/frames.ts";
import type { Transcript } from "../fakes/transcript.ts";
import { waitFor } from "../wait-for.ts";
import { type NetworkGuest, NetworkVms } from "./network-vm.ts";
import { to } from "./played-relay.ts";
import type { PeerStream, RelayPeer } from "./relay-peer.ts";

let vms: NetworkVms;

before(async () => {
  vms = await NetworkVms.open();
});

after(() => vms[Symbol.asyncDispose]());

/** Connects, and writes to a file how its wait for a byte has ended. */
const waiting = `
import socket, sys
s = socket.create_connection(("203.0.113.9", int(sys.argv[1])))
open(sys.argv[2], "w").write("waiting")
try: end = repr(s.recv(1))
except OSError as error: end = error.strerror
open(sys.argv[2], "w").write(end)`;

/** A program in the background that waits on an open connection. */
async function wait(guest: NetworkGuest, relay: RelayPeer, port: number): Promise<PeerStream> {
  await guest.agent.start({ cmd: "/usr/bin/python3", args: ["-c", waiting, String(port), `/run/end-${port}`] });
  const stream = (await relay.next(to(port))).open();
  await waitFor("the program waits", async () => (await endOf(guest, port)) === "waiting");
  return stream;
}

const endOf = (guest: NetworkGuest, port: number) => guest.sh(`cat /run/end-${port} 2>/dev/null || true`);

async function ended(guest: NetworkGuest, port: number): Promise<string> {
  return waitFor(
    () => `the end of the wait on ${port}`,
    async () => {
      const end = await endOf(guest, port);
      return end !== "waiting" && end !== "" ? end : undefined;
    },
  );
}

const gatewayOf = (guest: NetworkGuest) => guest.sh("pgrep -f '^capsule-agent --gateway'");

const reset = "Connection reset by peer";

async function connects(guest: NetworkGuest, port: number): Promise<string> {
  const script = `exec 2>&1; exec 3<>/dev/tcp/203.0.113.9/${port} && echo connected || true`;
  return (await guest.sh(script)).split("\n").at(-1)!.replace(/.*: /, "");
}

/** A gateway without a relay denies what has waited for one so long. */
const relayMs = 2_000;
const attemptsMax = 20;

/**
 * Runs programs while a relay comes, until they print this. They may fail where it came too late, as on a busy machine: then all is
 * done once more. A failure before that time is one at once.
 */
async function findsRelay(start: () => Transcript[], come: () => Promise<unknown>, printed: RegExp): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    const beganMs = performance.now();
    const programs = start();
    await come();
    for (const program of programs) await program.exit();
    const tookMs = performance.now() - beganMs;
    const text = programs.map((each) => each.text("stdout")).join("");
    if (printed.test(text)) return;
    const told = programs.map((each) => each.text("stderr")).join("");
    assert.ok(tookMs > relayMs && attempt < attemptsMax, `after ${tookMs} ms: ${text}${told}`);
  }
}

/** The answer to every request: yes. */
function accept(stream: PeerStream): void {
  if (stream.request.kind === "connect") stream.open();
  else stream.answer(0, [{ type: 1, ttl: 1, data: Uint8Array.of(203, 0, 113, 1) }]);
}

test("a new epoch resets what waits to read, and asks again for what waits to be opened", async () => {
  await using guest = await vms.start();
  const relay = await guest.relay();
  await wait(guest, relay, 1_000);
  const asking = guest.python(waiting, "1001", "/run/end-1001");
  await relay.next(to(1_001));
  await relay.hello();
  assert.equal(await ended(guest, 1_000), reset);
  const again = (await relay.next(to(1_001))).open();
  await waitFor("the program waits", async () => (await endOf(guest, 1_001)) === "waiting");
  again.end();
  await asking.exit();
  assert.equal(await endOf(guest, 1_001), "b''");
});

test("a relay that goes resets connections, and without one new ones are denied after a while", async () => {
  await using guest = await vms.start();
  const relay = await guest.relay();
  await wait(guest, relay, 1_000);
  relay.close();
  assert.equal(await ended(guest, 1_000), reset);
  assert.equal(await connects(guest, 80), "No route to host");
  const asked = guest.python(`
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("192.0.0.1", 53))
s.send(b"\\x00\\x07\\x01\\x00\\x00\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x01a\\x00\\x00\\x01\\x00\\x01")
print(s.recv(512)[3] & 15)`);
  await asked.exit();
  assert.equal(asked.text("stdout").trim(), "5", "REFUSED");

  let next: RelayPeer | undefined;
  await findsRelay(
    () => {
      next?.close();
      return [
        guest.run("/bin/bash", "-c", "exec 3<>/dev/tcp/203.0.113.9/81 && echo connected"),
        guest.run("/bin/bash", "-c", "getent ahostsv4 late.example | head -1"),
      ];
    },
    async () => {
      next = await guest.relay(accept);
    },
    /^connected\n203\.0\.113\.1 /,
  );
});

test("after a resume and in each clone old connections are reset, and new ones come about at once", async () => {
  const guest = await vms.start();
  const relay = await guest.relay(accept);
  await wait(guest, relay, 1_000);
  const download = await wait(guest, relay, 1_001);
  const upload = guest.python(`
import socket
s = socket.create_connection(("203.0.113.9", 1002))
try:
  while True: s.sendall(b"x" * 65536)
except OSError: pass`);
  upload.ended.promise.catch(() => {});
  const taken = await relay.next(to(1_002));
  await waitFor("an upload that flows", () => taken.receivedBytes > 1 << 20);
  void download.write(Buffer.from("x")).catch(() => {});
  const { saved, diff } = await guest.save();
  assert.ok(statSync(saved.state).size <= 16_384, "the device state is small");
  relay.close();
  for (let clone = 0; clone < 3; clone++) {
    await using resumed = await vms.restore(saved, diff);
    const next = await resumed.relay(accept);
    assert.equal(await ended(resumed, 1_000), reset, `clone ${clone}`);
    assert.equal(await connects(resumed, 82), "connected");
    assert.match(await resumed.sh("getent ahostsv4 a.example | head -1"), /^203\.0\.113\.1 /);
    next.close();
  }
});

test("a gateway that is killed comes back, and its connections are reset", async () => {
  await using guest = await vms.start();
  const relay = await guest.relay();
  await wait(guest, relay, 1_000);
  const { begun } = relay;
  await guest.sh(`kill -KILL ${await gatewayOf(guest)}`);
  await waitFor("the next gateway", () => relay.begun > begun);
  relay.onRequest = accept;
  await relay.hello();
  assert.equal(await ended(guest, 1_000), reset);
  assert.equal(await connects(guest, 83), "connected");
});

/** Arguments: how many are idle, and how many have a full buffer. Holds so many connections, and counts how each wait has ended. */
const holding = `
import collections, errno, resource, select, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
poll, held = select.poll(), {}
def hold(port):
  s = socket.socket()
  s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
  s.connect(("203.0.113.9", port))
  held[s.fileno()] = s
  poll.register(s, 0)
for _ in range(int(sys.argv[1])): hold(1000)
for _ in range(int(sys.argv[2])):
  hold(1001)
  time.sleep(.03)
print("held", flush=True)
ends = collections.Counter()
while held:
  for fd, _ in poll.poll():
    poll.unregister(fd)
    ends[errno.errorcode[held.pop(fd).getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)]] += 1
  print(dict(ends), flush=True)`;

/** The kernel of a full buffer has just answered a probe of its window, and answers no more for half a second. */
test("all connections of a killed gateway are reset, many and with full buffers too", async () => {
  await using guest = await vms.start();
  const full: PeerStream[] = [];
  const relay = await guest.relay((stream) => {
    accept(stream);
    if (!to(1_001)(stream.request)) return;
    full.push(stream);
    stream.write(Buffer.alloc(1 << 20)).catch(() => {});
  });
  const program = guest.python(holding, "660", "40");
  await program.until((it) => it.text("stdout").includes("held"));
  for (const stream of full) stream.isReset = true; // ends the writing
  const { begun } = relay;
  await guest.sh(`kill -KILL ${await gatewayOf(guest)}`);
  await waitFor("the next gateway", () => relay.begun > begun);
  await relay.hello();
  await waitFor(
    () => `all are reset: ${program.text("stdout")}${program.text("stderr")}`,
    () => program.text("stdout").includes("{'ECONNRESET': 700}"),
  );
  assert.equal(await connects(guest, 83), "connected");
});

/** Each death is sooner after the last than a gateway is taken for steady, so each pause before the next one is longer. */
test("connections that begin while a killed gateway comes back wait for it", async () => {
  await using guest = await vms.start();
  const relay = await guest.relay(accept);
  const killed = `gateway=$(pgrep -f '^capsule-agent --gateway')
    kill -KILL $gateway
    while kill -0 $gateway 2>/dev/null; do :; done
    exec 3<>/dev/tcp/203.0.113.9/80 && echo connected`;
  for (let death = 1; death <= 4; death++) {
    let begun = 0;
    await findsRelay(
      () => {
        begun = relay.begun;
        return [guest.run("/bin/bash", "-c", killed)];
      },
      async () => {
        await waitFor("the next gateway", () => relay.begun > begun);
        await relay.hello();
      },
      /^connected\n$/,
    );
  }
});

test("no other user takes the interface while the gateway is away", async () => {
  await using guest = await vms.start();
  const relay = await guest.relay(accept);
  const attach = `
import errno, fcntl, os, struct, sys
os.setuid(int(sys.argv[1]))
tun = os.open("/dev/net/tun", os.O_RDWR)
try:
  fcntl.ioctl(tun, 0x400454ca, struct.pack("16sh22x", b"eth0", 0x5001))
  print("taken")
except OSError as error: print(errno.errorcode[error.errno])`;
  // The kernel looks at the user before it looks whether the interface is held.
  await guest.sh("chmod 666 /dev/net/tun");
  for (const [uid, outcome] of [
    ["1000", "EPERM"],
    ["0", "EBUSY"],
  ] as const) {
    const program = guest.python(attach, uid);
    await program.exit();
    assert.equal(program.text("stdout").trim(), outcome, program.text("stderr"));
  }
  assert.equal(relay.begun, 0);
});

test("an interface that root removes comes back with the gateway", async () => {
  await using guest = await vms.start();
  const relay = await guest.relay();
  await wait(guest, relay, 1_000);
  const { begun } = relay;
  await guest.sh("ip link del eth0");
  await waitFor("the next gateway", () => relay.begun > begun);
  relay.onRequest = accept;
  await relay.hello();
  assert.equal(await ended(guest, 1_000), reset);
  assert.equal(await connects(guest, 84), "connected");
  const shown = await guest.sh("ip addr show dev eth0; ip route; cat /etc/resolv.conf");
  for (const part of [" mtu 65520 ", " 192.0.0.2/29 ", "default via 192.0.0.1 ", "nameserver 192.0.0.1"])
    assert.ok(shown.includes(part), `${part} is not in:\n${shown}`);
  assert.ok(!shown.includes("inet6"), shown);
});

test("a FREEZE leaves the gateway running, and programs find it after the THAW", async () => {
  await using guest = await vms.start();
  await guest.relay(accept);
  for (let cycle = 0; cycle < 3; cycle++) {
    await guest.freeze();
    await guest.agent.thaw();
    assert.equal(await connects(guest, 85 + cycle), "connected");
  }
});

test("forged and random frames do no harm to the gateway", async (t) => {
  const seed = randomInt(2 ** 31);
  t.diagnostic(`seed ${seed}`);
  let state = seed | 1;
  const next = (below: number) => {
    state = Math.imul(state ^ (state >>> 15), 0x2c1b3c6d) + 0x9e3779b9;
    return (state >>> 1) % below;
  };
  const noise = (length: number) => Buffer.from(Array.from({ length }, () => next(256)));
  await using guest = await vms.start();
  const relay = await guest.relay(accept);
  const pid = await gatewayOf(guest);
  const programs: Transcript[] = [];
  const ports = Array.from({ length: 8 }, (_, index) => 7_000 + index);
  for (const port of ports) programs.push(guest.python(waiting, String(port), `/run/end-${port}`));
  for (const port of ports) await waitFor("the program waits", async () => (await endOf(guest, port)) === "waiting");
  for (let round = 0; round < 3_000; round++) {
    const payload = noise(next(4) === 0 ? next(2_000) : next(12));
    if (next(3) === 0 && payload.length > 0) payload[payload.length - 1] = 0x7e;
    relay.send(next(16) === 0 ? next(256) : next(13), payload, next(12));
    if (next(50) === 0) relay.sendRaw(noise(next(500)));
  }
  relay.send(FrameType.DATA, Buffer.alloc(65_536), 1);
  await relay.hello();
  for (const program of programs) await program.exit();
  assert.equal(await connects(guest, 90), "connected");
  assert.equal(await gatewayOf(guest), pid, "it is still the same process");
});
