/** The fields of each line that a command of the operator prints for programs. */
import assert from "node:assert/strict";
import type { TestContext } from "node:test";

export async function printed(t: Pick<TestContext, "mock">, work: () => Promise<number>): Promise<string[][]> {
  let text = "";
  const write = t.mock.method(process.stdout, "write", (part: string, done?: () => void) => {
    text += part;
    done?.();
    return true;
  });
  try {
    assert.equal(await work(), 0);
  } finally {
    write.mock.restore();
  }
  return text
    .trimEnd()
    .split("\n")
    .map((line) => line.split("\t"));
}
