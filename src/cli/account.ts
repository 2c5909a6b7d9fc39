/** What a key may do and see: limits, open. */
import type { Call } from "./command.ts";
import { exitCodes } from "./failures.ts";
import { note, printJson, printLine, table } from "./screen.ts";

export async function limits(call: Call): Promise<number> {
  const list = await (await call.client()).request<Record<string, unknown>>({ method: "GET", path: "/v1/limits" });
  if (call.isJson) await printJson(list);
  else await printLine(table(["LIMIT", "VALUE"], flat(list)));
  return exitCodes.done;
}

/** Groups within groups, as one list of names. */
function flat(values: Record<string, unknown>, prefix = ""): string[][] {
  return Object.entries(values).flatMap(([name, value]) =>
    value !== null && typeof value === "object"
      ? flat(value as Record<string, unknown>, `${prefix}${name}.`)
      : [[`${prefix}${name}`, value === null ? "none" : String(value)]],
  );
}

export async function open(call: Call): Promise<number> {
  const link = await (await call.client()).signInLink();
  if (call.isJson) await printJson(link);
  else await printLine(link.url);
  if (process.stdout.isTTY && !call.isJson) note(`It signs you in once, until ${link.expiresAt}.`);
  return exitCodes.done;
}
