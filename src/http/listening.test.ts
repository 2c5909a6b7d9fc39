import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { lookup } from "node:dns/promises";
import { once } from "node:events";
import { type AddressInfo, createServer } from "node:net";
import { resolve } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { fastify } from "fastify";
import { holderOf, listen, listeners, passedSockets, requireFreePort } from "./listening.ts";
import type { App } from "./route.ts";

test("a taken port is refused with the process that holds it, and another host's is not", async () => {
  const holder = createServer();
  await once(holder.listen({ host: "127.0.0.1", port: 0 }), "listening");
  const { port } = holder.address() as AddressInfo;
  try {
    for (const host of ["127.0.0.1", "0.0.0.0"]) {
      await assert.rejects(
        requireFreePort({ host, port }),
        new RegExp(`^Error: ${host}:${port} is in use by .+ \\(pid ${process.pid}\\); CAPSULE_PORT sets another port`),
      );
    }
    assert.equal(await requireFreePort({ host: "127.0.0.2", port }), "127.0.0.2");
    assert.equal(holderOf({ host: "127.0.0.2", port }), undefined);
  } finally {
    holder.close();
  }
});

test("an address that this machine lacks is refused with the settings' names", async () => {
  await assert.rejects(
    requireFreePort({ host: "203.0.113.1", port: 8_080 }),
    /CAPSULE_HOST and CAPSULE_PORT: .*203\.0\.113\.1/,
  );
});

test("the kernel's tables are read: loopback, all addresses, IPv6, mapped IPv4, and only sockets that listen", () => {
  const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100 0 0 10 0
   1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12 1 0 100 0 0 10 0
   2: 0100007F:1F90 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 13 1 0 100 0 0 10 0
   3: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 14 1
   4: 0000000000000000FFFF00000100007F:1F90 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 15 1
   5: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 16 1 0 100 0 0 10 0
`;
  assert.deepEqual(listeners(table, { host: "127.0.0.1", port: 8_080 }), ["11", "12", "15"]);
  assert.deepEqual(listeners(table, { host: "::1", port: 8_080 }), ["12", "14"]);
  assert.deepEqual(listeners(table, { host: "localhost", port: 8_080 }), ["11", "12", "14", "15"]);
  assert.deepEqual(listeners(table, { host: "0.0.0.0", port: 8_081 }), ["16"]);
});

test("sockets are taken that were passed to this process, and to no other", () => {
  assert.equal(passedSockets({ LISTEN_PID: "7", LISTEN_FDS: "2" }, 7), 2);
  for (const env of [{}, { LISTEN_PID: "8", LISTEN_FDS: "2" }, { LISTEN_PID: "7", LISTEN_FDS: "x" }]) {
    assert.equal(passedSockets(env, 7), 0);
  }
});

const program = `
import { listen, passedSockets } from ${JSON.stringify(resolve(import.meta.dirname, "listening.ts"))};
import { fastify } from "fastify";
import { readFileSync } from "node:fs";
const app = fastify();
app.get("/", async () => "served");
const passed = passedSockets({ LISTEN_PID: String(process.pid), LISTEN_FDS: process.env.LISTEN_FDS });
console.log(await listen(app, { host: "localhost", port: 0 }, passed));
// QEMU must not inherit them.
for (let fd = 3; fd < 3 + passed; fd++) {
  const flags = /^flags:\\s*(\\d+)/m.exec(readFileSync("/proc/self/fdinfo/" + fd, "utf8"))[1];
  if ((Number.parseInt(flags, 8) & 0o2000000) === 0) throw new Error(fd + " is inherited by children");
}
process.stdin.once("data", async () => { await app.close(); process.exit(0); });
`;

for (const passed of [0, 1, 2]) {
  test(`with CAPSULE_HOST=localhost and ${passed} passed sockets each is served, and closing ends`, async () => {
    const sockets = [createServer(), createServer()].slice(0, passed);
    for (const socket of sockets) await once(socket.listen({ host: "127.0.0.1", port: 0 }), "listening");
    const ports = sockets.map((socket) => (socket.address() as AddressInfo).port);
    const handles = sockets.map((socket) => (socket as unknown as { _handle: { fd: number } })._handle.fd);
    const child = spawn(process.execPath, ["--input-type=module", "--eval", program], {
      cwd: resolve(import.meta.dirname, "../.."),
      env: { ...process.env, LISTEN_FDS: String(passed) },
      stdio: ["pipe", "pipe", "inherit", ...handles],
    });
    const ended = once(child, "exit");
    try {
      const [url] = (await once(createInterface({ input: child.stdout! }), "line")) as [string];
      // Node reads what its own servers accept; these only keep the port, as systemd does.
      for (const socket of sockets) socket.close();
      const asked = passed === 0 ? [new URL(url).port] : ports.map(String);
      for (const port of asked) assert.equal(await (await fetch(`http://127.0.0.1:${port}/`)).text(), "served");
      for (const { address, family } of passed === 0 ? await lookup("localhost", { all: true }) : []) {
        const host = family === 6 ? `[${address}]` : address;
        assert.equal(await (await fetch(`http://${host}:${asked[0]}/`)).text(), "served", address);
      }
      if (passed > 0) assert.equal(new URL(url).port, String(ports[0]));
      child.stdin!.write("end\n");
      assert.deepEqual(await ended, [0, null]);
    } finally {
      child.kill("SIGKILL");
      for (const socket of sockets) socket.close();
    }
  });
}

test("an address that the check refuses is not served", async () => {
  const app = fastify();
  const check = (address: string) => {
    throw new Error(`${address} is refused`);
  };
  await assert.rejects(
    listen(app as unknown as App, { host: "127.0.0.1", port: 0 }, 0, check),
    /127\.0\.0\.1 is refused/,
  );
  await app.close();
});
