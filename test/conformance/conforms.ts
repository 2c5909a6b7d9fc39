/** A test that stands for rows of the specification; sections/coverage.ts asks which rows had one. */
import { type TestContext, test } from "node:test";
import type { Row } from "./specification.ts";

const covered = new Map<Row, string[]>();
const patienceMs = 60_000;

export interface ConformOptions {
  timeoutMs?: number;
  /** Why it cannot run here. */
  skip?: string | false;
}

/** `sentence` is the specification's own, or what it comes to. */
export function conforms(
  rows: Row | Row[],
  sentence: string,
  body: (t: TestContext) => void | Promise<void>,
  { timeoutMs = patienceMs, skip = false }: ConformOptions = {},
): void {
  const list = [rows].flat();
  const name = list.length === 1 ? `${list[0]}: ${sentence}` : sentence;
  test(name, { timeout: timeoutMs, skip }, async (t) => {
    await body(t);
    cover(list, name);
  });
  if (skip !== false) cover(list, `${name} (skipped: ${skip})`);
}

/** The names of the tests that have stood for the row. */
export function testsOf(row: Row): readonly string[] {
  return covered.get(row) ?? [];
}

function cover(rows: Row[], name: string): void {
  for (const row of rows) covered.set(row, [...testsOf(row), name]);
}
