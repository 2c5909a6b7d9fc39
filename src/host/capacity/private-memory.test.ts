import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { test } from "node:test";
import { privateMemory } from "./private-memory.ts";

test("a process's own pages are counted, its files' pages are not", async () => {
  const script = 'const own = Buffer.alloc(200 << 20, 1); process.stdout.write("ready"); setInterval(() => own, 1e6)';
  const child = spawn(process.execPath, ["-e", script], { stdio: ["ignore", "pipe", "ignore"] });
  try {
    await once(child.stdout, "data");
    const guest = (id: string, pid: number) => ({ id, vm: { process: { pid } } });
    const many = Array.from({ length: 100 }, (_, index) => guest(`gone-${index}`, 2 ** 30));
    const found = await privateMemory([guest("node", child.pid!), ...many]);
    const mib = found.get("node")! / 2 ** 20;
    assert.ok(mib > 200 && mib < 300, `${mib} MiB; Node maps some 100 MiB of files`);
    assert.deepEqual([found.size, found.get("gone-99")], [101, 0]);
  } finally {
    child.kill("SIGKILL");
  }
});
