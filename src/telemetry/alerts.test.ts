/** The alert rules of deploy/alerts.yml name metrics, labels and settings that exist. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { test } from "node:test";
import { fakeService } from "../../test/fakes/fake-service.ts";
import { configHelp } from "../config.ts";
import { Metrics } from "./metrics.ts";

const rules = readFileSync(resolve(import.meta.dirname, "../../deploy/alerts.yml"), "utf8");
const expressions = [...rules.matchAll(/^ +expr: (.+)$/gm)].map(([, expression]) => expression!);
/** Each metric with its labels, as written. */
const selectors = expressions.flatMap((each) => [...each.matchAll(/([a-z_]+_[a-z_0-9]+|\bup\b)(?:\{([^}]*)\})?/g)]);
/** A target's own in Prometheus. */
const ofTarget = ['job="capsule"'];

/** The text of /metrics after each event that a rule asks for. */
async function exposed(): Promise<string> {
  const { health } = fakeService();
  const metrics = new Metrics({
    state: () => health.state(),
    vmMemory: async () => ({ vms: 0, rssBytes: 0, pssBytes: 0 }),
    spareBytes: () => -1,
    lostFolders: () => 1,
    adopting: () => 0,
  });
  metrics.statusReached("error");
  metrics.pausedUnderPressure("done");
  await assert.rejects(metrics.observe("pause", "cl-a", () => Promise.reject(new Error("failed"))));
  return metrics.text();
}

test("each metric of a rule exists, with the labels that the rule asks for", async () => {
  const lines = (await exposed()).split("\n");
  assert.ok(selectors.length >= expressions.length);
  for (const [written, name, labels = ""] of selectors) {
    if (name === "up") continue;
    const pairs = labels.split(",").filter((pair) => pair !== "" && !ofTarget.includes(pair));
    const sample = lines.find(
      (line) => /^[a-z_0-9]+/.exec(line)?.[0] === name && pairs.every((pair) => line.includes(pair)),
    );
    assert.ok(sample !== undefined, `${written} is not among the metrics`);
  }
});

test("each rule has a severity, a sentence and a remedy, and settings that exist", () => {
  assert.equal(expressions.length, 7);
  for (const part of ["alert", "expr", "labels", "summary", "remedy"])
    assert.equal(rules.match(new RegExp(`\\b${part}: \\S`, "g"))?.length, expressions.length, part);
  for (const [name] of rules.matchAll(/CAPSULE_[A-Z_]+/g)) assert.ok(configHelp().includes(name), name);
});
