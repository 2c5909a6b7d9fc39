/** What a save asks of QEMU's monitor, which here says what a test has it say. Real VMs are saved in qemu.test.ts. */
import assert from "node:assert/strict";
import { statSync } from "node:fs";
import { mkdtemp, readdir, rm, stat, truncate, writeFile } from "node:fs/promises";
import { createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { withMapped } from "../../test/mapped-process.ts";
import { processorSection } from "../../test/processor-section.ts";
import { QemuVm } from "./qemu-vm.ts";
import { devicesName, qmpSocketName } from "./vm-folder.ts";
import type { Growing, SaveResult } from "./vmm.ts";

const memoryMb = 16;
const failure = { "blockdev-reopen": "No space left on device", "xen-save-devices-state": "IO error" };

const look = "xen-save-devices-state";

type Command = keyof typeof failure;

interface Script {
  failing?: Command[];
  /** How many looks at its devices find its processor interrupted. */
  interrupted?: number;
  /** How many looks find the devices as the next one will not. */
  moving?: number;
  status?: string;
  calm?: (asked: readonly string[]) => Promise<void>;
  meanwhile?: (asked: readonly string[]) => Promise<unknown>;
  seal?: () => Promise<unknown>;
}

interface Seen {
  saved: Promise<SaveResult>;
  /** Of its monitor, in between what whoever saves was told, and last what lies in the folder. */
  asked: string[];
  /** Bytes in the file for its devices before the guest stood still. */
  left: () => number | undefined;
}

/** Saves a VM of nothing but memory. */
async function save(
  t: TestContext,
  { failing = [], interrupted = 0, moving = 0, status = "paused", ...around }: Script,
): Promise<Seen> {
  const folder = await mkdtemp(join(tmpdir(), "saving-"));
  t.after(() => rm(folder, { recursive: true }));
  const [dir, memory] = [folder, join(folder, "base")];
  await writeFile(memory, "");
  await truncate(memory, memoryMb << 20);
  await writeFile(join(dir, devicesName), "as it was loaded");
  const asked: string[] = [];
  let left: number | undefined;
  const answer = async (execute: string): Promise<object> => {
    asked.push(execute);
    if (failing.includes(execute as Command)) return { error: { desc: failure[execute as Command] } };
    if (execute === look) {
      const section = processorSection({ interrupts: interrupted-- > 0 ? 2 : 0 });
      await writeFile(join(dir, devicesName), `${section.toString("latin1")}${Math.max(0, moving--)}`, "latin1");
    }
    return { return: execute === "query-status" ? { status } : {} };
  };
  const sockets: Socket[] = [];
  const server = createServer((socket) => {
    sockets.push(socket);
    socket.write('{"QMP": {}}\n');
    let answered = Promise.resolve();
    let text = "";
    socket.on("data", (chunk) => {
      const lines = `${text}${chunk}`.split("\n");
      text = lines.pop()!;
      for (const { execute, id } of lines.map((line) => JSON.parse(line) as { execute: string; id: number })) {
        answered = answered.then(
          async () => void socket.write(`${JSON.stringify({ ...(await answer(execute)), id })}\n`),
        );
      }
    });
  });
  await new Promise<void>((resolve) => server.listen(join(folder, qmpSocketName), resolve));
  const machine = { qemu: "10.0.2", accelerator: "tcg", cpu: "max", layout: 1, vcpus: 1, memoryMb } as const;
  const files = { dir, memory, disk: "", backing: [], kernel: "", initrd: "" };
  const [state, diff] = [join(folder, "state"), join(folder, "diff")];
  const saved = withMapped(folder, memory, memoryMb, async (process) => {
    const vm = await QemuVm.adopt({ name: "saved", nonce: "0", machine, files }, process);
    try {
      const told = {
        calm: async () => {
          left = statSync(join(dir, devicesName)).size;
          await around.calm?.(asked);
        },
        stopped: () => void asked.push("stands still"),
        meanwhile: async () => {
          await around.meanwhile?.(asked);
          asked.push("is copied");
        },
        seal: async ({ bytes, whole }: Growing) => {
          await whole;
          assert.equal((await stat(diff)).size, bytes);
          await around.seal?.();
          asked.push("is sealed");
        },
      };
      vm.dropLoaded();
      return await vm.save({ state, memory: diff }, told);
    } finally {
      vm.release();
      for (const socket of sockets) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
      asked.push(...(await readdir(folder)).filter((name) => ["state", "diff"].includes(name)));
    }
  });
  saved.catch(() => {});
  return { saved, asked, left: () => left };
}

test("CPUs stop, devices are looked at before memory is copied and again afterwards, and the disk is flushed in between", async (t) => {
  const { saved, asked, left } = await save(t, {});
  assert.equal((await saved).pages, 0);
  const begin = ["qmp_capabilities", "query-status"];
  const steps = asked.filter((each) => !each.includes(" "));
  assert.deepEqual(steps, [...begin, "stop", look, "query-status", "blockdev-reopen", look, "diff", "state"]);
  assert.equal(left(), 0, "what was loaded is gone by then");
});

test("what cannot be flushed is not saved", async (t) => {
  const { saved, asked } = await save(t, { failing: ["blockdev-reopen"] });
  await assert.rejects(saved, /No space left on device/);
  assert.ok(!asked.includes("state") && !asked.includes("diff"), asked.join(" "));
});

test("where devices cannot be saved for the disk's sake, the disk's reason is told", async (t) => {
  const { saved } = await save(t, { failing: [look, "blockdev-reopen"] });
  await assert.rejects(saved, /No space left on device/);
  const { saved: other } = await save(t, { failing: [look] });
  await assert.rejects(other, /IO error/);
});

test("a processor in the midst of an interrupt goes on for a moment, and is saved as it is when that does not help", async (t) => {
  const goesOn = async (interrupted: number) => {
    const { saved, asked } = await save(t, { interrupted });
    await saved;
    assert.ok(asked.includes("state") && asked.includes("diff"), asked.join(" "));
    const flushes = asked.flatMap((command, at) => (command === "blockdev-reopen" ? [at] : []));
    assert.equal(flushes.length, 1, "once");
    assert.ok(flushes[0]! > asked.lastIndexOf("stop"), "what it wrote in the last moment is flushed as well");
    const moments = asked.filter((command) => command === "cont").length;
    assert.equal(asked.filter((command) => command === "stop").length, moments + 1, "it stands still");
    return moments;
  };
  assert.equal(await goesOn(1), 1);
  assert.equal(await goesOn(5), 5);
  const most = await goesOn(1_000);
  assert.ok(most > 5 && most < 10, `${most} moments`);
});

test("what does not stand still is not saved", async (t) => {
  for (const [status, why] of [
    ["running", /is not stopped but running/],
    ["io-error", /waits for space on the host's disk/],
  ] as const) {
    const { saved, asked } = await save(t, { status });
    await assert.rejects(saved, why);
    assert.ok(!asked.includes("state") && !asked.includes("diff"), asked.join(" "));
  }
});

test("QEMU is asked for nothing before its guest is calm, and whoever saves hears of each step", async (t) => {
  const before: string[] = [];
  const { saved, asked } = await save(t, {
    interrupted: 1,
    async calm(sofar) {
      await new Promise(setImmediate);
      before.push(...sofar);
    },
  });
  await saved;
  assert.deepEqual(before, ["qmp_capabilities", "query-status"]);
  assert.deepEqual(
    asked.filter((each) => each.includes(" ")),
    ["stands still", "stands still", "is copied", "is sealed"],
  );
});

test("a guest that does not come to rest is neither stopped nor saved", async (t) => {
  const { saved, asked } = await save(t, { calm: () => Promise.reject(new Error("it is restless")) });
  await assert.rejects(saved, /it is restless/);
  assert.deepEqual(asked, ["qmp_capabilities", "query-status"]);
});

test("devices that have moved meanwhile are saved again, with memory and all, until they have not", async (t) => {
  const { saved, asked } = await save(t, { moving: 3 });
  await saved;
  const times = (what: string) => asked.filter((each) => each === what).length;
  // The first attempt finds 3 and 2, the second 1 and 0, the third the same twice.
  assert.deepEqual(
    ["is copied", "is sealed", "stop", "blockdev-reopen", "diff", "state"].map(times),
    [3, 3, 3, 3, 1, 1],
  );
  const { saved: restless, asked: seen } = await save(t, { moving: 1_000 });
  await assert.rejects(restless, /do not come to rest/);
  assert.ok(!seen.includes("state") && !seen.includes("diff"), seen.join(" "));
});

test("what is done meanwhile is waited for before anything is sealed, and what fails is not saved", async (t) => {
  const { saved, asked } = await save(t, {
    async meanwhile(sofar) {
      for (let turn = 0; turn < 50; turn++) await new Promise(setImmediate);
      assert.ok(!sofar.includes("is sealed"));
    },
  });
  await saved;
  assert.ok(asked.indexOf("is copied") < asked.indexOf("is sealed"));
  for (const part of ["meanwhile", "seal"]) {
    const failed = await save(t, { [part]: () => Promise.reject(new Error("the disk is gone")) });
    await assert.rejects(failed.saved, /the disk is gone/);
    assert.ok(!failed.asked.includes("state") && !failed.asked.includes("diff"), failed.asked.join(" "));
  }
});
