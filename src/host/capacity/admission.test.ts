import assert from "node:assert/strict";
import { EventEmitter, once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { Admission } from "./admission.ts";

const folder = mkdtempSync(join(tmpdir(), "admission-"));
after(() => rmSync(folder, { recursive: true }));
const mib = 1 << 20;

function admission(availableMb: number, reserveMb = 512): Admission {
  return new Admission({ folder, reserveBytes: reserveMb * mib, availableBytes: () => availableMb * mib });
}

test("admission depends on available memory, not on the memory promised to capsules", async () => {
  await admission(600).admit(4_096);
  await assert.rejects(admission(570).admit(4_096), { code: "no_capacity", message: /memory/ });
  await assert.rejects(admission(0).admit(128), { code: "no_capacity" });
});

test("capsules that are being started count before they have taken their memory", async () => {
  const host = admission(512 + 2 * 64);
  const first = Promise.withResolvers<void>();
  const second = Promise.withResolvers<void>();
  const starting = [host.during(() => first.promise), host.during(() => second.promise)];
  await assert.rejects(host.admit(512), { code: "no_capacity" });
  first.resolve();
  second.reject(new Error("it did not start"));
  await starting[0];
  await assert.rejects(starting[1]!, /did not start/);
  await host.admit(512);
  await assert.rejects(host.admit(512, 2), { code: "no_capacity" }, "two more are promised");
});

test("without room, admission waits for VMs that are being ended, and measures again after each", async () => {
  let availableMb = 512;
  const looked = new EventEmitter();
  const availableBytes = () => {
    looked.emit("look");
    return availableMb * mib;
  };
  const host = new Admission({ folder, reserveBytes: 512 * mib, availableBytes });
  const [first, second] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const going = [first, second].map(({ promise }) => host.trackRelease(promise));
  let look = once(looked, "look");
  const required = host.admit(512);
  await look;
  look = once(looked, "look");
  first.reject(new Error("it hangs"));
  await assert.rejects(going[0]!, /it hangs/);
  await look;
  look = once(looked, "look");
  availableMb += 64;
  second.resolve();
  await going[1];
  await look;
  await required;
  availableMb -= 64;
  await assert.rejects(host.admit(512), { code: "no_capacity" }, "without waiting");
});

test("a missing folder is not reported as a full disk", async () => {
  const lost = new Admission({ folder: join(folder, "no", "such"), reserveBytes: 0 });
  await assert.rejects(lost.admit(128), { code: "ENOENT" });
});

test("this machine's available memory is a positive number of bytes", async () => {
  await new Admission({ folder, reserveBytes: 0 }).admit(128);
  await assert.rejects(new Admission({ folder, reserveBytes: 2 ** 60 }).admit(128), { code: "no_capacity" });
});
