import assert from "node:assert/strict";
import { test } from "node:test";
import { copyDeadlineMs } from "./copy-deadline.ts";

test("the deadline of a copy grows with its size: 24 GiB have time on a disk of 100 MB/s that four copies share", () => {
  const bytes = 24 * 2 ** 30;
  assert.ok(copyDeadlineMs(bytes) > (bytes / 25_000_000) * 1_000);
  assert.equal(copyDeadlineMs(0), 120_000);
});
