/** A boot whose guest says nothing is repeated once, in a folder that is empty again. */
import assert from "node:assert/strict";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { CapsuleError } from "../../wire/errors.ts";
import { type Boot, bootUntilAnswered, type SilentGuest } from "./boot.ts";

const silent = new CapsuleError("agent_error", "the guest agent did not answer within 100 ms");

/** A boot whose VMs end up in `ended`; `connect` gets the number of the try. */
function boots(t: TestContext, connect: (boot: number) => Promise<unknown>, consoles: string[] = []) {
  const folder = mkdtempSync(join(tmpdir(), "boot-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const made: number[] = [];
  const ended: number[] = [];
  const silences: (SilentGuest & { isEnded: boolean })[] = [];
  const vmm = {
    boot: async () => {
      const boot = made.push(made.length);
      assert.ok(!existsSync(join(folder, "left")), "the folder is empty again");
      writeFileSync(join(folder, "left"), "");
      return {
        agentSocket: String(boot),
        state: async () => "running",
        console: async () => consoles[boot - 1] ?? Promise.reject(new Error("no answer")),
        kill: async () => void ended.push(boot),
      };
    },
  };
  const about = { image: { root: "/root.ext4", diskBytes: 1 << 20 }, machine: { memoryMb: 1 } };
  const boot = {
    ...{ vmm, connect: (socket: string) => connect(Number(socket)), folder },
    ...{ ...about, name: "base", nonce: "0".repeat(32), deadlineMs: 100 },
    onSilence: (guest: SilentGuest) => silences.push({ ...guest, isEnded: ended.length === made.length }),
  } as unknown as Boot;
  return { booted: bootUntilAnswered(boot), made, ended, silences };
}

test("the guest of the second boot is used", async (t) => {
  const agent = {};
  const { booted, made, ended } = boots(t, async (boot) => (boot === 1 ? Promise.reject(silent) : agent));
  assert.equal((await booted).agent, agent);
  assert.deepEqual([made.length, ended], [2, [1]]);
});

test("a second guest without an answer fails the boot", async (t) => {
  const { booted, made, ended } = boots(t, () => Promise.reject(silent));
  await assert.rejects(booted, silent);
  assert.deepEqual([made.length, ended], [2, [1, 2]]);
});

test("the end of each silent guest's console is told before its VM is ended, without control characters", async (t) => {
  const console = `${"early ".repeat(10_000)}\r\nclock: \u001b[31mstuck\u202e\r\r\n${"y".repeat(600)}`;
  const { booted, silences } = boots(t, () => Promise.reject(silent), [console]);
  await assert.rejects(booted, silent);
  const [first, second] = silences;
  assert.deepEqual(second, { name: "base", state: "running", console: "", isEnded: false }, "QEMU does not answer");
  assert.deepEqual([first!.state, first!.isEnded], ["running", false]);
  const [early, clock, long] = first!.console.split("\n");
  assert.match(early!, /^[ erly]*a[early ]*…$/);
  assert.deepEqual([clock, long], ["clock: \ufffd[31mstuck\ufffd", `${"y".repeat(499)}…`]);
  assert.ok(first!.console.length <= 4_096);
});

test("no other error is followed by a second boot", async (t) => {
  const { booted, made } = boots(t, () => Promise.reject(new Error("no socket")));
  await assert.rejects(booted, /no socket/);
  assert.equal(made.length, 1);
});
