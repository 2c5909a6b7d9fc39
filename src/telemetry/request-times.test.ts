import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { Histogram, Registry } from "prom-client";
import { RequestTimes } from "./request-times.ts";

const bounds = [0.001, 0.01, 0.1, 1];
const about = { name: "request_seconds", help: "How long." };

test("what a scrape reads is what prom-client's histogram would have said", async () => {
  const seconds = fc.oneof(fc.constantFrom(0, ...bounds), fc.double({ min: 0, max: 2, noNaN: true }));
  const requests = fc.array(
    fc.tuple(fc.constantFrom("GET", "POST"), fc.constantFrom("/a", "/b/:id"), fc.constantFrom(200, 404), seconds),
    { maxLength: 60 },
  );
  await fc.assert(
    fc.asyncProperty(requests, async (observed) => {
      const [ours, theirs] = [new Registry(), new Registry()];
      const times = new RequestTimes(about.name, about.help, bounds);
      ours.registerMetric(times.metric);
      const labelNames = ["method", "route", "status"] as const;
      const histogram = new Histogram({ ...about, labelNames, buckets: bounds, registers: [theirs] });
      for (const [method, route, status, took] of observed) {
        times.observe(method, route, status, took);
        histogram.observe({ method, route, status }, took);
      }
      const lines = async (registry: Registry) => (await registry.metrics()).split("\n").sort();
      assert.deepEqual(await lines(ours), await lines(theirs));
    }),
    { numRuns: 30 },
  );
});
