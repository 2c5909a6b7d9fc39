/**
 * Conformance tests with a deadline, in sections, and a record of which rows of the specification have a test.
 * suite.test.ts checks that all have.
 */
import { describe, test as nodeTest, type TestContext } from "node:test";
import type { Row } from "./specification.ts";

const covered = new Map<Row, string[]>();
/** A test that takes longer hangs. The longest take half a minute on an idle machine, and a busy one is twenty times slower. */
const deadlineMs = 600_000;

export interface ConformOptions {
  timeoutMs?: number;
  /** The reason for skipping the test. */
  skip?: string | false;
}

type Body = (t: TestContext) => void | Promise<void>;

/**
 * A section of sequential tests. Other sections run on the same server at the same time, so tests use their own
 * capsules. Calling the returned function adds the section to the run; a section whose `module` is the program is added
 * at once.
 */
export function section(module: ImportMeta, name: string, body: () => void): () => void {
  return started(module, () => void describe(name, { concurrency: false }, body));
}

/** A section whose tests run at the same time. */
export function simultaneously(module: ImportMeta, name: string, body: () => void): () => void {
  return started(module, () => void describe(name, { concurrency: true }, body));
}

function started({ main }: ImportMeta, start: () => void): () => void {
  if (main) start();
  return start;
}

/** node:test's `test` with a deadline. */
export function test(name: string, body: Body, { timeoutMs = deadlineMs, skip = false }: ConformOptions = {}): void {
  nodeTest(name, { timeout: timeoutMs, skip }, body);
}

/** A test of rows of the specification. `sentence` quotes or summarizes them. A skipped test counts for its rows. */
export function conforms(rows: Row | Row[], sentence: string, body: Body, options: ConformOptions = {}): void {
  const list = [rows].flat();
  const name = list.length === 1 ? `${list[0]}: ${sentence}` : sentence;
  const run = async (t: TestContext) => {
    await body(t);
    cover(list, name);
  };
  test(name, run, options);
  if (options.skip) cover(list, `${name} (skipped: ${options.skip})`);
}

/** Names of the tests of a row that passed or were skipped. */
export function testsOf(row: Row): readonly string[] {
  return covered.get(row) ?? [];
}

function cover(rows: Row[], name: string): void {
  for (const row of rows) covered.set(row, [...testsOf(row), name]);
}
