/** The monitor commands of a save, against a monitor that answers as a test tells it. Real VMs are saved in qemu.test.ts. */
import assert from "node:assert/strict";
import { mkdtemp, readdir, rm, stat, truncate, writeFile } from "node:fs/promises";
import { createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { withMapped } from "../../test/mapped-process.ts";
import { processorSection } from "../../test/processor-section.ts";
import { QemuVm } from "./qemu-vm.ts";
import { deviceStateName, qmpSocketName } from "./vm-folder.ts";
import { saveVm } from "./vm-save.ts";
import type { SaveSizes } from "./vmm.ts";

const memoryMb = 16;
const failure = { "blockdev-reopen": "No space left on device", "xen-save-devices-state": "IO error" };

const readState = "xen-save-devices-state";

type Command = keyof typeof failure;

interface Script {
  failing?: Command[];
  /** How many reads of its devices find its CPU interrupted. */
  interrupted?: number;
  /** How many reads find devices that differ from the next read. */
  changing?: number;
  status?: string;
}

interface Seen {
  saved: Promise<SaveSizes>;
  /** The commands that the monitor received, and at the end the files in the folder. */
  commands: string[];
}

/** Saves a VM that consists of memory and a monitor. */
async function save(
  t: TestContext,
  { failing = [], interrupted = 0, changing = 0, status = "paused" }: Script,
  how: (vm: QemuVm, to: { state: string; memory: string }) => Promise<SaveSizes> = saveVm,
): Promise<Seen> {
  const folder = await mkdtemp(join(tmpdir(), "saving-"));
  t.after(() => rm(folder, { recursive: true }));
  const [dir, memory] = [folder, join(folder, "base")];
  await writeFile(memory, "");
  await truncate(memory, memoryMb << 20);
  const commands: string[] = [];
  const answer = async (execute: string): Promise<object> => {
    commands.push(execute);
    if (failing.includes(execute as Command)) return { error: { desc: failure[execute as Command] } };
    if (execute === readState) {
      const section = processorSection({ interrupts: interrupted-- > 0 ? 2 : 0 });
      await writeFile(join(dir, deviceStateName), `${section.toString("latin1")}${Math.max(0, changing--)}`, "latin1");
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
  const machine = { qemu: "10.0.2", accelerator: "tcg", cpu: "max", devices: ["ports:1"], vcpus: 1, memoryMb } as const;
  const files = { dir, memory, disk: "", backing: [], kernel: "", initrd: "" };
  const [state, diff] = [join(folder, "state"), join(folder, "diff")];
  const saved = withMapped(folder, memory, memoryMb, async (process) => {
    const vm = await QemuVm.adopt({ name: "saved", nonce: "0", machine, files }, process);
    try {
      return await how(vm, { state, memory: diff });
    } finally {
      vm.detach();
      for (const socket of sockets) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
      commands.push(...(await readdir(folder)).filter((name) => ["state", "diff"].includes(name)));
    }
  });
  saved.catch(() => {});
  return { saved, commands };
}

/** Whether the save left files. */
function hasFiles({ commands }: Seen): boolean {
  return commands.includes("state") || commands.includes("diff");
}

const connecting = ["qmp_capabilities", "query-status"];

test("devices are read before memory is copied and again afterwards, and the disk is flushed in between", async (t) => {
  const { saved, commands } = await save(t, {});
  assert.equal((await saved).pages, 0);
  const expected = ["stop", readState, "query-status", "blockdev-reopen", readState];
  assert.deepEqual(commands, [...connecting, ...expected, "diff", "state"]);
});

test("nothing is asked of QEMU before the CPUs are stopped, and a save that goes no further leaves no files", async (t) => {
  const seen = await save(t, {}, async (vm, to) => {
    await using opened = vm.openSave(to);
    await opened.prepare();
    throw new Error("the guest does not freeze");
  });
  await assert.rejects(seen.saved, /does not freeze/);
  assert.deepEqual(seen.commands, connecting);
});

test("the size of the memory file is known before it is written", async (t) => {
  const { saved } = await save(t, {}, async (vm, to) => {
    await using opened = vm.openSave(to);
    await opened.prepare();
    await opened.stopCpus();
    const sizes = await opened.copyMemory();
    await opened.finish();
    assert.equal((await stat(to.memory)).size, sizes.memoryBytes);
    assert.equal((await stat(to.state)).size, sizes.stateBytes);
    return sizes;
  });
  await saved;
});

test("a failed flush of the disk fails the save", async (t) => {
  const seen = await save(t, { failing: ["blockdev-reopen"] });
  await assert.rejects(seen.saved, /No space left on device/);
  assert.ok(!hasFiles(seen));
});

test("when the devices cannot be read because the disk is full, the disk's error is reported", async (t) => {
  const { saved } = await save(t, { failing: [readState, "blockdev-reopen"] });
  await assert.rejects(saved, /No space left on device/);
  const { saved: other } = await save(t, { failing: [readState] });
  await assert.rejects(other, /IO error/);
});

test("a CPU that is handling an interrupt is resumed for a moment, and saved as it is when that does not help", async (t) => {
  const resumesOf = async (interrupted: number) => {
    const seen = await save(t, { interrupted });
    await seen.saved;
    const { commands } = seen;
    assert.ok(hasFiles(seen), commands.join(" "));
    const flushes = commands.flatMap((command, at) => (command === "blockdev-reopen" ? [at] : []));
    assert.equal(flushes.length, 1, "once");
    assert.ok(flushes[0]! > commands.lastIndexOf("stop"), "writes of the last moment are flushed as well");
    const resumes = commands.filter((command) => command === "cont").length;
    assert.equal(commands.filter((command) => command === "stop").length, resumes + 1, "it ends up stopped");
    return resumes;
  };
  assert.equal(await resumesOf(1), 1);
  assert.equal(await resumesOf(5), 5);
  const most = await resumesOf(1_000);
  assert.ok(most > 5 && most < 10, `${most} resumes`);
});

test("a VM that QEMU does not report as paused is not saved", async (t) => {
  for (const [status, why] of [
    ["running", /is not stopped but running/],
    ["io-error", /waits for space on the host's disk/],
  ] as const) {
    const seen = await save(t, { status });
    await assert.rejects(seen.saved, why);
    assert.ok(!hasFiles(seen));
  }
});

test("when the devices have changed, memory and devices are saved again, eight times at most", async (t) => {
  const { saved, commands } = await save(t, { changing: 3 });
  await saved;
  const times = (command: string) => commands.filter((each) => each === command).length;
  // The first attempt reads 3 and 2, the second 1 and 0, the third the same twice.
  assert.deepEqual(["stop", "blockdev-reopen", readState, "diff", "state"].map(times), [3, 3, 6, 1, 1]);
  const seen = await save(t, { changing: 1_000 });
  await assert.rejects(seen.saved, /devices of saved still change/);
  assert.equal(seen.commands.filter((each) => each === "blockdev-reopen").length, 8);
  assert.ok(!hasFiles(seen));
});
