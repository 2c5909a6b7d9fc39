/** What a save asks of QEMU's monitor, which here says what a test has it say. Real VMs are saved in qemu.test.ts. */
import assert from "node:assert/strict";
import { mkdtemp, readdir, rm, truncate, writeFile } from "node:fs/promises";
import { createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { withMapped } from "../../test/mapped-process.ts";
import { QemuVm } from "./qemu-vm.ts";
import { devicesName, qmpSocketName } from "./vm-folder.ts";
import type { SaveResult } from "./vmm.ts";

const memoryMb = 16;
const failure = { "blockdev-reopen": "No space left on device", "xen-save-devices-state": "IO error" };

type Command = keyof typeof failure;

/** Saves a VM of nothing but memory; of the commands, `failing` fail. What was asked, and what lies in the folder afterwards. */
async function save(t: TestContext, failing: Command[]): Promise<{ saved: Promise<SaveResult>; asked: string[] }> {
  const folder = await mkdtemp(join(tmpdir(), "saving-"));
  t.after(() => rm(folder, { recursive: true }));
  const [dir, memory] = [folder, join(folder, "base")];
  await writeFile(memory, "");
  await truncate(memory, memoryMb << 20);
  const asked: string[] = [];
  const answer = async (execute: string): Promise<object> => {
    asked.push(execute);
    if (failing.includes(execute as Command)) return { error: { desc: failure[execute as Command] } };
    if (execute === "xen-save-devices-state") await writeFile(join(dir, devicesName), "devices");
    return { return: execute === "query-status" ? { status: "paused" } : {} };
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
  const machine = { qemu: "10.0.2", accelerator: "kvm", cpu: "host", layout: 1, vcpus: 1, memoryMb } as const;
  const files = { dir, memory, disk: "", backing: [], kernel: "", initrd: "" };
  const [state, diff] = [join(folder, "state"), join(folder, "diff")];
  const saved = withMapped(folder, memory, memoryMb, async (process) => {
    const vm = await QemuVm.adopt({ name: "saved", nonce: "0", machine, files }, process);
    try {
      return await vm.save({ state, memory: diff });
    } finally {
      vm.release();
      for (const socket of sockets) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
      asked.push(...(await readdir(folder)).filter((name) => name === "state" || name === "diff"));
    }
  });
  saved.catch(() => {});
  return { saved, asked };
}

test("devices are looked at before memory is copied and again afterwards, and the disk is flushed in between", async (t) => {
  const { saved, asked } = await save(t, []);
  assert.equal((await saved).pages, 0);
  const look = "xen-save-devices-state";
  const begin = ["qmp_capabilities", "query-status"];
  assert.deepEqual(asked, [...begin, look, "query-status", "blockdev-reopen", look, "diff", "state"]);
});

test("what cannot be flushed is not saved", async (t) => {
  const { saved, asked } = await save(t, ["blockdev-reopen"]);
  await assert.rejects(saved, /No space left on device/);
  assert.ok(!asked.includes("state") && !asked.includes("diff"), asked.join(" "));
});

test("where devices cannot be saved for the disk's sake, the disk's reason is told", async (t) => {
  const { saved } = await save(t, ["xen-save-devices-state", "blockdev-reopen"]);
  await assert.rejects(saved, /No space left on device/);
  const { saved: other } = await save(t, ["xen-save-devices-state"]);
  await assert.rejects(other, /IO error/);
});
