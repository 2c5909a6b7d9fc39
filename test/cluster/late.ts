/** An answer of the database that comes late. */
import type { TestContext } from "node:test";
import type { FakeHostOfCluster } from "./fake-hosts.ts";

/** Between the database's answer to the first statement with this text and the host's hearing of it, `meanwhile` runs. */
export function late(
  t: TestContext,
  { sql }: FakeHostOfCluster,
  text: string,
  meanwhile: () => Promise<unknown>,
): void {
  const query = sql.query.bind(sql);
  let isOver = false;
  t.mock.method(sql, "query", async (...args: Parameters<typeof query>) => {
    const answer = await query(...args);
    if (isOver || !args[0].includes(text)) return answer;
    isOver = true;
    await meanwhile();
    return answer;
  });
}
