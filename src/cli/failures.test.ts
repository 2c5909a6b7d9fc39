/** The advice after an error, which branches on the details that the service sends. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Quotas } from "../capsules/quotas.ts";
import { ConfigError } from "../config.ts";
import { ServiceError } from "../sdk/sdk.ts";
import { CapsuleError, type ErrorCode } from "../wire/errors.ts";
import { adviceOn, report } from "./failures.ts";

const advice = (code: ErrorCode, details?: Record<string, unknown>) =>
  adviceOn("create", new ServiceError(code, "said", { details }), "http://127.0.0.1:8080") ?? "";

interface Spent {
  capsules?: number;
  runningVcpus?: number;
  runningMemoryMb?: number;
  bytes?: number;
  templates?: number;
  starts?: number;
}

/** The details of the quota's own refusal when the team uses this much of limits of 10. */
function refusal({ bytes = 0, templates = 0, starts = 0, ...running }: Spent): Record<string, unknown> | undefined {
  const limits = { capsules: 10, runningVcpus: 10, runningMemoryMb: 10, diskBytes: 10, templates: 10, starts: 10 };
  const quotas = new Quotas({
    rows: { usage: () => ({ capsules: 0, runningVcpus: 0, runningMemoryMb: 0, ...running }), idsOf: () => [] },
    templates: { sizes: () => ({ bytes, named: templates }) },
    ...{ limits: { ...limits, hostMemoryMb: 4_096 }, diskOf: () => 0, runningMemoryMb: () => 0 },
  } as never);
  for (let i = 0; i < starts; i++) void quotas.duringStart("a", () => new Promise(() => {}));
  try {
    if (templates > 0) quotas.requireCapture("a", { isNew: true, capturing: 0 });
    else quotas.requireCreate("a", { vcpus: 1, memoryMb: 1 });
  } catch (error) {
    assert.ok(error instanceof CapsuleError && error.code === "quota_exceeded", String(error));
    return error.details;
  }
  return assert.fail("nothing was refused");
}

test("an error of several lines keeps them, and a line break from outside is escaped", (t) => {
  const written: string[] = [];
  t.mock.method(process.stderr, "write", (text: string) => written.push(text) > 0);
  const problems = ["CAPSULE_PORT must be a whole number", "CAPSULE_HOST holds \x1b and a\nline"];
  const options = { isJson: false, url: "" };
  report("serve", new ConfigError(problems), options);
  report("exec", new ServiceError("not_found", "no\nsuch file"), options);
  t.mock.restoreAll();
  assert.equal(
    written.join(""),
    "capsule serve: the configuration cannot be used:\n  CAPSULE_PORT must be a whole number\n" +
      "  CAPSULE_HOST holds \\u001b and a\\u000aline\ncapsule exec: no\\u000asuch file\n",
  );
});

test("the advice on a quota names what frees that quota", () => {
  const expected: [Spent, RegExp][] = [
    [{ runningVcpus: 10 }, /Remove or pause some/],
    [{ runningMemoryMb: 10 }, /Remove or pause some/],
    [{ capsules: 10 }, /your capsules\. Remove some/],
    [{ templates: 10 }, /your templates\. Delete some/],
    [{ bytes: 10 }, /Destroy capsules, .* fstrim/],
    [{ starts: 10 }, /^Wait until/],
  ];
  for (const [spent, pattern] of expected) assert.match(advice("quota_exceeded", refusal(spent)), pattern);
  assert.match(advice("quota_exceeded"), /Wait/, "of requests or sockets");
});

test("the advice on a lack of space names the disk that is full", () => {
  assert.match(advice("no_space", { shortage: "quota" }), /your team uses.* fstrim/);
  assert.match(advice("no_space", { shortage: "reserve" }), /^The server's disk/);
  assert.match(advice("no_space", { needed_bytes: 2, free_bytes: 1 }), /^The server's disk/);
  assert.match(advice("no_space"), /the capsule's disk: .* df/);
});
