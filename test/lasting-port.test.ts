import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:net";
import { test } from "node:test";
import { lastingPort } from "./lasting-port.ts";

test("a port is given once, though nobody listens on it yet", async (t) => {
  const { random } = Math;
  let drawn = 0;
  const place = random();
  t.mock.method(Math, "random", () => (drawn++ < 3 ? place : random()));
  const ports = [await lastingPort(), await lastingPort()];
  assert.ok(drawn >= 3, "the second one is drawn again");
  assert.equal(new Set(ports).size, 2);
});

test("ports in a row are all kept", async () => {
  const port = Number(await lastingPort(2));
  for (const each of [port, port + 1]) {
    const other = createServer().listen({ path: `\0capsule-test-port-${each}` });
    await assert.rejects(once(other, "listening"), { code: "EADDRINUSE" });
  }
});
