/**
 * Prints both errors of a failed test whose `await using` fails as well. JavaScript wraps them in a SuppressedError, of
 * which the runner prints only "An error was suppressed during disposal".
 */
import { afterEach, type SuiteContext, type TestContext } from "node:test";

const depthMax = 8;

afterEach((test: TestContext | SuiteContext) => {
  const suppressed = outcomeOf(test).error?.cause;
  if (suppressed instanceof SuppressedError) for (const text of reasons(suppressed)) test.diagnostic(text);
});

/** The result that the runner passes to hooks, which is missing in Node's types. */
export function outcomeOf(test: TestContext | SuiteContext): { passed: boolean; error?: Error | null } {
  return test as SuiteContext;
}

/** The stacks of all errors, in the order in which they were thrown. */
function reasons(error: unknown, depth = 0): string[] {
  if (!(error instanceof SuppressedError) || depth === depthMax) return [String((error as Error)?.stack ?? error)];
  return [...reasons(error.suppressed, depth + 1), ...reasons(error.error, depth + 1)];
}
