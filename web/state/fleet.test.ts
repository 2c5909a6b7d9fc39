import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import type { CapsuleInfo } from "../../src/sdk/sdk.ts";
import { Fleet } from "./fleet.ts";

const time = (step: number) => new Date(Date.UTC(2026, 0, 1) + step * 1_000).toISOString();

function capsule(id: string, { at = 0, status = "running" as CapsuleInfo["status"] } = {}): CapsuleInfo {
  return {
    id,
    status,
    template: "minimal",
    vcpus: 1,
    memoryMb: 512,
    timeoutSec: 0,
    createdAt: time(0),
    lastUpdated: time(at),
    startedAt: null,
    lastActiveAt: null,
    errorReason: null,
  };
}

const none: ReadonlySet<string> = new Set();
const ids = (fleet: Fleet) => fleet.capsules.value?.map(({ id }) => id);

test("nothing is known before the first listing, and an unlisted capsule is none after it", () => {
  const fleet = new Fleet();
  assert.equal(fleet.find("cl-a"), undefined);
  fleet.listed([], none);
  assert.equal(fleet.find("cl-a"), null);
});

test("the newest capsule comes first", () => {
  const fleet = new Fleet();
  fleet.listed([capsule("cl-old"), { ...capsule("cl-new"), createdAt: time(9) }], none);
  assert.deepEqual(ids(fleet), ["cl-new", "cl-old"]);
});

test("a listing that is older than an event does not undo it", () => {
  const fleet = new Fleet();
  fleet.listed([capsule("cl-a", { at: 1 })], none);
  const before = fleet.knownIds();
  fleet.changed(capsule("cl-a", { at: 2, status: "paused" }));
  fleet.changed(capsule("cl-b", { at: 2 }));
  fleet.removed("cl-c");
  fleet.listed([capsule("cl-a", { at: 1 }), capsule("cl-c", { at: 1 })], before);
  assert.equal(fleet.find("cl-a")?.status, "paused");
  assert.deepEqual(ids(fleet), ["cl-a", "cl-b"]);
});

test("what was known and is listed no more is gone", () => {
  const fleet = new Fleet();
  fleet.listed([capsule("cl-a"), capsule("cl-b")], none);
  fleet.listed([capsule("cl-b")], fleet.knownIds());
  assert.deepEqual(ids(fleet), ["cl-b"]);
});

test("a capsule is marked while something is done to it, also when that fails", async () => {
  const fleet = new Fleet();
  const marked = () => fleet.doing.value.get("cl-a");
  await fleet.during("cl-a", "pausing", async () => assert.equal(marked(), "pausing"));
  assert.equal(marked(), undefined);
  await assert.rejects(fleet.during("cl-a", "resuming", () => Promise.reject(new Error("no"))));
  assert.equal(marked(), undefined);
});

/** A service whose capsules come, change and go, and a listing that is answered later than it was asked for. */
const step = fc.oneof(
  fc.record({ kind: fc.constant("create" as const) }),
  fc.record({ kind: fc.constant("change" as const), which: fc.nat() }),
  fc.record({ kind: fc.constant("destroy" as const), which: fc.nat() }),
  fc.record({ kind: fc.constant("ask" as const) }),
  fc.record({ kind: fc.constant("answer" as const) }),
);

test("whatever happens while a listing is on its way, the fleet ends as the service", () => {
  fc.assert(
    fc.property(fc.array(step, { maxLength: 40 }), (steps) => {
      const fleet = new Fleet();
      const service = new Map<string, CapsuleInfo>();
      let asked: { answer: CapsuleInfo[]; before: ReadonlySet<string> } | undefined;
      let now = 0;
      const pick = (which: number) => [...service.keys()][which % service.size];
      const ask = () => ({ answer: [...service.values()], before: fleet.knownIds() });
      for (const [index, each] of steps.entries()) {
        now++;
        if (each.kind === "ask") asked ??= ask();
        else if (each.kind === "answer" && asked !== undefined) {
          fleet.listed(asked.answer, asked.before);
          asked = undefined;
        } else if (each.kind === "create") {
          service.set(`cl-${index}`, capsule(`cl-${index}`, { at: now }));
          fleet.changed(service.get(`cl-${index}`)!);
        } else if ((each.kind === "change" || each.kind === "destroy") && service.size > 0) {
          const id = pick(each.which)!;
          if (each.kind === "destroy") {
            service.delete(id);
            fleet.removed(id);
          } else {
            service.set(id, capsule(id, { at: now, status: "paused" }));
            fleet.changed(service.get(id)!);
          }
        }
      }
      const last = asked ?? ask();
      fleet.listed(last.answer, last.before);
      const sorted = (all: Iterable<CapsuleInfo>) => [...all].sort((a, b) => (a.id < b.id ? -1 : 1));
      assert.deepEqual(sorted(fleet.capsules.value!), sorted(service.values()));
    }),
  );
});
