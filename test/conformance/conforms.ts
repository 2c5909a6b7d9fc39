/**
 * Tests with a deadline, in sections; and those that stand for rows of the specification. suite.test.ts asks which rows
 * had one.
 */
import { describe, test as nodeTest, type TestContext } from "node:test";
import type { Row } from "./specification.ts";

const covered = new Map<Row, string[]>();
/** After this a test counts as hanging. The longest take half a minute on a quiet machine, and none depends on speed. */
const patienceMs = 180_000;

export interface ConformOptions {
  timeoutMs?: number;
  /** Why it cannot run here. */
  skip?: string | false;
}

type Body = (t: TestContext) => void | Promise<void>;

/**
 * Tests one after the other, while other sections run on the same server: what they look at must be their own. Calling
 * what comes back adds them to the run; where their `module` is the program, they are added at once.
 */
export function section(module: ImportMeta, name: string, body: () => void): () => void {
  return begun(module, () => void describe(name, { concurrency: false }, body));
}

/** A section whose tests run at the same time. */
export function simultaneously(module: ImportMeta, name: string, body: () => void): () => void {
  return begun(module, () => void describe(name, { concurrency: true }, body));
}

function begun({ main }: ImportMeta, begin: () => void): () => void {
  if (main) begin();
  return begin;
}

/** As node:test's, with a deadline. */
export function test(name: string, body: Body, { timeoutMs = patienceMs, skip = false }: ConformOptions = {}): void {
  nodeTest(name, { timeout: timeoutMs, skip }, body);
}

/** `sentence` is the specification's own, or what it comes to. */
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

/** The names of the tests that have stood for the row. */
export function testsOf(row: Row): readonly string[] {
  return covered.get(row) ?? [];
}

function cover(rows: Row[], name: string): void {
  for (const row of rows) covered.set(row, [...testsOf(row), name]);
}
