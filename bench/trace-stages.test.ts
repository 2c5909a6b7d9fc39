import assert from "node:assert/strict";
import { test } from "node:test";
import { traceOf } from "./trace-stages.ts";

const ms = 1_000_000;

test("stages are the times between marks, by the p50 of samples whose marks have the commonest order", () => {
  const marks = [
    { atNs: 1 * ms, what: "a" },
    { atNs: 3 * ms, what: "b" },
    { atNs: 12 * ms, what: "a" },
    { atNs: 13 * ms, what: "b" },
    { atNs: 21 * ms, what: "b" },
    { atNs: 22 * ms, what: "a" },
    { atNs: 95 * ms, what: "unrelated" },
  ];
  const samples = [0, 10, 20].map((at) => ({ beganNs: at * ms, endedNs: (at + 5) * ms }));
  assert.deepEqual(traceOf("it", marks, samples), {
    name: "it",
    samples: 2,
    stages: [
      { until: "a", p50Ms: 2 },
      { until: "b", p50Ms: 2 },
      { until: "the client has the answer", p50Ms: 2 },
    ],
  });
});

test("nothing seen is no stage", () => {
  assert.deepEqual(traceOf("it", [], []), { name: "it", stages: [], samples: 0 });
});
