/** `capsule keys` as a team's member uses it: the team's own keys, through the service. */
import { type Call, UsageError } from "./command.ts";
import { exitCodes } from "./failures.ts";
import { ago, note, printJson, printLine, table } from "./screen.ts";

export async function keys(call: Call): Promise<number> {
  const [verb = "ls", ...rest] = call.words;
  const client = await call.client();
  if (verb === "ls" && rest.length === 0) {
    const list = await client.keys.list();
    if (call.isJson) await printJson(list);
    else {
      const rows = list.map(({ id, name, prefix, createdAt, lastUsedAt, expiresAt, current }) => [
        id,
        current ? `${name} (this one)` : name,
        prefix === null ? "-" : `${prefix}…`,
        ago(createdAt),
        ago(lastUsedAt),
        expiresAt ?? "never",
      ]);
      await printLine(table(["ID", "NAME", "BEGINS", "CREATED", "USED", "EXPIRES"], rows));
    }
    return exitCodes.done;
  }
  if (verb === "new" && rest.length === 1) {
    const made = await client.keys.create(rest[0]!);
    if (call.isJson) await printJson(made);
    else await printLine(made.key);
    if (process.stdout.isTTY) note("It is not shown again.");
    return exitCodes.done;
  }
  if (verb === "rm" && rest.length > 0) {
    for (const id of rest) {
      await client.keys.revoke(id);
      await (call.isJson ? printJson({ id }) : printLine(id));
    }
    return exitCodes.done;
  }
  throw new UsageError("it is keys ls, keys new NAME, or keys rm KEY_ID…");
}
