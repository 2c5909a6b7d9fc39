import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import type { CapsuleInfo } from "../../src/sdk/sdk.ts";
import { CapsuleStore } from "./capsule-store.ts";

const time = (step: number) => new Date(Date.UTC(2026, 0, 1) + step * 1_000).toISOString();

function capsule(id: string, { at = 0, status = "running" as CapsuleInfo["status"] } = {}): CapsuleInfo {
  return {
    id,
    name: null,
    labels: {},
    status,
    template: "minimal",
    vcpus: 1,
    memoryMb: 512,
    diskMb: 4_096,
    timeoutSec: 0,
    createdAt: time(0),
    lastUpdated: time(at),
    startedAt: null,
    lastActiveAt: null,
    errorReason: null,
    host: null,
    onTimeout: "pause",
    lifetimeSec: 0,
    expiresAt: null,
    onExpiry: "destroy",
    retentionSec: 0,
    autoResume: false,
    network: { egress: "none", allow: [], deny: [], publicPorts: [], hostHeader: null, inject: [] },
    portUrl: `http://{port}-${id}.localhost:8080`,
  };
}

const none: ReadonlySet<string> = new Set();
const ids = (store: CapsuleStore) => store.capsules.value?.map(({ id }) => id);

test("before the first listing a capsule is undefined, after it an unlisted one is null", () => {
  const store = new CapsuleStore();
  assert.equal(store.find("cl-a"), undefined);
  store.listed([], none);
  assert.equal(store.find("cl-a"), null);
});

test("the newest capsule comes first", () => {
  const store = new CapsuleStore();
  store.listed([capsule("cl-old"), { ...capsule("cl-new"), createdAt: time(9) }], none);
  assert.deepEqual(ids(store), ["cl-new", "cl-old"]);
});

test("a listing that is older than an event does not undo it", () => {
  const store = new CapsuleStore();
  store.listed([capsule("cl-a", { at: 1 })], none);
  const before = store.knownIds();
  store.changed(capsule("cl-a", { at: 2, status: "paused" }));
  store.changed(capsule("cl-b", { at: 2 }));
  store.removed("cl-c");
  store.listed([capsule("cl-a", { at: 1 }), capsule("cl-c", { at: 1 })], before);
  assert.equal(store.find("cl-a")?.status, "paused");
  assert.deepEqual(ids(store), ["cl-a", "cl-b"]);
});

test("a known capsule that a listing lacks is removed", () => {
  const store = new CapsuleStore();
  store.listed([capsule("cl-a"), capsule("cl-b")], none);
  store.listed([capsule("cl-b")], store.knownIds());
  assert.deepEqual(ids(store), ["cl-b"]);
});

test("an operation is shown while it runs, and not after it has failed", async () => {
  const store = new CapsuleStore();
  const marked = () => store.operations.value.get("cl-a");
  await store.during("cl-a", "pausing", async () => assert.equal(marked(), "pausing"));
  assert.equal(marked(), undefined);
  await assert.rejects(store.during("cl-a", "resuming", () => Promise.reject(new Error("no"))));
  assert.equal(marked(), undefined);
});

/** Steps of a service with changing capsules, whose answer to a listing may be late. */
const step = fc.oneof(
  fc.record({ kind: fc.constant("create" as const) }),
  fc.record({ kind: fc.constant("change" as const), which: fc.nat() }),
  fc.record({ kind: fc.constant("destroy" as const), which: fc.nat() }),
  fc.record({ kind: fc.constant("ask" as const) }),
  fc.record({ kind: fc.constant("answer" as const) }),
);

test("whatever changes during a listing, the store ends in the state of the service", () => {
  fc.assert(
    fc.property(fc.array(step, { maxLength: 40 }), (steps) => {
      const store = new CapsuleStore();
      const service = new Map<string, CapsuleInfo>();
      let asked: { answer: CapsuleInfo[]; before: ReadonlySet<string> } | undefined;
      let now = 0;
      const pick = (which: number) => [...service.keys()][which % service.size];
      const ask = () => ({ answer: [...service.values()], before: store.knownIds() });
      for (const [index, each] of steps.entries()) {
        now++;
        if (each.kind === "ask") asked ??= ask();
        else if (each.kind === "answer" && asked !== undefined) {
          store.listed(asked.answer, asked.before);
          asked = undefined;
        } else if (each.kind === "create") {
          service.set(`cl-${index}`, capsule(`cl-${index}`, { at: now }));
          store.changed(service.get(`cl-${index}`)!);
        } else if ((each.kind === "change" || each.kind === "destroy") && service.size > 0) {
          const id = pick(each.which)!;
          if (each.kind === "destroy") {
            service.delete(id);
            store.removed(id);
          } else {
            service.set(id, capsule(id, { at: now, status: "paused" }));
            store.changed(service.get(id)!);
          }
        }
      }
      const last = asked ?? ask();
      store.listed(last.answer, last.before);
      const sorted = (all: Iterable<CapsuleInfo>) => [...all].sort((a, b) => (a.id < b.id ? -1 : 1));
      assert.deepEqual(sorted(store.capsules.value!), sorted(service.values()));
    }),
  );
});
