import assert from "node:assert/strict";
import { test } from "node:test";
import { shownStep } from "./shown-step.ts";

/** All that a step of 2.5 s writes. */
function written(isTTY: boolean, tick: (ms: number) => void): string[] {
  const texts: string[] = [];
  const end = shownStep({ isTTY, write: (text: string) => texts.push(text) > 0 })("building the kernel …");
  tick(2_500);
  end();
  tick(5_000);
  return texts;
}

test("a step has a line, with its seconds on a terminal, which is erased at its end", (t) => {
  t.mock.timers.enable({ apis: ["setInterval"] });
  const tick = (ms: number) => t.mock.timers.tick(ms);
  const line = "building the kernel …";
  assert.deepEqual(written(true, tick), [line, `\r${line} 1 s`, `\r${line} 2 s`, "\r\x1b[K"]);
  assert.deepEqual(written(false, tick), [`${line}\n`]);
});
