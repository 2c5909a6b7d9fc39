/** Whose rehearsal it is and how it ends; what a process does in it: vmm/qemu.test.ts, test/faults/warm-processes.test.ts. */
import assert from "node:assert/strict";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, beforeEach, test } from "node:test";
import { FakeVm } from "../../../test/fakes/fake-vm.ts";
import type { Agent } from "../../agent/agent.ts";
import type { SavedVm, Vm, WarmProcess } from "../../vmm/vmm.ts";
import { Paths } from "../disk/paths.ts";
import { TranslationWarmup } from "./translation-warmup.ts";

const data = mkdtempSync(join(tmpdir(), "capsule-rehearsals-"));
after(() => rmSync(data, { recursive: true, force: true }));

const kind = { origin: "templates/t", image: { name: "minimal", hash: "1" } };
const never = new AbortController().signal;
const paths = new Paths(data);
let kills: number;
let heard: string[];
beforeEach(() => {
  kills = 0;
  heard = [];
});

/** An agent that does everything at once. */
const agent = {
  closed: new Promise(() => {}),
  wake: async ({ hostname }: { hostname: string }) => void heard.push(`wake ${hostname}`),
  thaw: async () => void heard.push("thaw"),
  freeze: async () => void heard.push("freeze"),
  run(command: { cmd: string }, sink: { exited(exit: object): void }) {
    heard.push(command.cmd);
    queueMicrotask(() => sink.exited({ exitCode: 0 }));
    return { consumed() {} };
  },
  close: () => void heard.push("close"),
} as unknown as Agent;

function rehearsals(longestMs?: number): TranslationWarmup {
  return new TranslationWarmup(
    {
      paths,
      sources: { image: () => ({ diskBytes: 1 << 20 }) as never },
      connect: async () => agent,
      wakeMs: 60_000,
    },
    longestMs,
  );
}

function warmProcessThat(warmTranslations: WarmProcess["warmTranslations"], canWarmTranslations = true): WarmProcess {
  const dir = paths.scratch("warm-1");
  mkdirSync(dir, { recursive: true });
  const kill = async () => void kills++;
  return { spec: { files: { dir } }, canWarmTranslations, warmTranslations, kill } as unknown as WarmProcess;
}

test("it is played by the checkpoint that all begin as, from waking to rest, on a layer that goes with it", async () => {
  let seen: { saved: SavedVm; layer: string } | undefined;
  const vm = new FakeVm("");
  const warm = warmProcessThat(async (saved, layer, play: (vm: Vm) => Promise<void>) => {
    seen = { saved, layer };
    assert.match(readFileSync(layer, "latin1"), /\.\.\/\.\.\/templates\/t\/disk\.qcow2/);
    await play(vm);
  });
  await rehearsals().run(warm, kind, never);
  assert.deepEqual(seen?.saved, { state: join(data, "templates/t/state"), memory: null });
  assert.deepEqual(heard, ["wake nobody", "thaw", "/bin/true", "freeze", "close"]);
  assert.equal(await vm.state(), "stopped");
  assert.ok(!existsSync(seen!.layer));
  assert.equal(kills, 0);
});

test("whoever cannot does not", async () => {
  await rehearsals().run(
    warmProcessThat(async () => assert.fail("it was asked to"), false),
    kind,
    never,
  );
});

/** One that hangs where the process is, and ends with it. */
function hanging(): WarmProcess {
  const { promise, reject } = Promise.withResolvers<void>();
  const warm = warmProcessThat(async (_saved, _layer, play) => {
    await play(new FakeVm(""));
    await promise;
  });
  warm.kill = async () => {
    kills++;
    reject(new Error("the process is gone"));
  };
  return warm;
}

test("one that nobody wants any longer is ended, and its guest let go of", async () => {
  const signal = new AbortController();
  const warm = hanging();
  const running = rehearsals().run(warm, kind, signal.signal);
  while (!heard.includes("close")) await new Promise(setImmediate);
  signal.abort(new Error("not wanted"));
  await assert.rejects(running, /not wanted/);
  assert.ok(kills > 0);
  assert.ok(!existsSync(join(warm.spec.files.dir, "disk.qcow2")));
  await assert.rejects(rehearsals().run(warm, kind, signal.signal), /not wanted/);
});

test("one that does not come to its end is ended, and the next for the same does without", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const all = rehearsals(5);
  const running = all.run(hanging(), kind, never);
  while (!heard.includes("close")) await new Promise(setImmediate);
  t.mock.timers.tick(5);
  await assert.rejects(running, /the rehearsal for templates\/t took longer than 5 ms/);
  assert.ok(kills > 0);
  await all.run(
    warmProcessThat(async () => assert.fail("it was asked to")),
    kind,
    never,
  );
  let others = 0;
  await all.run(
    warmProcessThat(async () => void others++),
    { ...kind, origin: "templates/other" },
    never,
  );
  assert.equal(others, 1);
});

test("one that fails ends its process", async () => {
  const warm = warmProcessThat(async () => {
    throw new Error("no disk");
  });
  await assert.rejects(rehearsals().run(warm, kind, never), /no disk/);
  assert.ok(kills > 0);
});
