/** The order in which a create reads QEMU and waits for the boot of its base, or for a slot. */
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import type { Machine } from "../../vmm/vmm.ts";
import { Paths } from "../disk/paths.ts";
import { TemplateStore } from "./template-store.ts";

const shape = { vcpus: 1, memoryMb: 256 };
const origin = { kind: "base", name: "minimal" } as const;

/** `reading`: the hashes of the copy of QEMU are computed until it resolves. */
function store(t: TestContext, reading: Promise<void>, canGrow?: boolean) {
  const data = mkdtempSync(join(tmpdir(), "template-store-"));
  t.after(() => rmSync(data, { recursive: true }));
  const done: string[] = [];
  const vmms = {
    refresh: async () => {},
    machine: (vcpus: number, memoryMb: number) => ({ vcpus, memoryMb }),
    closest: async (machine: Machine) => {
      done.push(`read QEMU of ${machine.vcpus} × ${machine.memoryMb}`);
      await reading;
      return machine;
    },
  };
  const parent = { manifest: { agent: { grows: true } }, [Symbol.dispose]() {} };
  const bases = {
    canGrow: () => canGrow,
    ensure: async () => {
      done.push("asked for the base");
      return parent;
    },
  };
  const images = { named: (name: string) => (name === "minimal" ? {} : undefined) };
  const templates = new TemplateStore(new Paths(data), images as never, bases as never, vmms as never);
  return { templates, parent, done };
}

test("the copy of QEMU is compared with its hashes before a create waits in any line", async (t) => {
  const reading = Promise.withResolvers<void>();
  const { templates, parent, done } = store(t, reading.promise);
  const found = templates.find(origin, shape, { owner: "a team" });
  await new Promise(setImmediate);
  assert.deepEqual(done, ["read QEMU of 1 × 256"]);
  reading.resolve();
  assert.equal(await found, parent);
  assert.deepEqual(done, ["read QEMU of 1 × 256", "asked for the base"]);
});

test("a damaged copy of QEMU refuses the create before it waits in any line", async (t) => {
  const { templates, done } = store(t, Promise.reject(new Error("other bytes than were copied")));
  await assert.rejects(templates.find(origin, shape, { owner: "a team" }), /other bytes/);
  assert.deepEqual(done, ["read QEMU of 1 × 256"]);
});

test("whether an image's disks can be made larger is known, or its base is asked for", async (t) => {
  const known = store(t, Promise.resolve(), false);
  assert.equal(await known.templates.canGrow("minimal", shape, { owner: "a team" }), false);
  assert.deepEqual(known.done, []);
  const unknown = store(t, Promise.resolve());
  assert.equal(await unknown.templates.canGrow("minimal", shape, { owner: "a team" }), true);
  assert.deepEqual(unknown.done, ["read QEMU of 1 × 256", "asked for the base"]);
  await assert.rejects(unknown.templates.canGrow("none", shape, { owner: "a team" }), { code: "not_found" });
});
