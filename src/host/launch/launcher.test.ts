/** The leftovers of a restore that is aborted or fails. Real VMs are restored in test/conformance and test/faults. */
import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { FakeVm } from "../../../test/fakes/fake-vm.ts";
import type { Agent } from "../../agent/agent.ts";
import { protocolVersions, unrecordedProtocol } from "../../agent/protocol.ts";
import type { Vmm } from "../../vmm/vmm.ts";
import { StartScheduler } from "../capacity/start-scheduler.ts";
import { type CapsuleFile, readVm } from "../disk/capsule-folder.ts";
import { Paths } from "../disk/paths.ts";
import type { Connect, LiveGuest } from "../guest.ts";
import { Launcher, type ProcessSource } from "./launcher.ts";

const id = "cl-1";
const capsule = { machine: {} } as CapsuleFile;
const saved = { state: "state", memory: null, protocol: protocolVersions.max, revision: 7 };
const agent = { closed: new Promise(() => {}), wake: async () => {}, close() {} } as unknown as Agent;
const whenAborted = (signal?: AbortSignal) =>
  new Promise<never>((_, reject) => signal?.addEventListener("abort", () => reject(signal.reason)));

interface Setup {
  restore?: (vm: FakeVm, ...args: Parameters<Vmm["restore"]>) => ReturnType<Vmm["restore"]>;
  connect?: Connect;
  processes?: ProcessSource;
  protocol?: number;
}

function launch(
  t: TestContext,
  { restore = async (vm) => vm, connect = async () => agent, processes, protocol }: Setup,
) {
  const data = mkdtempSync(join(tmpdir(), "launcher-"));
  t.after(() => rmSync(data, { recursive: true, force: true }));
  const paths = new Paths(data);
  mkdirSync(paths.capsule(id), { recursive: true });
  const vm = new FakeVm("");
  const vmm = {
    restore: (...args: Parameters<Vmm["restore"]>) => restore(vm, ...args),
    adopt: async () => vm,
  } as unknown as Vmm;
  const [templates, scheduler] = [{ spec: () => vm.spec } as never, new StartScheduler(1)];
  const options = {
    paths,
    vmm,
    connect,
    templates,
    scheduler,
    bootMs: 60_000,
    wakeMs: 60_000,
    silenceMs: 180_000,
    step: () => {},
  };
  const abort = new AbortController();
  const launcher = new Launcher(options, processes);
  const guest = protocol === undefined ? saved : { ...saved, protocol };
  const restoring = launcher.restore(id, capsule, guest, { owner: "a team", signal: abort.signal });
  return { vm, abort, launcher, restoring, scheduler, folder: paths.capsule(id) };
}

type Found = Awaited<ReturnType<Launcher["adopt"]>>;

function reachedOf(found: Found): Promise<LiveGuest> {
  assert.ok(typeof found === "object");
  return found.reached;
}

test("a restored VM runs, and its journal names the process", async (t) => {
  const restore: Setup["restore"] = async (vm, _spec, _saved, onSpawn) => {
    onSpawn(vm.process);
    return vm;
  };
  const { vm, restoring, folder } = launch(t, { restore });
  const guest = await restoring;
  assert.equal(guest.vm, vm);
  assert.equal(vm.found, "running");
  assert.deepEqual(readdirSync(folder), ["vm.json"]);
  guest.close();
});

test("a restore says the version that the saved agent speaks; its journal keeps it, and the checkpoint's revision", async (t) => {
  const said: unknown[] = [];
  const connect: Connect = async (_socket, _deadlineMs, _signal, protocol) => {
    said.push(protocol);
    return agent;
  };
  const { restoring, folder } = launch(t, { connect });
  (await restoring).close();
  assert.deepEqual(said, [saved.protocol]);
  const { protocol, restores } = (await readVm(folder))!;
  assert.deepEqual({ protocol, restores }, { protocol: saved.protocol, restores: saved.revision });
});

test("an agent of a version that this host does not speak is refused before anything is started", async (t) => {
  const restore = () => assert.fail("a VM was started");
  for (const protocol of [protocolVersions.min - 1, protocolVersions.max + 1]) {
    const { restoring, folder } = launch(t, { restore, protocol });
    const message = new RegExp(
      `^capsule cl-1 was saved with an agent that speaks protocol ${protocol}, this server \\d`,
    );
    await assert.rejects(restoring, { code: "conflict", message });
    assert.deepEqual(readdirSync(folder), []);
  }
});

test("an adopted guest is spoken to in the version of its journal, or in that of agents without a record", async (t) => {
  for (const [journalled, expected] of [
    [{}, unrecordedProtocol],
    [{ protocol: 7 }, 7],
  ] as const) {
    const said: unknown[] = [];
    const connect: Connect = async (_socket, _deadlineMs, _signal, protocol) => {
      said.push(protocol);
      return agent;
    };
    const { launcher, vm, restoring, abort } = launch(t, { connect });
    (await restoring).close();
    const journal = { nonce: "n", process: vm.process, ...journalled };
    const found = await launcher.adopt(id, capsule, journal, { checkpoint: null, signal: abort.signal });
    (await reachedOf(found)).close();
    assert.equal(said[1], expected);
  }
});

