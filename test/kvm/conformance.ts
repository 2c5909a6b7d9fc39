/** The conformance suite, from outside, through the forwarded port. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { join } from "node:path";
import { test } from "node:test";
import { isLong } from "./kvm-form.ts";
import type { KvmWorld } from "./kvm-world.ts";

const suite = join(import.meta.dirname, "../conformance/suite.test.ts");
/** Sections of the short form: those in which KVM matters most. */
const share = ["pause and resume", "stopped and error"];
const leastPassed = isLong ? 250 : 8;
const keptBytes = 65_536;

export function conformance(world: () => KvmWorld): void {
  test(`conformance${isLong ? "" : `, of ${share.join(", ")}`}`, { timeout: 3_600_000 }, async (t) => {
    await world().machine.setClock();
    const patterns = isLong ? [] : share.map((name) => `--test-name-pattern=the service ${name}`);
    const { CAPSULE_KVM, NODE_TEST_CONTEXT, ...environment } = process.env;
    const { url, key } = world().client;
    const child = spawn(process.execPath, ["--test", "--test-reporter=spec", ...patterns, suite], {
      env: { ...environment, CAPSULE_URL: url, CAPSULE_API_KEY: key },
      stdio: ["ignore", "pipe", "inherit"],
      signal: t.signal,
    });
    let said = "";
    child.stdout.setEncoding("utf8").on("data", (text: string) => {
      said = (said + text).slice(-keptBytes);
    });
    const code = await new Promise((resolve, reject) => child.once("close", resolve).once("error", reject));
    const [passed, failed] = ["pass", "fail"].map((name) => new RegExp(`^ℹ ${name} (\\d+)$`, "m").exec(said)?.[1]);
    t.diagnostic(`${passed} passed, ${failed} failed`);
    for (const title of new Set(said.match(/✖ .*(?= \()/g))) t.diagnostic(title);
    assert.equal(code, 0, said.slice(said.indexOf("failing tests")));
    assert.ok(Number(passed) >= leastPassed, `${passed} passed`);
  });
}
