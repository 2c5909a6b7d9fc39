import assert from "node:assert/strict";
import { test } from "node:test";
import { initrd } from "./initrd.ts";

const modules = [
  { name: "virtio_ring.ko", content: Buffer.from("ring") },
  { name: "virtio.ko", content: Buffer.from("virtio") },
];

test("the agent is /init, and /modules/order keeps the loading order", () => {
  const archive = initrd(Buffer.from("agent"), modules).toString("latin1");
  const names = ["dev", "modules", "newroot", "proc", "sys", "dev/console", "init", "modules/order"];
  for (const name of [...names, "modules/virtio_ring.ko", "modules/virtio.ko"]) {
    assert.ok(archive.includes(`${name}\0`), name);
  }
  assert.ok(archive.includes("virtio_ring.ko\nvirtio.ko\n"));
});

test("the same parts give the same bytes; another agent gives others", () => {
  assert.deepEqual(initrd(Buffer.from("agent"), modules), initrd(Buffer.from("agent"), modules));
  assert.notDeepEqual(initrd(Buffer.from("agent"), modules), initrd(Buffer.from("agenu"), modules));
});

test("a kernel with all drivers built in needs no module", () => {
  assert.ok(initrd(Buffer.from("agent"), []).includes("modules/order"));
});