test("a claimed process is used instead of a new one", async (t) => {
  const vm = new FakeVm("");
  const processes = { claimProcess: async () => vm };
  const { restoring } = launch(t, { restore: () => assert.fail("a process was started"), processes });
  assert.equal((await restoring).vm, vm);
});

test("a VM that ends while its agent is waited for fails the restore at once", { timeout: 30_000 }, async (t) => {
  const begun = Promise.withResolvers<void>();
  const connect: Connect = (_socket, _deadlineMs, signal) => {
    begun.resolve();
    return whenAborted(signal);
  };
  const { vm, restoring, folder } = launch(t, { connect });
  await begun.promise;
  vm.endWith({ kind: "exited" });
  await assert.rejects(restoring, { code: "agent_error", message: "the VM has ended: exited" });
  assert.deepEqual(readdirSync(folder), ["vm.json"], "for the caller's reap");
});

test("a signal that fires while the VM is loaded reaches the VMM, and nothing is left", async (t) => {
  const begun = Promise.withResolvers<void>();
  const restore: Setup["restore"] = (_vm, _spec, _saved, _onSpawn, signal) => {
    begun.resolve();
    return whenAborted(signal);
  };
  const { abort, restoring, folder } = launch(t, { restore });
  await begun.promise;
  abort.abort(new Error("deleted"));
  await assert.rejects(restoring, /deleted/);
  assert.deepEqual(readdirSync(folder), ["vm.json"], "for the caller's reap");
});

const stuck: [when: string, connect: Connect][] = [
  ["connects to", (_socket, _ms, signal) => whenAborted(signal)],
  ["wakes", async () => ({ ...agent, wake: () => new Promise(() => {}) }) as unknown as Agent],
];
for (const [when, connect] of stuck) {
  test(`while the host ${when} an agent that says nothing, no slot is held and no turn of the background`, async (t) => {
    const begun = Promise.withResolvers<void>();
    const { abort, launcher, restoring, scheduler } = launch(t, {
      connect: (...args) => {
        setImmediate(begun.resolve);
        return connect(...args);
      },
    });
    await begun.promise;
    assert.equal(await scheduler.run({ owner: "another team" }, async () => "loaded"), "loaded");
    const ahead = launcher.restoreInBackground(id, capsule, saved, abort.signal);
    assert.equal(await scheduler.runBackground(async () => "made"), "made");
    abort.abort(new Error("deleted"));
    await assert.rejects(restoring, /deleted/);
    await assert.rejects(ahead, /deleted/);
  });
}

test("adopting a guest takes no slot", async (t) => {
  const { launcher, vm, restoring, abort, scheduler } = launch(t, {});
  (await restoring).close();
  const loading = Promise.withResolvers<void>();
  const taken = scheduler.run({ owner: "a team" }, () => loading.promise);
  const journal = { nonce: "n", process: vm.process };
  const found = await launcher.adopt(id, capsule, journal, { checkpoint: null, signal: abort.signal });
  (await reachedOf(found)).close();
  loading.resolve();
  await taken;
});

test("an adopted guest has as long for its answers as a running one, and a restored one as long as a restored one", async (t) => {
  const deadlines: number[] = [];
  const woken = Promise.withResolvers<string[]>();
  const slow = { ...agent, wake: () => (deadlines.length === 1 ? Promise.resolve([]) : woken.promise) } as Agent;
  const connect: Connect = async (_socket, deadlineMs) => {
    deadlines.push(deadlineMs);
    return slow;
  };
  const { launcher, vm, restoring, abort } = launch(t, { connect });
  (await restoring).close();
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const journal = { nonce: "n", process: vm.process };
  const found = await launcher.adopt(id, capsule, journal, { checkpoint: null, signal: abort.signal });
  const reached = reachedOf(found);
  reached.catch(() => {});
  await new Promise(setImmediate);
  t.mock.timers.tick(179_000);
  woken.resolve([]);
  (await reached).close();
  assert.deepEqual(deadlines, [60_000, 180_000]);
});

for (const [when, connect] of stuck) {
  test(`a signal that fires while the host ${when} the agent kills the VM`, async (t) => {
    const begun = Promise.withResolvers<void>();
    const { vm, abort, restoring, folder } = launch(t, {
      connect: (...args) => {
        setImmediate(begun.resolve);
        return connect(...args);
      },
    });
    await begun.promise;
    abort.abort(new Error("deleted"));
    await assert.rejects(restoring, /deleted/);
    assert.ok(vm.isDetached, "killed");
    assert.deepEqual(readdirSync(folder), ["vm.json"], "for the caller's reap");
  });
}

test("a VM whose process cannot be journalled is killed", async (t) => {
  const begun = Promise.withResolvers<() => void>();
  const { vm, restoring, folder } = launch(t, {
    restore: (vm, _spec, _saved, onSpawn) =>
      new Promise((resolve) =>
        begun.resolve(() => {
          onSpawn(vm.process);
          resolve(vm);
        }),
      ),
  });
  const spawn = await begun.promise;
  rmSync(folder, { recursive: true });
  spawn();
  await assert.rejects(restoring, { code: "ENOENT" });
  assert.ok(vm.isDetached, "killed");
});
