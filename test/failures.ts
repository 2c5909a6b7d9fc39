/**
 * What a failed test says. When the end of an `await using` fails as well, the language keeps both errors inside a third,
 * of which the runner prints nothing but "An error was suppressed during disposal".
 */
import { afterEach, type SuiteContext, type TestContext } from "node:test";

const depthMax = 8;

afterEach((test: TestContext | SuiteContext) => {
  const suppressed = outcomeOf(test).error?.cause;
  if (suppressed instanceof SuppressedError) for (const text of reasons(suppressed)) test.diagnostic(text);
});

/** Its types lack what the runner gives to hooks. */
export function outcomeOf(test: TestContext | SuiteContext): { passed: boolean; error?: Error | null } {
  return test as SuiteContext;
}

/** What went wrong, the first first. */
function reasons(error: unknown, depth = 0): string[] {
  if (!(error instanceof SuppressedError) || depth === depthMax) return [String((error as Error)?.stack ?? error)];
  return [...reasons(error.suppressed, depth + 1), ...reasons(error.error, depth + 1)];
}
