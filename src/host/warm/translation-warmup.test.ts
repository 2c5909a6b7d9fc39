/** A translation warm-up runs its commands and ends. Real processes: vmm/qemu.test.ts, test/faults/warm-processes.test.ts. */
import assert from "node:assert/strict";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, beforeEach, test } from "node:test";
import { FakeVm } from "../../../test/fakes/fake-vm.ts";
import { waitFor } from "../../../test/wait-for.ts";
import type { Agent } from "../../agent/agent.ts";
import type { SavedVm, Vm, WarmProcess } from "../../vmm/vmm.ts";
import { Paths } from "../disk/paths.ts";
import { TranslationWarmup } from "./translation-warmup.ts";

const data = mkdtempSync(join(tmpdir(), "capsule-warmup-"));
after(() => rmSync(data, { recursive: true, force: true }));

const image = { name: "minimal", hash: "1" };
const target = { parent: "templates/t", parentSha256: null, image, machine: new FakeVm("").spec.machine };
const never = new AbortController().signal;
const paths = new Paths(data);
let kills: number;
let heard: string[];
beforeEach(() => {
  kills = 0;
  heard = [];
});

/** An agent that answers at once. */
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

function warmup(deadlineMs?: number): TranslationWarmup {
  return new TranslationWarmup(
    {
      paths,
      templates: { image: () => ({ diskBytes: 1 << 20 }) as never },
      connect: async () => agent,
      wakeMs: 60_000,
    },
    deadlineMs,
  );
}

function warmProcessThat(warmTranslations: WarmProcess["warmTranslations"], canWarmTranslations = true): WarmProcess {
  const dir = paths.scratch("warm-1");
  mkdirSync(dir, { recursive: true });
  const kill = async () => void kills++;
  return { spec: { files: { dir } }, canWarmTranslations, warmTranslations, kill } as unknown as WarmProcess;
}

test("the parent's checkpoint is woken, runs commands and is parked, on a temporary disk layer", async () => {
  let seen: { saved: SavedVm; layer: string } | undefined;
  const vm = new FakeVm("");
  const warm = warmProcessThat(async (saved, layer, warmUp: (vm: Vm) => Promise<void>) => {
    seen = { saved, layer };
    assert.match(readFileSync(layer, "latin1"), /\.\.\/\.\.\/templates\/t\/disk\.qcow2/);
    await warmUp(vm);
  });
  await warmup().run(warm, target, never);
  assert.deepEqual(seen?.saved, { state: join(data, "templates/t/state"), memory: null });
  assert.deepEqual(heard, ["wake warm-up", "thaw", "/bin/true", "/bin/bash", "freeze", "close"]);
  assert.equal(await vm.state(), "stopped");
  assert.ok(!existsSync(seen!.layer));
  assert.equal(kills, 0);
});

test("a process that cannot be warmed up is left alone", async () => {
  await warmup().run(
    warmProcessThat(async () => assert.fail("it was asked to"), false),
    target,
    never,
  );
});

/** A process whose warm-up hangs until the process is ended, as it is when the signal fires. */
function hanging(): WarmProcess {
  const { promise, reject } = Promise.withResolvers<void>();
  const warm = warmProcessThat(async (_saved, _layer, warmUp, signal) => {
    signal?.addEventListener("abort", () => reject(signal.reason));
    await warmUp(new FakeVm(""));
    await promise;
  });
  return warm;
}

test("an aborted warm-up ends the process and disconnects its guest", async () => {
  const signal = new AbortController();
  const warm = hanging();
  const running = warmup().run(warm, target, signal.signal);
  await waitFor("the agent's connection is closed", () => heard.includes("close"));
  signal.abort(new Error("aborted"));
  await assert.rejects(running, /aborted/);
  assert.ok(kills > 0);
  assert.ok(!existsSync(join(warm.spec.files.dir, "disk.qcow2")));
  await assert.rejects(warmup().run(warm, target, signal.signal), /aborted/);
});

test("a warm-up beyond its deadline ends the process, and the next process of the same origin is not warmed up", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const all = warmup(5);
  const running = all.run(hanging(), target, never);
  await waitFor("the agent's connection is closed", () => heard.includes("close"));
  t.mock.timers.tick(5);
  await assert.rejects(running, /the translation warm-up for templates\/t took longer than 5 ms/);
  assert.ok(kills > 0);
  await all.run(
    warmProcessThat(async () => assert.fail("it was asked to")),
    target,
    never,
  );
  let others = 0;
  await all.run(
    warmProcessThat(async () => void others++),
    { ...target, parent: "templates/other" },
    never,
  );
  assert.equal(others, 1);
});

test("a failed warm-up ends the process", async () => {
  const warm = warmProcessThat(async () => {
    throw new Error("no disk");
  });
  await assert.rejects(warmup().run(warm, target, never), /no disk/);
  assert.ok(kills > 0);
});
